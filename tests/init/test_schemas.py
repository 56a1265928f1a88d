"""What `router init` writes of records that schemas say something about: names stay, and values stand in no test."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

from router.cli import commands
from router_init import cli
from router_init.formats import least_event
from router_init.samples import Sample
from router_schemas.model import RegisteredSchema
from router_schemas.wire_format import pack_value

if TYPE_CHECKING:
    from tests.schemas.faulty import FaultyRegistry

pytestmark = pytest.mark.usefixtures("empty_folder")

WORDS = ("margarethe", "4711", "bought", "overdue", "standard", "hidden", "tok9f8e7d")
"""Values of records; all but the last two stand in a schema as well."""
AVRO = {
    "type": "record",
    "name": "Order",
    "doc": "Sent for margarethe, see 4711.",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["paid", "sent"]}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["bought", "overdue"]}},
        {"name": "terms", "type": "string", "default": "standard"},
        {"name": "number", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "points", "type": {"type": "map", "values": "long"}},
        {"name": "only_paid", "type": ["null", "string"], "default": None},
    ],
}
PROTOBUF = """\
syntax = "proto3";
// Sent for margarethe.
enum State { bought = 0; overdue = 4711; }
message Order {
  string kind = 1;
  State state = 2;
  string terms = 3; // standard
  string number = 4;
  map<string, int64> points = 6;
  oneof more { string only_paid = 4712; int64 only_sent = 8; }
}
"""
JSON = {
    "type": "object",
    "title": "Sent for margarethe, see 4711.",
    "properties": {
        "kind": {"enum": ["paid", "sent"]},
        "state": {"enum": ["bought", "overdue"]},
        "the terms": {"type": "string", "default": "standard"},
        "number": {"type": "string"},
        "points": {"type": "object", "additionalProperties": {"type": "integer"}},
        "only_paid": {"type": "string"},
    },
    "required": ["the terms"],
}


def order(number: int) -> dict[str, Any]:
    """Return a record with texts that stand in its schema."""
    event = {
        "kind": ["paid", "sent"][number % 2],
        "state": ["overdue", "bought"][number // 2 % 2],
        "terms": "standard",
        "number": ["4711", "margarethe"][number // 4 % 2],
        "points": {"margarethe": 4711, f"tok9f8e7d{number}": 1},
    }
    return event if number % 2 else {**event, "only_paid": "hidden"}


def write_avro(number: int) -> bytes:
    target = io.BytesIO()
    row = {**order(number), "price": Decimal("47.11")}
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(json.dumps(AVRO))), row)
    return target.getvalue()


def write_protobuf(number: int) -> bytes:
    event = order(number)
    state = b"\x10" + (b"\xe7\x24" if event["state"] == "overdue" else b"\x00")
    fields = b""
    for tag, text in ((1, event["kind"]), (3, event["terms"]), (4, event["number"]), (6, "")):
        content = text.encode() or b"\x0a\x0amargarethe\x10\xe7\x24"
        fields += bytes([tag << 3 | 2, len(content)]) + content
    return state + fields + (b"" if number % 2 else b"\xc2\xa6\x02\x06hidden")


def write_json(number: int) -> bytes:
    event = order(number)
    event["the terms"] = event.pop("terms")
    return json.dumps(event).encode()


def init(monkeypatch: pytest.MonkeyPatch, registry: FaultyRegistry, values: list[bytes]) -> str:
    """Call the command for a topic of these values, and return the text of its tests."""
    sample = Sample("orders", tuple((None, value) for value in values))
    monkeypatch.setattr(cli, "sample_topics", lambda kafka: [sample])
    arguments = ["init", "shop", "--kafka", "a:1", "--topic", "orders", "--registry", registry.url]
    done = CliRunner().invoke(commands, arguments)
    assert done.exit_code == 0, done.output
    assert "event.kind says the kind: 2 values" in done.output
    assert not [word for word in WORDS if word in done.output + Path("shop.yaml").read_text()]
    return Path("shop.test.yaml").read_text()


@pytest.mark.parametrize(
    ("form", "schema", "write", "framing"),
    [
        ("AVRO", json.dumps(AVRO), write_avro, None),
        ("PROTOBUF", PROTOBUF, write_protobuf, (0,)),
        ("JSON", json.dumps(JSON), write_json, None),
    ],
    ids=["avro", "protobuf", "json"],
)
def test_no_value_stands_in_a_test_because_its_schema_says_it_too(
    monkeypatch: pytest.MonkeyPatch, faulty: FaultyRegistry, form: str, schema: str, write: Any, framing: Any
) -> None:
    """Without it a customer who is called as a word of a comment stands in the repository."""
    number = faulty.book.add("orders-value", schema, form)
    text = init(monkeypatch, faulty, [pack_value(number, framing, write(k)) for k in range(200)])
    events = [record["event"] for record in yaml.safe_load(text)["tests"][0]["records"]]
    assert [event["kind"] for event in events] == ["paid", "sent"]
    for event in events:
        if form == "AVRO":
            # The least value of an enum is its first symbol, whatever the record has.
            assert event.pop("state") == "bought"
        assert not [word for word in WORDS if word in json.dumps(event)]


def test_the_least_event_has_what_a_schema_requires() -> None:
    """Without it the tests of a decimal, or of a message of proto2, are red as they are written."""
    proto2 = """\
        syntax = "proto2";
        message Order { required string id = 1; optional int32 n = 2; required Inner more = 3; }
        message Inner { required bytes hash = 1; required bool paid = 2; }
    """
    of_avro = RegisteredSchema(1, "AVRO", json.dumps(AVRO))
    of_proto2 = RegisteredSchema(2, "PROTOBUF", proto2)
    least = {"kind": "paid", "state": "bought", "terms": "", "number": "", "points": {}, "only_paid": None}
    assert least_event(of_avro, None, ("kind",)) == {**least, "price": "\0"}
    assert least_event(of_proto2, "Order", ()) == {"id": "", "more": {"hash": "", "paid": False}}


def test_names_that_a_schema_needs_stay(monkeypatch: pytest.MonkeyPatch, faulty: FaultyRegistry) -> None:
    """Without it the record of a test lacks a field that it must have."""
    number = faulty.book.add("orders-value", json.dumps(JSON), "JSON")
    text = init(monkeypatch, faulty, [pack_value(number, None, write_json(k)) for k in range(200)])
    event = yaml.safe_load(text)["tests"][0]["records"][0]["event"]
    assert set(event) == {"kind", "state", "the terms", "number", "points", "only_paid"}


def test_rows_keep_names_and_lose_values() -> None:
    """Without it a test has rows of columns that the files do not have, or tokens that they do have."""
    Path("csv").mkdir()
    lines = [f"{'ab'[number % 2]},{number + 10**6},margarethe" for number in range(50)]
    Path("csv/a.csv").write_text("\n".join(["type,Order ID,first name", *lines]))
    Path("avro").mkdir()
    with Path("avro/a.avro").open("wb") as file:
        rows = [{**order(number), "price": Decimal("47.11")} for number in range(50)]
        fastavro.writer(file, fastavro.parse_schema(json.loads(json.dumps(AVRO))), rows)
    Path("parquet").mkdir()
    columns = {
        "type": pa.array(["a", "b"] * 25),
        "person": pa.array([{"first name": "margarethe"}] * 50),
        "points": pa.array([[("tok9f8e7d", 4711)]] * 50, pa.map_(pa.string(), pa.int64())),
        "picture": pa.array([b"margarethe"] * 50),
    }
    pq.write_table(pa.table(columns), "parquet/a.parquet")
    for form in ("csv", "avro", "parquet"):
        done = CliRunner().invoke(commands, ["init", form, "--files", form])
        assert done.exit_code == 0, done.output
        text = Path(f"{form}.test.yaml").read_text()
        assert not [word for word in WORDS if word in text]
        events = [record["event"] for record in yaml.safe_load(text)["tests"][0]["records"]]
        assert [event.get("type", event.get("kind")) for event in events] in (["a", "b"], ["paid", "sent"])
        if form == "csv":
            assert all(set(event) == {"type", "Order ID", "first name"} for event in events)
        if form == "parquet":
            assert all(set(event["person"]) == {"first name"} for event in events)


def test_a_kind_inside_of_a_column_of_files_makes_no_tables() -> None:
    """Without it the test that is written knows the column as a text, and no table of it."""
    kinds = [{"type": "ab"[number % 2], "n": number} for number in range(50)]
    more = [1 if number % 2 else None for number in range(50)]
    Path("in").mkdir()
    pq.write_table(pa.table({"meta": pa.array(kinds), "more": pa.array(more)}), "in/a.parquet")
    done = CliRunner().invoke(commands, ["init", "shop", "--files", "in"])
    assert "event.meta.type could say the kind" in done.output
    document = yaml.safe_load(Path("shop.yaml").read_text())
    assert document["source"]["files"] == {"path": "in", "format": "parquet"}
    assert document["routes"][0]["sinks"] == [{"delta": "silver.shop"}]
