"""The JSON events in the frames of a schema registry: the same ten fields, written with one or with ten schemas.

Each version of the schema declares one more field than the version before, which no event has, so that what is
measured is many versions and not more data. The versions take turns event by event.
"""

from __future__ import annotations

import io
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
from google.protobuf import message_factory  # type: ignore[import-untyped]

from benchmarks.feeds import Feed
from benchmarks.feeds.json_events import JSON, SCHEMA
from benchmarks.registries import registry
from router_demo.registry import subject_in
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import descriptors, message_of
from router_schemas.wire_format import prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router_schemas.model import Kind

    Encode = Callable[[dict[str, Any]], bytes]

VERSIONS = 10
FIELDS = {
    "game": "string",
    "gamer_id": "string",
    "session_id": "string",
    "action": "string",
    "ts": "timestamp",
    "seq": "int64",
    "level": "int32",
    "score": "double",
    "country": "string",
    "won": "bool",
}
_AVRO: dict[str, Any] = {
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "int64": "long",
    "int32": "int",
    "bool": "boolean",
}


def proto_text(version: int) -> str:
    """Return the .proto of a version."""
    types = FIELDS | {"ts": "google.protobuf.Timestamp"} | {f"later_{one}": "string" for one in range(2, version + 1)}
    lines = [
        f"  {'' if kind.startswith('google') else 'optional '}{kind} {name} = {number};"
        for number, (name, kind) in enumerate(types.items(), 1)
    ]
    head = 'syntax = "proto3";\npackage benchmark;\nimport "google/protobuf/timestamp.proto";\nmessage Event {\n'
    return head + "\n".join(lines) + "\n}\n"


def avro_schema(version: int) -> dict[str, Any]:
    """Return the Avro schema of a version."""
    types = FIELDS | {f"later_{one}": "string" for one in range(2, version + 1)}
    fields = [{"name": name, "type": ["null", _AVRO.get(kind, kind)], "default": None} for name, kind in types.items()]
    return {"type": "record", "name": "Event", "namespace": "benchmark", "fields": fields}


def message_class(version: int) -> Any:
    """Return google's class of the message of a version."""
    files = descriptors(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", proto_text(version))))
    return message_factory.GetMessageClass(message_of(files, "benchmark.Event"))


def _protobuf(version: int) -> Encode:
    made = message_class(version)

    def encode(event: dict[str, Any]) -> bytes:
        message = made(**{name: value for name, value in event.items() if name != "ts"})
        message.ts.FromDatetime(event["ts"])
        return bytes(message.SerializeToString())

    return encode


def _avro(version: int) -> Encode:
    schema = fastavro.parse_schema(avro_schema(version))

    def encode(event: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, event)
        return out.getvalue()

    return encode


def _values(
    kind: Kind, versions: int, make: Callable[[int], Encode], events: int, games: int, seed: int
) -> Iterator[tuple[bytes, str]]:
    frames = _frames(kind, versions)
    encoders = [make(version) for version in range(1, versions + 1)]
    decode = msgspec.json.Decoder().decode
    for index, (text, table) in enumerate(JSON.values(events, games, seed)):
        event = decode(text)
        event["ts"] = datetime.fromisoformat(event["ts"].replace("Z", "+00:00"))
        yield frames[index % versions] + encoders[index % versions](event), table


@cache
def _frames(kind: Kind, versions: int) -> list[bytes]:
    """Register the versions of a feed; return what stands before their values."""
    path = (0,) if kind == "PROTOBUF" else None
    with subject_in(registry().url, _subject(kind, versions)) as subject:
        texts = [_text(kind, version) for version in range(1, versions + 1)]
        return [prefix(subject.register(kind, text), path) for text in texts]


def _text(kind: Kind, version: int) -> str:
    return proto_text(version) if kind == "PROTOBUF" else msgspec.json.encode(avro_schema(version)).decode()


def _subject(kind: Kind, versions: int) -> str:
    return f"benchmark-{kind.lower()}-{versions}"


def _decode(kind: Kind, versions: int) -> dict[str, Any]:
    _frames(kind, versions)
    return {kind.lower(): {"registry": registry().url, "subjects": [_subject(kind, versions)]}}


def _feed(name: str, kind: Kind, versions: int, make: Callable[[int], Encode]) -> Feed:
    return Feed(name, SCHEMA, partial(_values, kind, versions, make), partial(_decode, kind, versions))


PROTOBUF = _feed("protobuf", "PROTOBUF", 1, _protobuf)
PROTOBUF_TEN = _feed("protobuf_10", "PROTOBUF", VERSIONS, _protobuf)
AVRO = _feed("avro", "AVRO", 1, _avro)
AVRO_TEN = _feed("avro_10", "AVRO", VERSIONS, _avro)
