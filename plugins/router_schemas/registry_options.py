"""Options to reach a registry, and the errors of one that gives no schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from router_http.options import Basic, ExchangeError, OAuth, Secret, Tls, check_header, checked_token, checked_url

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema
    from typing_extensions import Self


class RegistryError(ExchangeError):
    """A registry that gave no schema."""

    server: ClassVar[str] = "schema registry "


class NotFound(RegistryError):  # noqa: N818 - the three names say what happened
    """The registry has no such schema, or one that is of no use here."""


class WrongKind(NotFound):
    """The registry has the schema, and nothing here reads its type."""


class RegistryAway(RegistryError):  # noqa: N818
    """The registry cannot respond now: try again later. Says nothing about the schema."""


class RegistryRefuses(RegistryError):  # noqa: N818
    """A response that will not change until a configuration is changed."""


class UnusableSchema(Exception):  # noqa: N818 - like NotFound, it says what was found
    """References of a schema that cannot be followed."""


class RegistryOptions(Tls):
    """Where a Confluent-compatible schema registry is and how to log in. A bare URL, or a list, is enough."""

    url: tuple[str, ...] = Field(
        min_length=1,
        description="http(s) URL of its API, with the path if it has one (Apicurio: .../apis/ccompat/v7; a context: "
        ".../contexts/.name); several are tried in turn, the one that answered first",
    )
    basic: Basic | None = Field(default=None, description="user and password")
    bearer: Secret | None = Field(default=None, min_length=1, description="a token that does not expire")
    oauth: OAuth | None = Field(default=None, description="client credentials for a token server")
    headers: dict[str, Secret] = Field(default_factory=dict, description="further headers of every request")
    timeout: float = Field(
        default=10.0, gt=0, le=600, allow_inf_nan=False, description="seconds to connect, and seconds for an answer"
    )
    attempts: int = Field(
        default=3, ge=1, le=20, description="rounds over the URLs, with short pauses, until the registry is unavailable"
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_url(cls, value: Any) -> Any:
        options = value
        if isinstance(value, str | list | tuple):
            options = {"url": value}
        if isinstance(options, dict) and isinstance(options.get("url"), str):
            return {**options, "url": [options["url"]]}
        return options

    @field_validator("url")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_url(url).rstrip("/") for url in urls)

    @field_validator("bearer")
    @classmethod
    def _check_token(cls, token: Secret | None) -> Secret | None:
        return checked_token(token)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        for name, value in headers.items():
            check_header(name, value)
        return headers

    @model_validator(mode="after")
    def _refuse_two_logins(self) -> Self:
        logins = {"basic": self.basic, "bearer": self.bearer, "oauth": self.oauth}
        names = [name for name, value in logins.items() if value is not None]
        if len(names) > 1:
            raise ValueError(f"give at most one of basic, bearer, oauth; {' and '.join(names)} are given")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return a JSON Schema for editors that also accepts a bare URL, or a list of them."""
        bare: list[JsonSchemaValue] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        options = handler(schema)
        url = options["properties"]["url"]
        both = {"anyOf": bare, "description": url.pop("description", "")}
        return {"anyOf": [*bare, {**options, "properties": {**options["properties"], "url": both}}]}

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return every secret text, to keep it out of messages; in another process they are empty."""
        secrets: list[Secret | None] = [self.bearer, *self.headers.values()]
        if self.basic:
            secrets.append(self.basic.password)
        if self.oauth:
            secrets += [self.oauth.client_secret, self.oauth.private_key, self.oauth.refresh_token]
        return tuple(secret.get_secret_value() for secret in secrets if secret is not None)
