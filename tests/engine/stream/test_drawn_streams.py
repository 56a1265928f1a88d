"""Streams that are drawn, from Kafka to APIs and topics: nothing that a record has ends one, and each row is sent once.

`test_drawn_configurations` holds what tables get against Spark. Here topics of a broker are read by one stream
(`by_topic`, one of them by `auto`), and their rows go out: to a table, an API and a topic.
"""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
import yaml
from confluent_kafka import Producer

from router.config.loader import load_config
from router.delta.lake import Lake
from router.delta.unreadable_values import as_rows
from router.engine.stream import run
from router.registry import load_registry
from router_demo.api import Api
from tests.engine.drawing import GAMES, WORDS, Drawing, Record
from tests.sinks.topic import read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka
    from tests.schemas.faulty import FaultyRegistry

RECORDS = 60
IN_EVERY_RUN = 2
CONFIGURATIONS = 20
SEEDS = [
    *range(IN_EVERY_RUN),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_EVERY_RUN, CONFIGURATIONS)),
]
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "message.timestamp.before.max.ms": str(2**63 - 1)}
SENDERS = ("rest", "kafka")
MILLIS = (1, 2**31, 2**53, 2**62, 2**63 - 1)
"""Times that a producer may give a record, in ms since 1970; a timestamp has fewer bits."""


@pytest.fixture(scope="module")
def api() -> Any:
    """Run one API for all streams."""
    with Api() as running:
        yield running


class DrawnTopic:
    """A topic with drawn records."""

    def __init__(self, name: str, drawing: Drawing) -> None:
        self.name = name
        self.chance = drawing.chance
        self.records = drawing.records(RECORDS, hostile=0.4)

    def produce(self, broker: EmbeddedKafka) -> None:
        """Send the records, as the partition's offsets number them."""
        broker.create_topic(self.name, 1, config=ANY_TIME)
        producer = Producer({"bootstrap.servers": broker.servers, "message.max.bytes": 2_000_000})
        for record in self.records:
            headers = [(header["key"], header["value"]) for header in record.headers or ()]
            millis = max(0, int(record.time.timestamp() * 1000))
            if record.hostile and self.chance.random() < 0.1:
                millis = self.chance.choice(MILLIS)
            producer.produce(self.name, record.value, record.key, 0, headers=headers, timestamp=millis or 1)
        assert producer.flush(60) == 0

    def route(self, number: int, broker: EmbeddedKafka, api: Api) -> dict[str, Any]:
        """Return the route of the topic, whose rows say which record they are of."""
        sinks = [
            {"delta": f"silver.of_{number}"},
            {"rest": f"{api.url}/of_{number}"},
            {"kafka": {"servers": broker.servers, "topic": f"{self.name}-sent", "create_topics": {"partitions": 1}}},
        ]
        rule = {"sql": f"topic = '{self.name}' AND event.game IS NOT NULL"}
        return {
            "name": f"r{number}",
            "match": rule,
            "select": ["event.game", "offset AS place", "topic AS of"],
            "sinks": sinks,
        }


class FramedTopic(DrawnTopic):
    """A topic of a registry's records, of which some are damaged, cut off, or of schemas that nobody has registered."""

    def __init__(self, name: str, chance: random.Random, registry: FaultyRegistry) -> None:
        self.name = name
        self.chance = chance
        schema = {"type": "record", "name": "win", "fields": [{"name": of, "type": "string"} for of in ("game", "by")]}
        number = registry.book.add(f"{name}-value", json.dumps(schema), "AVRO")
        self.records = []
        for _ in range(RECORDS):
            value = io.BytesIO()
            value.write(b"\0" + number.to_bytes(4, "big"))
            fastavro.schemaless_writer(value, schema, {"game": chance.choice(GAMES), "by": chance.choice(WORDS)})
            whole = value.getvalue()
            place = chance.randrange(len(whole))
            damaged = whole[:place] + chance.randbytes(chance.randint(0, 4)) + whole[place + chance.randint(0, 3) :]
            is_hostile = chance.random() < 0.4
            self.records.append(Record(damaged if is_hostile else whole, is_hostile))


def rows_of(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table; a time that Python has no value for is a text."""
    handle = lake.open(table)
    return as_rows(handle.to_pyarrow_table()) if handle else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_drawn_is_sent_once_or_is_a_dead_letter(
    spark: SparkSession, broker: EmbeddedKafka, faulty: FaultyRegistry, api: Api, tmp_path: Path, seed: int
) -> None:
    """Without it a record that nobody thought of holds up an API, or is sent twice, since a batch was tried again."""
    chance = random.Random(seed)
    drawing = Drawing(chance)
    drawn = [DrawnTopic(f"drawn-{seed}-{number}", drawing) for number in range(2)]
    topics = [*drawn, FramedTopic(f"drawn-{seed}-framed", chance, faulty)]
    for topic in topics:
        topic.produce(broker)
    api.reset()
    formats: dict[str, Any] = {topic.name: {"json": {"schema": drawing.ddl}} for topic in drawn}
    framed = topics[-1].name
    formats[framed] = {"auto": {"registry": faulty.url, "subjects": [f"{framed}-value"]}}
    file = tmp_path / "games.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "games",
                "lake": str(tmp_path / "lake"),
                "source": {"kafka": {"servers": broker.servers, "topics": [topic.name for topic in topics]}},
                "decode": {"by_topic": {"topics": formats}},
                "bronze": "bronze.all",
                "routes": [topic.route(number, broker, api) for number, topic in enumerate(topics)],
                "dead_letters": "ops.dead",
                "trigger": {"once": True},
            },
            allow_unicode=True,
        )
    )
    registry = load_registry()
    run(load_config(file, registry, environ={}), registry, spark)

    lake = Lake.at(str(tmp_path / "lake"))
    letters = rows_of(lake, "ops.dead")
    assert len(rows_of(lake, "bronze.all")) == len(topics) * RECORDS
    arrived = api.rows("of", "place")
    for number, topic in enumerate(topics):
        landed = {row["place"] for row in rows_of(lake, f"silver.of_{number}")}
        plain = {place for place, record in enumerate(topic.records) if not record.hostile}
        assert plain <= landed
        dead = Counter[int](row["offset"] for row in letters if row["topic"] == topic.name)
        assert {*range(RECORDS)} == landed | dead.keys()
        messages = read_topic(broker.servers, f"{topic.name}-sent")
        sent = {
            "rest": Counter({place: times for (of, place), times in arrived.items() if of == topic.name}),
            "kafka": Counter(json.loads(message.value or b"{}")["place"] for message in messages),
        }
        for sink in SENDERS:
            refused = {row["offset"] for row in letters if (row["topic"], row["sink"]) == (topic.name, sink)}
            assert sent[sink] == Counter(dict.fromkeys(landed - refused, 1))
            assert not refused & plain
