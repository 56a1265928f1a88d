"""A million spoilt records over every format: none stops a batch, each has one verdict, whatever is around it.

Run with `-m slow` for the million; without it some thousand take the same ways.
"""

from __future__ import annotations

import json
from io import BytesIO
from random import Random
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from router import RAW_SCHEMA
from router_decoders import Auto, Avro, Json, JsonSchema, Protobuf
from router_schemas.wire_format import pack_value
from tests.plugins.mutations import FRAME, mutated
from tests.plugins.protos import Proto
from tests.schemas.raw import raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router import Decoder
    from tests.plugins.conftest import Open
    from tests.plugins.mutations import Record
    from tests.schemas.faulty import FaultyRegistry

    Corpora = dict[str, list[bytes]]

AMOUNT: dict[str, Any] = {"name": "amount", "type": "long"}
WIN: dict[str, Any] = {
    "type": "record",
    "namespace": "games",
    "name": "Win",
    "fields": [
        {"name": "game", "type": "string"},
        AMOUNT,
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "notes", "type": {"type": "map", "values": ["null", "double", "bytes"]}, "default": {}},
        {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["hearts", "spades"]}},
    ],
}
LOGIN: dict[str, Any] = {
    "title": "Login",
    "properties": {
        "game": {"type": "string"},
        "amount": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "rate": {"type": "number"},
        "cards": {"type": "array", "items": {"properties": {"face": {"type": "string"}, "n": {"type": "integer"}}}},
    },
}
SMALL = 6000
ROWS = [SMALL, pytest.param(400_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
IN_SPARK = [3000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]


@pytest.fixture
def corpora(faulty: FaultyRegistry, tmp_path: Path) -> Corpora:
    """Register schemas in two versions, and return good records of each."""
    random, book, proto = Random(11), faulty.book, Proto.in_folder(tmp_path)
    bets = book.add("bets", proto.path.read_text(), "PROTOBUF")
    avro = [
        (book.add("wins", json.dumps({**WIN, "fields": fields}), "AVRO"), fields)
        for fields in (WIN["fields"][:2], WIN["fields"])
    ]
    some = dict([*LOGIN["properties"].items()][:2])
    logins = [book.add("logins", json.dumps(one), "JSON") for one in ({**LOGIN, "properties": some}, LOGIN)]
    found: Corpora = {"avro": [], "protobuf": [], "json_schema": []}
    for n in range(200):
        game, amount = random.choice(("uno", "zażółć 🂡", "")), random.randrange(-(2**63), 2**63)
        odds = {f"k{k}": random.randrange(99) for k in range(n % 4)}
        found["protobuf"].append(pack_value(bets, (0,), proto.bytes("Bet", game=game, amount=amount, odds=odds)))
        found["protobuf"].append(pack_value(bets, (1,), proto.bytes("Login", game=game, gamer="g" * (n % 40))))
        found["protobuf"].append(pack_value(bets, (0, 1), proto.bytes("Bet.Card", face=game)))
        login = {
            "game": game,
            "amount": amount,
            "at": "2026-11-21T10:00:00.123456Z",
            "day": "2026-11-21",
            "rate": n / 7,
        }
        login["cards"] = [{"face": game, "n": k} for k in range(n % 3)]
        found["json_schema"].append(pack_value(random.choice(logins), None, json.dumps(login).encode()))
        win = {
            "game": game,
            "amount": amount,
            "tags": ["a"] * (n % 3),
            "notes": {"x": n / 3, "y": b"b"},
            "suit": "spades",
        }
        for number, fields in avro:
            written = BytesIO()
            fastavro.schemaless_writer(written, fastavro.parse_schema({**WIN, "fields": fields}), win)
            found["avro"].append(pack_value(number, None, written.getvalue()))
    return found


@pytest.fixture
def begun(faulty: FaultyRegistry, opened: Open, corpora: Corpora) -> Callable[..., Decoder]:
    """Start a decoder that knows every schema, and every GUID."""

    def begun(kind: type[Decoder]) -> Decoder:
        subjects = {Avro: ["wins"], Protobuf: ["bets"], JsonSchema: ["logins"]}.get(kind, ["wins", "bets", "logins"])
        decoder = opened(kind.model_validate({"registry": faulty.url, "subjects": subjects}))
        known = {f"schema {faulty.book.guid(number)}" for number in faulty.book.schemas}
        paths = {"message 1 of schema 1", "message 0.1 of schema 1"}
        return decoder.refresh(frozenset()).refresh(frozenset(known | (paths if kind in (Protobuf, Auto) else set())))

    return begun


def spoilt(registry: FaultyRegistry, good: list[bytes], count: int, seed: int) -> list[Record]:
    return mutated(Random(seed), good, [registry.book.guid(one) for one in registry.book.schemas], count)


def records_of(some: list[Record]) -> pa.RecordBatch:
    return raw([value for value, _ in some], [header for _, header in some])


def sizes(total: int, random: Random) -> Iterator[int]:
    """Yield the sizes of batches that Spark might make."""
    while total > 0:
        size = min(total, random.choice((1, 1, 2, 7, 100, 5000, 20_000)))
        total -= size
        yield size


def check_verdicts(found: pa.Table, value: pa.Array) -> None:
    """Hold every row to one verdict: an event, or a reason that says something."""
    event, error = found.column("event").is_valid(), found.column("_error")
    count = sum(pc.cast(mask, pa.int8()).to_numpy() for mask in (event, error.is_valid()))
    assert (count == 1).all(), value.take(pa.array((count != 1).nonzero()[0][:5])).to_pylist()
    assert pc.min(pc.utf8_length(error)).as_py() > 5
    assert not pc.any(pc.match_substring(error, "Traceback")).as_py()


def check_same(one: pa.Table, other: pa.Table, value: pa.Array) -> None:
    """Compare row by row; what differs for Arrow, as NaN and NaN do, is looked at again."""
    for at in range(0, len(one), 2000):
        first, second = one.slice(at, 2000), other.slice(at, 2000)
        if not first.equals(second):
            for place, (a, b) in enumerate(zip(first.to_pylist(), second.to_pylist(), strict=True)):
                for row in (a, b):  # which names have a place among the first 50 depends on the order of the records
                    row["_unknown"] = row.get("_unknown") is not None
                assert repr(_unordered(a)) == repr(_unordered(b)), value[at + place]


def _unordered(value: Any) -> Any:
    """Return a value with its maps sorted: Avro's reader uses one again for the next row, and their order with it."""
    if isinstance(value, dict):
        return {name: _unordered(one) for name, one in value.items()}
    if isinstance(value, list):
        inside = [tuple(map(_unordered, one)) if isinstance(one, tuple) else _unordered(one) for one in value]
        return sorted(inside, key=repr) if inside and isinstance(inside[0], tuple) else inside
    return value


def decided(decoder: Decoder, records: pa.RecordBatch, batches: Iterator[int]) -> pa.Table:
    made = decoder.decoding()
    assert made is not None
    found, at = [], 0
    for size in batches:
        found.append(made.function(records.slice(at, size), made.argument))
        at += size
    return pa.Table.from_batches(found)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", [Protobuf, pytest.param(JsonSchema, marks=pytest.mark.spark)])
def test_spoilt_records_have_one_verdict_in_tasks(
    request: pytest.FixtureRequest, faulty: FaultyRegistry, corpora: Corpora, begun, kind: type[Decoder], rows: int
) -> None:
    """A record that ends the process, or has another end when it is read again, breaks what is promised of others."""
    if kind is JsonSchema:  # it reads in the time zone of the session
        request.getfixturevalue("spark")
    name = {Protobuf: "protobuf", JsonSchema: "json_schema"}[kind]
    good = corpora[name] * 20 + [one for corpus in corpora.values() for one in corpus]
    decoder, random = begun(kind), Random(rows)
    for part in range(max(1, rows // 100_000)):
        some = spoilt(faulty, good, min(rows, 100_000), part)
        records = records_of(some)
        first = decided(decoder, records, iter([len(some)]))
        check_verdicts(first, records.column("value"))
        assert first.column("event").null_count < len(some) * 0.95

        order = pa.array(random.sample(range(len(some)), len(some)))
        shuffled = decided(decoder, records.take(order), sizes(len(some), random))

        check_same(first.take(order), shuffled, records.column("value").take(order))


@pytest.mark.parametrize("rows", IN_SPARK)
@pytest.mark.parametrize("kind", [Avro, Auto, JsonSchema, Json])
def test_spoilt_records_have_one_verdict_in_spark(
    spark: SparkSession, faulty: FaultyRegistry, corpora: Corpora, begun, kind: type[Decoder], rows: int
) -> None:
    """Avro is Spark's to decode; the others are decoded in a stage of their own here."""
    mine = {Avro: ["avro"], JsonSchema: ["json_schema"], Json: ["json_schema"]}.get(kind, [*corpora])
    good = [one for name in mine for one in corpora[name]]
    decoder = (
        Json(schema="game string, amount bigint, at timestamp, cards array<struct<n: int>>")
        if kind is Json
        else begun(kind)
    )
    some = spoilt(faulty, good, rows, 5)
    if kind is Json:
        some = [(value and value[FRAME:], None) for value, _ in some]
    records = records_of(some)

    def decode(chosen: pa.RecordBatch, partitions: int) -> pa.Table:
        empty = spark.createDataFrame([], RAW_SCHEMA).drop("value", "headers", "offset").schema
        frame = spark.createDataFrame(_numbered(chosen)).repartition(partitions)
        frame = frame.selectExpr("*", *(f"cast(null as {one.dataType.simpleString()}) as {one.name}" for one in empty))
        found = decoder.decode(frame).drop("value", "headers", *empty.names).toArrow().sort_by("offset")
        return found.drop_columns(["offset"])

    first = decode(records, 2)
    if "_wanted" in first.column_names:
        assert pc.all(pc.or_kleene(first.column("_wanted").is_null(), first.column("_error").is_valid())).as_py()
    check_verdicts(first, records.column("value"))
    order = pa.array(Random(7).sample(range(rows), rows))
    shuffled = decode(records.take(order), 3)

    check_same(first.take(order), shuffled, records.column("value").take(order))
    if kind is JsonSchema:
        plain = decided(decoder, records, iter([rows]))
        own = first.select(plain.column_names)
        check_same(plain.cast(own.schema), own, records.column("value"))


def _numbered(records: pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches([records])
    return table.append_column("offset", pa.array(range(len(table)), pa.int64()))
