"""What a file of route tests says: records in, rows and dead letters expected. `games.test.yaml` tests `games.yaml`."""

from __future__ import annotations

import base64
import binascii
import json
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from router.config.problems import Document, in_order, widths_of
from router.config.yaml_tree import parse, plain_data
from router.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails
    from typing_extensions import Self

SUFFIX = ".test.yaml"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class InputRecord(_Model):
    """One record of the source: an event as its producer writes it, or a value as it stands."""

    event: Any = Field(default=None, description="is written in the format that the configuration decodes")
    file: str | None = Field(default=None, alias="schema", description="of `schemas`, what the event is written with")
    message: str | None = Field(default=None, description="full name of the event's message; default: the first one")
    value: Any = Field(default=None, description="text is taken as it is, null is no value, all else becomes JSON")
    base64: str | None = Field(default=None, description="the value's bytes, in place of `value`")
    key: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    topic: str = "test"
    partition: int = 0

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.event is not None and self.model_fields_set & {"value", "base64"}:
            raise ValueError("give an event, or a value or base64")
        if self.event is None and (self.file or self.message):
            raise ValueError("schema and message say how an event is written: give one")
        return self

    @field_validator("base64")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        try:
            base64.b64decode(text or "", validate=True)
        except binascii.Error as error:
            raise ValueError(f"is no base64: {error}") from None
        return text

    @property
    def content(self) -> bytes | None:
        """Return the bytes of the value, where it is given."""
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        if self.value is None:
            return None
        return self.value.encode() if isinstance(self.value, str) else json.dumps(self.value).encode()


class ExpectedDeadLetter(_Model):
    """Expected dead letters. What is not given may be anything; `reason` is part of the text."""

    stage: str | None = None
    reason: str = ""
    route: str | None = None
    sink: str | None = None
    count: int = Field(default=1, ge=1)


class Expected(_Model):
    """What the records are to become: everything that gets a row must be named here, but bronze and the ledger."""

    tables: dict[str, int | list[dict[str, Any]]] = Field(
        default_factory=dict, description="table -> its rows: how many, or which (in any order, the columns given)"
    )
    sent: dict[str, int | list[dict[str, Any]]] = Field(
        default_factory=dict,
        description="route/sink -> what it sends, in any order: how many, or which (the parts given). For a rest sink: "
        "method, url, headers, body",
    )
    dead_letters: tuple[ExpectedDeadLetter, ...] = ()


class RouteTest(_Model):
    """One test: records, and what becomes of them."""

    name: str = Field(min_length=1)
    records: tuple[InputRecord, ...] = Field(min_length=1)
    expect: Expected


class RouteTests(_Model):
    """A file of route tests."""

    configuration: str | None = Field(
        default=None, description="the file that is tested; default: X.yaml for X.test.yaml"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="variables that the configuration needs")
    schemas: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="in place of a registry: subject -> files of its versions, the oldest first, from the "
        "configuration's folder",
    )
    tests: tuple[RouteTest, ...] = Field(min_length=1)

    def tested(self, path: Path) -> Path:
        """Return the configuration that the file at `path` tests; raise ConfigError when its name does not tell."""
        if self.configuration:
            return path.parent / self.configuration
        if path.name.endswith(SUFFIX):
            return path.with_name(path.name.removesuffix(SUFFIX) + ".yaml")
        hint = f"call the file NAME{SUFFIX}, or add `configuration: NAME.yaml`"
        raise ConfigError((Problem(str(path), 1, 1, "", "does not say what it tests", hint),))


def _shared(one: ErrorDetails, other: ErrorDetails) -> list[int | str]:
    """Return the location that two errors have in common."""
    pairs = zip(one["loc"], other["loc"], strict=False)
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def load_tests(path: Path) -> RouteTests:
    """Return the route tests of a file; raise ConfigError with all its problems."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError((Problem(str(path), 1, 1, "", f"cannot be read: {error}", "check the path"),)) from None
    root, problems = parse(text, str(path))
    if root is None or problems:
        raise ConfigError(tuple(problems))
    document = Document(str(path), root, widths_of(text))
    try:
        return RouteTests.model_validate(plain_data(root))
    except ValidationError as error:
        lines = error.errors(include_url=False)
        # A list that is short because what is in it is wrong is no second mistake.
        told = [a for a in lines if not any(len(b["loc"]) > len(a["loc"]) == len(_shared(a, b)) for b in lines)]
        found = (document.problem(line["loc"], line["msg"], "see docs/configuration.md, Route tests") for line in told)
        raise ConfigError(in_order(found)) from None
