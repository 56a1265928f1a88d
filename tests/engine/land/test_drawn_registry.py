"""Schemas of a registry that are drawn, with any change of a version, and records that independent libraries write.

A record is in its tables, or one dead letter says why not; no run ends, and a route that looks at nothing of a change
gets every record that can be decoded within its batch.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import message_factory

from router import Preparation
from router.config.models import Route, View
from router.engine.audit.verify import verify_tables
from router.engine.checkpoint_store import LearntSchemas
from router.engine.label.layout import quarantine_of
from router.engine.views.schedule import create_refresher
from router_decoders import Avro, Protobuf
from router_rules import Sql
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_of
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.wire_format import pack_value
from router_sinks import Delta, Tables, Upsert
from tests.engine.parts import Copy
from tests.engine.query import records
from tests.engine.stream.test_drawn_configurations import values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.protobuf.message import Message
    from pyspark.sql import SparkSession

    from router_demo.registry import EmbeddedRegistry
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

VERSIONS = 4
RECORDS = 15
IN_EVERY_RUN = 1
CONFIGURATIONS = 40
SEEDS = [
    *range(IN_EVERY_RUN),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_EVERY_RUN, CONFIGURATIONS)),
]
NAMES = (
    *(
        "a",
        "B",
        "b",
        "total",
        "select",
        "table",
        "from",
        "null",
        "order",
        "value",
        "key",
        "offset",
        "event",
        "_x",
        "GAME",
    ),
    *("_rescued", "item", "_metadata", "element", "_c0", "_error", "schema_id", "x" * 120, "aB", "a_b", "message"),
)
"""Names that fields may have in both formats."""
TAKEN = (
    *("place", "place_", "_offset", "_topic", "_newest_1", "_arrival", "valid_from", "is_current", "_change_type"),
)
"""Those that columns of routes and of the router have: a start refuses them, and a later version may bring them."""
TEXTS = ("", "uno", "\0", "żółw", "🃏", "a" * 3_000, "null", "\ufeff", "../x", "'; DROP", "2026-01-01")
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 86_399_999, 253_402_300_800_000_000)
SMALL = tuple(number for number in NUMBERS if -(2**31) <= number < 2**31)
FLOATS = (0.0, -0.0, 1.5, 1e300, -1e-300, float("nan"), float("inf"), 0.1)


def is_new(name: str, names: list[str]) -> bool:
    return name.casefold().replace("_", "") not in {other.casefold().replace("_", "") for other in names}


@dataclass
class DrawnAvro:
    """An Avro record that changes; fastavro writes its values."""

    chance: random.Random
    fields: list[dict[str, Any]] = field(default_factory=list)
    made: int = 0
    format = "AVRO"

    def __post_init__(self) -> None:
        self.fields = [{"name": "game", "type": "string"}, {"name": "k", "type": ["null", "int"]}]
        for _ in range(self.chance.randint(2, 6)):
            self.add()

    def add(self, names: tuple[str, ...] = NAMES) -> None:
        name = self.chance.choice(names)
        if is_new(name, [one["name"] for one in self.fields]):
            self.fields.append({"name": name, "type": self.kind(2)})

    def change(self) -> None:
        way = self.chance.choice(["more", "more", "less", "type"])
        place = self.chance.randrange(1, len(self.fields))
        if way == "more":
            self.add((*NAMES, *TAKEN))
        elif way == "less" and place > 1 and len(self.fields) > 3:
            del self.fields[place]
        else:
            self.fields[place] = {**self.fields[place], "type": self.kind(2)}

    def kind(self, levels: int) -> Any:
        chance = self.chance
        ways = [
            "null",
            "int",
            "long",
            "double",
            "text",
            "bytes",
            "enum",
            "fixed",
            "decimal",
            "logical",
            "bool",
            "float",
        ]
        way = chance.choice([*ways, *(["record", "array", "map", "union"] if levels else [])])
        self.made += 1
        name = f"N{self.made}"
        if way == "record":
            fields = {chance.choice(NAMES).lower(): self.kind(levels - 1) for _ in range(chance.randint(1, 3))}
            return {"type": "record", "name": name, "fields": [{"name": a, "type": b} for a, b in fields.items()]}
        if way == "array":
            return {"type": "array", "items": self.kind(levels - 1)}
        if way == "map":
            return {"type": "map", "values": self.kind(levels - 1)}
        if way == "null":
            return ["null", chance.choice(["long", "string", "double"])]
        if way == "union":
            return chance.choice([["int", "string"], ["null", "int", "string"], ["null", "boolean", "double"]])
        if way == "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B", "C"][: chance.randint(1, 3)]}
        if way == "fixed":
            return {"type": "fixed", "name": name, "size": chance.randint(0, 20)}
        if way == "decimal":
            precision = chance.randint(1, 40)
            scale = chance.randint(0, precision)
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        if way == "logical":
            kinds = [("int", "date"), ("int", "time-millis"), ("long", "time-micros"), ("string", "uuid")]
            for unit in ("millis", "micros", "nanos"):
                kinds += [("long", f"timestamp-{unit}"), ("long", f"local-timestamp-{unit}")]
            base, logical = chance.choice(kinds)
            return {"type": base, "logicalType": logical}
        return {"text": "string", "bool": "boolean"}.get(way, way)

    def schema(self) -> str:
        return json.dumps({"type": "record", "name": "Bet", "namespace": "drawn", "fields": self.fields})

    def value(self, kind: Any) -> Any:
        chance = self.chance
        if isinstance(kind, list):
            branch = chance.choice(kind)
            return None if branch == "null" else self.value(branch)
        name = kind["type"] if isinstance(kind, dict) else kind
        if name == "record":
            return {one["name"]: self.value(one["type"]) for one in kind["fields"]}
        if name == "array":
            return [self.value(kind["items"]) for _ in range(chance.choice([0, 1, 3]))]
        if name == "map":
            return {chance.choice(TEXTS): self.value(kind["values"]) for _ in range(chance.choice([0, 1, 3]))}
        if name == "enum":
            return chance.choice(kind["symbols"])
        if name == "fixed":
            return chance.randbytes(kind["size"])
        if name == "bytes":
            # A decimal of no byte is none.
            least = 1 if isinstance(kind, dict) else 0
            return chance.randbytes(chance.choice([least, 1, 2, 16]))
        if name == "string":
            return chance.choice(TEXTS)
        if name == "int":
            return chance.choice(SMALL)
        if name == "long":
            return chance.choice(NUMBERS)
        return chance.random() < 0.5 if name == "boolean" else chance.choice(FLOATS)

    def record(self, number: int) -> bytes:
        event = {one["name"]: self.value(one["type"]) for one in self.fields}
        event["game"] = self.chance.choice(["uno", "go", "chess"])
        written = BytesIO()
        fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(self.schema())), event)
        return pack_value(number, None, written.getvalue())


PROTO_KINDS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64"),
    *("sfixed32", "sfixed64", "bool", "string", "bytes", "google.protobuf.Timestamp", "google.protobuf.Duration"),
    *("google.protobuf.StringValue", "google.protobuf.Int64Value", "google.protobuf.Struct", "google.protobuf.Any"),
    *("Inner", "Color", "Bet"),
)
MAP_KEYS = ("int32", "string", "bool", "uint64")


@dataclass
class DrawnProtobuf:
    """A message that changes, also in ways that its wire format forbids; google's library writes its values."""

    chance: random.Random
    fields: list[tuple[str, str, int]] = field(default_factory=list)
    format = "PROTOBUF"

    def __post_init__(self) -> None:
        self.fields = [("game", "string", 1), ("k", "optional int32", 2)]
        self.inner = [("c", "int32", 1), ("d", "repeated string", 2)]
        for _ in range(self.chance.randint(2, 6)):
            self.add()

    def kind(self) -> str:
        kind = self.chance.choice(PROTO_KINDS)
        way = self.chance.choice(["", "", "optional ", "repeated ", "map"])
        if way == "map":
            return f"map<{self.chance.choice(MAP_KEYS)}, {kind}>"
        return way + kind

    def add(self, names: tuple[str, ...] = NAMES) -> None:
        name = self.chance.choice(names)
        if is_new(name, [one[0] for one in self.fields]):
            self.fields.append((name, self.kind(), 1 + max(number for *_, number in self.fields)))

    def change(self) -> None:
        way = self.chance.choice(["more", "more", "less", "type", "inside"])
        place = self.chance.randrange(1, len(self.fields))
        name, _, number = self.fields[place]
        if way == "more":
            self.add((*NAMES, *TAKEN))
        elif way == "less" and place > 1 and len(self.fields) > 3:
            del self.fields[place]
        elif way == "inside":
            self.inner.append((f"i{len(self.inner)}", self.kind().replace("Bet", "Color"), len(self.inner) + 1))
        else:
            self.fields[place] = (name, self.kind(), number)

    def schema(self) -> str:
        def lines(fields: list[tuple[str, str, int]]) -> str:
            return " ".join(f"{kind} {name} = {number};" for name, kind, number in fields)

        imports = "".join(
            f'import "google/protobuf/{name}.proto"; '
            for name in ("timestamp", "duration", "wrappers", "struct", "any")
        )
        return (
            f'syntax = "proto3"; package drawn; {imports}'
            f"message Bet {{ {lines(self.fields)} }} message Inner {{ {lines(self.inner)} }} "
            "enum Color { NONE = 0; RED = 1; BLUE = -5; }"
        )

    def record(self, number: int) -> bytes:
        files = compile_schema(ResolvedSchema(RegisteredSchema(number, "PROTOBUF", self.schema())))
        message = message_factory.GetMessageClass(message_of(files, "drawn.Bet"))()
        self.fill(message, 2)
        message.game = self.chance.choice(["uno", "go", "chess"])
        return pack_value(number, (0,), message.SerializeToString())

    def fill(self, message: Message, levels: int) -> None:
        for one in message.DESCRIPTOR.fields:
            if self.chance.random() < 0.3:
                continue
            target = getattr(message, one.name)
            if one.message_type and one.message_type.GetOptions().map_entry:
                inner = one.message_type.fields_by_name["value"]
                key = self.scalar(one.message_type.fields_by_name["key"])
                if inner.message_type is None:
                    target[key] = self.scalar(inner)
                elif levels:
                    self.fill(target[key], levels - 1)
            elif one.message_type and one.is_repeated:
                if levels:
                    self.fill(target.add(), levels - 1)
            elif one.message_type:
                if levels:
                    target.SetInParent()
                    self.fill(target, levels - 1)
            elif one.is_repeated:
                target.extend(self.scalar(one) for _ in range(self.chance.choice([0, 1, 3])))
            else:
                setattr(message, one.name, self.scalar(one))

    def scalar(self, one: Any) -> Any:
        chance = self.chance
        if one.enum_type:
            return chance.choice([0, 1, -5, 77])
        kind = one.cpp_type
        if kind == one.CPPTYPE_STRING:
            return chance.choice(TEXTS) if one.type == one.TYPE_STRING else chance.randbytes(chance.choice([0, 1, 16]))
        if kind == one.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind in (one.CPPTYPE_DOUBLE, one.CPPTYPE_FLOAT):
            return chance.choice([0.0, -0.0, 1.5, float("nan"), float("inf")])
        unsigned = {one.CPPTYPE_UINT32: SMALL, one.CPPTYPE_UINT64: NUMBERS}
        if kind in unsigned:
            return abs(chance.choice(unsigned[kind][:-1]))
        return chance.choice(SMALL if kind == one.CPPTYPE_INT32 else NUMBERS)


FORMATS = {"avro": (Avro, DrawnAvro), "protobuf": (Protobuf, DrawnProtobuf)}


def routes_of(chance: random.Random, names: list[str], folder: Path) -> tuple[Route, ...]:
    """Return a route that needs one field only, one that takes everything, and one that looks at a drawn field."""
    good = Route(
        name="good", match=Sql(where="true"), select=("event.game", "offset AS place"), sinks=(Delta(table="good.all"),)
    )
    sinks: list[Any] = [Delta(table="d0.every", evolution=chance.choice(["evolve", "evolve", "freeze", "quarantine"]))]
    sinks.append(Tables(table="t0.{event.game}"))
    sinks.append(Upsert(table="u0.keyed", keys=("event.k",), history=chance.choice([None, "scd2"])))
    if chance.random() < 0.5:
        sinks.append(Copy(to=str(folder / "copy")))
    every = Route(name="every", match=Sql(where="true"), select=("event.*", "offset AS place_"), sinks=tuple(sinks))
    looking = Route(
        name="looking",
        match=Sql(where=f"event.`{chance.choice(names)}` IS NOT NULL"),
        select=(f"event.`{chance.choice(names)}` AS seen", "offset AS place"),
        sinks=(Delta(table="l0.all"),),
    )
    return good, every, looking


@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_version_that_is_registered_stops_no_other_table(
    make_query: MakeQuery,
    spark: SparkSession,
    schema_registry: EmbeddedRegistry,
    tmp_path: Path,
    seed: int,
    form: str,
) -> None:
    """Without it whoever registers a schema ends the stream of everybody, or loses rows without a word."""
    chance = random.Random(f"{form} {seed}")
    decoder_class, drawing_class = FORMATS[form]
    drawn = drawing_class(chance)
    subject = f"drawn-{form}-{seed}-{tmp_path.parent.name}-value"
    told: list[str] = []
    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        number = client.register(subject, drawn.format, drawn.schema())
        told.append(drawn.schema())
        names = [one["name"] if isinstance(one, dict) else one[0] for one in drawn.fields]
        views = (
            View.model_validate(
                {
                    "name": "counts",
                    "from": "t0.*",
                    "sql": "SELECT table, count(*) AS n FROM source GROUP BY table",
                    "into": "gold.counts",
                }
            ),
        )
        routes = routes_of(chance, names, tmp_path)
        query: Query | None = None
        taken = 0
        for version in range(VERSIONS):
            if version:
                for _ in range(chance.randint(1, 2)):
                    drawn.change()
                number = client.register(subject, drawn.format, drawn.schema())
                told.append(drawn.schema())
            if query is None or chance.random() < 0.3:
                decoder = decoder_class(registry=RegistryOptions(url=(schema_registry.url,)), subjects=(subject,))
                folder = tmp_path / "memory"
                folder.mkdir(exist_ok=True)
                memory = query.batches.store if query else None
                prepared = decoder.prepare(Preparation(tmp_path, memory=LearntSchemas(memory)))
                if query is None:
                    query = make_query(
                        tmp_path, decode=prepared, routes=routes, bronze="bronze.all", views=views,
                        commit=chance.choice(["auto", "auto", "spark"]),
                    )  # fmt: skip
                else:
                    query = query.restarted(decode=prepared)
            query.take(records([drawn.record(number) for _ in range(RECORDS)], first=taken))
            taken += RECORDS
        assert query is not None
        found = [*check(query, taken)]
        refreshed = create_refresher(query.config, spark, query.lake, query.batches.store)
        refreshed.refresh_view(views[0])
    assert not found, "\n".join([*told, *map(str, routes), *found])


def check(query: Query, taken: int) -> Iterator[str]:
    """Yield everything that is not as it should be."""
    bronze = Counter(row["offset"] for row in values(query.content("bronze.all")))
    if bronze != Counter(range(taken)):
        yield f"bronze has {bronze}"
    for audit in verify_tables(query.config, contents=True):
        yield from (f"verify: {audit.table}: {problem}" for problem in audit.problems)
    letters = values(query.content("ops.dead")) if query.lake.open("ops.dead") else []
    undecoded = Counter(row["offset"] for row in letters if row["stage"] == "decode")
    for row in letters:
        is_of_key = row["stage"] == "apply" and "k is null" in row["reason"]
        if (row["stage"] not in ("decode", "evolve", "select") and not is_of_key) or "raises" in row["reason"]:
            yield f"dead letter: {row['stage']} {row['route']} {row['sink']} {row['reason']}"
    good = Counter(row["place"] for row in query.rows("good.all", "place"))
    refused = Counter(row["offset"] for row in letters if row["route"] == "every" and row["sink"] in ("delta", None))
    every = Counter(row["place_"] for row in query.rows("d0.every", "place_"))
    waiting = quarantine_of("games", "every", "delta")
    if query.lake.open(waiting):
        every += Counter(row["place_"] for row in query.rows(waiting, "place_"))
    for place in range(taken):
        if undecoded[place] + good[place] != 1:
            yield f"record {place}: {good[place]} rows in good.all, {undecoded[place]} dead letters"
        if undecoded[place] + every[place] + refused[place] != 1:
            yield f"record {place}: {every[place]} rows in d0.every, {undecoded[place]}, {refused[place]} dead letters"
    for row in letters:
        if "broken" in row["reason"]:
            yield f"record {row['offset']}: {row['reason']} {row['value']!r}"
