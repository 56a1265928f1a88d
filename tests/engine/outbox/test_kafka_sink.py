"""Routed events in topics of a real broker, in every format, through either engine."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import message_factory

from router import Sink, StartError
from router.config.loader import load_config
from router.config.models import Route
from router.engine.checkpoint_store import LearntSchemas
from router.engine.outbox.apply import open_sinks
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router.testing import check_applying_sink
from router_schemas.model import ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_of
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from tests.engine.conftest import EITHER
from tests.engine.parts import Events, Where
from tests.engine.query import records
from tests.sinks.topic import read_topic, topics_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka
    from router_demo.registry import EmbeddedRegistry
    from tests.engine.query import Query

DDL = "game string, n int, amount decimal(9,2), at timestamp, cards array<string>, odds map<string,double>, pad string"
AT = "2026-01-01T12:00:00.123456Z"
Begin = Callable[..., "Query"]


def bet(game: str | None, n: int, **more: Any) -> dict[str, Any]:
    return {"game": game, "n": n, "amount": 1.25, "at": AT, "cards": ["queen", ""], "odds": {"red": 0.5}, **more}


@pytest.fixture
def begin(request: pytest.FixtureRequest, make_query: Any, spark: SparkSession, tmp_path: Path) -> Begin:
    """Begin a query with one route of one Kafka sink, which is opened as a stream opens it and sends with the batch."""

    def begin(match: str = "event.n >= 0", select: tuple[str, ...] = ("event.*",), **options: Any) -> Query:
        sink = load_registry().resolve(Sink, {"kafka": {"mode": "inline", **options}})
        route = Route(name="bets", match=Where(sql=match), select=select, sinks=(sink,))
        query = make_query(tmp_path, commit=getattr(request, "param", "auto"), decode=Events(ddl=DDL), routes=(route,))
        return query.restarted(routes=open_sinks(query.config, spark, tmp_path, LearntSchemas()).config.routes)

    return begin


def topic_of(request: pytest.FixtureRequest) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in request.node.name)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic that only this test uses."""
    return topic_of(request)


@pytest.mark.parametrize("begin", EITHER, indirect=True)
def test_events_are_sent_by_name_key_and_headers(begin: Begin, broker: EmbeddedKafka, topic: str) -> None:
    """Without it events reach other topics, other partitions, or consumers that cannot tell a repetition."""
    for game in ("uno", "poker"):
        broker.create_topic(f"{topic}-{game}", partitions=2)
    query = begin(
        servers=broker.servers,
        topic=f"{topic}-{{event.game}}",
        key="upper(game)",
        select=("event.*", "get(filter(headers, h -> h.key = 'trace'), 0).value AS trace"),
        without=["trace"],
        headers={"trace": "trace", "none": "get(cards, 5)", "raw": "_key", "at": "event.at"},
    )
    values = [bet("uno", 0), bet("poker", 1), bet("uno", 2), {"n": -1}]

    query.take(records(values, partitions=2))

    found = {game: read_topic(broker.servers, f"{topic}-{game}") for game in ("uno", "poker")}
    assert {game: sorted(json.loads(one.value or b"")["n"] for one in got) for game, got in found.items()} == {
        "uno": [0, 2],
        "poker": [1],
    }
    (poker,) = found["poker"]
    assert poker.key == b"POKER"
    assert json.loads(poker.value or b"") == {
        **{"game": "poker", "n": 1, "amount": 1.25, "at": "2026-01-01T12:00:00.123456Z"},
        **{"cards": ["queen", ""], "odds": {"red": 0.5}},
    }
    assert dict(poker.headers) == {
        **{"trace": b"\x00\xff", "raw": b"key 1", "at": b"2026-01-01 12:00:00.123456"},
        **{"router.query": b"games", "router.sink": b"bets/kafka", "router.batch": b"0"},
        **{"router.topic": b"events", "router.partition": b"1", "router.offset": b"0"},
    }
    booked = [row for row in query.rows("ops.ledger") if row["applied"] is not None]
    assert [(row["applied"], row["dead"]) for row in booked] == [(3, 0)]


def test_the_sink_keeps_the_contract(spark: SparkSession, broker: EmbeddedKafka, topic: str) -> None:
    """Without it the engine stops for what it counts, or for an empty batch."""
    broker.create_topic(f"{topic}-uno")
    sink = load_registry().resolve(Sink, {"kafka": {"servers": broker.servers, "topic": f"{topic}-{{game}}"}})

    check_applying_sink(
        spark, sink, spark.createDataFrame([("uno", 1), ("poker", 2), (None, None)], "game string, n int")
    )


def of_avro(client: RegistryClient, value: bytes) -> Any:
    schema = json.loads(client.by_id(int.from_bytes(value[1:5], "big")).text)
    return fastavro.schemaless_reader(BytesIO(value[5:]), fastavro.parse_schema(schema))


def of_protobuf(client: RegistryClient, value: bytes) -> Any:
    assert value[5] == 0
    files = compile_schema(ResolvedSchema(client.by_id(int.from_bytes(value[1:5], "big"))))
    name = next(iter(message_of(files, "games.Bet").file.message_types_by_name))
    return message_factory.GetMessageClass(message_of(files, f"games.{name}")).FromString(value[6:])


def test_avro_is_registered_and_read_by_others(
    begin: Begin, broker: EmbeddedKafka, schema_registry: EmbeddedRegistry, topic: str
) -> None:
    """Without it nobody but the router can read what it sends."""
    broker.create_topic(topic)
    value = {"to_avro": {"registry": schema_registry.url, "name": "games.Bet", "register": True}}
    query = begin(servers=broker.servers, topic=topic, value=value)

    query.take(records([bet("uno", 0), bet("uno", 1, amount=None, odds=None)]))

    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        found = [of_avro(client, one.value or b"") for one in read_topic(broker.servers, topic)]
        assert client.versions(f"{topic}-value") == (1,)
    assert [one["n"] for one in found] == [0, 1]
    assert (str(found[0]["amount"]), found[0]["cards"], found[0]["odds"]) == ("1.25", ["queen", ""], {"red": 0.5})
    assert found[0]["at"].isoformat() == "2026-01-01T12:00:00.123456+00:00"
    assert found[1]["amount"] is found[1]["odds"] is None


def test_protobuf_is_registered_and_read_by_others(
    begin: Begin, broker: EmbeddedKafka, schema_registry: EmbeddedRegistry, topic: str
) -> None:
    """Without it nobody but the router can read what it sends."""
    broker.create_topic(topic)
    value = {"to_protobuf": {"registry": schema_registry.url, "message": "games.Bet", "register": True}}
    select = ("event.game", "event.n", "event.at", "event.cards", "event.odds", "string(event.amount) AS amount")
    query = begin(servers=broker.servers, topic=topic, value=value, select=select)

    query.take(records([bet("uno", 0), bet(None, 1)]))

    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        found = [of_protobuf(client, one.value or b"") for one in read_topic(broker.servers, topic)]
    assert [(one.n, one.HasField("game")) for one in found] == [(0, True), (1, False)]
    assert (found[0].amount, list(found[0].cards), dict(found[0].odds)) == ("1.25", ["queen", ""], {"red": 0.5})
    assert found[0].at.ToJsonString() == "2026-01-01T12:00:00.123456Z"


@pytest.mark.parametrize("begin", EITHER, indirect=True)
def test_what_is_refused_is_a_dead_letter(begin: Begin, broker: EmbeddedKafka, topic: str) -> None:
    """Without it one bad row stops the stream, or is lost."""
    broker.create_topic(f"{topic}-uno", config={"max.message.bytes": "50000"})
    query = begin(
        servers=broker.servers, topic=f"{topic}-{{game}}", headers={"h": "if(n = 7, raise_error('no'), 'fine')"}
    )
    good = [bet("uno", n, pad="x" * 300) for n in range(4)]
    bad = [bet("uno", 4, pad="x" * 90_000), bet("nogame", 5), bet("../x", 6), bet("uno", 7), bet(None, 8)]

    report = query.take(records([good[0], bad[0], good[1], *bad[1:], *good[2:]]))

    assert [json.loads(one.value or b"")["n"] for one in read_topic(broker.servers, f"{topic}-uno")] == [0, 1, 2, 3]
    letters = [row for row in query.rows(query.config.dead_letters) if row["stage"] == "apply"]
    why = {json.loads(row["value"])["n"]: row["reason"] for row in letters}
    assert {n: reason for n, reason in why.items() if n == 4} == {4: "Kafka refuses it: Broker: Message size too large"}
    assert f"there is no topic {topic}-nogame" in why[5]
    assert "unusable topic name" in why[6]
    assert why[7] == "its topic, key or headers cannot be evaluated"
    assert why[8] == "the topic's name is null"
    assert (len(letters), report.dead_letters, report.read) == (5, 5, 9)
    assert {(row["route"], row["sink"], row["topic"]) for row in letters} == {("bets", "kafka", "events")}
    assert f"{topic}-nogame" not in topics_of(broker.servers)


def test_rows_of_a_source_partition_keep_their_order(begin: Begin, broker: EmbeddedKafka, topic: str) -> None:
    """Without it a consumer ends with an older state of a player. Large rows land in a file of their own."""
    broker.create_topic(topic, partitions=3)
    query = begin(servers=broker.servers, topic=topic, key="game")
    values = [bet(f"g{n % 5}", n, pad="x" * (20_000 if n % 11 == 0 else 10)) for n in range(600)]

    query.take(records(values, partitions=3))

    by = defaultdict(list)
    for one in read_topic(broker.servers, topic):
        by[one.header("router.partition"), one.key].append(int(one.header("router.offset") or -1))
    assert sum(map(len, by.values())) == 600
    assert all(offsets == sorted(offsets) for offsets in by.values())


def test_topics_are_created_up_to_their_number(begin: Begin, broker: EmbeddedKafka, topic: str) -> None:
    """Without it a feed of random names fills the cluster with topics."""
    create = {"partitions": 2, "at_most": 2}
    query = begin(servers=broker.servers, topic=f"{topic}-{{game}}", create_topics=create)

    query.take(records([bet(game, n) for n, game in enumerate(["a", "b", "c", "a", "x/y"])]))

    made = {name for name in topics_of(broker.servers) if name.startswith(f"{topic}-")}
    assert made == {f"{topic}-a", f"{topic}-b"}
    assert len(read_topic(broker.servers, f"{topic}-a")) == 2
    reasons = query.letters("reason", stage="apply")
    assert reasons["the sink may have 2 topics and has them"] == 1
    assert reasons.total() == 2


def test_a_batch_that_was_cut_off_is_sent_again_under_the_same_names(
    begin: Begin, broker: EmbeddedKafka, topic: str
) -> None:
    """Without it a consumer cannot tell a repetition from a new event."""
    broker.create_topic(topic)
    query = begin(servers=broker.servers, topic=topic)
    query.take(records([bet("uno", n) for n in range(50)], partitions=2))
    for mark in query.folder.rglob("store/applied/*/*.json"):  # as if the process had died when all was sent
        mark.unlink()

    query.restarted().again(0)

    origins = Counter(one.origin for one in read_topic(broker.servers, topic))
    assert len(origins) == 50
    assert set(origins.values()) == {2}


MISTAKES = {
    "no topic": ({"topic": "nowhere"}, "there is no topic nowhere: create it"),
    "no column": ({"key": "gamer"}, "gamer"),
    "no function": ({"headers": {"a": "nofunction(n)"}}, "nofunction"),
    "a struct": ({"key": "struct(n)"}, "key: it is struct<n:int>, not one value"),
    "a topic's field": ({"topic": "games-{event.gane}"}, "gane"),
    "no such column": ({"without": ["x", "n"]}, "`without` has x, and the route has no such columns"),
    "an option": ({"options": {"batch.size": "tiny"}}, "batch.size"),
}


@pytest.mark.parametrize(("options", "what"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_keeps_the_stream_from_starting(
    begin: Begin, broker: EmbeddedKafka, options: dict[str, Any], what: str
) -> None:
    """Without it the first batch finds it, at night."""
    with pytest.raises(StartError, match="route bets, sink kafka: ") as caught:
        begin(**{"servers": broker.servers, "topic": "games", "create_topics": {"partitions": 1}, **options}
              if "nowhere" not in options.values() else {"servers": broker.servers, **options})  # fmt: skip
    assert what in str(caught.value)


YAML = """\
name: {name}
lake: {lake}
source: {source}
decode: {decode}
routes:
  - name: all
    match: {{sql: "event.n IS NOT NULL"}}
    select: ["event.*"]
    sinks: {sinks}
dead_letters: ops.dead
"""


def configured(folder: Path, name: str, source: Any, decode: Any, sinks: Any) -> Any:
    folder.mkdir(exist_ok=True)
    parts = {"source": source, "decode": decode, "sinks": sinks}
    text = YAML.format(name=name, lake=folder / "lake", **{key: json.dumps(part) for key, part in parts.items()})
    return load_config(folder / f"{name}.yaml", load_registry(), environ={}, text=text)


@pytest.mark.parametrize("written", ["avro", "protobuf", "json"])
def test_what_one_router_sends_another_reads(
    spark: SparkSession,
    broker: EmbeddedKafka,
    schema_registry: EmbeddedRegistry,
    topic: str,
    tmp_path: Path,
    written: str,
) -> None:
    """Without it routers cannot be chained: events change on the way."""
    schema = (
        "game string, n bigint, x double, at timestamp, cards array<string>, s struct<a: int, b: boolean>, bin binary"
    )
    lines = [
        {"game": "uno", "n": 2**53, "x": 0.1, "at": AT, "cards": ["a", ""], "s": {"a": -1, "b": False}, "bin": "AAH/"},
        {
            "game": "ä\u0000\U0001f0a1",
            "n": -1,
            "x": -0.0,
            "at": "1969-12-31T23:59:59.999999Z",
            "s": {"a": 0},
            "cards": [],
        },
    ]
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    broker.create_topic(topic)
    registered = {"registry": schema_registry.url, "register": True}
    value = {f"to_{written}": {} if written == "json" else registered}
    sinks = [{"delta": "silver.all"}, {"kafka": {"servers": broker.servers, "topic": topic, "value": value}}]
    files = {"files": {"path": str(tmp_path / "events")}}
    sending = configured(tmp_path / "sends", "sends", files, {"json": schema}, sinks)
    reads = {"json": schema} if written == "json" else {written: {"registry": schema_registry.url}}
    kafka = {"kafka": {"servers": broker.servers, "topics": [topic]}}
    reading = configured(tmp_path / "reads", "reads", kafka, reads, [{"delta": "silver.all"}])

    for loaded in (sending, reading):
        run(loaded, load_registry(), spark, RunOptions(trigger=once()))

    tables = [spark.read.format("delta").load(str(tmp_path / one / "lake/silver/all")) for one in ("sends", "reads")]
    before, after = (sorted((row.asDict(recursive=True) for row in one.collect()), key=repr) for one in tables)
    assert len(before) == 2
    assert after == before


def once() -> Any:
    from router.config.models import Trigger

    return Trigger(once=True)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stream_waits_for_the_broker_it_sends_to(
    spark: SparkSession, own_broker: EmbeddedKafka, tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a router ends when the broker behind it is started again, or the events of an outage are lost."""
    events, stop, done = tmp_path / "events", threading.Event(), []
    events.mkdir()
    (events / "a.jsonl").write_text('{"n": 1}\n{"n": 2}')
    own_broker.create_topic(topic)
    sinks = [{"kafka": {"servers": own_broker.servers, "topic": topic, "timeout": 2}}]
    loaded = configured(tmp_path / "w", "waits", {"files": {"path": str(events)}}, {"json": "n int"}, sinks)
    options = RunOptions(stop=stop, finished=lambda report, behind: done.append(report))
    thread = threading.Thread(target=run, args=(loaded, load_registry(), spark, options))
    thread.start()
    try:
        wait_until(lambda: len(read_topic(own_broker.servers, topic)) == 2, "two records arrive")
        own_broker.stop()
        (events / "b.jsonl").write_text('{"n": 3}')
        wait_until(lambda: "trying again" in caplog.text or not thread.is_alive(), "the sink tries again")
        own_broker.start()
        wait_until(lambda: len(read_topic(own_broker.servers, topic)) >= 3, "the third record arrives")
    finally:
        stop.set()
        thread.join(60)
    sent = [json.loads(one.value or b"")["n"] for one in read_topic(own_broker.servers, topic)]
    assert list(dict.fromkeys(sent)) == [1, 2, 3]
    assert sum(report.dead_letters for report in done) == 0
