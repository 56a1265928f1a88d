"""A lake in which records meet every fate, and what a test knows of each record without asking the router."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router.config.loader import load_config
from router.engine.audit.dead_letters import DeadLetterFilter
from router.engine.checkpoint_store import LearntSchemas
from router.engine.deploys import note_deploy
from router.engine.outbox.apply import open_sinks
from router.engine.quarantine.table import list_quarantined, write_approval
from router.engine.reprocess.replay import DeadLetterReplay
from router.engine.stream_destination import stream_batches
from router.registry import load_registry
from router_demo.api import Poison
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from router_demo.api import Api
    from router_demo.kafka import EmbeddedKafka

TEXT = """\
name: games
lake: {folder}/lake
source: {{kafka: {{servers: "{servers}", topics: [events]}}}}
decode: {{json: "game string, id int, amount int"}}
bronze: bronze.events
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    expect:
      - {{name: sure, sql: "event.amount >= {least}", otherwise: dead_letter}}
      - {{name: small, sql: "event.amount < 110", otherwise: quarantine}}
      - {{name: odd, sql: "event.amount != 13", otherwise: drop}}
    sinks: [{{tables: {{table: "silver.{{event.game}}"}}}}]
  - name: placed
    match: {{sql: "event.id IS NOT NULL"}}
    select: ["event.id", "event.amount", "topic", "partition", "offset"]
    sinks: [{{delta: gold.placed}}]
  - name: profiles
    match: {{sql: "event.id >= 0"}}
    select: ["event.id", "event.amount", "event.game"]
    sinks:
      - upsert: {{table: gold.profiles, keys: [id]}}
      - upsert: {{table: gold.states, keys: [id], history: scd2}}
  - name: wins
    match: {{sql: "event.amount > 50"}}
    sinks: [{{rest: {{url: "{api}/wins", mode: inline, rows_per_call: 3, poison_share: 1}}}}]
  - name: news
    match: {{sql: "event.amount BETWEEN 20 AND 40"}}
    sinks: [{{kafka: {{servers: "{servers}", topic: "{topic}", mode: inline}}}}]
dead_letters: ops.dead
"""
RECORDS = 260
"""Records of a batch."""
REFUSED_IDS = (3, 7)
"""Events that the API refuses for good."""


@dataclass
class KnownRecord:
    """What the test has sent: the event, None if the bytes are none, and the batch that read it."""

    value: bytes
    event: dict[str, Any] | None
    batch: int


@dataclass
class TracedLake:
    """The lake, its configuration, and its records by partition and offset."""

    folder: Path
    known: dict[tuple[int, int], KnownRecord] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "games.yaml"

    def write_configuration(self, **values: Any) -> None:
        """Write the configuration; `least` is the amount from which an event is sure."""
        self.file.write_text(TEXT.format(folder=self.folder, **values))

    def next_records(self, batch: int, chance: random.Random) -> pa.Table:
        """Return the records of the next batch, and note them."""
        values: list[Any] = []
        for number in range(RECORDS):
            event = {
                "game": chance.choice(["uno", "go", None]),
                "id": chance.choice([*range(12), None]),
                "amount": chance.choice([-3, 5, 13, 25, 33, 60, 90, 120]),
            }
            if chance.random() < 0.1:
                event = chance.choice([b"{", b"\x1b[31m\x00\xff", {"other": "\x1b]0;owned\x07" * 40}])
            values.append(event)
            value = event if isinstance(event, bytes) else json.dumps(event).encode()
            place = (number % 2, batch * 1000 + number // 2)
            self.known[place] = KnownRecord(value, None if isinstance(event, bytes) else event, batch)
        return records(values, first=batch * 1000, partitions=2)

    def save(self) -> None:
        """Write what the test knows beside the lake."""
        rows = []
        for place, record in self.known.items():
            rows.append([*place, record.value.hex(), record.event, record.batch])
        (self.folder / "known.json").write_text(json.dumps(rows))

    @classmethod
    def load(cls, folder: Path) -> TracedLake:
        """Read what another process has built."""
        lake = cls(folder)
        for partition, offset, value, event, batch in json.loads((folder / "known.json").read_text()):
            lake.known[partition, offset] = KnownRecord(bytes.fromhex(value), event, batch)
        return lake


def build_lake(folder: Path, spark: SparkSession, broker: EmbeddedKafka, api: Api, topic: str) -> TracedLake:
    """Take four batches: the first dead letters are replayed, rows of the quarantine let in and refused, a table is
    compacted.
    """
    lake = TracedLake(folder)
    places = {"servers": broker.servers, "api": api.url, "topic": topic}
    broker.create_topic(topic)
    api.play(poison=[Poison(field="id", values=REFUSED_IDS, status=422)])
    lake.write_configuration(least=0, **places)
    chance = random.Random(58)
    query = _open_query(lake, spark)
    query.write_run_id()
    query.take(lake.next_records(0, chance))
    query.take(lake.next_records(1, chance))

    # From now on events of any amount are sure, and a replay takes those that were not.
    lake.write_configuration(least=-10, **places)
    query = _open_query(lake, spark, query)
    context = query.context().with_decoder()
    replay = DeadLetterReplay(context)
    run = replay.begin(DeadLetterFilter(stages=("expect",)))
    assert run is not None
    replay.send(run)

    waiting = sorted(list_quarantined(query.config, query.lake), key=lambda one: one.place.table)
    write_approval(query.store, waiting[0])
    write_approval(query.store, waiting[1], discard=True)
    query.take(lake.next_records(2, chance))
    query.take(lake.next_records(3, chance))
    query.open("silver.uno").optimize.compact()
    lake.save()
    return lake


def _open_query(lake: TracedLake, spark: SparkSession, before: Query | None = None) -> Query:
    """Return a query by the configuration of the lake, with its sinks prepared, after those that ran before.

    What runs is noted, as a stream does.
    """
    loaded = load_config(lake.file, load_registry(), environ={})
    opened = open_sinks(loaded.config, spark, lake.folder, LearntSchemas()).config
    query = Query(opened, spark, taken={} if before is None else before.taken)
    note_deploy(loaded, query.store, query.lake, 0, len(query.taken))
    query.batches = stream_batches(opened, loaded.fingerprint, spark, query.lake, query.store)
    return query
