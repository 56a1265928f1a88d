"""Framed JSON with JSON Schemas of a registry: against Python's json, natively and in record batches."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from router import StartError
from router.testing import check_decoder
from router_decoders import Auto, JsonSchema
from router_decoders.json_arrow import FramedObjects, JsonEvents, framed_events
from router_decoders.json_types import shape_of
from router_schemas.json_schema.documents import struct_of_text
from router_schemas.json_schema.library import Objects
from router_schemas.model import KEY_HEADER, VALUE_HEADER, SchemaInfo
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.wire_format import guid_header, pack_value
from tests.light import drawn
from tests.plugins.json_documents import UTC, bigs, damaged, days, examples, texts, times, written
from tests.schemas.raw import raw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router_demo.registry import EmbeddedRegistry
    from tests.plugins.conftest import Open, Stream
    from tests.schemas.faulty import FaultyRegistry

Json = Any
BET: Json = {
    "title": "Bet",
    "type": "object",
    "properties": {"game": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["game"],
}
SECOND: Json = {
    **BET,
    "properties": {**BET["properties"], "note": {"type": ["string", "null"]}, "odds": {"type": "number"}},
}
CLASH: Json = {**BET, "properties": {"game": {"type": "string"}, "amount": {"type": "string"}}}


def text(document: Json) -> bytes:
    return json.dumps(document).encode()


def add(registry: FaultyRegistry, *schemas: Json, subject: str = "bets", **references: Json) -> list[int]:
    """Register versions of a subject."""
    return [registry.book.add(subject, json.dumps(one), "JSON", **references) for one in schemas]


def decoder(registry: FaultyRegistry, /, **options: Any) -> JsonSchema:
    return JsonSchema.model_validate({"registry": registry.url, "subjects": ["bets"], **options})


def test_a_registry_is_needed() -> None:
    """An option that is left out is told, with its name."""
    with pytest.raises(ValidationError, match="exactly one of registry"):
        JsonSchema.model_validate({})


def test_versions_are_one_event(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """Without it a topic has a table for each version, or none of the newer fields."""
    first, second = add(faulty, BET, SECOND)
    old, new = {"game": "uno", "amount": 5, "extra": 1}, {"game": "uno", "amount": 6, "note": "a", "odds": 2}

    rows = stream(opened(decoder(faulty)), [pack_value(first, None, text(old)), pack_value(second, None, text(new))])

    assert [row["event"] for row in rows] == [
        {"game": "uno", "amount": 5, "note": None, "odds": None},
        {"game": "uno", "amount": 6, "note": "a", "odds": 2.0},
    ]
    told = [[row[name] for name in ("schema_id", "schema_version", "subject", "message", "_error")] for row in rows]
    assert told == [[first, 1, "bets", "Bet", None], [second, 2, "bets", "Bet", None]]


def test_a_version_that_no_column_can_hold_is_refused_with_the_field(
    faulty: FaultyRegistry, opened: Open, stream: Stream
) -> None:
    """Without it one column has numbers and texts, or the older records are lost."""
    first, second, third = add(faulty, BET, CLASH, SECOND)
    good, bad = text({"game": "uno", "amount": 5}), text({"game": "uno", "amount": "five"})

    rows = stream(
        opened(decoder(faulty)),
        [
            pack_value(first, None, good),
            pack_value(second, None, bad),
            pack_value(second, None, good),
            pack_value(third, None, good),
        ],
    )

    assert [row["event"] is not None for row in rows] == [True, False, False, True]
    for row in rows[1:3]:
        assert all(word in row["_error"] for word in ("'amount'", "bets version 1", "bets version 2", "integer"))
        assert (row["schema_id"], row["schema_version"]) == (second, 2)


def test_new_versions_and_unannounced_ids_need_no_restart(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """Without it a new field waits for somebody to start the stream again."""
    add(faulty, BET)
    begun = opened(decoder(faulty)).refresh(frozenset())
    assert begun.refresh(frozenset()) is begun
    (second,) = add(faulty, SECOND)
    begun = begun.refresh(frozenset())
    assert begun.known_schemas.struct.fieldNames() == ["game", "amount", "note", "odds"]
    (other,) = add(faulty, {**BET, "title": "Login", "properties": {"who": {"type": "string"}}}, subject="logins")

    rows = stream(begun, [pack_value(other, None, b'{"who":"me"}'), pack_value(second, None, b"{}")])

    assert [row["message"] for row in rows] == ["Login", "Bet"]
    assert rows[0]["event"] == {"game": None, "amount": None, "note": None, "odds": None, "who": "me"}


def test_an_unknown_id_is_a_dead_letter_and_a_registry_that_is_away_is_waited_for(
    faulty: FaultyRegistry, opened: Open, stream: Stream
) -> None:
    """Good records must not be dead letters because of an outage, and garbage must not stop the stream."""
    (number,) = add(faulty, BET)
    good = pack_value(number, None, b'{"game":"uno"}')
    begun = opened(decoder(faulty, registry={"url": faulty.url, "attempts": 1}))

    unknown, fine = stream(begun, [pack_value(99, None, b"{}"), good])

    assert unknown["_error"].startswith("the registry does not give schema 99: it answers 404")
    assert fine["event"] == {"game": "uno", "amount": None}
    faulty.fails("503")
    with pytest.raises(ConnectionError, match="waiting for the schema registry"):
        begun.refresh(frozenset({"schema 98"}))
    again = opened(decoder(faulty, registry={"url": faulty.url, "attempts": 1}))
    assert [row["event"] for row in stream(again, [good])] == [fine["event"]]


def test_guids_and_references_are_followed(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """Without it schemas that share a type have no columns, and records of newer clients are dead letters."""
    add(faulty, {"type": "object", "properties": {"id": {"type": "string"}}}, subject="player")
    whole = {"properties": {"who": {"$ref": "player.json"}, "next": {"$ref": "#"}}}
    (number,) = add(faulty, whole, references=[("player.json", "player", 1)])
    headers = [{VALUE_HEADER: guid_header(faulty.book.guid(number))}, {KEY_HEADER: b"of the key"}]
    value = {"who": {"id": "g-1"}, "next": {"who": {"id": "g-2"}}}

    rows = stream(opened(decoder(faulty)), [text(value), pack_value(number, None, text(value))], headers)

    for row in rows:
        assert json.loads(row["event"].pop("next")) == value["next"]
        assert row["event"] == {"who": {"id": "g-1"}}
        assert (row["schema_id"], row["message"]) == (number, None)


def test_schemas_of_another_format_and_of_no_use_have_a_reason(
    faulty: FaultyRegistry, opened: Open, stream: Stream
) -> None:
    """Whoever reads the dead letters has to know whom to ask."""
    avro = faulty.book.add("avro", '{"type":"record","name":"r","fields":[]}', "AVRO")
    nothing, broken, array = add(faulty, {"type": "string"}, [1], {"items": BET}, subject="odd")
    (good,) = add(faulty, BET)

    rows = stream(opened(decoder(faulty)), [pack_value(n, None, b"{}") for n in (avro, nothing, broken, array, good)])

    words = [f"schema {avro} is AVRO, not JSON", "an event is an object", "a schema is an object", "an event is an"]
    for row, word in zip(rows[:-1], words, strict=True):
        assert row["event"] is None
        assert word in row["_error"]
    assert rows[-1]["event"] is not None


@pytest.mark.parametrize("decode", [JsonSchema, Auto])
def test_a_start_without_a_readable_schema_says_what_is_wrong_with_it(
    decode: type[JsonSchema | Auto], faulty: FaultyRegistry, opened: Open
) -> None:
    """To name the subjects is no advice to someone who has named them."""
    options = {"registry": faulty.url, "subjects": ["bets"]}
    with pytest.raises(StartError, match="register a schema of the `subjects`"):
        opened(decode.model_validate(options)).refresh(frozenset())
    (number,) = add(faulty, {"oneOf": [{"type": "string"}, {"type": "integer"}]})

    with pytest.raises(StartError, match=f"schema {number} cannot be used: #: a column has one type") as caught:
        opened(decode.model_validate(options)).refresh(frozenset())

    assert "subjects" not in str(caught.value)


def test_alternatives_at_the_root_are_read(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """One property of two types must not cost the records of all alternatives."""
    (number,) = add(faulty, {"oneOf": [BET, CLASH, {"type": "array"}]})
    values = [{"game": "uno", "amount": 5}, {"game": "uno", "amount": "5"}, {"game": "uno", "amount": None}, []]

    rows = stream(opened(decoder(faulty)), [pack_value(number, None, text(value)) for value in values])

    assert [row["event"] and row["event"]["amount"] for row in rows] == ["5", "5", None, None]
    assert [row["_error"] is None for row in rows] == [True, True, True, False]


def test_names_that_a_table_cannot_have_are_columns(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """One property with a blank in its name would stop every batch."""
    schema = {"properties": {"big win": {"type": "integer"}, "in": {"properties": {"a.b": {"type": "string"}}}}}
    (number,) = add(faulty, schema)
    begun = opened(decoder(faulty)).refresh(frozenset())

    (row,) = stream(begun, [pack_value(number, None, text({"big win": 5, "in": {"a.b": "x"}}))])

    assert row["event"] == {"big_win": 5, "in": {"a.b": "x"}}
    assert begun.decoding().adds["event"].dataType.fieldNames() == ["big_win", "in"]


def test_the_decoder_keeps_the_contract(spark: SparkSession, faulty: FaultyRegistry, opened: Open) -> None:
    """Every kind of garbage ends as one record with a reason."""
    (number,) = add(faulty, SECOND)

    check_decoder(spark, opened(decoder(faulty)).refresh(frozenset()), [pack_value(number, None, b'{"game":"uno"}')])


def test_a_real_registry_serves_json_schemas(schema_registry: EmbeddedRegistry, opened: Open, stream: Stream) -> None:
    """What a stand-in serves is what somebody thought a registry does."""
    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        first = client.register("json-bets", "JSON", json.dumps(BET))
        second = client.register("json-bets", "JSON", json.dumps(SECOND))
    begun = opened(JsonSchema.model_validate({"registry": schema_registry.url, "subjects": ["json-bets"]}))

    rows = stream(
        begun,
        [
            pack_value(first, None, b'{"game":"uno"}'),
            pack_value(second, None, b'{"odds":1}'),
            pack_value(2**30, None, b""),
        ],
    )

    assert [row["schema_version"] for row in rows] == [1, 2, None]
    assert [row["event"] is None for row in rows] == [False, False, True]
    assert f"schema {2**30}" in rows[2]["_error"]


# Against Python's json: schemas and the documents that they allow are drawn together.

LEAVES: list[tuple[Json, st.SearchStrategy[Json]]] = [
    ({"type": "string"}, texts),
    ({"type": "integer"}, bigs),
    ({"type": ["null", "integer"], "minimum": 0}, st.none() | bigs),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "string", "format": "date-time"}, times.map(lambda time: time.replace(" ", "T"))),
    ({"type": "string", "format": "date"}, days),
    ({"type": "string", "format": "uuid"}, st.uuids().map(str)),
    ({"enum": ["a", "b", None]}, st.sampled_from(["a", "b", None])),
    ({"oneOf": [{"type": "null"}, {"type": "boolean"}]}, st.none() | st.booleans()),
    ({"$ref": "#/$defs/player"}, st.fixed_dictionaries({}, optional={"id": texts, "level": bigs})),
]
DEFS = {"player": {"properties": {"id": {"type": "string"}, "level": {"type": "integer"}}}}
Drawn = tuple[Json, st.SearchStrategy[Json]]


def _nested(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    def array(one: Drawn) -> Drawn:
        return {"type": "array", "items": one[0]}, st.lists(st.none() | one[1], max_size=3)

    def an_object(fields: dict[str, Drawn]) -> Drawn:
        values = {name: st.none() | value for name, (_, value) in fields.items()}
        schema = {"type": "object", "properties": {name: one for name, (one, _) in fields.items()}}
        return schema, st.fixed_dictionaries({}, optional=values)

    return inner.map(array) | st.dictionaries(st.sampled_from("abcé"), inner, min_size=1, max_size=3).map(an_object)


any_value = st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=6)


def read_by_python(schema: Json, value: Json) -> Json:
    """Return what a document means by the mapping that docs/reference/formats.md promises."""
    schema = DEFS["player"] if "$ref" in schema else schema
    if value is None:
        return None
    if "properties" in schema:
        return {name: read_by_python(one, value.get(name)) for name, one in schema["properties"].items()}
    if schema.get("type") == "array":
        return [read_by_python(schema["items"], one) for one in value]
    if schema.get("format") == "date-time":
        return dt.datetime.fromisoformat(value.replace("Z", "+00:00") if "." not in value else _six(value))
    if schema.get("format") == "date":
        return dt.date.fromisoformat(value)
    return float(value) if schema.get("type") == "number" else value


def _six(value: str) -> str:
    """Return a time with six decimals, which Python 3.10 wants."""
    head, _, decimals = value.removesuffix("Z").partition(".")
    return f"{head}.{decimals:0<6}+00:00"


@settings(max_examples=drawn(150))
@given(st.data())
def test_documents_that_a_schema_allows_have_the_values_that_python_reads(data: st.DataObject) -> None:
    """A value must be the one that the producer wrote, whatever the schema says."""
    fields = data.draw(st.dictionaries(st.sampled_from("pqrstuvß"), any_value, min_size=1, max_size=4))
    schema = {"properties": {name: one for name, (one, _) in fields.items()}, "$defs": DEFS}
    value = st.fixed_dictionaries({}, optional={name: st.none() | values for name, (_, values) in fields.items()})
    documents = data.draw(st.lists(value, min_size=1, max_size=4))
    known = shape_of(struct_of_text(json.dumps(schema)))

    found = framed_events(
        raw(
            [pack_value(7, None, json.dumps(one, ensure_ascii=data.draw(st.booleans())).encode()) for one in documents]
        ),
        FramedObjects(JsonEvents(known), {pack_value(7, None, b""): SchemaInfo(7)}, VALUE_HEADER),
    )

    assert found.column("_error").null_count == len(documents)
    expected = [read_by_python(schema, one) for one in documents]
    assert repr(found.column("event").to_pylist()) == repr(_in_utc(expected))


def _in_utc(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _in_utc(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_in_utc(one) for one in value]
    return value.replace(tzinfo=UTC) if isinstance(value, dt.datetime) else value


EVERYTHING: Json = {
    "properties": {
        **{f"f{k}": one for k, (one, _) in enumerate(LEAVES)},
        "tags": {"type": "array", "items": {"type": "integer"}},
    },
    "$defs": DEFS,
}
FREE: Json = {
    "properties": {
        "free": {"type": "object"},
        "any": {},
        "several": {"type": ["string", "integer"]},
        "again": {"$ref": "#"},
        "counts": {"additionalProperties": {"type": "integer"}},
        "texts": {"additionalProperties": {}},
    }
}
whatever = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
everything = st.fixed_dictionaries(
    {}, optional={**{f"f{k}": st.none() | one for k, (_, one) in enumerate(LEAVES)}, "tags": st.lists(bigs), "x": texts}
)
free = st.fixed_dictionaries(
    {},
    optional={
        "free": st.dictionaries(texts, whatever, max_size=2),
        "any": whatever,
        "several": texts | bigs,
        "again": st.just({"again": {"any": 1}}),
        "counts": st.dictionaries(texts, st.none() | bigs, max_size=2),
        "texts": st.dictionaries(texts, whatever, max_size=2),
    },
)


def test_a_stage_of_its_own_a_task_and_python_agree(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """A record must be the same in the table whichever way it took, and fail for the same reason."""
    first, second, third = add(faulty, EVERYTHING, {"properties": {"f0": {"type": "integer"}}}, BET)
    good = examples(written(everything), 300)
    bodies = [*good, *examples(damaged() | st.binary(max_size=30), 300), b"", b"[]", b"{}{}", b'{"f1":"x"}']
    values: list[bytes | None] = [pack_value(first, None, body) for body in bodies]
    values += [
        None,
        b"",
        b"\0",
        b"{}{}{}{}",
        pack_value(second, None, b"{}"),
        pack_value(third, None, b'{"game":"uno"}'),
    ]
    values += [pack_value(77, None, b"{}"), pack_value(2**31 - 1, None, b"")]
    headed = [b"{}", b"nope", b"{}"]
    headers = [
        *[None] * len(values),
        {VALUE_HEADER: guid_header(faulty.book.guid(first))},
        {VALUE_HEADER: guid_header(faulty.book.guid(first))},
        {VALUE_HEADER: b"\1"},
    ]
    begun = opened(decoder(faulty)).refresh(frozenset({"schema 77", f"schema {2**31 - 1}"}))
    begun = begun.refresh(frozenset({f"schema {faulty.book.guid(first)}"}))

    native = stream(begun, [*values, *headed], headers)
    made = begun.decoding()
    records = raw([*values, *headed], headers)
    found = made.function(records, made.argument).to_pylist()

    for value, body, one in zip(values, good, native, strict=False):
        expected = read_by_python(EVERYTHING, json.loads(body))
        assert one["_error"] is None, value
        assert {name: one["event"][name] for name in expected} == _in_utc(expected), value
    names = [name for name in made.adds.names if name != "_unknown"]
    for one, row in zip(native, found, strict=True):
        assert [repr(one[name]) for name in names] == [repr(row[name]) for name in names], one
        assert (one["_unknown"] is None) == (row["_unknown"] is None), "which fields are named, each process decides"
        assert (row["event"] is None) != (row["_error"] is None), one["value"]

    order = random.Random(3).sample(range(len(found)), len(found))
    shuffled = made.function(records.take(pa.array(order)), made.argument).to_pylist()
    assert [repr(row) for row in shuffled] == [repr(found[place]) for place in order]


def test_what_no_column_can_hold_comes_as_its_json_text(faulty: FaultyRegistry, opened: Open, stream: Stream) -> None:
    """A text that says something else than the document is worse than none."""
    (number,) = add(faulty, FREE)
    documents = [*examples(free, 300), {"any": "NaN", "several": "[NaN]", "texts": {"a": "-Infinity"}}]

    rows = stream(opened(decoder(faulty)), [pack_value(number, None, json.dumps(one).encode()) for one in documents])

    for document, row in zip(documents, rows, strict=True):
        assert row["_error"] is None, document
        event, expected = row["event"], {name: document.get(name) for name in FREE["properties"]}
        assert event["counts"] == (None if expected["counts"] is None else [*expected["counts"].items()])
        assert [_told(value) for _, value in event["texts"] or ()] == [
            _told(v) for v in (expected["texts"] or {}).values()
        ]
        for name in ("free", "any", "several", "again"):
            assert _told(event[name]) == _told(expected[name]), document


def _told(value: Json) -> Json:
    """Return what a text stands for: itself, or its JSON. NaN is no JSON, and does not equal itself in Python."""

    def refuse(name: str) -> Json:
        raise ValueError(f"{name} is not JSON")

    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=refuse)
    except ValueError:
        return value


def test_what_reads_objects_travels_to_tasks() -> None:
    """The plan of a batch is pickled, with the schemas in it."""
    known = Objects(struct_of_text(json.dumps(EVERYTHING)), {b"": SchemaInfo(7)})

    assert hash(shape_of(known.struct)) == hash(shape_of(struct_of_text(json.dumps(EVERYTHING))))
