"""What `router init` writes about a sample, without Spark: columns, tables, tests; and what stands in no file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from router.cli import commands
from router.config.loader import load_config
from router.engine.preflight.route_tests import load_tests
from router.registry import load_registry
from router_init import samples
from router_init.documents import Plan, write_files
from router_init.formats import Event, Found
from router_init.samples import Sample
from router_init.tables import plan_tables
from tests.init.topics import SECRETS, draw_topic

if TYPE_CHECKING:
    from click.testing import Result

pytestmark = pytest.mark.usefixtures("empty_folder")


def init(*arguments: str) -> Result:
    """Call the command."""
    return CliRunner().invoke(commands, ["init", *arguments])


def write_lines(values: list[bytes], name: str = "a.jsonl") -> None:
    """Put records into a file of the folder `in`."""
    Path("in").mkdir(exist_ok=True)
    Path("in", name).write_bytes(b"\n".join(values) + b"\n")


def written(*options: str, name: str = "shop") -> dict[str, Any]:
    """Call `init` on the folder `in`, see that what it writes is good, and return the configuration."""
    done = init(name, "--files", "in", *options)
    assert done.exit_code == 0, done.output
    load_config(Path(f"{name}.yaml"), load_registry(()))
    load_tests(Path(f"{name}.test.yaml"))
    document: dict[str, Any] = yaml.safe_load(Path(f"{name}.yaml").read_text())
    return document


def columns_of(document: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a configuration's JSON, by name."""
    columns = {}
    for line in document["decode"]["json"]["schema"].strip().split(",\n"):
        name, _, kind = line.partition(" ")
        columns[name] = kind
    return columns


@pytest.mark.parametrize("kinds", [2, 12, 300])
def test_a_topic_of_kinds_has_a_table_for_each(kinds: int) -> None:
    topic = draw_topic(kinds, 4000, seed=kinds)
    write_lines(topic.values)
    document = written()
    (route,) = document["routes"]
    sink = route["sinks"][0]["tables"]
    assert sink["table"] == "silver.{event.kind}"
    # A sample of 2,000 may lack one of 300.
    assert 9.8 * kinds <= sink["at_most"] <= 10 * kinds
    columns = columns_of(document)
    # What only some kinds have is beside what all have, and the names of scores are data.
    payload = columns.pop("payload")
    assert payload.startswith("struct<only_")
    assert payload.count("only_") == sink["at_most"] / 10
    assert columns == {name: kind for name, kind in sorted(topic.columns.items()) if name != "payload"}


def test_a_field_of_any_name_says_the_kind() -> None:
    """Without it only fields that are called `type` and alike make tables."""
    write_lines([value.replace(b'"kind"', b'"what"') for value in draw_topic(300, 4000, seed=5).values])
    assert written()["routes"][0]["sinks"][0]["tables"]["table"] == "silver.{event.what}"


def test_no_value_of_a_record_stands_in_a_file() -> None:
    topic = draw_topic(12, 3000, seed=3)
    write_lines(topic.values)
    done = init("shop", "--files", "in")
    texts = [done.output, Path("shop.yaml").read_text(), Path("shop.test.yaml").read_text()]
    for text in texts:
        for secret in SECRETS:
            assert secret not in text
        assert "Hamilton" not in text
    # Kinds name tables.
    assert topic.kinds[0] in texts[2]


def test_values_stand_in_the_tests_if_they_are_asked_for() -> None:
    write_lines(draw_topic(2, 500, seed=1).values)
    written("--with-values")
    assert SECRETS[0] in Path("shop.test.yaml").read_text()


def test_one_kind_has_one_table() -> None:
    values = [
        json.dumps({"id": number, "country": random.Random(number).choice("abc")}).encode() for number in range(99)
    ]
    write_lines(values)
    done = init("shop", "--files", "in", "--print")
    assert "event.country could say the kind: 3 values in 99 records" in init("shop", "--files", "in").output
    assert not done.exit_code
    document = yaml.safe_load(Path("shop.yaml").read_text())
    assert document["routes"][0]["sinks"] == [{"delta": "silver.shop"}]


def test_kinds_that_cannot_name_tables_get_names() -> None:
    kinds = ["order.created", "order_created", "Order.Created", "..", "con", "it's", "ß", "x y/z", "other"]
    values = []
    for number in range(900):
        kind = kinds[number % len(kinds)]
        values.append(json.dumps({"type": kind, f"only_{number % len(kinds)}": 1}, ensure_ascii=False).encode())
    write_lines(values)
    document = written()
    (route,) = document["routes"]
    assert route["sinks"][0]["tables"]["table"] == "silver.{table_name}"
    tables = yaml.safe_load(Path("shop.test.yaml").read_text())["tests"][0]["expect"]["tables"]
    assert len(tables) == len(kinds)


def test_names_that_no_column_can_have_go_into_a_schema_file() -> None:
    write_lines([b'{"first name": "a", "id": 1, "ID": 2, "a.b": {"x;y": 1.5}}'] * 5)
    document = written()
    assert document["decode"] == {"json": {"infer": {"file": "shop.schema.json"}}}
    properties = json.loads(Path("shop.schema.json").read_text())["properties"]
    assert set(properties) == {"first name", "id", "ID", "a.b"}


def test_comments_say_what_a_person_decides() -> None:
    event = {"id": 2**60, "day": "2026-01-31", "price": "12.50", "either": 1}
    write_lines([json.dumps(event).encode(), json.dumps(event | {"either": "x"}).encode()])
    written()
    text = Path("shop.yaml").read_text()
    assert "# either: text, since it has several types (bigint 1, string 1)" in text
    assert "# id: whole numbers beyond 2^53, which readers that take numbers as doubles round" in text
    assert "# day: text, of which each looks like a date" in text
    assert "# price: text, of which each looks like a decimal" in text


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ([b"\x00\x00\x00\x00\x07abc"] * 9, "9 of 9 values begin as those of a schema registry do: `--registry URL`"),
        ([b"garbage"] * 9, "0 of 9 values are JSON objects"),
        ([b""], "there is no record yet"),
    ],
)
def test_what_is_not_known_is_not_decoded(values: list[bytes], seen: str) -> None:
    write_lines(values)
    document = written()
    assert document["decode"] == {"none": {}}
    assert seen in Path("shop.yaml").read_text()


def test_objects_whose_names_are_data_make_no_columns() -> None:
    write_lines([json.dumps({f"ann-{number}": 1, f"tok{number}": {"a": 2}}).encode() for number in range(300)])
    document = written()
    assert document["decode"] == {"none": {}}
    text = Path("shop.yaml").read_text()
    assert "JSON objects whose names are data: no columns can be made of them" in text
    assert "ann-" not in text + Path("shop.test.yaml").read_text()


def test_names_that_are_data_inside_of_such_names_make_no_columns() -> None:
    """Without it tokens stand in a configuration as names of columns."""
    values = []
    for number in range(100):
        by_token = {f"tok{number}-{place}": 1 for place in range(3)}
        values.append(json.dumps({"by_user": {f"ann-{number}": by_token}}).encode())
    write_lines(values)
    assert columns_of(written()) == {"by_user": "map<string, map<string, bigint>>"}
    assert "tok" not in Path("shop.yaml").read_text() + Path("shop.test.yaml").read_text()


def test_a_topic_of_names_that_are_data_leaves_others_their_format() -> None:
    data = [Event({f"ann-{number}": 1, f"tok{number}": 2}) for number in range(300)]
    row = Event({"n": 1}, schema_id=7)
    found = [Found(Sample("a", ()), "json", "", tuple(data)), Found(Sample("b", ()), "avro", "", (row,))]
    plan = Plan("shop", {}, plan_tables("shop", found))
    assert [table.found.decoder for table in plan.tables] == ["none", "avro"]
    assert not plan.struct.fields


@pytest.mark.parametrize("end", ["", "\n"], ids=["in the columns", "in a file of its own"])
def test_a_name_of_a_field_stays_on_its_line(end: str) -> None:
    name = f"a\u2028dead_letters:ops.mine\x85#{end}"
    write_lines([json.dumps({name: 2**60, "b": 1}).encode()] * 5)
    document = written()
    assert document["dead_letters"] == "ops.dead_letters"
    assert "a\\u2028dead_letters" in Path("shop.yaml").read_text()


def test_topics_of_one_name_have_routes_of_their_own() -> None:
    found = [Found(Sample(name, ()), "none", "") for name in ("a.b", "a-b", "A_b", "1a.b", "x" * 249)]
    assert [table.base for table in plan_tables("shop", found)] == ["a_b", "a_b_2", "a_b_2_2", "a_b_2_2_2", "x" * 60]


def test_compacted_topics_have_tables_of_their_own() -> None:
    """Without it the newest row of a customer is gone for the order that has the same number."""
    found = []
    for topic in ("customers", "orders"):
        events = tuple(Event({"id": str(number)}, str(number).encode()) for number in range(50))
        found.append(Found(Sample(topic, (), compacted=True), "json", "", events))
    plan = Plan("shop", {}, plan_tables("shop", found))
    routes = yaml.safe_load(write_files(plan, with_values=False)["shop.yaml"])["routes"]
    conditions = {}
    for route in routes:
        if "upsert" in route["sinks"][0]:
            conditions[route["sinks"][0]["upsert"]["table"]] = route["match"]["sql"]
    assert conditions == {
        "silver.customers_by_id": "topic = 'customers' AND event.id IS NOT NULL",
        "silver.orders_by_id": "topic = 'orders' AND event.id IS NOT NULL",
    }


def test_what_is_nested_too_deep_is_garbage() -> None:
    deep = b'{"a":' + b"[" * 500 + b"]" * 500 + b"}"
    write_lines([deep, *[b'{"b": 1}'] * 9])
    assert columns_of(written()) == {"b": "bigint"}


@pytest.mark.parametrize("address", ["u{}@mail.example", "customer {}"])
def test_a_text_of_people_is_no_kind(address: str) -> None:
    """Without it the addresses of customers are names of tables: one optional field goes with some of them."""
    chance = random.Random(1)
    values = []
    for number in range(2000):
        customer = number % 200
        value: dict[str, Any] = {"id": number, "who": address.format(customer), "amount": number % 90}
        value |= {f"option{k}": 1 for k in range(10) if chance.random() < 0.5}
        values.append(value | ({"phone": 1} if customer % 2 else {}))
    write_lines([json.dumps(value).encode() for value in values])
    written()

    texts = Path("shop.yaml").read_text() + Path("shop.test.yaml").read_text()
    assert address.partition("{}")[2 if "@" in address else 0] not in texts


def test_names_in_a_column_of_several_types_stand_in_no_file() -> None:
    """Without it a column that becomes text shows names that are data."""
    values: list[Any] = [{"id": number, "v": number} for number in range(60)]
    values += [{"id": 60 + number, "v": {f"u{number}@mail.example": 1}} for number in range(8)]
    write_lines([json.dumps(value).encode() for value in values])
    written()

    assert "mail.example" not in Path("shop.yaml").read_text() + Path("shop.test.yaml").read_text()


def test_a_record_of_many_levels_takes_no_longer() -> None:
    """Without it one odd record in a topic takes minutes, twice as long with each level."""
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    write_lines([json.dumps({"id": number, "deep": deep}).encode() for number in range(3)])

    assert "deep" in columns_of(written())


@pytest.mark.parametrize("value", [{"": [1], "id": 1}, {"": {"a": 1}, "id": 1}])
def test_a_field_without_a_name_may_hold_anything(value: dict[str, Any]) -> None:
    write_lines([json.dumps({**value, "id": number}).encode() for number in range(50)])

    written()


def test_rows_of_csv_files_may_be_longer_than_their_header() -> None:
    Path("in").mkdir()
    lines = [f"{number},kind,a@b,more" for number in range(50)]
    Path("in", "a.csv").write_text("\n".join(["id,type,email", *lines]))

    written()


def test_one_record_of_eight_megabytes() -> None:
    write_lines([json.dumps({"type": "a", "text": "x" * 8_000_000}).encode()])
    written()
    assert Path("shop.test.yaml").stat().st_size < 9_000_000


def test_nothing_is_written_over() -> None:
    write_lines([b'{"a": 1}'])
    Path("shop.test.yaml").write_text("mine")
    Path(".gitignore").write_text("/mine")
    done = init("shop", "--files", "in")
    assert done.exit_code == 2
    assert "shop.test.yaml is there already; --force writes over it, --print shows what would be" in done.output
    assert not Path("shop.yaml").exists()
    assert not init("shop", "--files", "in", "--print").exit_code
    assert Path("shop.test.yaml").read_text() == "mine"
    written("--force")
    written("--force")
    assert Path(".gitignore").read_text() == "/mine\n/lake/\n"


def test_rows_of_csv_files() -> None:
    write_lines([b"type,n,extra", b"a,1,", b"b,2,x", b"a,3,"] * 3, "a.csv")
    document = written()
    assert document["source"] == {"files": {"path": "in", "format": "csv", "schema_hints": "type string"}}
    assert document["decode"] == {"rows": {}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shop",), "give --kafka SERVERS and --topic TOPIC, or --files PATH"),
        (("shop", "--kafka", "a:9092"), "give --kafka SERVERS and --topic TOPIC, or --files PATH"),
        (("Shop", "--files", "in"), "a name has small letters"),
        (("shop", "--files", "in"), "there is no file in in"),
        (("shop", "--kafka", "a:1", "--topic", "a", "--registry", "http://u:pass@h"), "--registry"),
        (("shop", "--kafka", "127.0.0.1:1", "--topic", "a"), "the brokers at 127.0.0.1:1 do not answer"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "BROKER_TIMEOUT_SECONDS", 1)
    done = init(*arguments)
    assert done.exit_code == 2
    assert message in done.output
