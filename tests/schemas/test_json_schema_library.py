"""Registered JSON Schemas read with their references, and merged, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_schemas.json_schema.documents import MAX_DOCUMENT_DEPTH, struct_of_text
from router_schemas.json_schema.merge import MergedObject, ObjectVersion, merge_objects
from router_schemas.json_schema.spark_types import TypeMapping, json_schema_of
from router_schemas.model import table_type
from tests.light import drawn

Json = Any


def event(**properties: Json) -> Json:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties}


def kind(name: str, **more: Json) -> Json:
    """Return the schema of a value."""
    return {"type": name, **more}


def found(schema: Json, **imports: Json) -> str:
    """Return the Spark type of a schema; `imports` are registered under their names."""
    return struct_of_text(json.dumps(schema), {n: json.dumps(text) for n, text in imports.items()}).simpleString()


def struct_of(document: Any) -> T.StructType:
    """Return the struct of a schema file's document."""
    return TypeMapping(document).root_struct()


def merged(*schemas: Json) -> MergedObject:
    """Merge versions called v1, v2, ..."""
    return merge_objects([ObjectVersion(f"v{n}", struct_of(schema)) for n, schema in enumerate(schemas, 1)])


PLAYER = event(id=kind("string"), level=kind("integer"))


def test_a_reference_of_the_registry_is_followed() -> None:
    """Schemas that share a type would have no columns otherwise."""
    assert found(event(who={"$ref": "player.json"}), **{"player.json": PLAYER}) == (
        "struct<who:struct<id:string,level:bigint>>"
    )


def test_references_lead_to_places_in_each_other() -> None:
    """A pointer in an imported schema is one in that schema, not in the importing one."""
    shared = {"definitions": {"id": kind("integer"), "player": event(id={"$ref": "#/definitions/id"})}}
    team = event(first={"$ref": "shared.json#/definitions/player"}, self_={"$ref": "#/properties/n"}, n=kind("number"))
    whole = {
        **event(team={"$ref": "team.json"}, id={"$ref": "#/definitions/id"}),
        "definitions": {"id": kind("string")},
    }

    assert found(whole, **{"shared.json": shared, "team.json": team}) == (
        "struct<team:struct<first:struct<id:bigint>,self_:double,n:double>,id:string>"
    )


@pytest.mark.parametrize(
    ("reference", "name", "own"),
    [
        ("player.json", "player.json", None),
        ("player.json", "https://example.com/schemas/player.json", None),
        ("https://example.com/schemas/player.json", "player.json", None),
        ("https://other.org/p", "whatever", "https://other.org/p"),
        ("player.json", "whatever", "https://example.com/schemas/player.json"),
        ("../../x", "../../x", None),
        ("player.json#", "player.json", None),
    ],
)
def test_a_reference_is_found_under_its_addresses(reference: str, name: str, own: str | None) -> None:
    """Producers write relative references, and register the schemas under whatever names."""
    whole = {"$id": "https://example.com/schemas/event.json", **event(who={"$ref": reference})}
    player = {**PLAYER, **({"$id": own} if own else {})}

    assert found(whole, **{name: player}) == "struct<who:struct<id:string,level:bigint>>"


def test_a_schema_may_refer_to_itself_by_its_address() -> None:
    """It is the same place as #/..., and nothing to fetch."""
    whole = {"$id": "https://example.com/e.json", **event(a=kind("date"), b={"$ref": "e.json#/properties/c"})}
    whole["properties"] |= {"a": kind("boolean"), "c": kind("integer")}

    assert found(whole, **{"x": PLAYER}) == "struct<a:boolean,b:bigint,c:bigint>"
    assert found(whole) == "struct<a:boolean,b:bigint,c:bigint>"


URN = "urn:example:event"
EMBEDDED = {"$id": "/types/player.json", **event(id={"$ref": "#/$defs/id"}), "$defs": {"id": kind("integer")}}


@pytest.mark.parametrize(
    ("reference", "schema"),
    [
        ("#player", {"$defs": {"p": {"$anchor": "player", **PLAYER}}}),
        ("#player", {"$defs": {"p": {"$dynamicAnchor": "player", **PLAYER}}}),
        ("#player", {"definitions": {"p": {"$id": "#player", **PLAYER}}}),
        ("#player", {"definitions": {"p": {"id": "#player", **PLAYER}}}),
        ("#player", {"$defs": {"list": [{"a/b": {"$anchor": "player", **PLAYER}}]}}),
        ("e.json#player", {"$id": "https://example.com/e.json", "$defs": {"p": {"$anchor": "player", **PLAYER}}}),
        ("https://example.com/e.json#/$defs/p", {"$id": "https://example.com/e.json", "$defs": {"p": PLAYER}}),
        ("https://example.com/e.json#/$defs/p", {"$id": "https://example.com/e.json#", "$defs": {"p": PLAYER}}),
        (f"{URN}#/$defs/p", {"$id": URN, "$defs": {"p": PLAYER}}),
        (f"{URN}#player", {"$id": URN, "$defs": {"p": {"$anchor": "player", **PLAYER}}}),
        ("player.json", {"$id": "https://example.com/e.json", "$defs": {"p": {"$id": "player.json", **PLAYER}}}),
        ("player.json", {"$defs": {"p": {"$id": "player.json", **PLAYER}}}),
        ("p/x.json#y", {"$defs": {"p": {"$id": "p/x.json", "$defs": {"z": {"$anchor": "y", **PLAYER}}}}}),
        ("#/$defs/p", {"$id": "e.json", "$defs": {"p": PLAYER}, "$references": "a word of its author"}),
    ],
    ids=str,
)
def test_a_reference_is_found_within_its_own_document(reference: str, schema: Json) -> None:
    """Bundled schemas, and those with anchors, would have no columns otherwise."""
    assert found({**schema, **event(who={"$ref": reference})}) == "struct<who:struct<id:string,level:bigint>>"


def test_a_reference_in_a_schema_with_an_address_of_its_own_starts_there() -> None:
    """A bundler leaves the references of each schema as they were when it was a file."""
    whole = {
        "$id": "https://example.com/events/e.json",
        **event(
            a={"$ref": "../types/player.json"},
            b={"$ref": "/types/player.json#/$defs/id"},
            # Generators give each property an address, and refer to the document's definitions in it.
            c={"$id": "properties/c", **event(d={"$ref": "#/$defs/id"})},
        ),
        "$defs": {"player": EMBEDDED, "id": kind("boolean")},
    }

    assert found(whole) == "struct<a:struct<id:bigint>,b:bigint,c:struct<d:boolean>>"


def test_an_anchor_of_an_import_is_its_own() -> None:
    """The same anchor in two schemas is two places."""
    shared = {"$defs": {"p": {"$anchor": "player", **PLAYER}}, **event(me={"$ref": "#player"})}
    whole = {"$defs": {"p": {"$anchor": "player", **kind("date")}}}
    whole |= event(a={"$ref": "shared.json#player"}, b={"$ref": "shared.json"}, c={"$ref": "#player"})
    whole["$defs"]["p"]["type"] = "boolean"

    player = "struct<id:string,level:bigint>"
    assert found(whole, **{"shared.json": shared}) == f"struct<a:{player},b:struct<me:{player}>,c:boolean>"


def test_an_anchor_that_leads_around_ends() -> None:
    """A list of a list has no end as a type, whatever the reference is called."""
    node = {"$anchor": "node", **event(next={"$ref": "#node"})}

    assert found({**event(a={"$ref": "#node"}), "$defs": {"n": node}}) == "struct<a:struct<next:string>>"


@pytest.mark.parametrize(
    ("schema", "imports", "message"),
    [
        (event(a={"$ref": "https://example.com/secret.json"}), {}, "#/properties/a: 'https://example.com/secret.json'"),
        (event(a={"$ref": "file:///etc/passwd"}), {"x": PLAYER}, "#/properties/a: 'file:///etc/passwd'"),
        (event(a={"$ref": "p.json"}), {"p.json": event(b=kind("text"))}, "p.json#/properties/b: "),
        (event(a={"$ref": "p.json#/none"}), {"p.json": PLAYER}, "there is no 'p.json#/none'"),
        (event(a={"$ref": "p.json"}), {"p.json": event(b={"$ref": "q.json"})}, "p.json#/properties/b: 'q.json'"),
        (event(a={"$ref": "#anchor"}), {"p.json": PLAYER}, "'#anchor'"),
        (event(a={"$ref": "p.json#anchor"}), {"p.json": PLAYER}, "'p.json#anchor'"),
        (event(id=kind("string"), ID=kind("string")), {}, "differ by case only"),
        ({**PLAYER, "$references": []}, {"p.json": PLAYER}, "rename"),
        ([], {"p.json": PLAYER}, "#: "),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused_by_its_place(schema: Json, imports: dict[str, Json], message: str) -> None:
    """Nothing is fetched: a schema could name any address inside of the company's network."""
    with pytest.raises(ValueError, match=": ") as caught:
        found(schema, **imports)

    assert message in str(caught.value)
    assert "$references/" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "imports", "kind_of_it"),
    [
        ({"$ref": "p.json"}, {"p.json": event(b={"$ref": "p.json"})}, "struct<b:string>"),
        ({"$ref": "p.json"}, {"p.json": event(b={"$ref": "#"})}, "struct<b:string>"),
        ({"$ref": "#/properties/it"}, {}, "string"),
        (event(child={"$ref": "#"}), {}, "struct<child:string>"),
        (kind("array", items={"$ref": "#"}), {}, "array<string>"),
        (True, {}, "string"),
        ({}, {}, "string"),
        (kind("null"), {}, "string"),
        (kind("object"), {}, "string"),
        (kind("array"), {}, "string"),
        (kind("array", items=True), {}, "string"),
        (kind("array", items={}), {}, "array<string>"),
        ({"additionalProperties": {}}, {}, "map<string,string>"),
        (kind("array", items=[kind("string"), kind("integer")]), {}, "string"),
        (kind(["string", "integer", "null"]), {}, "string"),
        ({"enum": ["a", 1]}, {}, "string"),
        ({"enum": ["a", "b", None]}, {}, "string"),
        ({"const": 5}, {}, "bigint"),
        ({"oneOf": [kind("string"), kind("integer")]}, {}, "string"),
        ({"oneOf": [kind("null"), kind("integer")]}, {}, "bigint"),
        ({"anyOf": [kind("number"), kind("integer")]}, {}, "double"),
        ({"oneOf": [event(a=kind("string")), event(b=kind("integer"))]}, {}, "struct<a:string,b:bigint>"),
        ({"oneOf": [event(a=kind("string")), event(a=kind("integer"))]}, {}, "string"),
        (
            {"allOf": [{"$ref": "p.json"}, event(b=kind("boolean"))]},
            {"p.json": PLAYER},
            "struct<id:string,level:bigint,b:boolean>",
        ),
        (
            {**event(c=kind("boolean")), "allOf": [PLAYER, {"if": {}, "then": {}}]},
            {},
            "struct<c:boolean,id:string,level:bigint>",
        ),
        ({**PLAYER, "oneOf": [{"required": ["id"]}, {"required": ["level"]}]}, {}, "struct<id:string,level:bigint>"),
        (kind("integer", anyOf=[{"minimum": 5}, {"maximum": 3}]), {}, "bigint"),
        (kind("object", oneOf=[PLAYER, kind("null")]), {}, "struct<id:string,level:bigint>"),
    ],
    ids=str,
)
def test_what_no_column_can_hold_is_its_json_text(schema: Json, imports: dict[str, Json], kind_of_it: str) -> None:
    """One free-form field in somebody else's schema would make dead letters of all its records."""
    assert found(event(it=schema), **imports) == f"struct<it:{kind_of_it}>"


def test_alternatives_at_the_root_are_one_event() -> None:
    """This is how a subject takes several events of one topic: a oneOf of references."""
    whole = {"oneOf": [{"$ref": "bet.json"}, {"$ref": "login.json"}]}
    imports = {"bet.json": event(game=kind("string"), amount=kind("integer")), "login.json": event(game=kind("string"))}

    assert found(whole, **imports) == "struct<game:string,amount:bigint>"


NUMBERED = event(game=kind("integer"), who=event(id=kind("integer")))
NAMED = event(game=kind("string"), who=PLAYER, amount=kind("integer"))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"oneOf": [NAMED, NUMBERED]}, "game:string,who:string,amount:bigint"),
        ({"anyOf": [NUMBERED, NAMED]}, "game:string,who:string,amount:bigint"),
        (
            {**NAMED, "oneOf": [{"properties": {"game": kind("boolean")}}]},
            "game:string,who:struct<id:string,level:bigint>,amount:bigint",
        ),
        (
            {"$ref": "#/$defs/any", "$defs": {"any": {"oneOf": [NAMED, NUMBERED]}}},
            "game:string,who:string,amount:bigint",
        ),
        (
            {"allOf": [event(at=kind("string")), {"oneOf": [NUMBERED, event(game=kind("string"))]}]},
            "at:string,game:string,who:struct<id:bigint>",
        ),
        ({"oneOf": [event(at=kind("string")), event(at=kind("string", format="date-time"))]}, "at:string"),
        ({"oneOf": [event(a=kind("integer")), event(a=kind("number"))]}, "a:double"),
        ({"oneOf": [PLAYER, kind("object"), True, {"type": ["object", "array"]}]}, "id:string,level:bigint"),
        ({"oneOf": [PLAYER, {"additionalProperties": kind("string")}]}, "id:string,level:bigint"),
        ({"oneOf": [PLAYER, kind("array", items=PLAYER), kind("string"), kind("null")]}, "id:string,level:bigint"),
        ({"oneOf": [PLAYER, {"$ref": "#"}]}, "id:string,level:bigint"),
    ],
    ids=str,
)
def test_alternatives_at_the_root_that_differ_are_one_event(schema: Json, expected: str) -> None:
    """One property of two types in a union of events would make dead letters of all of them."""
    assert found(schema) == f"struct<{expected}>"


def test_a_root_that_is_no_object_has_no_columns() -> None:
    """A text or an array is no event, and a free object has no properties to make columns of."""
    for schema in (
        {"oneOf": [kind("string"), kind("integer")]},
        {"oneOf": [kind("object"), True]},
        {"oneOf": [{"additionalProperties": kind("string")}, kind("string")]},
        {"oneOf": [kind("array", items=PLAYER)]},
    ):
        with pytest.raises(ValueError, match=r"^#: "):
            found(schema)


def test_types_that_all_refer_to_each_other_end() -> None:
    """Written out they would be more than the driver can hold."""
    names = [f"t{n}" for n in range(12)]
    refers = event(**{name: {"$ref": f"#/$defs/{name}"} for name in names})

    with pytest.raises(ValueError, match="parts"):
        found({**event(a={"$ref": "#/$defs/t0"}), "$defs": dict.fromkeys(names, refers)})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a": ' * 400 + "1" + "}" * 400], ids=["", "{", "[", "deep"])
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    """A registry serves what somebody put there."""
    with pytest.raises(ValueError, match=": "):
        struct_of_text(text)
    with pytest.raises(ValueError, match=": "):
        struct_of_text(json.dumps(PLAYER), {"x": text})


def test_a_small_schema_cannot_describe_millions_of_columns() -> None:
    """Thirty lines in a registry would take the driver's memory, or its next hours."""
    levels = {f"t{n}": event(l={"$ref": f"#/$defs/t{n - 1}"}, r={"$ref": f"#/$defs/t{n - 1}"}) for n in range(1, 30)}

    with pytest.raises(ValueError, match="parts"):
        found({**event(a={"$ref": "#/$defs/t29"}), "$defs": {"t0": kind("string"), **levels}})


def test_a_long_way_of_references_is_refused() -> None:
    """Each step is flat, but the struct would not be."""
    levels = {f"t{n}": event(x={"$ref": f"#/$defs/t{n + 1}"}) for n in range(MAX_DOCUMENT_DEPTH)}

    with pytest.raises(ValueError, match="deep"):
        found({**event(a={"$ref": "#/$defs/t0"}), "$defs": {**levels, f"t{MAX_DOCUMENT_DEPTH}": kind("string")}})


def test_ten_megabytes_are_read() -> None:
    """A generated schema may be as long."""
    text = json.dumps(event(**{f"p{n}": kind("string", description="x" * 100) for n in range(75_000)}))

    assert len(text) > 10_000_000
    assert len(struct_of_text(text).fields) == 75_000


def test_properties_are_united_in_the_order_they_came() -> None:
    """A column that moves or goes away would break who reads the table."""
    first = event(b=kind("string"), a=event(x=kind("integer")))
    second = event(c=kind("boolean"), a=event(y=kind("integer"), x=kind("integer")))

    both = merged(first, second)

    assert both.struct.simpleString() == "struct<b:string,a:struct<x:bigint,y:bigint>,c:boolean>"
    assert both.conflicts == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (kind("integer"), kind("number"), "double"),
        (kind("number"), kind("integer"), "double"),
        (kind("integer"), kind(["integer", "null"]), "bigint"),
        (kind("array", items=kind("integer")), kind("array", items=kind("number")), "array<double>"),
        (kind("array", items=event(a=kind("string"))), kind("array", items=event(b=kind("string"))), None),
        (
            {"additionalProperties": kind("integer")},
            {"additionalProperties": kind("number")},
            "map<string,double>",
        ),
    ],
    ids=str,
)
def test_a_column_gets_the_wider_type(old: Json, new: Json, expected: str | None) -> None:
    """Without it a topic would need a table per version."""
    struct = merged(event(it=old), event(it=new)).struct

    assert struct["it"].dataType.simpleString() == (expected or "array<struct<a:string,b:string>>")


@pytest.mark.parametrize(
    ("old", "new", "path", "what"),
    [
        (kind("string"), kind("integer"), "it", "string became integer"),
        (kind("string"), kind("string", format="date-time"), "it", "string became timestamp"),
        (kind("string", format="date"), kind("string", format="date-time"), "it", "date became timestamp"),
        (PLAYER, kind("string"), "it", "object became string"),
        (PLAYER, {"additionalProperties": kind("string")}, "it", "object became object with any keys"),
        (PLAYER, event(level=kind("string")), "it.level", "integer became string"),
        (PLAYER, event(LEVEL=kind("integer")), "it.LEVEL", "by case only"),
        (kind("array", items=kind("string")), kind("array", items=kind("boolean")), "it[]", "string became boolean"),
        (
            {"additionalProperties": event(a=kind("string"))},
            {"additionalProperties": event(a=kind("number"))},
            "it{}.a",
            "string became number",
        ),
    ],
    ids=str,
)
def test_what_one_column_cannot_hold_is_refused(old: Json, new: Json, path: str, what: str) -> None:
    """Rows of one of the versions would all be dead letters."""
    (conflict,) = merged(event(it=old), event(it=new)).conflicts

    assert (conflict.field, conflict.old, conflict.new) == (path, "v1", "v2")
    assert what in conflict.what


def test_the_finding_names_the_version_that_shaped_the_field() -> None:
    """Whoever repairs it has to know which two versions to look at."""
    schemas = [event(a=kind(name)) for name in ("integer", "number", "string", "integer")]

    both = merged(*schemas)

    assert [(conflict.old, conflict.new) for conflict in both.conflicts] == [("v2", "v3")]
    assert both.struct.simpleString() == "struct<a:double>"


def test_a_table_gets_names_that_delta_takes_in_their_places() -> None:
    """One property with a blank in its name would stop every batch."""
    inner = kind("array", items=event(**{"a b": kind("integer")}))

    struct = struct_of(
        event(**{"big win": kind("string"), "in": inner, "m": {"additionalProperties": event(**{"=": PLAYER})}})
    )

    assert table_type(struct).simpleString() == (
        "struct<big_win:string,in:array<struct<a_b:bigint>>,m:map<string,struct<_:struct<id:string,level:bigint>>>>"
    )


SCALARS = [T.StringType(), T.LongType(), T.DoubleType(), T.BooleanType(), T.TimestampType()]


def structs(children: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.StructType]:
    """Draw structs with few names, so that two of them often have some in common."""
    fields = st.dictionaries(st.sampled_from("abcA"), children, min_size=1, max_size=3).filter(
        lambda found: len({name.lower() for name in found}) == len(found)
    )
    return fields.map(lambda found: T.StructType([T.StructField(name, kind) for name, kind in found.items()]))


def nested(children: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[T.DataType]:
    """Draw arrays, maps and structs of the given types."""
    maps = children.map(lambda kind: T.MapType(T.StringType(), kind))
    return st.one_of(children.map(T.ArrayType), maps, structs(children))


any_struct = structs(st.recursive(st.sampled_from(SCALARS), nested, max_leaves=5))


def holds(wide: T.DataType, narrow: T.DataType) -> bool:
    """Say whether every value of one type can be one of the other."""
    if isinstance(narrow, T.StructType):
        kinds = {field.name: field.dataType for field in wide} if isinstance(wide, T.StructType) else {}
        return all(field.name in kinds and holds(kinds[field.name], field.dataType) for field in narrow)
    if isinstance(narrow, T.ArrayType):
        return isinstance(wide, T.ArrayType) and holds(wide.elementType, narrow.elementType)
    if isinstance(narrow, T.MapType):
        return isinstance(wide, T.MapType) and holds(wide.valueType, narrow.valueType)
    return wide == narrow or (wide, narrow) == (T.DoubleType(), T.LongType())


@settings(max_examples=drawn(300))
@given(st.lists(any_struct, min_size=1, max_size=4))
def test_a_merged_struct_holds_every_version_in_it(found: list[T.StructType]) -> None:
    """A version that is said to be in it and is not would lose its rows."""
    versions = [ObjectVersion(f"v{n}", struct_of(json_schema_of(struct))) for n, struct in enumerate(found)]

    both = merge_objects(versions)

    refused = {conflict.new for conflict in both.conflicts}
    assert "v0" not in refused
    for version in versions:
        assert holds(both.struct, version.struct) == (version.label not in refused)
    kept = [version for version in versions if version.label not in refused]
    assert merge_objects([*kept, *kept]).struct == both.struct
    names = [name.lower() for name in both.struct.fieldNames()]
    assert len(set(names)) == len(names)


TAKEN = {
    "id": (T.IntegerType(), "Avro v1"),
    "real": (T.DoubleType(), "Avro v1"),
    "big_win": (T.StringType(), "Avro v1"),
    "who": (T.StructType([T.StructField("id", T.StringType()), T.StructField("level", T.LongType())]), "Avro v1"),
    "other": (T.BinaryType(), "Avro v1"),
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (event(new=kind("string"), id=kind("integer")), "struct<id:int,new:string>"),
        (event(real=kind("integer")), "struct<real:double>"),
        (event(who=event(level=kind("integer"))), "struct<who:struct<id:string,level:bigint>>"),
        (event(big_win=kind("string")), "struct<big_win:string>"),
    ],
    ids=str,
)
def test_fields_of_another_format_keep_their_types(schema: Json, expected: str) -> None:
    """A column that changes with the format would be no column."""
    both = merge_objects([ObjectVersion("v1", struct_of(schema))], TAKEN)

    assert (both.struct.simpleString(), both.conflicts) == (expected, ())


@pytest.mark.parametrize(
    ("schema", "path", "what"),
    [
        (event(id=kind("string")), "id", "int became string"),
        (event(id=kind("number")), "id", "int became number"),
        (event(ID=kind("integer")), "ID", "by case only"),
        (event(who=PLAYER, id=kind("boolean")), "id", "int became boolean"),
        (event(who=event(new=kind("string"))), "who", "object became another object"),
        (event(other=kind("string")), "other", "binary became string"),
        (event(**{"big win": kind("string")}), "big win", "'big_win', which there is"),
    ],
    ids=str,
)
def test_what_another_format_brought_is_not_changed(schema: Json, path: str, what: str) -> None:
    """Both are named, for whoever repairs it has to know which two to look at."""
    both = merge_objects(
        [ObjectVersion("v1", struct_of(schema)), ObjectVersion("v2", struct_of(event(new=kind("string"))))], TAKEN
    )

    (conflict,) = both.conflicts
    assert (conflict.field, conflict.new) == (path, "v1")
    assert conflict.old == "Avro v1"
    assert what in conflict.what
    assert both.struct.simpleString() == "struct<new:string>"
