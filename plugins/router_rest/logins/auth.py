"""The option `auth` as people write it: how calls log in."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from router import Part, template_fields
from router_http.options import Basic, OAuth, Secret, SecretOptions, checked_token, is_header_name, is_header_text
from router_rest.presets import SIGNATURES, expand_preset

if TYPE_CHECKING:
    from typing_extensions import Self

SIGNED_FIELDS = ("id", "method", "host", "path", "query", "target", "timestamp", "body", "body_hash")
"""The fields that can be signed, each as it is sent: `target` is path?query, `host` has the port if the URL has one."""
HEADER_FIELDS = ("signature", "timestamp")
"""The fields that the value of the signature's header can have."""
_CLASS_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class ApiKey(SecretOptions):
    """A key in a header, or in the query if the API requires it there."""

    header: str | None = Field(default=None, description="name of the header, such as X-Api-Key")
    query: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._~-]+$",
        description="name in the query; servers and proxies write URLs to their logs, with the key",
    )
    value: Secret = Field(min_length=1, description="the key; write ${VARIABLE}")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.header is None) == (self.query is None):
            raise ValueError("give the name of a header or of a part of the query: one of header, query")
        if self.header is not None and not is_header_name(self.header):
            raise ValueError("header: it has a character that no name of a header has")
        if self.header is not None and not is_header_text(self.value.get_secret_value()):
            raise ValueError("value: a key in a header is printable ASCII")
        return self


class Hmac(SecretOptions):
    """A signature of every call, with a key that both sides know (RFC 2104)."""

    key: Secret = Field(min_length=1, description="the key; write ${VARIABLE}")
    key_encoding: Literal["text", "hex", "base64"] = Field(default="text", description="how the key is written")
    algorithm: Literal["sha256", "sha512"] = Field(default="sha256", description="hash of the signature and the body")
    signed: str = Field(
        default="{timestamp}.{body}",
        description=f"what is signed: text with {', '.join(f'{{{name}}}' for name in SIGNED_FIELDS)}",
    )
    encoding: Literal["hex", "base64"] = Field(default="hex", description="how signature and body_hash are written")
    header: str = Field(default="X-Signature", description="header that carries the signature")
    value: str = Field(default="{signature}", description="its value: text with {signature}, {timestamp}")
    timestamp: Literal["seconds", "milliseconds", "iso"] = Field(
        default="seconds", description="time of the call: since 1970, or as 2026-01-31T12:00:00Z"
    )
    timestamp_header: str | None = Field(default="X-Timestamp", description="header that carries the time; null: none")
    body_hash_header: str | None = Field(default=None, description="header that carries the body's hash")
    id_header: str | None = Field(
        default=None,
        description="header that carries the idempotency key instead of the usual one, and is signed as {id}",
    )
    preset: Literal["github", "stripe", "standard_webhooks"] | None = Field(
        default=None, description="options as receivers of these webhooks expect them; each may be given in its place"
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, value: Any) -> Any:
        return expand_preset(value, SIGNATURES)

    @field_validator("header", "timestamp_header", "body_hash_header", "id_header")
    @classmethod
    def _check_header_name(cls, name: str | None) -> str | None:
        if name is not None and not is_header_name(name):
            raise ValueError("it has a character that no name of a header has")
        return name

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        signed = _checked_fields("signed", self.signed, SIGNED_FIELDS)
        sent = _checked_fields("value", self.value, HEADER_FIELDS)
        if "signature" not in sent:
            raise ValueError("value: without {signature} nothing of it is sent")
        if not is_header_text(self.value):
            raise ValueError("value: a header is printable ASCII")
        if "id" in signed and self.id_header is None:
            raise ValueError("the idempotency key is signed and not sent: give id_header")
        if "timestamp" in signed - sent and self.timestamp_header is None:
            raise ValueError("the time is signed and not sent: give timestamp_header, or {timestamp} in value")
        self.key_bytes()
        return self

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the headers that a signature sets."""
        return tuple(name for name in (self.header, self.timestamp_header, self.body_hash_header) if name)

    def key_bytes(self) -> bytes:
        """Return the key's bytes; raise ValueError where it is not written as said."""
        text = self.key.get_secret_value()
        try:
            if self.key_encoding == "hex":
                return bytes.fromhex(text)
            if self.key_encoding == "base64":
                # Standard Webhooks writes `whsec_` before the key.
                return base64.b64decode(text.removeprefix("whsec_"), validate=True)
            return text.encode()
        except ValueError:
            raise ValueError(f"key: it is not {self.key_encoding}") from None


def _checked_fields(option: str, text: str, known: tuple[str, ...]) -> set[str]:
    """Return the fields of a text; raise ValueError for one that there is not."""
    fields = {*template_fields(text)}
    unknown = sorted(fields - {*known})
    if unknown:
        raise ValueError(f"{option}: there is no {{{unknown[0]}}}; known: {', '.join(known)}")
    return fields


class Jwt(SecretOptions):
    """A bearer token that this client signs itself with a private key (RFC 7519), again before it ends."""

    private_key: Secret = Field(
        min_length=1, description="PEM key, RSA (RS256) or of the curve P-256 (ES256); write ${file:PATH}"
    )
    key_id: str | None = Field(default=None, min_length=1, description="`kid` of the key")
    issuer: str = Field(default="", description="claim `iss`")
    subject: str = Field(default="", description="claim `sub`")
    audience: str = Field(default="", description="claim `aud`")
    claims: dict[str, JsonValue] = Field(default_factory=dict, description="further claims: {scope: events}")
    lifetime: float = Field(default=300.0, ge=10, le=86400, description="seconds for which a token is good")


class SigV4(SecretOptions, Part):
    """A signature of every call as AWS requires it (Signature Version 4)."""

    needs: ClassVar[tuple[str, ...]] = ("botocore.auth",)
    extras: ClassVar[Mapping[str, str]] = {"botocore": "spark-event-router[aws]"}

    service: str = Field(min_length=1, description="signing name of the service: execute-api, es, aoss, lambda")
    region: str = Field(min_length=1, description="its region: eu-central-1")
    access_key_id: str | None = Field(
        default=None, min_length=1, description="key to sign with; default: what boto3 finds on the driver, also a role"
    )
    secret_access_key: Secret | None = Field(default=None, min_length=1, description="its secret; write ${VARIABLE}")
    session_token: Secret | None = Field(default=None, min_length=1, description="token of temporary keys")
    profile: str | None = Field(default=None, min_length=1, description="profile of ~/.aws/config on the driver")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key go together")
        if self.access_key_id is None and self.session_token is not None:
            raise ValueError("session_token: it belongs to an access_key_id, and none is given")
        if self.access_key_id is not None and self.profile is not None:
            raise ValueError("give access_key_id or a profile, not both")
        return self


class Auth(SecretOptions):
    """The one way in which calls are authorised."""

    basic: Basic | None = Field(default=None, description="user and password")
    bearer: Secret | None = Field(default=None, min_length=1, description="a token that does not expire")
    api_key: ApiKey | None = Field(default=None, description="a key in a header: {header: X-Api-Key, value: ${KEY}}")
    oauth: OAuth | None = Field(default=None, description="client credentials for a token server")
    hmac: Hmac | None = Field(default=None, description="a signature of every call")
    sigv4: SigV4 | None = Field(default=None, description="a signature of every call as AWS requires it")
    jwt: Jwt | None = Field(default=None, description="a bearer token that a private key signs")
    plugin: str | None = Field(
        default=None, description="package.module:Class of a requests.auth.AuthBase; every task makes one"
    )
    options: dict[str, Secret | bool | int | float | None] = Field(
        default_factory=dict, description="arguments of the plugin's class, by name"
    )

    @field_validator("bearer")
    @classmethod
    def _check_token(cls, token: Secret | None) -> Secret | None:
        return checked_token(token)

    @field_validator("plugin")
    @classmethod
    def _check_class(cls, named: str | None) -> str | None:
        if named is not None and not _CLASS_PATTERN.fullmatch(named):
            raise ValueError("a class is written package.module:Class")
        return named

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [name for name in type(self).model_fields if name != "options" and getattr(self, name) is not None]
        if len(ways) != 1:
            written = "none is given"
            if ways:
                written = f"{' and '.join(ways)} are given"
            raise ValueError(f"give exactly one of basic, bearer, api_key, oauth, hmac, sigv4, jwt, plugin; {written}")
        if self.options and self.plugin is None:
            raise ValueError("options are those of a plugin's class, and no plugin is given")
        return self

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the headers that the login sets; those of a plugin are not known."""
        if self.hmac is not None:
            return self.hmac.headers
        if self.plugin is not None:
            return ()
        if self.api_key is None:
            return ("Authorization",)
        return (self.api_key.header,) if self.api_key.header else ()
