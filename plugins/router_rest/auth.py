"""The option `auth` as people write it: how calls log in."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from router_encoders.templates import Placeholder, parse
from router_http.options import Basic, OAuth, Secret, SecretOptions, checked_token, is_header_name, is_header_text

if TYPE_CHECKING:
    from typing_extensions import Self

SIGNED = ("method", "host", "path", "query", "target", "timestamp", "body", "body_hash")
"""The fields that can be signed, each as it is sent: `target` is path?query, `host` has the port if the URL has one."""
OF_HEADER = ("signature", "timestamp")
"""The fields that the value of the signature's header can have."""
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class ApiKey(SecretOptions):
    """A key in a header, or in the query for an API that knows no better."""

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
        description=f"what is signed: text with {', '.join(f'{{{name}}}' for name in SIGNED)}",
    )
    encoding: Literal["hex", "base64"] = Field(default="hex", description="how signature and body_hash are written")
    header: str = Field(default="X-Signature", description="header that carries the signature")
    value: str = Field(default="{signature}", description="its value: text with {signature}, {timestamp}")
    timestamp: Literal["seconds", "milliseconds", "iso"] = Field(
        default="seconds", description="time of the call: since 1970, or as 2026-01-31T12:00:00Z"
    )
    timestamp_header: str | None = Field(default="X-Timestamp", description="header that carries the time; null: none")
    body_hash_header: str | None = Field(default=None, description="header that carries the body's hash")

    @field_validator("header", "timestamp_header", "body_hash_header")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        if name is not None and not is_header_name(name):
            raise ValueError("it has a character that no name of a header has")
        return name

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        signed, sent = _known("signed", self.signed, SIGNED), _known("value", self.value, OF_HEADER)
        if "signature" not in sent:
            raise ValueError("value: without {signature} nothing of it is sent")
        if not is_header_text(self.value):
            raise ValueError("value: a header is printable ASCII")
        if "timestamp" in signed - sent and self.timestamp_header is None:
            raise ValueError("the time is signed and not sent: give timestamp_header, or {timestamp} in value")
        self.secret()
        return self

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the headers that a signature sets."""
        return tuple(name for name in (self.header, self.timestamp_header, self.body_hash_header) if name)

    def secret(self) -> bytes:
        """Return the key's bytes; raise ValueError where it is not written as said."""
        text = self.key.get_secret_value()
        try:
            if self.key_encoding == "hex":
                return bytes.fromhex(text)
            return text.encode() if self.key_encoding == "text" else base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError(f"key: it is not {self.key_encoding}") from None


def _known(option: str, text: str, known: tuple[str, ...]) -> set[str]:
    """Return the fields of a text; raise ValueError for one that there is not."""
    named = {one.path for one in parse(text) if isinstance(one, Placeholder)}
    if unknown := sorted(named - {*known}):
        raise ValueError(f"{option}: there is no {{{unknown[0]}}}; known: {', '.join(known)}")
    return named


class Auth(SecretOptions):
    """The one way in which calls are authorised."""

    basic: Basic | None = Field(default=None, description="user and password")
    bearer: Secret | None = Field(default=None, min_length=1, description="a token that does not expire")
    api_key: ApiKey | None = Field(default=None, description="a key in a header: {header: X-Api-Key, value: ${KEY}}")
    oauth: OAuth | None = Field(default=None, description="client credentials for a token server")
    hmac: Hmac | None = Field(default=None, description="a signature of every call")
    plugin: str | None = Field(
        default=None, description="package.module:Class of a requests.auth.AuthBase; every task makes one"
    )
    options: dict[str, Secret | bool | int | float | None] = Field(
        default_factory=dict, description="arguments of the plugin's class, by name"
    )

    @field_validator("bearer")
    @classmethod
    def _sendable(cls, token: Secret | None) -> Secret | None:
        return checked_token(token)

    @field_validator("plugin")
    @classmethod
    def _class(cls, named: str | None) -> str | None:
        if named is not None and not _CLASS.fullmatch(named):
            raise ValueError("a class is written package.module:Class")
        return named

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [name for name in type(self).model_fields if name != "options" and getattr(self, name) is not None]
        if len(ways) != 1:
            found = f"{' and '.join(ways)} are given" if ways else "none is given"
            raise ValueError(f"give exactly one of basic, bearer, api_key, oauth, hmac, plugin; {found}")
        if self.options and self.plugin is None:
            raise ValueError("options are those of a plugin's class, and no plugin is given")
        return self

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the headers that the login sets; those of a plugin are not known."""
        if self.hmac is not None:
            return self.hmac.headers
        if self.api_key is not None:
            return (self.api_key.header,) if self.api_key.header else ()
        return () if self.plugin is not None else ("Authorization",)
