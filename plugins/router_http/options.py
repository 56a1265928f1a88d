"""How a server is reached, as people write it: URLs and headers, logins, TLS; and the error of one that is not reached.

Secrets are shown nowhere. Needs no HTTP library: configurations are read without one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from router import RouterError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self


class Secret(SecretStr):
    """A text that is shown nowhere and stays in this process: a pickle of it is empty.

    Only the driver logs in, so plans and tasks, which travel, need no secret.
    """

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, ("",)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self


_WORD_PATTERN = re.compile(r"[^\W\d]{0,11}\d{0,11}|\w{1,3}")
"""A secret that may be a word, a number or a name of a table, and so a part of a longer one."""
_BEFORE_A_WORD = r"(?:(?<!\w)|(?<=%[0-9a-fA-F]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
"""No sign of a word, or an escape of a URL or of JSON."""


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with *** in place of secrets.

    One that may be a word is masked as a whole word only: what remains of a longer one would give it away.
    """
    # The longest first: a short one may be a part of a longer one.
    for secret in sorted(secrets, key=len, reverse=True):
        pattern = re.escape(secret)
        if _WORD_PATTERN.fullmatch(secret):
            pattern = rf"{_BEFORE_A_WORD}{pattern}(?!\w)"
        if secret:
            text = re.sub(pattern, "***", text)
    return text


class SecretOptions(BaseModel):
    """Options that may hold secrets: no message shows what was given."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


_TEXT_OF_A_HEADER = re.compile(r"[\x20-\x7e]+")
_NAME_OF_A_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2


def is_header_name(name: str) -> bool:
    """Say whether a header can have a name."""
    return _NAME_OF_A_HEADER.fullmatch(name) is not None


def is_header_text(text: str) -> bool:
    """Say whether a header can have a value: printable ASCII, and not empty."""
    return _TEXT_OF_A_HEADER.fullmatch(text) is not None


def check_header(name: str, value: Secret) -> None:
    """Raise ValueError, which quotes nothing, for a header that cannot be sent."""
    if not is_header_name(name) or not is_header_text(value.get_secret_value()):
        raise ValueError("a header has a token as its name and printable ASCII as its value")


def checked_url(url: str, *, query: bool = False) -> str:
    """Return a URL that may be shown; raise ValueError, which does not quote it, for one that may hold a password."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or re.search(r"[\s\x00-\x1f\\]", url):
        raise ValueError("a URL is http(s)://host[:port][/path]")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL holds no user and password here: URLs are logged; use `basic`")
    if parts.fragment or (parts.query and not query):
        raise ValueError("a URL holds no query and no fragment here: only the path of the API")
    return url


class Basic(SecretOptions):
    """A login with user and password (RFC 7617)."""

    user: str = Field(min_length=1, pattern=r"^[^:]+$", description="name, without a colon")
    password: Secret = Field(min_length=1, description="password; write ${VARIABLE}")


def checked_token(token: Secret | None) -> Secret | None:
    """Return a token that a header can hold."""
    if token is not None and not is_header_text(token.get_secret_value()):
        raise ValueError("a token is printable ASCII")
    return token


class Tls(SecretOptions):
    """The authorities that a client trusts, the usual ones or others, and the certificate that it shows if asked."""

    certificate: str | None = Field(default=None, min_length=1, description="PEM file with this client's certificate")
    key: str | None = Field(
        default=None, min_length=1, description="PEM file with the certificate's key, if it is not in the same file"
    )
    ca: str | None = Field(
        default=None, min_length=1, description="PEM file with the authorities to trust, instead of the usual ones"
    )
    insecure_skip_tls_verification: bool = Field(
        default=False, description="trust any server: another machine in between can read the secrets; for trials only"
    )

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key needs its certificate")
        return self

    def resolve_paths(self, folder: Path) -> Self:
        """Return these options with paths of files relative to `folder`, the configuration's."""
        return self.model_copy(update={name: str(folder / file) for name, file in self.files.items()})

    @property
    def files(self) -> dict[str, str]:
        """Return the files that are named, by option."""
        named = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        return {name: file for name, file in named.items() if file}

    @property
    def missing_file(self) -> str | None:
        """Return a file that does not exist; None if all do."""
        for name, file in self.files.items():
            if not Path(file).is_file():
                return f"{name}: there is no file {file}"
        return None

    @property
    def verify(self) -> bool | str:
        """Return the argument `verify` of `requests`."""
        if self.insecure_skip_tls_verification:
            return False
        return self.ca or True

    @property
    def cert(self) -> str | tuple[str, str] | None:
        """Return the argument `cert` of `requests`."""
        if self.certificate and self.key:
            return (self.certificate, self.key)
        return self.certificate


class OAuth(SecretOptions):
    """A login with a token that a token server gives for client credentials (RFC 6749, 4.4) or a refresh token (6)."""

    token_url: str = Field(description="http(s) URL of the token server")
    client_id: str = Field(min_length=1, description="identifier of this client")
    client_secret: Secret | None = Field(default=None, min_length=1, description="its secret; write ${VARIABLE}")
    client_auth: Literal["basic", "post"] = Field(
        default="basic", description="where the secret stands: `basic` in a header, `post` in the form"
    )
    private_key: Secret | None = Field(
        default=None, min_length=1, description="PEM key that signs a JWT instead of a secret; write ${file:PATH}"
    )
    key_id: str | None = Field(default=None, min_length=1, description="`kid` of the private key")
    refresh_token: Secret | None = Field(
        default=None, min_length=1, description="token to refresh, instead of client credentials"
    )
    scope: str = Field(default="", description="scopes to ask for, with blanks between them")
    audience: str = Field(default="", description="API that the token is for, if the token server requires it")
    parameters: dict[str, Secret] = Field(default_factory=dict, description="further parameters of the request")
    tls: Tls = Field(default=Tls(), description="`ca` and the like of the token server: those of the API do not count")

    @field_validator("token_url")
    @classmethod
    def _check_token_url(cls, url: str) -> str:
        return checked_url(url, query=True)

    @model_validator(mode="after")
    def _one_proof(self) -> Self:
        if self.client_secret is not None and self.private_key is not None:
            raise ValueError("give one of client_secret and private_key")
        if self.client_secret is None and self.private_key is None and self.refresh_token is None:
            raise ValueError("give client_secret, private_key or refresh_token")
        if self.key_id is not None and self.private_key is None:
            raise ValueError("key_id: it names a private_key, and none is given")
        return self

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Return all texts that are secret."""
        secrets = (self.client_secret, self.private_key, self.refresh_token, *self.parameters.values())
        return tuple(secret for secret in secrets if secret is not None)


class ExchangeError(RouterError):
    """A request without a good answer: `where` is the URL, `status` the answer's (0: there was none)."""

    server: ClassVar[str] = ""
    """What the message calls the server, before its URL."""

    def __init__(self, where: str, what: str, status: int = 0) -> None:
        super().__init__(where, what, status)
        self.where = where
        self.what = what
        self.status = status

    def __str__(self) -> str:
        return f"{self.server}{self.where}: {self.what}"
