"""Say how to log in, as people write it."""

from __future__ import annotations

from pydantic import Field, field_validator

from router_http.addresses import checked_url, is_header_text
from router_http.secret import Secret, SecretOptions


class Basic(SecretOptions):
    """A login with user and password (RFC 7617)."""

    user: str = Field(min_length=1, pattern=r"^[^:]+$", description="name, without a colon")
    password: Secret = Field(min_length=1, description="password; write ${VARIABLE}")


class OAuth(SecretOptions):
    """A login with a token that a token server gives for client credentials (RFC 6749, 4.4)."""

    token_url: str = Field(description="http(s) URL of the token server")
    client_id: str = Field(min_length=1, description="identifier of this client")
    client_secret: Secret = Field(min_length=1, description="secret of this client; write ${VARIABLE}")
    scope: str = Field(default="", description="scopes to ask for, with blanks between them")

    @field_validator("token_url")
    @classmethod
    def _plain(cls, url: str) -> str:
        return checked_url(url, query=True)


def checked_token(token: Secret | None) -> Secret | None:
    """Return a token that a header can hold."""
    if token is not None and not is_header_text(token.get_secret_value()):
        raise ValueError("a token is printable ASCII")
    return token
