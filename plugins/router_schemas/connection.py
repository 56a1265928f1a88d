"""Say how a registry is reached, and what it may answer when it gives nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from router import RouterError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema
    from typing_extensions import Self

_TEXT_OF_A_HEADER = re.compile(r"[\x20-\x7e]+")
_NAME_OF_A_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2


class RegistryError(RouterError):
    """Report a registry that gave no schema: `where` is the URL that was asked, `status` its answer (0: none)."""

    def __init__(self, where: str, what: str, status: int = 0) -> None:
        super().__init__(where, what, status)
        self.where = where
        self.what = what
        self.status = status

    def __str__(self) -> str:
        return f"schema registry {self.where}: {self.what}"


class NotFound(RegistryError):  # noqa: N818 - the three names say what happened
    """Report that the registry has no such schema, or one that is of no use here."""


class RegistryAway(RegistryError):  # noqa: N818
    """Report a registry that cannot answer now: ask again later. Says nothing about the schema."""


class RegistryRefuses(RegistryError):  # noqa: N818
    """Report an answer that will not change until somebody changes a configuration."""


class Secret(SecretStr):
    """Hold a text that is shown nowhere and stays in this process: a pickle of it is empty.

    Only the driver asks a registry, so plans and tasks, which travel, need no secret.
    """

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, ("",)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Basic(_Options):
    """Log in with user and password (RFC 7617)."""

    user: str = Field(min_length=1, pattern=r"^[^:]+$", description="name, without a colon")
    password: Secret = Field(min_length=1, description="password; write ${VARIABLE}")


class OAuth(_Options):
    """Log in with a token that a token server gives for client credentials (RFC 6749, 4.4)."""

    token_url: str = Field(description="http(s) URL of the token server")
    client_id: str = Field(min_length=1, description="identifier of this client")
    client_secret: Secret = Field(min_length=1, description="secret of this client; write ${VARIABLE}")
    scope: str = Field(default="", description="scopes to ask for, with blanks between them")

    @field_validator("token_url")
    @classmethod
    def _plain(cls, url: str) -> str:
        return _checked_url(url, query=True)


class Registry(_Options):
    """Say where a Confluent-compatible schema registry is and how to log in. A bare URL, or a list, is enough."""

    url: tuple[str, ...] = Field(
        min_length=1,
        description="http(s) URL of its API, with the path if it has one (Apicurio: .../apis/ccompat/v7; a context: "
        ".../contexts/.name); several are tried in turn, the one that answered first",
    )
    basic: Basic | None = Field(default=None, description="user and password")
    bearer: Secret | None = Field(default=None, min_length=1, description="a token that does not expire")
    oauth: OAuth | None = Field(default=None, description="client credentials for a token server")
    certificate: str | None = Field(default=None, min_length=1, description="PEM file with this client's certificate")
    key: str | None = Field(
        default=None, min_length=1, description="PEM file with the certificate's key, if it is not in the same file"
    )
    ca: str | None = Field(
        default=None, min_length=1, description="PEM file with the authorities to trust, in place of the usual ones"
    )
    insecure_skip_tls_verification: bool = Field(
        default=False, description="trust any server: whoever stands in between reads the secrets; for trials only"
    )
    headers: dict[str, Secret] = Field(default_factory=dict, description="further headers of every request")
    timeout: float = Field(
        default=10.0, gt=0, le=600, allow_inf_nan=False, description="seconds to connect, and seconds for an answer"
    )
    attempts: int = Field(
        default=3, ge=1, le=20, description="rounds over the URLs before the registry counts as away, with short pauses"
    )

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        given = {"url": value} if isinstance(value, str | list | tuple) else value
        if isinstance(given, dict) and isinstance(given.get("url"), str):
            return {**given, "url": [given["url"]]}
        return given

    @field_validator("url")
    @classmethod
    def _plain(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_checked_url(url).rstrip("/") for url in urls)

    @field_validator("bearer")
    @classmethod
    def _sendable(cls, token: Secret | None) -> Secret | None:
        if token is not None and not _TEXT_OF_A_HEADER.fullmatch(token.get_secret_value()):
            raise ValueError("a token is printable ASCII")
        return token

    @field_validator("headers")
    @classmethod
    def _headers(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        for name, value in headers.items():
            if not _NAME_OF_A_HEADER.fullmatch(name) or not _TEXT_OF_A_HEADER.fullmatch(value.get_secret_value()):
                raise ValueError("a header has a token as its name and printable ASCII as its value")
        return headers

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        logins = {"basic": self.basic, "bearer": self.bearer, "oauth": self.oauth}
        given = [name for name, value in logins.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"give at most one of basic, bearer, oauth; {' and '.join(given)} are given")
        if self.key and not self.certificate:
            raise ValueError("a key needs its certificate")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Tell editors that a bare URL, or a list of them, may be written."""
        bare: list[JsonSchemaValue] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        options = handler(schema)
        url = options["properties"]["url"]
        both = {"anyOf": bare, "description": url.pop("description", "")}
        return {"anyOf": [*bare, {**options, "properties": {**options["properties"], "url": both}}]}

    def beside(self, folder: Path) -> Registry:
        """Return this registry with its files looked for in `folder`, the configuration's."""
        files = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        return self.model_copy(update={name: str(folder / file) for name, file in files.items() if file})

    @property
    def verify(self) -> bool | str:
        """Return what `requests` takes as `verify`."""
        return False if self.insecure_skip_tls_verification else self.ca or True

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return every secret text, to keep it out of messages; empty ones come of a copy that travelled."""
        found = [self.bearer, *self.headers.values()]
        found += [self.basic.password] if self.basic else []
        found += [self.oauth.client_secret] if self.oauth else []
        return tuple(secret.get_secret_value() for secret in found if secret is not None)


def _checked_url(url: str, *, query: bool = False) -> str:
    """Return a URL that can be shown in messages; never quote it in the refusal, for it may hold a password."""
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
