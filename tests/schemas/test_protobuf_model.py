"""Types of columns, in Arrow and in Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from pyspark import cloudpickle

from router.spark_internals import arrow_type
from router_schemas.protobuf.decode import MessageReader, decode_payloads, make_message_reader
from router_schemas.protobuf.kinds import SPECIAL_KINDS, WRAPPERS, Kind
from router_schemas.protobuf.merge import MessageVersion, merge_messages
from router_schemas.protobuf.model import MAX_MESSAGE_COLUMNS
from tests.schemas.proto_strategies import EVENT, Spec, class_of, described, descriptors_of


def read(*fields: Spec, **messages: list[Spec]) -> MessageReader:
    """Return the reader of an event with these fields."""
    descriptors = descriptors_of({"Event": list(fields), "Part": [], "Leaf": [], "Nothing": [], **messages})
    return make_message_reader(merge_messages([MessageVersion.of("v1", descriptors, EVENT)])[0])


def documented() -> dict[str, str]:
    """Return the column of each type that the page of formats lists."""
    page = Path("docs/reference/formats.md").read_text(encoding="utf-8")
    columns: dict[str, str] = {}
    _, _, table = page.partition("| Protobuf | column | encoded | notes |\n")
    for line in table.partition("<!-- end -->")[0].splitlines()[1:]:
        names, types = (cell.strip().split(", ") for cell in line.split("|")[1:3])
        columns.update(zip(names, types * len(names), strict=False))
    return columns


DOCUMENTED = documented()
NO_SCALARS = {Kind.ENUM, Kind.EMPTY, Kind.RAW, *SPECIAL_KINDS.values()} - {*WRAPPERS.values()}


@pytest.mark.parametrize(
    ("kind", "spark"),
    [
        *((str(kind), DOCUMENTED[str(kind)]) for kind in Kind if kind not in NO_SCALARS),
        *((name, DOCUMENTED[str(kind)]) for name, kind in WRAPPERS.items()),
        *((name, DOCUMENTED[name.rpartition(".")[2]]) for name in SPECIAL_KINDS if name not in WRAPPERS),
        ("game.v1.Color", DOCUMENTED["enum"]),
        ("game.v1.Leaf", "struct<x:int>"),
        ("game.v1.Nothing", "struct<_present:boolean>"),
        ("game.v1.Event", "binary"),
        ("google.protobuf.Any", "struct<type_url:string,value:binary>"),
    ],
)
def test_a_field_has_the_documented_type(kind: str, spark: str) -> None:
    """Tables are made from these types; what is documented must hold."""
    found = read(
        Spec("one", 1, kind),
        Spec("many", 2, kind, "repeated"),
        Spec("by", 3, kind, "uint32"),
        Leaf=[Spec("x", 1, "int32")],
    )

    types = [field.dataType.simpleString() for field in found.spark_type]
    assert types == [spark, f"array<{spark}>", f"map<bigint,{spark}>"]


def test_the_two_types_are_one() -> None:
    """Spark refuses an Arrow batch whose types are others than those it was told."""
    found = read(
        Spec("many", 2, "uint64", "repeated"),
        Spec("by", 3, "game.v1.Leaf", "uint64"),
        Spec("at", 4, "google.protobuf.Timestamp"),
        Leaf=[Spec("x", 1, "google.protobuf.Struct")],
    )

    assert arrow_type(found.spark_type).equals(found.type)


def test_a_message_that_contains_itself_ends_in_bytes() -> None:
    """A column has no end otherwise; the bytes can be decoded by whoever needs more."""
    schema = {
        "Event": [Spec("part", 1, "game.v1.Part"), Spec("leaf", 2, "game.v1.Leaf")],
        "Part": [Spec("leaf", 1, "game.v1.Leaf"), Spec("id", 2, "int32")],
        "Leaf": [Spec("parts", 1, "game.v1.Part", "repeated"), Spec("root", 2, "game.v1.Event", "string")],
    }
    found = read(*schema["Event"], Part=schema["Part"], Leaf=schema["Leaf"])
    row = class_of(descriptors_of(schema))()
    row.part.leaf.parts.add(id=5)
    row.leaf.root["a"].part.id = 6

    inner = "parts:array<binary>,root:map<string,binary>"
    part = "struct<leaf:binary,id:int>"
    assert found.spark_type.simpleString() == (
        f"struct<part:struct<leaf:struct<{inner}>,id:int>,leaf:struct<parts:array<{part}>,root:map<string,binary>>>"
    )
    (event,) = decode_payloads(pa.array([row.SerializeToString()]), found).events.to_pylist()
    assert event["part"]["leaf"]["parts"] == [b"\x10\x05"]
    assert event["leaf"]["root"] == [("a", b"\x0a\x02\x10\x06")]


def test_names_that_differ_in_case_only_get_their_number() -> None:
    """Delta would refuse the table."""
    found = read(Spec("id", 1, "int32"), Spec("ID", 7, "int32"), Spec("id_7", 3, "int32"), Spec("Id", 2, "int32"))

    assert found.spark_type.names == ["id", "ID_7", "id_7_3", "Id_2"]


def test_a_message_deeper_than_arrow_can_carry_ends_in_bytes() -> None:
    """Arrow's own format ends at 64 levels."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax="proto3")
    for number in range(40):
        message = file.message_type.add(name=f"M{number}" if number else "Event")
        message.field.add(name="x", number=1, label=3, type=11, type_name=f".game.v1.M{number + 1}")
    file.message_type.add(name="M40").field.add(name="y", number=1, label=1, type=5)

    found = make_message_reader(merge_messages([MessageVersion.of("v1", described(file), EVENT)])[0])

    assert found.spark_type.simpleString().count("struct") == 16
    assert found.spark_type.simpleString().count("binary") == 1


def test_a_message_that_multiplies_is_refused_before_it_fills_the_memory() -> None:
    """Thirty small messages can make a billion columns."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="game.v1", syntax="proto3")
    for number in range(15):
        message = file.message_type.add(name=f"M{number}" if number else "Event")
        for name in ("a", "b", "c"):
            message.field.add(name=name, number=ord(name), label=1, type=11, type_name=f".game.v1.M{number + 1}")
    file.message_type.add(name="M15").field.add(name="x", number=1, label=1, type=5)

    with pytest.raises(ValueError, match=str(MAX_MESSAGE_COLUMNS)):
        make_message_reader(merge_messages([MessageVersion.of("v1", described(file), EVENT)])[0])


@pytest.mark.parametrize("kind", Kind, ids=str)
def test_a_task_gets_the_kind_that_the_driver_sent(kind: Kind) -> None:
    """By its description a task would not find it: the functions in that are others there."""
    assert pickle.loads(cloudpickle.dumps(kind)) is kind
