"""Avro values in every wire format, with schemas from a registry and from a file, held to fastavro and its parser."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from pydantic import ValidationError

from router import RAW_SCHEMA, Preparation, StartError
from router.testing import check_decoder
from router_decoders import Avro
from router_schemas.avro.decimals import too_many_digits
from router_schemas.avro.library import OneSchema, Records, RecordUse, records_of
from router_schemas.avro.model import single_object_header
from router_schemas.avro.parser import parse_text
from router_schemas.model import KEY_HEADER, VALUE_HEADER, SchemaOrigin
from router_schemas.wire_format import BAD_ID, guid_header, pack_value, parse_values, payload_prefix
from tests.schemas.faulty import GUIDS, FaultyRegistry
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router import Decoder

GUID = UUID("f3a1b8de-0f2a-4b8e-9d0b-7d5d7a1d7b11")
FIELDS: list[dict[str, Any]] = [
    {"name": "game", "type": "string"},
    {"name": "amount", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": None},
]
Headers = dict[str, bytes] | None
Decoded = list[dict[str, Any]]


def schema(fields: int = 2, **changes: Any) -> dict[str, Any]:
    return {"type": "record", "namespace": "games", "name": "Bet", "fields": FIELDS[:fields], **changes}


def body(one: dict[str, Any], **values: Any) -> bytes:
    """Return a record as fastavro writes it."""
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(one), values)
    return written.getvalue()


def single_object(one: dict[str, Any], **values: Any) -> bytes:
    """Return a single object whose fingerprint is fastavro's, with the bytes in the order of the specification."""
    digits = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(one), "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(digits) + body(one, **values)


@pytest.fixture
def open_(tmp_path: Path) -> Callable[..., Decoder]:
    """Prepare a decoder as the start of a stream does; there is nothing to sample."""

    def no_sample(rows: int) -> DataFrame:
        raise AssertionError("the source was read")

    def open_(**options: Any) -> Decoder:
        decoder = Avro.model_validate(options)
        return decoder.prepare(Preparation(tmp_path, False, no_sample, FolderMemory(tmp_path / "memory")))

    return open_


@pytest.fixture
def written(tmp_path: Path) -> str:
    """Write a schema file and return its name."""
    (tmp_path / "bet.avsc").write_text(json.dumps(schema()))
    return "bet.avsc"


@pytest.fixture
def decode(spark: SparkSession) -> Callable[..., Decoded]:
    """Decode as a stream does: what is wanted is fetched, and all are decoded anew."""

    def decode(decoder: Decoder, values: Sequence[bytes | None], headers: Sequence[Headers] = ()) -> Decoded:
        raw = _raw(spark, values, headers)
        wanted: frozenset[str] = frozenset()
        for _ in range(4):
            before, decoder = decoder, decoder.refresh(wanted)
            if wanted and decoder is before:
                break  # nothing was found: rows keep their errors
            rows = decoder.decode(raw).toArrow().to_pylist()
            wanted = frozenset(row["_wanted"] for row in rows if row.get("_wanted"))
            if not wanted:
                break
        return sorted(rows, key=lambda row: int(row["offset"]))

    return decode


def _raw(spark: SparkSession, values: Sequence[bytes | None], headers: Sequence[Headers]) -> DataFrame:
    given = [*headers, *[None] * (len(values) - len(headers))]
    rows: list[Any] = [
        (None, value, "topic", 0, offset, None, 0, None if header is None else [*header.items()])
        for offset, (value, header) in enumerate(zip(values, given, strict=True))
    ]
    return spark.createDataFrame(rows, RAW_SCHEMA)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "exactly one of registry, schema_file; none"),
        ({"registry": "http://r.test", "schema_file": "a.avsc"}, "registry and schema_file are given"),
        ({"registry": "http://r.test", "wire_format": "none"}, "use schema_file"),
        ({"registry": "http://r.test", "wire_format": "single_object"}, "name the subjects"),
        ({"schema_file": "a.avsc", "subjects": ["s"]}, "leave them out with schema_file"),
        ({"schema_file": "a.avsc", "wire_format": "glue"}, "single_object"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        Avro.model_validate(options)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "configuration's folder"),
        ("{", "not JSON"),
        ('"string"', "no record"),
        ('{"type":"record","name":"r","fields":[]}', "fields"),
    ],
)
def test_a_schema_file_that_is_of_no_use_stops_the_start(tmp_path: Path, text: str | None, word: str) -> None:
    """Without it every record would become a dead letter."""
    if text is not None:
        (tmp_path / "bad.avsc").write_text(text)

    with pytest.raises(StartError, match=word) as told:
        OneSchema(tmp_path / "bad.avsc", "none")
    assert "bad.avsc" in str(told.value)


def test_the_fingerprint_is_fastavros() -> None:
    """The header of a single object is all that says which schema wrote it."""
    for one in (schema(1), schema(3), schema(2, doc="text that does not count")):
        assert single_object(one, game="uno", amount=1)[:10] == single_object_header(parse_text(json.dumps(one)))


def test_values_in_no_wire_format_are_read_with_the_file(open_, written: str, decode) -> None:
    good = body(schema(), game="uno", amount=5)

    rows = decode(open_(schema_file=written, wire_format="none"), [good, None, b"", good[:-1], good + b"\0"])

    assert [row["event"] for row in rows] == [{"game": "uno", "amount": 5}, None, None, None, None]
    broken, more = "avro: the value is broken or cut off", "avro: there are more bytes behind the value"
    assert [row["_error"] for row in rows] == [None, "value is null", broken, broken, more]
    assert {(row["message"], row["schema_id"]) for row in rows[:1]} == {("games.Bet", None)}


def test_a_string_that_is_not_utf8_is_a_dead_letter_however_deep(open_, tmp_path: Path, decode) -> None:
    """Spark takes the bytes as they are, and a table with them in it cannot be read any more."""
    texts = {"type": "array", "items": ["null", "string"]}
    inner = {"type": "record", "name": "In", "fields": [{"name": "text", "type": "string"}]}
    kinds: dict[str, Any] = {
        "plain": "string",
        "list": texts,
        "lists": {"type": "array", "items": ["null", texts]},
        "key": {"type": "map", "values": "int"},
        "value": {"type": "map", "values": "string"},
        "record": inner,
        "records": {"type": "array", "items": ["null", "In"]},
        "maps": {"type": "array", "items": {"type": "map", "values": "string"}},
        "bytes": "bytes",
    }
    good: dict[str, Any] = {
        "plain": "@", "list": [None, "@"], "lists": [None, ["@"]], "key": {"@": 1}, "value": {"k": "@"},
        "record": {"text": "@"}, "records": [None, {"text": "@"}], "maps": [{"@": "@"}], "bytes": b"@",
    }  # fmt: skip
    one = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    (tmp_path / "deep.avsc").write_text(json.dumps(one))
    whole = body(one, **good)
    at = [place for place, byte in enumerate(whole) if byte == ord("@")]
    spoilt = [whole[:place] + b"\xe2" + whole[place + 1 :] for place in at]

    rows = decode(open_(schema_file="deep.avsc", wire_format="none"), [whole, *spoilt])

    assert rows[0]["event"]["plain"] == rows[-1]["event"]["plain"] == "@"  # the last ones are the bytes
    assert len(rows) == 11
    assert {row["_error"] for row in rows[1:-1]} == {"avro: a string is not UTF-8"}


def test_with_a_file_the_id_of_a_prefix_does_not_count(open_, written: str, decode) -> None:
    """Nothing is to be asked: without a registry such a topic could not be read."""
    good = body(schema(), game="uno", amount=5)
    headed = {VALUE_HEADER: guid_header(GUID)}

    rows = decode(
        open_(schema_file=written),
        [pack_value(7, None, good), pack_value(8, None, good), good, good],
        [None, None, headed],
    )

    assert [row["event"] is not None for row in rows] == [True, True, True, False]
    assert [row["schema_id"] for row in rows] == [7, 8, None, None]
    assert "magic byte" in rows[3]["_error"]


def test_a_single_object_is_read_when_its_fingerprint_is_that_of_the_file(open_, written: str, decode) -> None:
    """Read with another schema than its own a value is wrong, and nobody knows."""
    good, other = single_object(schema(), game="uno", amount=5), single_object(schema(1), game="uno")

    rows = decode(open_(schema_file=written, wire_format="single_object"), [good, other, good[2:], b"", None, good[:9]])

    assert [row["event"] for row in rows] == [{"game": "uno", "amount": 5}, *[None] * 5]
    assert rows[1]["_error"] == f"fingerprint {other[2:10].hex()} is not that of {written}"
    assert ["C3 01" in row["_error"] for row in rows[2:]] == [True, True, False, True]


def test_single_objects_of_all_versions_of_a_subject_are_one_event(open_, faulty: FaultyRegistry, decode) -> None:
    first = faulty.book.add("bets", json.dumps(schema(2)), "AVRO")
    decoder = open_(registry=faulty.url, subjects=["bets"], wire_format="single_object")
    old, new = single_object(schema(2), game="uno", amount=5), single_object(schema(3), game="uno", amount=6, note="a")
    assert [row["event"] is None for row in decode(decoder, [old, new])] == [False, True]

    second = faulty.book.add("bets", json.dumps(schema(3)), "AVRO")
    rows = decode(decoder, [old, new, new])

    assert [row["event"] for row in rows[:2]] == [
        {"game": "uno", "amount": 5, "note": None},
        {"game": "uno", "amount": 6, "note": "a"},
    ]
    assert [(row["schema_id"], row["schema_version"]) for row in rows] == [(first, 1), (second, 2), (second, 2)]


@pytest.mark.parametrize("space", ["my-shop.events", "shop.Outer$", None])
def test_a_namespace_that_spark_refuses_is_read(open_, faulty: FaultyRegistry, decode, space: str | None) -> None:
    """Avro 1.12 in Spark refuses names that producers with other libraries have."""
    suit = {"type": "enum", "name": "Suit", "symbols": ["HEARTS"]}
    suits = [{"name": "suit", "type": suit}, {"name": "others", "type": {"type": "array", "items": "Suit"}}]
    old = {"type": "record", "name": "Bet", "namespace": space, "fields": [*FIELDS[:2], *suits]}
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": "string"}]}
    event = {"game": "uno", "amount": 5, "suit": "HEARTS", "others": ["HEARTS"]}
    for version in (old, new):
        faulty.book.add("bets", json.dumps(version), "AVRO")
    values = [single_object(old, **event), single_object(new, **event, note="a")]

    rows = decode(open_(registry=faulty.url, subjects=["bets"], wire_format="single_object"), values)

    assert [row["event"] for row in rows] == [{**event, "note": None}, {**event, "note": "a"}]
    assert {row["message"] for row in rows} == {f"{space}.Bet" if space else "Bet"}


def test_a_fingerprint_that_two_meanings_share_is_refused(open_, faulty: FaultyRegistry, decode) -> None:
    """A fingerprint does not tell logical types: a number would be read as a time, or the other way round."""
    amount = {"type": "long", "logicalType": "timestamp-millis"}
    timed = {**schema(2), "fields": [FIELDS[0], {"name": "amount", "type": amount}]}
    faulty.book.add("bets", json.dumps(schema(2)), "AVRO")
    faulty.book.add("bets", json.dumps(timed), "AVRO")
    faulty.book.add("bets", json.dumps(schema(3)), "AVRO")
    decoder = open_(registry=faulty.url, subjects=["bets"], wire_format="single_object")

    rows = decode(
        decoder, [single_object(schema(2), game="uno", amount=5), single_object(schema(3), game="u", amount=1)]
    )

    assert rows[0]["event"] is None
    assert "both have one fingerprint" in rows[0]["_error"]
    assert rows[1]["event"] == {"game": "u", "amount": 1, "note": None}


def test_a_guid_in_a_header_is_resolved_and_its_id_told(open_, faulty: FaultyRegistry, decode) -> None:
    first = faulty.book.add("bets", json.dumps(schema(2)), "AVRO")
    second = faulty.book.add("bets", json.dumps(schema(3)), "AVRO")
    old, new = body(schema(2), game="uno", amount=5), body(schema(3), game="uno", amount=6, note="a")
    headers = [{VALUE_HEADER: guid_header(faulty.book.guid(one))} for one in (first, second)]
    decoder = open_(registry=faulty.url, subjects=["bets"])

    rows = decode(decoder, [old, new, pack_value(first, None, old), None], [*headers, None, headers[0]])

    assert [row["event"] and row["event"]["amount"] for row in rows] == [5, 6, 5, None]
    assert [row["schema_id"] for row in rows] == [first, second, first, None]
    assert [row["schema_version"] for row in rows] == [1, 2, 1, None]
    assert rows[3]["_error"] == "value is null"


def test_a_guid_that_the_registry_does_not_know_is_told_readably(open_, faulty: FaultyRegistry, decode) -> None:
    faulty.book.add("bets", json.dumps(schema(2)), "AVRO")
    faulty.lacks.add(GUIDS)
    headers = [{VALUE_HEADER: guid_header(GUID)}, {VALUE_HEADER: b"\1short"}]

    rows = decode(open_(registry=faulty.url, subjects=["bets"]), [b"a", b"b"], headers)

    assert rows[0]["_error"].startswith(f"the registry does not give schema {GUID}: it does not know GUIDs")
    assert "not 01 and 16 bytes" in rows[1]["_error"]


def test_a_key_has_a_header_of_its_own(open_, faulty: FaultyRegistry, decode) -> None:
    """The header of the value names another schema."""
    number = faulty.book.add("bets", json.dumps(schema(2)), "AVRO")
    good = body(schema(2), game="uno", amount=5)
    headers = [{KEY_HEADER: guid_header(faulty.book.guid(number)), VALUE_HEADER: b"of something else"}]

    (row,) = decode(open_(registry=faulty.url, subjects=["bets"], header=KEY_HEADER), [good], headers)

    assert row["event"] == {"game": "uno", "amount": 5}


def test_more_versions_than_a_list_of_conditions_takes_are_one_event(open_, faulty: FaultyRegistry, decode) -> None:
    """Spark turns long lists of literals into sets, for bytes as for numbers."""
    numbers = [faulty.book.add("bets", json.dumps(schema(2, doc=f"{index}")), "AVRO") for index in range(14)]
    good = body(schema(2), game="uno", amount=5)

    rows = decode(open_(registry=faulty.url, subjects=["bets"]), [pack_value(number, None, good) for number in numbers])

    assert [row["schema_version"] for row in rows] == list(range(1, 15))
    assert all(row["event"] == {"game": "uno", "amount": 5} for row in rows)


def test_native_prefixes_are_those_of_the_parser(spark: SparkSession) -> None:
    """Both say where a value starts and what wrote it: one topic may be read by either."""
    from router_decoders.avro import with_frame_columns

    draw = random.Random(8)
    starts = [
        b"",
        b"\0",
        payload_prefix(7),
        payload_prefix(2**31 - 1),
        b"\0\x80\0\0\0",
        b"\0\xff\xff\xff\xff",
        b"\1",
        b"{}{}{}",
    ]
    tails = [b"", b"\0", b"abcdef", draw.randbytes(9)]
    named = [guid_header(GUID), guid_header(GUID, (0, 1)), b"", b"\0" + GUID.bytes, b"\1" + GUID.bytes[:-1]]
    headers: list[Headers] = [None, {}, {"other": b"1"}, *({"x": b"", VALUE_HEADER: name} for name in named)]
    pairs = [(value, header) for value in [None, *(s + t for s in starts for t in tails)] for header in headers]
    known = Records(records_of({}, {}).event)

    values, given = zip(*pairs, strict=True)
    raw = _raw(spark, values, given)
    frame = with_frame_columns(raw, known).toArrow().sort_by("offset")
    frames = parse_values(frame.column("value").combine_chunks(), False, frame.column("headers").combine_chunks())

    expected = [frames.keys[group] if group >= 0 else None for group in frames.groups]
    names = [
        one and (guid_header(UUID(bytes=one.guid)) if one.guid else payload_prefix(one.id or 0)) for one in expected
    ]
    assert frame.column("_key").to_pylist() == names
    keyed = pa.array([name is not None for name in names])
    starts_at = [value[start:] for value, start, key in zip(values, frames.starts, names, strict=True) if key]
    assert frame.filter(keyed).column("_body").to_pylist() == starts_at
    assert BAD_ID in frames.status


@pytest.mark.parametrize("wire_format", ["confluent", "none", "single_object"])
def test_every_wire_format_keeps_the_contract(spark: SparkSession, open_, written: str, wire_format: str) -> None:
    good = body(schema(), game="uno", amount=5)
    framed = {
        "none": good,
        "confluent": pack_value(3, None, good),
        "single_object": single_object(schema(), game="uno", amount=5),
    }

    check_decoder(
        spark, open_(schema_file=written, wire_format=wire_format).refresh(frozenset()), [framed[wire_format]]
    )


def test_a_use_is_a_record() -> None:
    with pytest.raises(ValueError, match="no record"):
        RecordUse.of(SchemaOrigin("bets"), parse_text('"string"'))


def money(precision: int = 4) -> dict[str, Any]:
    """Return a schema with decimals in all places, and with values before them that are passed over."""
    decimal = {"logicalType": "decimal", "precision": precision, "scale": 2}
    fixed = {"type": "fixed", "name": "Eight", "size": 8, **decimal}
    inner = {"type": "record", "name": "Item", "fields": [{"name": "cost", "type": {"type": "bytes", **decimal}}]}
    fields = [
        {"name": "paid", "type": {"type": "bytes", **decimal}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "flags", "type": {"type": "map", "values": ["null", "boolean", "double", "float", "int"]}},
        {"name": "left", "type": ["null", "string", fixed]},
        {"name": "items", "type": {"type": "array", "items": inner}},
        {"name": "by", "type": {"type": "map", "values": "Eight"}},
        {"name": "note", "type": "string"},
    ]
    return {"type": "record", "namespace": "games", "name": "Bill", "fields": fields}


GOOD: dict[str, Any] = {
    "paid": Decimal("-99.99"),
    "kind": "B",
    "flags": {"a": True, "b": None, "c": 1.5, "d": -3},
    "left": Decimal("12.34"),
    "items": [{"cost": Decimal("1.00")}, {"cost": Decimal("99.99")}],
    "by": {"x": Decimal("-0.01"), "y": Decimal(0)},
    "note": "n",
}
BEYOND: dict[str, dict[str, Any]] = {
    "paid": {"paid": Decimal("100.00")},
    "left": {"left": Decimal("-100.00")},
    "items[].cost": {"items": [{"cost": Decimal("1.00")}, {"cost": Decimal("12345678901234567890.12")}]},
    "by{}": {"by": {"x": Decimal("0.01"), "y": Decimal("12345.67")}},
}


def test_a_decimal_with_too_many_digits_is_named(open_, tmp_path: Path, decode) -> None:
    """Without it a good value that only is too large is called broken, and people look for a faulty network."""
    (tmp_path / "bill.avsc").write_text(json.dumps(money()))
    decoder = open_(schema_file="bill.avsc", wire_format="none")
    # A producer that does not check digits. A fixed of eight bytes has 18 of them at most, bytes have any number.
    unchecked = money(18)
    unchecked["fields"][4]["type"]["items"]["fields"][0]["type"]["precision"] = 38
    bodies = [body(unchecked, **{**GOOD, **values}) for values in BEYOND.values()]

    rows = decode(decoder, [body(money(), **GOOD), *bodies, bodies[0][:-1], bodies[0] + b"\0", b"\xff" * 30])

    assert rows[0]["_error"] is None
    named = [f"avro: field {path}: the number has more digits than decimal(4, 2) allows" for path in BEYOND]
    assert [row["_error"] for row in rows[1:5]] == named
    broken = "avro: the value is broken or cut off"
    assert [row["_error"] for row in rows[5:]] == [broken, named[0], broken]


def test_the_digits_are_those_of_the_merged_column(open_, faulty: FaultyRegistry, decode) -> None:
    """Without it the field of an older version is blamed, whose values the wider column takes."""
    narrow = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}

    def two(first: int, second: int) -> dict[str, Any]:
        kinds = {"a": {**narrow, "precision": first}, "b": {**narrow, "precision": second}}
        fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
        return {"type": "record", "namespace": "games", "name": "Bill", "fields": fields}

    old = faulty.book.add("bills", json.dumps(two(4, 4)), "AVRO")
    faulty.book.add("bills", json.dumps(two(6, 4)), "AVRO")
    decoder = open_(registry=faulty.url, subjects=["bills"])
    both = body(two(20, 20), a=Decimal("1000.00"), b=Decimal("1000.00"))
    first = body(two(20, 20), a=Decimal("1000.00"), b=Decimal("10.00"))

    rows = decode(decoder, [pack_value(old, None, first), pack_value(old, None, both)])

    assert rows[0]["_error"] is None
    assert rows[0]["event"]["a"] == Decimal("1000.00")
    assert rows[1]["_error"] == "avro: field b: the number has more digits than decimal(4, 2) allows"


@pytest.mark.parametrize("hostile", [b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80" * 20, b"\x01\x00", b""])
def test_a_hostile_value_ends_the_search_for_digits(hostile: bytes) -> None:
    """Without it a length or a count in a record of a few bytes keeps a task busy for ever."""
    nulls = {"name": "nulls", "type": {"type": "array", "items": "null"}}
    paid = {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}}
    inner = {"type": "record", "name": "Bill", "fields": [nulls, paid]}
    text = json.dumps({"type": "record", "name": "Envelope", "fields": [{"name": "value", "type": inner}]})

    assert too_many_digits(hostile, text, text) is None
    assert too_many_digits(b"\0" + b"\x80\x80\x01" + b"\x7f" * 8192, text, text) is not None
