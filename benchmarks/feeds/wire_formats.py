"""Events in the wire format of a schema registry, written with one schema or with ten, flat or nested, or growing.

`protobuf`, `avro` and their `_10`: the JSON events, the same ten fields. Each version of the schema declares one field
more than the version before, which no event has, so that what is measured is many versions and not more data. The
versions take turns event by event. `nested_*`: the simulator's events, with lists and structs in them, for what
decoding alone costs. `Evolving`: a schema that grows while a stream runs, whose events fill every field.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
from google.protobuf import message_factory  # type: ignore[import-untyped]

from benchmarks.feeds import Feed
from benchmarks.feeds.json_events import JSON, SCHEMA
from router_demo.records import opened, records
from router_demo.registry import EmbeddedRegistry, subject_in
from router_demo.traffic import Traffic
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_of
from router_schemas.wire_format import payload_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router_schemas.model import Kind

    Encode = Callable[[dict[str, Any]], bytes]


@cache
def registry() -> EmbeddedRegistry:
    """Return the running registry; it ends with this process."""
    started = EmbeddedRegistry()
    started.start()
    return started


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
    types = FIELDS | {"ts": "google.protobuf.Timestamp"} | _later_fields(version)
    lines = []
    for number, (name, kind) in enumerate(types.items(), 1):
        # A field with a message in it can be absent without being declared optional.
        label = "" if kind.startswith("google") else "optional "
        lines.append(f"  {label}{kind} {name} = {number};")
    head = 'syntax = "proto3";\npackage benchmark;\nimport "google/protobuf/timestamp.proto";\nmessage Event {\n'
    return head + "\n".join(lines) + "\n}\n"


def avro_schema(version: int) -> dict[str, Any]:
    """Return the Avro schema of a version."""
    types = FIELDS | _later_fields(version)
    fields = []
    for name, kind in types.items():
        fields.append({"name": name, "type": ["null", _AVRO.get(kind, kind)], "default": None})
    return {"type": "record", "name": "Event", "namespace": "benchmark", "fields": fields}


def _later_fields(version: int) -> dict[str, str]:
    """Return the fields that the versions after the first have added, with their types."""
    return {f"later_{number}": "string" for number in range(2, version + 1)}


def message_class(version: int) -> Any:
    """Return google's class of the message of a version."""
    files = compile_schema(ResolvedSchema(RegisteredSchema(0, "PROTOBUF", proto_text(version))))
    return message_factory.GetMessageClass(message_of(files, "benchmark.Event"))


def _protobuf(version: int) -> Encode:
    message_type = message_class(version)

    def encode(event: dict[str, Any]) -> bytes:
        message = message_type(**{name: value for name, value in event.items() if name != "ts"})
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


def _framed_values(
    kind: Kind, versions: int, make: Callable[[int], Encode], events: int, games: int, seed: int
) -> Iterator[tuple[bytes, str]]:
    prefixes = _prefixes(kind, versions)
    encoders = [make(version) for version in range(1, versions + 1)]
    decode = msgspec.json.Decoder().decode
    for index, (text, table) in enumerate(JSON.values(events, games, seed)):
        event = decode(text)
        event["ts"] = datetime.fromisoformat(event["ts"].replace("Z", "+00:00"))
        yield prefixes[index % versions] + encoders[index % versions](event), table


@cache
def _prefixes(kind: Kind, versions: int) -> list[bytes]:
    """Register the versions of a feed; return what stands before their values."""
    path = (0,) if kind == "PROTOBUF" else None
    with subject_in(registry().url, _framed_subject(kind, versions)) as subject:
        texts = [_text(kind, version) for version in range(1, versions + 1)]
        return [payload_prefix(subject.register(kind, text), path) for text in texts]


def _text(kind: Kind, version: int) -> str:
    if kind == "PROTOBUF":
        return proto_text(version)
    return msgspec.json.encode(avro_schema(version)).decode()


def _framed_subject(kind: Kind, versions: int) -> str:
    return f"benchmark-{kind.lower()}-{versions}"


def _framed_decode(kind: Kind, versions: int) -> dict[str, Any]:
    _prefixes(kind, versions)
    return {kind.lower(): {"registry": registry().url, "subjects": [_framed_subject(kind, versions)]}}


def _framed_feed(name: str, kind: Kind, versions: int, make: Callable[[int], Encode]) -> Feed:
    return Feed(name, SCHEMA, partial(_framed_values, kind, versions, make), partial(_framed_decode, kind, versions))


PROTOBUF = _framed_feed("protobuf", "PROTOBUF", 1, _protobuf)
PROTOBUF_TEN = _framed_feed("protobuf_10", "PROTOBUF", VERSIONS, _protobuf)
AVRO = _framed_feed("avro", "AVRO", 1, _avro)
AVRO_TEN = _framed_feed("avro_10", "AVRO", VERSIONS, _avro)


ROUTES = Path(__file__).parents[2] / "routes"
START = datetime(2026, 11, 1, tzinfo=timezone.utc)


def _nested_values(form: str, events: int, games: int, seed: int) -> Iterator[tuple[bytes, str]]:
    traffic = Traffic(events=events, games=games, versions=1, seed=seed, start=START)
    url = None if form == "json" else registry().url
    with opened(form, url, _nested_subject(form)) as write:
        for _, value, _ in records(traffic, write):
            yield value or b"", "events"


@cache
def _nested_decode(form: str) -> dict[str, Any]:
    if form == "json":
        return {"json": {"schema_file": str(ROUTES / "games_json.schema.json")}}
    return {form: {"registry": registry().url, "subjects": [_nested_subject(form)]}}


def _nested_subject(form: str) -> str:
    return f"nested-{form}"


def _nested_feed(form: str) -> Feed:
    return Feed(f"nested_{form}", "", partial(_nested_values, form), partial(_nested_decode, form))


NESTED_JSON = _nested_feed("json")
NESTED_PROTOBUF = _nested_feed("protobuf")
NESTED_AVRO = _nested_feed("avro")


@dataclass
class Evolving:
    """A subject of the registry and its events, all of one game."""

    subject: str
    table: str = "game_0000"
    prefixes: dict[int, bytes] = field(default_factory=dict)

    def column(self, version: int) -> str:
        """Return the column that a version adds."""
        return f"later_{version}"

    def register(self, version: int) -> None:
        """Register a version."""
        with subject_in(registry().url, self.subject) as subject:
            self.prefixes[version] = payload_prefix(subject.register("PROTOBUF", proto_text(version)), (0,))

    def values(self, version: int, events: int) -> Iterator[bytes]:
        """Yield values of a version that was registered."""
        message_type = message_class(version)
        prefix_of_version = self.prefixes[version]
        later: dict[str, Any] = {}
        for number in range(2, version + 1):
            later[self.column(number)] = f"since version {number}"
        for number in range(events):
            message = message_type(game=self.table, gamer_id=f"g-{number}", seq=number, **later)
            yield prefix_of_version + bytes(message.SerializeToString())
