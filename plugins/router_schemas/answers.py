"""Read what a registry answers; what it says besides is left aside."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from router_schemas.connection import NotFound
from router_schemas.records import Kind, Reference, Registered


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Reference(_Record):
    name: str
    subject: str
    version: int


class _Schema(_Record):
    text: str = Field(alias="schema")
    kind: str | None = Field(default=None, alias="schemaType")
    references: tuple[_Reference, ...] | None = None


class _Version(_Schema):
    id: int


class _Pair(_Record):
    subject: str
    version: int


class _Id(_Record):
    id: int


class _ContextId(_Record):
    context: str
    id: int


class _Error(_Record):
    error_code: int = 0


SCHEMA, VERSION, ID = TypeAdapter(_Schema), TypeAdapter(_Version), TypeAdapter(_Id)
PAIRS, NUMBERS, ANYTHING = TypeAdapter(tuple[_Pair, ...]), TypeAdapter(tuple[int, ...]), TypeAdapter(Any)
CONTEXT_IDS = TypeAdapter(tuple[_ContextId, ...])


def registered(schema_id: int, found: _Schema, where: str) -> Registered:
    """Return the schema of an answer; raise NotFound, asked at `where`, for one of another type."""
    kind = found.kind or "AVRO"  # the first registries knew nothing else, and still leave it out
    if kind not in get_args(Kind):
        raise NotFound(where, f"schema {schema_id} is of the type {kind[:40]!r}; {', '.join(get_args(Kind))} are read")
    references = tuple(Reference(one.name, one.subject, one.version) for one in found.references or ())
    return Registered(schema_id, kind, found.text, references)  # type: ignore[arg-type]


def code(body: bytes) -> int:
    """Return the error code in a body, 0 where there is none."""
    try:
        return _Error.model_validate_json(body).error_code
    except ValidationError:
        return 0
