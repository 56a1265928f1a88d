"""Registered Avro schemas read into one, and their fingerprints, against the specification and fastavro."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import fastavro.schema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_schemas.avro.library import reader_text
from router_schemas.avro.model import (
    MAX_TYPE_DEPTH,
    canonical_form,
    rabin_fingerprint,
    recursive_types,
    single_object_header,
    text_of,
)
from router_schemas.avro.parser import MAX_FIXED_BYTES, is_name, parse_resolved, parse_text
from router_schemas.model import RegisteredSchema, ResolvedSchema
from tests.light import drawn
from tests.schemas import avro_strategies as avro
from tests.schemas.avro_records import Json, avro_record


def parsed(schema: Json, **imports: Json) -> Json:
    """Return the schema that a text and its imports make, as JSON."""
    texts = {name: json.dumps(text) for name, text in imports.items()}
    return json.loads(text_of(parse_text(json.dumps(schema), texts)))


# Fingerprints that Avro's own libraries are tested with: avro, share/test/data/schema-tests.txt.
KNOWN = {
    '"null"': 7195948357588979594,
    '"boolean"': -6970731678124411036,
    '{"type":"int"}': 8247732601305521295,
    '"long"': -3434872931120570953,
    '"float"': 5583340709985441680,
    '"double"': -8181574048448539266,
    '"bytes"': 5746618253357095269,
    '"string"': -8142146995180207161,
    "[  ]": -1241056759729112623,
    '[ "int" , {"type":"boolean"} ]': 5392556393470105090,
    '{"fields":[], "type":"record", "name":"foo", "namespace":"x.y", "doc":"d"}': 5916914534497305771,
    '{"fields":[], "type":"record", "name":"a.b.foo", "namespace":"x.y"}': -4616218487480524110,
    '{"fields":[], "type":"record", "name":"foo", "aliases":["foo","bar"]}': -4824392279771201922,
    '{"fields":[{"type":{"type":"boolean"}, "name":"f1"}], "type":"record", "name":"foo"}': 7843277075252814651,
    '{"type":"enum", "name":"foo", "symbols":["A1"]}': -6342190197741309591,
    '{"name":"foo","type":"fixed","size":15}': 1756455273707447556,
    '{ "items":{"type":"null"}, "type":"array"}': -589620603366471059,
    '{ "values":"string", "type":"map"}': -8732877298790414990,
    '{"name":"PigValue","type":"record","fields":[{"name":"value","type":["null","int","long","PigValue"]}]}': (
        -1759257747318642341
    ),
}


@pytest.mark.parametrize(("text", "fingerprint"), KNOWN.items(), ids=KNOWN)
def test_a_fingerprint_is_the_one_that_every_library_makes(text: str, fingerprint: int) -> None:
    """Otherwise no single-object encoded record would find its schema."""
    expected = fingerprint.to_bytes(8, "little", signed=True)

    assert single_object_header(parse_text(text)) == b"\xc3\x01" + expected


@settings(max_examples=drawn(100))
@given(avro.lineages())
def test_schemas_are_read_as_fastavro_reads_them(lineage: Any) -> None:
    """A type read differently would take the bytes of its neighbour."""
    schema = lineage[2][-1].schema
    canonical = fastavro.schema.to_parsing_canonical_form(schema)

    ours = parse_text(json.dumps(schema))

    assert canonical_form(ours) == canonical
    assert int(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"), 16).to_bytes(8, "big") == (
        rabin_fingerprint(canonical.encode()).to_bytes(8, "little")
    )
    assert parse_text(text_of(ours)) == ours


texts = st.text(max_size=5) | st.sampled_from(["record", "enum", "fixed", "array", "map", "int", "string", "a", "b.c"])
keys = st.sampled_from(["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "aliases"])
scalars = st.none() | st.booleans() | st.integers(-3, 30) | texts
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5))


@settings(max_examples=drawn(300))
@given(anything)
def test_anything_is_a_schema_or_refused(schema: Json) -> None:
    """Whoever can register must not be able to stop the stream."""
    with suppress(ValueError):
        found = parse_text(json.dumps(schema))
        assert parse_text(text_of(found)) == found


@given(st.text(max_size=20))
def test_any_text_is_refused_or_a_schema(text: str) -> None:
    """A registry serves what somebody put there."""
    with suppress(ValueError):
        parse_text(text)


def test_imported_types_are_defined_at_their_first_use() -> None:
    """Spark gets one text, and reads it from the front."""
    point = avro_record(("x", "int"), name="Point", namespace="geo")
    line = avro_record(("from", "Point"), ("to", "Point"), name="Line", namespace="geo")

    found = parsed(avro_record(("at", "geo.Line"), ("last", "geo.Point")), point=point, line=line)

    inner = found["fields"][0]["type"]
    assert inner["fields"][0]["type"] == {
        "name": "geo.Point",
        "type": "record",
        "fields": [{"name": "x", "type": "int"}],
    }
    assert inner["fields"][1]["type"] == found["fields"][1]["type"] == "geo.Point"


def test_an_import_under_two_names_is_one() -> None:
    """Two schemas may import a third under names of their own."""
    point = avro_record(("x", "int"), name="Point")

    assert parsed(avro_record(("at", "Point")), one=point, two=point) == parsed(avro_record(("at", point)))


def test_what_is_imported_and_not_used_is_dropped() -> None:
    """The text is part of every plan."""
    assert parsed(avro_record(("a", "int")), other=avro_record(name="Other")) == avro_record(("a", "int"))


def test_a_registered_schema_is_read_with_its_imports() -> None:
    """This is how the registry's client hands them over."""
    registered = RegisteredSchema(7, "AVRO", json.dumps(avro_record(("at", "Point"))))
    closed = ResolvedSchema(registered, {"Point": json.dumps(avro_record(("x", "int"), name="Point"))})

    assert list(parse_resolved(closed).types) == ["Event", "Point"]


def test_names_without_a_namespace_are_found_from_inside_of_one() -> None:
    """Avro's Java library finds them, so producers have such schemas."""
    shared = {"type": "enum", "name": "Suit", "symbols": ["HEARTS"]}

    found = parsed(avro_record(("suit", "Suit"), name="a.Event"), suit=shared)

    assert found["fields"][0]["type"] == {"name": "Suit", "type": "enum", "symbols": ["HEARTS"], "namespace": ""}


def test_a_name_that_would_be_read_as_another_is_refused() -> None:
    """Spark would read the one type with the bytes of the other."""
    bare = {"type": "enum", "name": "Suit", "namespace": "", "symbols": ["A"]}
    own = {"type": "fixed", "name": "Suit", "size": 1}
    inner = avro_record(("one", own), ("other", "Suit"), name="a.Inner")
    schema = parse_text(json.dumps(avro_record(("x", bare), ("in", inner))))

    assert text_of(schema)  # `other` is the one in the namespace
    twice = avro_record(("x", bare), ("y", "Suit"), ("in", own), name="a.Event")
    with pytest.raises(ValueError, match="has no namespace"):
        text_of(parse_text(json.dumps(twice)))


@pytest.mark.parametrize(
    ("schema", "where", "what"),
    [
        ("Missing", "the schema", "no type 'Missing'"),
        (avro_record(("a", {"type": "array", "items": "Missing"})), "Event.a[]", "no type 'Missing'"),
        (avro_record(("a", {"type": "map", "values": 3})), "Event.a{}", "not 3"),
        (avro_record(("a", avro_record(name="Event"))), "Event.a", "defined twice"),
        (avro_record(("a", "int"), ("a", "int")), "Event", "field a is defined twice"),
        (avro_record(("a", ["int", ["string"]])), "Event.a", "union"),
        (avro_record(("a", ["int", "string", "int"])), "Event.a", "'int' twice"),
        (
            avro_record(("a", [{"type": "array", "items": "int"}, {"type": "array", "items": "string"}])),
            "Event.a",
            "array",
        ),
        (avro_record(("a", avro_record(("b", "x"), name="n.Inner"))), "n.Inner.b", "no type 'x'"),
        (avro_record(("a-b", "int")), "Event", "'a-b' cannot be"),
        (avro_record(("", "int")), "Event", "cannot be"),
        (avro_record(name="a..b"), "the schema", "'a..b' cannot be"),
        (avro_record(name="string"), "the schema", "'string' cannot be"),
        (avro_record(name="Event`; drop"), "the schema", "cannot be"),
        ({"type": "record", "name": "E"}, "E", "`fields` is missing"),
        ({"type": "record", "fields": []}, "the schema", "`name` is missing"),
        ({"type": "record", "name": "E", "fields": {}}, "E", "list"),
        ({"type": "record", "name": "E", "fields": ["a"]}, "E", "object"),
        ({"type": "record", "name": "E", "fields": [{"name": "a"}]}, "E.a", "`type` is missing"),
        ({"type": "record", "name": 3, "fields": []}, "the schema", "texts"),
        ({"type": "record", "name": "E", "fields": [], "aliases": "x"}, "the schema", "list of texts"),
        ({"type": "enum", "name": "E", "symbols": ["a", "a"]}, "E", "twice"),
        ({"type": "enum", "name": "E", "symbols": ["a b"]}, "E", "'a b'"),
        ({"type": "enum", "name": "E"}, "E", "`symbols` is missing"),
        ({"type": "fixed", "name": "F", "size": -1}, "F", "number of bytes"),
        ({"type": "fixed", "name": "F", "size": True}, "F", "number of bytes"),
        ({"type": "fixed", "name": "F", "size": MAX_FIXED_BYTES + 1}, "F", "use bytes"),
        ({"name": "E"}, "the schema", "`type`"),
        ({"type": "array"}, "the schema", "`items` is missing"),
        (None, "the schema", "not None"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_with_its_place(schema: Json, where: str, what: str) -> None:
    """Whoever registered it has to find the place in a schema of a thousand lines."""
    with pytest.raises(ValueError, match=": ") as caught:
        parse_text(json.dumps(schema))

    assert str(caught.value).startswith(f"{where}: ")
    assert what in str(caught.value)


def test_a_wrong_import_is_named() -> None:
    """The schema itself is right, and nobody would look there."""
    with pytest.raises(ValueError, match=r"^reference '\.\./\.\./x': it is not JSON"):
        parse_text('"int"', {"../../x": "{"})


def test_a_long_name_is_cut_in_the_message() -> None:
    """A log is no place for a megabyte."""
    with pytest.raises(ValueError, match="there is no type") as caught:
        parse_text(json.dumps("x" * 1_000_000))

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (avro_record(("a", "int"), name="R", namespace="com.my-shop.events"), "com.my-shop.events.R"),
        (avro_record(("a", "int"), name="R", namespace="com.shop.Outer$"), "com.shop.Outer$.R"),
        (avro_record(("a", "int"), name="my-shop.Outer$.R"), "my-shop.Outer$.R"),
        (avro_record(("a", "int"), name="R", namespace="2026.1a.b c"), "2026.1a.b c.R"),
        (avro_record(("a", "int"), name="R", namespace=None), "R"),
        (avro_record(("a", "int"), name="R", namespace=""), "R"),
    ],
    ids=str,
)
def test_namespaces_are_those_that_fastavro_takes(schema: Json, name: str) -> None:
    """A namespace is the name of a topic or a class: no byte of a record depends on it."""
    assert fastavro.parse_schema(schema)["name"] == name

    found = parse_text(json.dumps(schema))

    assert list(found.types) == [name]
    assert canonical_form(found) == fastavro.schema.to_parsing_canonical_form(schema)
    assert parse_text(text_of(found)) == found
    envelope = json.loads(reader_text(found))
    inner = envelope["fields"][0]["type"]["name"]
    assert all(is_name(part) for part in inner.split("."))
    assert inner.rpartition(".")[2] == "R"


def test_a_type_with_a_null_namespace_is_in_the_one_around_it() -> None:
    """Avro's Java library reads null as no attribute."""
    suit = {"type": "enum", "name": "Suit", "namespace": None, "symbols": ["HEARTS"]}

    found = parse_text(json.dumps(avro_record(("a", suit), ("b", "Suit"), ("c", "x-y.Suit"), name="x-y.Event")))

    assert list(found.types) == ["x-y.Event", "x-y.Suit"]


@pytest.mark.parametrize("space", ["a..b", "a.", ".a", "a\nb", "a\u0000b", "a\ud800b"], ids=ascii)
def test_a_namespace_of_no_name_is_refused(space: str) -> None:
    """Half of a surrogate pair would stop the batch that writes the record's name into a table."""
    with pytest.raises(ValueError, match="cannot be a name"):
        parse_text(json.dumps(avro_record(("a", "int"), name="R", namespace=space)))


@pytest.mark.parametrize("name", ["größe", "_a1", "名前", "a٣"])
def test_letters_of_any_script_are_names(name: str) -> None:
    """Avro's Java library takes them, so producers have them."""
    assert parsed(avro_record((name, "int"))) == avro_record((name, "int"))


def nested(depth: int) -> Json:
    """Return arrays in arrays."""
    schema: Json = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain(length: int) -> dict[str, Json]:
    """Return records of which each has the one before as a field."""
    names = ["int", *(f"T{n}" for n in range(length))]
    return {name: avro_record(("x", inner), name=name) for inner, name in pairwise(names)}


@pytest.mark.parametrize("depth", [MAX_TYPE_DEPTH + 1, 200, 400], ids=str)
def test_schemas_nested_too_deep_are_refused(depth: int) -> None:
    """Every parser after this one would run out of stack."""
    with pytest.raises(ValueError, match="deep"):
        parse_text(json.dumps(nested(depth)))
    with pytest.raises(ValueError, match="deep"):
        parsed(f"T{depth - 1}", **chain(depth))
    with pytest.raises(ValueError, match="deep"):
        parse_text("[" * 100_000)


def test_schemas_of_some_depth_are_read() -> None:
    """Nobody who nests with reason is refused."""
    assert parsed(avro_record(("a", nested(40)))) == avro_record(("a", nested(40)))
    assert len(parse_text(json.dumps("T29"), {k: json.dumps(v) for k, v in chain(30).items()}).types) == 30


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (avro_record(("a", "int")), ()),
        (avro_record(("a", ["null", "Event"])), ("Event",)),
        (avro_record(("a", avro_record(("b", {"type": "array", "items": "Event"}), name="B"))), ("Event", "B")),
        (avro_record(("a", avro_record(("b", {"type": "map", "values": "B"}), name="B"))), ("B",)),
    ],
    ids=["none", "itself", "through another", "inside"],
)
def test_types_that_contain_themselves_are_found(schema: Json, expected: tuple[str, ...]) -> None:
    """They have no columns, and unrolling them would never end."""
    assert recursive_types(parse_text(json.dumps(schema))) == expected


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ({"type": "int", "logicalType": "date"}, True),
        ({"type": "long", "logicalType": "date"}, False),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, True),
        ({"type": "string", "logicalType": "made-up"}, False),
        ({"type": "string", "logicalType": 3}, False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, True),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 4}, False),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, False),
        ({"type": "bytes", "logicalType": "decimal", "precision": "9"}, False),
        ({"type": "bytes", "logicalType": "decimal"}, False),
        ({"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 6}, True),
        ({"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 7}, False),
        ({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}, True),
        ({"type": "fixed", "name": "F", "size": 11, "logicalType": "duration"}, False),
    ],
    ids=str,
)
def test_a_logical_type_that_does_not_fit_is_ignored(kind: Json, kept: bool) -> None:
    """Avro's rule: its values are those of the type without it."""
    assert ("logicalType" in json.dumps(parsed(avro_record(("it", kind))))) == kept


def test_defaults_and_other_attributes_are_dropped() -> None:
    """A wrong default harms no reader of ours, and what somebody wrote must not reach Spark's options."""
    wordy = {"name": "a", "type": {"type": "int", "spark.sql.catalyst.type": "x"}, "default": "no", "doc": "d"}

    assert parsed({"type": "record", "name": "E", "fields": [wordy], "doc": "d"}) == avro_record(("a", "int"), name="E")


def test_types_may_be_written_with_more_braces() -> None:
    """Some libraries do so."""
    assert parsed(avro_record(("a", {"type": {"type": "int"}}), ("b", {"type": ["int", "null"]}))) == (
        avro_record(("a", "int"), ("b", ["int", "null"]))
    )


def test_ten_megabytes_are_read() -> None:
    """A generated schema may be as long; it comes once, and a batch waits for it."""
    fields = [(f"field_with_a_long_name_{n}", ["null", {"type": "string", "doc": "x" * 60}]) for n in range(75_000)]
    text = json.dumps(avro_record(*fields))

    assert len(text) > 10_000_000
    assert len(parse_text(text).types["Event"].fields) == 75_000  # type: ignore[union-attr]
