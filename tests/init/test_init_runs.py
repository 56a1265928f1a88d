"""What `router init` writes, run: types as Spark infers them, records in their tables, tests that are green at once."""

from __future__ import annotations

import base64
import io
import json
import random
import string
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from router.cli import commands
from router.config.loader import load_config
from router.config.models import KafkaSource, Trigger
from router.engine.ledger import read_last_batches
from router.engine.preflight.route_tests import load_tests, run_tests
from router.engine.stream import RunOptions, run
from router.errors import ConfigError
from router.registry import load_registry
from router_decoders.json import infer_schema
from router_init import samples
from router_init.columns import Column
from router_init.samples import sample_topics
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.wire_format import pack_value
from tests.init.topics import draw_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka
    from router_demo.registry import EmbeddedRegistry
    from tests.schemas.faulty import FaultyRegistry

pytestmark = pytest.mark.usefixtures("empty_folder")

NAMES = ("a", "b", "B", "", "é", "\uffff", "\U0001f600", "a b")
ALPHABET = [*string.ascii_letters, *string.digits, *" .-:TZ+{}[]\"'\\/é\u00df漢"]


def fill(broker: EmbeddedKafka, topic: str, values: Iterable[bytes | None], keys: Iterable[bytes] = (), **config: str):
    """Make a topic of three partitions with records."""
    broker.create_topic(topic, 3, config)
    producer = Producer({"bootstrap.servers": broker.servers, "message.max.bytes": 16_000_000})
    keys = [*keys]
    for number, value in enumerate(values):
        producer.produce(topic, value, keys[number] if keys else str(number).encode())
        producer.poll(0)
    assert not producer.flush(30)


def init(*arguments: str) -> str:
    """Call the command, which has to end well, and return what it printed."""
    done = CliRunner().invoke(commands, ["init", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def check_and_run(spark: SparkSession) -> dict[str, int]:
    """Run the tests of a configuration, which have to be green, drain its source, and return the ledger's counts."""
    registry = load_registry(())
    loaded = load_config(Path("shop.yaml"), registry)
    results = list(run_tests(loaded, load_tests(Path("shop.test.yaml")), spark))
    assert [result.faults for result in results] == [()] * len(results)
    run(loaded, registry, spark, RunOptions(trigger=Trigger(once=True)))
    counts: dict[str, int] = {}
    for entry in read_last_batches(loaded.config, 10):
        if entry["route"] is None:
            counts = {key: counts.get(key, 0) + (entry[key] or 0) for key in ("read", "decoded", "failed")}
        else:
            for key in ("landed", "refused"):
                counts[key] = counts.get(key, 0) + (entry[key] or 0)
    return counts


def rows_in(table: str) -> int:
    """Return how many rows a table of the lake has."""
    return int(DeltaTable(f"lake/{table.replace('.', '/')}").to_pyarrow_table().num_rows)


def draw_value(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kinds = ["null", "text", "time", "whole", "long", "fraction", "boolean", "empty"]
    match rng.choice([*kinds, "object", "array"] if depth < 3 else kinds):
        case "null":
            return None
        case "text":
            return "".join(rng.choices(ALPHABET, k=rng.randrange(12)))
        case "time":
            return rng.choice(TIMES)
        case "whole":
            return rng.choice([0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), rng.randrange(10**6)])
        case "long":
            return rng.choice([2**63, -(2**63) - 1, 10**20, 10**37, 10**38 - 1, 10**38, 10**60])
        case "fraction":
            return rng.choice([0.5, -0.0, 1e300, 12.25, 1e-7, 100.0])
        case "boolean":
            return rng.random() < 0.5
        case "empty":
            return rng.choice([{}, [], "", [[]], [{}], {"a": {}}])
        case "object":
            return {rng.choice(NAMES): draw_value(rng, depth + 1) for _ in range(3)}
    return [draw_value(rng, depth + 1) for _ in range(rng.randrange(3))]


TIMES = (
    *("2026-01-31T10:00:00Z", "2026-01-31 10:00", "2026-01-31T10:00:00.123456789+02:00", "2026-02-30T10:00:00Z"),
    *("2026-01-31", "2026-01-31T24:00:00Z", "0001-01-01T00:00", "2026-1-1T10:00", "2026-01-31T 10:00", "2026-01-31T10"),
    *("2026-01-3110:00", "2026-01-31T10:00:00.Z", "2026-01-31T10:00:00.1", "2026-01-31T10:00+18:00"),
    *("2026-01-31T10:00+18:01", "2026-01-31T10:00-00:00", "2026-01-31T10:00+2", "2026-01-31T10:00:00.1234567891Z"),
    *("2026-01-31T10:00.5", "2026-01-31T10:60", " 2026-01-31T10:00", "10:00", "2026-01-31T10:00:00Z "),
)
"""Texts that are times to Spark, or nearly so. (With a small `t` or `z` they are too, but the decoder takes none.)"""


def test_types_are_those_that_spark_infers(spark: SparkSession) -> None:
    """Each column has a few drawn values, so that a difference names the kind of value; and whole documents."""
    rng = random.Random(5)
    documents: list[dict[str, Any]] = [{} for _ in range(4)]
    for number in range(600):
        drawn = [draw_value(rng) for _ in range(rng.randrange(1, 3))]
        for document, value in zip(documents, drawn, strict=False):
            document[f"c{number}"] = value
    documents[0] |= {f"t{number}": text for number, text in enumerate(TIMES)}
    values = [json.dumps(document).encode() for document in documents]
    rows = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    of_spark = {field.name: field.dataType for field in infer_schema(rows)}
    ours = {field.name: field.dataType for field in Column([0] * len(documents), [*documents]).struct()}
    different = {}
    for name in {*of_spark, *ours}:
        if of_spark.get(name) != ours.get(name):
            different[name] = (of_spark.get(name), ours.get(name), [document.get(name) for document in documents])
    assert not different
    assert len(of_spark) > 500


def test_a_topic_of_twelve_kinds_lands(spark: SparkSession, broker: EmbeddedKafka) -> None:
    topic = draw_topic(12, 3000, seed=11, signs=".-_")
    fill(broker, "init-kinds", topic.values)
    # A client that nothing holds is deleted, and its answer never comes.
    admin = AdminClient({"bootstrap.servers": broker.servers})
    groups = admin.list_consumer_groups().result()
    before = {group.group_id for group in groups.valid}
    printed = init("shop", "--kafka", broker.servers, "--topic", "init-kinds")
    assert "init-kinds: 1,998 of 3,000 records;" in printed
    assert "event.kind says the kind: 12 values" in printed
    groups = admin.list_consumer_groups().result()
    assert {group.group_id for group in groups.valid} == before
    counts = check_and_run(spark)
    assert counts["read"] == 3000
    assert counts["landed"] >= 0.99 * topic.good
    assert counts["failed"] == 3000 - topic.good


def test_a_compacted_topic_has_its_newest_rows(spark: SparkSession, broker: EmbeddedKafka) -> None:
    keys = [f"p-{number % 40}".encode() for number in range(200)]
    values: list[bytes | None] = [
        json.dumps({"player": key.decode(), "n": number}).encode() for number, key in enumerate(keys)
    ]
    values[199] = None
    fill(broker, "init-compacted", values, keys, **{"cleanup.policy": "compact"})
    init("shop", "--kafka", broker.servers, "--topic", "init-compacted")
    check_and_run(spark)
    assert rows_in("silver.shop") == 199
    assert rows_in("silver.shop_by_player") == 39


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_topic_with_a_registry(
    spark: SparkSession, broker: EmbeddedKafka, schema_registry: EmbeddedRegistry, form: str
) -> None:
    from router_bench.payload import simulated

    topic = f"init-{form}"
    payload = simulated(7, form, schema_registry.url, f"{topic}-value")
    values = [value for _, value in payload.records[:3000]]
    fill(broker, topic, [*values, b"garbage", b"\x00\x00\x00\x00\x99x"])
    printed = init("shop", "--kafka", broker.servers, "--topic", topic, "--registry", schema_registry.url)
    assert "event.game" in printed
    counts = check_and_run(spark)
    assert counts["landed"] == 3000
    assert counts["failed"] == 2


def test_messages_and_objects_of_a_registry(
    spark: SparkSession, broker: EmbeddedKafka, schema_registry: EmbeddedRegistry
) -> None:
    """Two messages of one file in one topic, objects in another, a compacted one of Avro, and all in one."""
    proto = (
        'syntax = "proto3"; package shop; import "google/protobuf/duration.proto"; '
        'import "google/protobuf/timestamp.proto"; enum Way { NONE = 0; CARD = 1; } '
        "message Paid { string id = 1; double amount = 2; Way way = 3; google.protobuf.Duration took = 4; "
        "google.protobuf.Timestamp on = 5; bytes token = 6; map<string, int64> points = 7; } "
        "message Sent { string id = 1; string town = 2; }"
    )
    required = (
        'syntax = "proto2"; message Old { required string id = 1; required int32 n = 2; required Inner more = 3; '
        "message Inner { required bytes b = 1; } }"
    )
    document = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
    avro = {"type": "record", "name": "Row", "namespace": "my.shop", "fields": [
        {"name": "id", "type": "string"}, {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": ["null", "Hash"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "points", "type": {"type": "map", "values": "long"}},
        {"name": "part", "type": ["null", {"type": "record", "name": "Part", "fields": [
            {"name": "weight", "type": ["null", "int", "double"]}]}]},
    ]}  # fmt: skip
    parsed = fastavro.parse_schema(avro)

    def write_row(number: int) -> bytes:
        row = {
            "id": chr(97 + number % 20),
            "on": date(2026, 1, 1 + number % 20),
            "size": "SL"[number % 2],
            "hash": b"\xff\x00ab",
            "tags": ["a", "b"],
            "more": b"\xff\x00ab" if number % 2 else None,
            "price": Decimal("12.50"),
            "opens": time(20, 15),
            "points": {f"zoe{number}": number},
            "part": {"weight": 1.5} if number % 2 else None,
        }
        target = io.BytesIO()
        fastavro.schemaless_writer(target, parsed, row)
        return target.getvalue()

    with RegistryClient(RegistryOptions(url=schema_registry.url)) as client:
        of_proto = client.register("init-two-value", "PROTOBUF", proto)
        of_proto2 = client.register("init-old-value", "PROTOBUF", required)
        of_json = client.register("init-objects-value", "JSON", json.dumps(document))
        of_avro = client.register("init-rows-value", "AVRO", json.dumps(avro))
    # An amount, a way, a duration of 1.5 s, a time, a token, and points of somebody.
    paid = (
        b"\x0a\x01a\x11"
        + b"\0" * 7
        + b"@\x18\x01\x22\x08\x08\x01\x10\x80\xca\xb5\xee\x01\x2a\x06\x08\x80\xe7\x80\x8f\x06"
    )
    messages = [paid + b"\x32\x02\xff\x00\x3a\x07\x0a\x03zoe\x10\x05", b"\x0a\x01b\x12\x04rome"]
    two = [pack_value(of_proto, (number % 2,), messages[number % 2]) for number in range(40)]
    objects = [pack_value(of_json, None, json.dumps({"id": f"o-{n}", "n": n}).encode()) for n in range(40)]
    rows = [pack_value(of_avro, None, write_row(number)) for number in range(40)]
    fill(broker, "init-two", two)
    fill(broker, "init-old", [pack_value(of_proto2, (0,), b"\x0a\x01a\x10\x01\x1a\x03\x0a\x01x")] * 40)
    fill(broker, "init-objects", objects)
    fill(broker, "init-rows", rows, [bytes([97 + n % 20]) for n in range(40)], **{"cleanup.policy": "compact"})
    fill(broker, "init-all", [*two, *objects])
    for topic, landed in (("two", 40), ("old", 40), ("objects", 40), ("rows", 80), ("all", 80)):
        options = ("--kafka", broker.servers, "--registry", schema_registry.url, "--topic", f"init-{topic}")
        init("shop", *options, "--force")
        text = Path("shop.yaml").read_text()
        Path("shop.yaml").write_text(text.replace("${LAKE:-./lake}", f"lake-{topic}"))
        assert "zoe" not in Path("shop.test.yaml").read_text()
        assert check_and_run(spark)["landed"] == landed, topic


def test_several_topics_of_json_have_their_tables(spark: SparkSession, broker: EmbeddedKafka) -> None:
    for number, topic in enumerate(("init-Orders", "init.bills")):
        fill(broker, topic, draw_topic(3, 500, seed=number).values)
    init("shop", "--kafka", broker.servers, "--topic", "init-Orders", "--topic", "init.bills")
    counts = check_and_run(spark)
    assert counts["read"] == 1000
    assert counts["landed"] >= 0.99 * counts["decoded"]


def test_names_that_no_column_can_have_land(spark: SparkSession, broker: EmbeddedKafka) -> None:
    event = {"first name": "a", "id": 1, "ID": 2, "a.b": {"x;y": 1.5, "to.do": "now"}, "`": True}
    fill(broker, "init-names", [json.dumps(event).encode()] * 50)
    init("shop", "--kafka", broker.servers, "--topic", "init-names")
    assert check_and_run(spark)["landed"] == 50
    assert {"first_name", "ID", "a.b", "`"} < {field.name for field in DeltaTable("lake/silver/shop").schema().fields}


def test_kinds_that_cannot_name_tables_land(spark: SparkSession, broker: EmbeddedKafka) -> None:
    kinds = ["order.created", "order_created", "Order.Created", "..", "con", "it's", "\u00df", "x y/z", "other", "a\\b"]
    kinds += ["\U0001f600", "tab\tnew\nline", "\u0130", '"', "`", "--", "${x}"]
    values = []
    for number in range(50 * len(kinds)):
        kind = kinds[number % len(kinds)] if number else ""
        values.append(json.dumps({"type": kind, f"only_{number % len(kinds)}": 1}).encode())
    fill(broker, "init-odd", values)
    init("shop", "--kafka", broker.servers, "--topic", "init-odd")
    assert check_and_run(spark)["landed"] == len(values)
    assert len([*Path("lake/silver").iterdir()]) == len(kinds) + 1


def test_topics_of_several_formats(
    spark: SparkSession, broker: EmbeddedKafka, schema_registry: EmbeddedRegistry
) -> None:
    from router_bench.payload import simulated

    payload = simulated(7, "avro", schema_registry.url, "init-mixed-value")
    fill(broker, "init-mixed", [value for _, value in payload.records[:300]])
    fill(broker, "init-plain", draw_topic(3, 300, seed=2).values)
    fill(broker, "init-bytes", [b"\xff\x00"] * 20)
    fill(broker, "init-empty", [])
    topics = [part for name in ("mixed", "plain", "bytes", "empty") for part in ("--topic", f"init-{name}")]
    init("shop", "--kafka", broker.servers, "--registry", schema_registry.url, *topics)
    counts = check_and_run(spark)
    assert counts["read"] == 620
    assert counts["landed"] >= 0.97 * 600


def test_the_limits_of_a_sample_are_those_of_its_topic(broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a topic of many partitions is read for minutes, and of large records fills the memory."""
    broker.create_topic("init-limits", 8)
    producer = Producer({"bootstrap.servers": broker.servers})
    for number in range(4000):
        producer.produce("init-limits", b"%05d" % (number // 8) + b"x" * 995, partition=number % 8)
        producer.poll(0)
    assert not producer.flush(30)
    source = KafkaSource(servers=broker.servers, topics=("init-limits",))

    (sample,) = sample_topics(source)
    assert 1900 <= len(sample.records) <= samples.MOST_RECORDS

    monkeypatch.setattr(samples, "MOST_BYTES", 500_000)
    (sample,) = sample_topics(source)
    values = [value or b"" for _, value in sample.records]
    assert 400_000 <= sum(map(len, values)) <= 510_000
    assert values[0][:5] == b"00000"
    assert int(values[-1][:5]) >= 375


def test_records_of_eight_megabytes_are_sampled(broker: EmbeddedKafka) -> None:
    values = []
    for number in range(14):
        text = chr(97 + number) * 8_000_000
        values.append(json.dumps({"type": "ab"[number % 2], "n": number, "text": text}).encode())
    fill(broker, "init-large", values)
    printed = init("shop", "--kafka", broker.servers, "--topic", "init-large")
    seen = int(printed.partition("init-large: ")[2].partition(" of 14 records")[0])
    assert 4 <= seen <= samples.MOST_BYTES / 8_000_000 + 2
    assert "event.type says the kind: 2 values" in printed
    assert Path("shop.test.yaml").stat().st_size < 10_000


def test_options_stand_as_variables(broker: EmbeddedKafka) -> None:
    fill(broker, "init-login", [b'{"a": 1}'])
    pairs = ("--option", "kafka.security.protocol=PLAINTEXT", "--option", "kafka.ssl.key.password=hidden")
    printed = init("shop", "--kafka", broker.servers, "--topic", "init-login", *pairs)
    assert "set before a start: KAFKA_SECURITY_PROTOCOL, KAFKA_SSL_KEY_PASSWORD" in printed
    texts = [printed, Path("shop.yaml").read_text(), Path("shop.test.yaml").read_text()]
    assert not any("hidden" in text or "PLAINTEXT" in text for text in texts)
    with pytest.raises(ConfigError, match="KAFKA_SSL_KEY_PASSWORD is not set"):
        load_config(Path("shop.yaml"), load_registry(()))
    tests = load_tests(Path("shop.test.yaml"))
    load_config(Path("shop.yaml"), load_registry(()), environ=tests.variables)


def test_a_registry_that_wants_a_login(broker: EmbeddedKafka, faulty: FaultyRegistry) -> None:
    faulty.logins = {f"Basic {base64.b64encode(b'ann:hidden').decode()}"}
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    registered = faulty.book.add("init-closed-value", json.dumps(record), "AVRO")
    fill(broker, "init-closed", [pack_value(registered, None, b"\x02x")] * 5)
    options = ("--registry", faulty.url, "--option", "registry.basic.user=ann")
    login = (*options, "--option", "registry.basic.password=hidden")
    init("shop", "--kafka", broker.servers, "--topic", "init-closed", *login)
    text = Path("shop.yaml").read_text()
    assert "hidden" not in text
    registry = yaml.safe_load(text)["decode"]["avro"]["registry"]
    assert registry["basic"] == {"user": "${REGISTRY_BASIC_USER}", "password": "${REGISTRY_BASIC_PASSWORD}"}


def test_an_empty_topic(spark: SparkSession, broker: EmbeddedKafka) -> None:
    fill(broker, "init-nothing", [])
    assert "there is no record yet" in init("shop", "--kafka", broker.servers, "--topic", "init-nothing")
    assert check_and_run(spark)["read"] == 0


@pytest.mark.slow
def test_a_topic_of_three_hundred_kinds_lands(spark: SparkSession, broker: EmbeddedKafka) -> None:
    topic = draw_topic(300, 6000, seed=12, signs=".- /_")
    fill(broker, "init-many", topic.values)
    init("shop", "--kafka", broker.servers, "--topic", "init-many")
    counts = check_and_run(spark)
    assert counts["landed"] >= 0.99 * topic.good


def test_a_folder_of_csv_lands(spark: SparkSession) -> None:
    Path("in").mkdir()
    lines = ["type,n,extra", *(f"{'ab'[number % 2]},{number},{'x' if number % 2 else ''}" for number in range(100))]
    Path("in/a.csv").write_text("\n".join(lines) + "\n")
    init("shop", "--files", str(Path("in").absolute()))  # the JVM has another folder
    counts = check_and_run(spark)
    assert counts["landed"] == 100
