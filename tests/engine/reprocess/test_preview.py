"""`router preview` says what the next batch does with the same records, and leaves no trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

import router.cli
from router.cli.preview import MERGE_COUNTS
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.reprocess import preview as module
from router.engine.spark import session
from router.engine.start.run_lock import RUN_LOCK, hold_file_lock
from router.engine.stream import run
from router.errors import BatchError
from router.registry import load_registry
from router_demo.api import Api
from tests.engine.reprocess.traces import traces_of
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka
    from tests.schemas.faulty import FaultyRegistry

YAML = """\
name: games
lake: {folder}/lake
source: {source}
decode: {{json: {decode}}}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "event.n IS NOT NULL"}}
    select: ["event.n", "event.name"{more}]
    expect: [{{name: small, sql: "event.n < {most}"{otherwise}}}]
    sinks:
      - {{tables: {{table: "silver.{{event.game}}", evolution: {evolution}}}}}
      - {{upsert: {{table: silver.newest, keys: [name]}}}}
      - {{flock: "{folder}"}}
trigger: {{once: true}}
dead_letters: {{table: ops.dead{at_most}}}
"""
FLOCK = """\
from pathlib import Path
from router import ApplyingSink, Outcome, hookimpl

class Flock(ApplyingSink):
    main_option = "loft"
    previews = True
    loft: str
    def preview(self, events, opening):
        return [{"bird": row["n"]} for row in events.orderBy("_offset").collect()]
    def apply(self, events, batch):
        numbers = [row["n"] for row in events.orderBy("_offset").collect()]
        with (Path(self.loft) / "flown").open("a") as loft:
            loft.writelines(f"{n}\\n" for n in numbers)
        return Outcome(len(numbers))

@hookimpl
def router_sinks():
    return {"flock": Flock}
"""
FIRST = '"n int, name string, game string"'
WIDER = '"n int, name string, game string, extra struct<deep: double>"'


class Game:
    """A configuration with sinks of each kind, and the commands on it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark
        self.lake = Lake.at(f"{folder}/lake")
        (folder / "flock.py").write_text(FLOCK)
        load_registry([folder / "flock.py"])  # now Python has its own file of it, which is none of the router's
        (folder / "in").mkdir()
        self.says()

    def says(self, **words: str) -> None:
        """Write the configuration."""
        words = {
            **{"source": f"{{files: {{path: {self.folder}/in}}}}", "decode": FIRST, "more": "", "otherwise": ""},
            **{"evolution": "evolve", "at_most": "", "most": "7", **words},
        }
        (self.folder / "games.yaml").write_text(YAML.format(folder=self.folder, **words))

    def gets(self, *events: Any) -> None:
        """Let new records take the place of those that are there."""
        for old in (self.folder / "in").iterdir():
            old.unlink()
        lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
        (self.folder / "in" / f"{time.time_ns()}.json").write_text("".join(f"{line}\n" for line in lines))

    def runs(self) -> None:
        registry = load_registry([self.folder / "flock.py"])
        run(load_config(self.folder / "games.yaml", registry, environ={}), registry, self.spark)

    def preview(self, *arguments: str) -> Result:
        command = ["preview", str(self.folder / "games.yaml"), "--plugin", str(self.folder / "flock.py"), *arguments]
        return CliRunner(env={"COLUMNS": "250"}).invoke(router.cli.commands, command, prog_name="router")

    def document(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        result = self.preview("--json", *arguments)
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return read_rows(self.lake, table)

    def flown(self) -> list[str]:
        path = self.folder / "flown"
        return path.read_text().split() if path.exists() else []

    def counts(self) -> Counter[str]:
        """Return the rows of all tables, those of outboxes and quarantines as well."""
        found: Counter[str] = Counter()
        for layer in self.lake.layer_names():
            for table in self.lake.table_names(layer):
                found[table] = len(self.rows(table))
        return found

    def columns(self, table: str) -> set[str]:
        handle = self.lake.open(table)
        return {field.name for field in handle.schema().fields} if handle else set()


@pytest.fixture
def game(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Game:
    """Return an empty lake, and commands that use the Spark of the tests."""
    monkeypatch.setattr(session, "build_session", lambda config, master=None: spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    return Game(tmp_path, spark)


def events(*numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"n": n, "name": f"p{n % 3}", "game": ("uno", "chess")[n % 2], **more} for n in numbers]


def letters_of(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return how many dead letters there are of each kind."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        counts[row["stage"], row["route"], row["sink"], row["reason"]] += row.get("count", 1)
    return counts


def merges_of(found: dict[str, Any]) -> dict[str, int]:
    """Return what the upsert of a preview does, without what it does not do."""
    (merge,) = [table["merge"] for table in found["tables"] if table["target"] == "all/upsert"]
    assert not merge["unknown"]
    return {name: count for name, count in merge["counts"].items() if name in MERGE_COUNTS and count}


def merges_in(log: str) -> dict[str, int]:
    """Return the same of the line that a run has logged."""
    (line,) = re.findall(r"all/upsert: 1 tables, (.*)", log)
    return {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", line) if int(count)}


@pytest.mark.timeout(900)
def test_the_next_batch_does_what_its_preview_says(game: Game, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a preview is a second router, that is right only as long as both are changed together."""
    write_deltalake(f"{game.folder}/lake/silver/odd", pa.table({"n": ["text"], "name": ["p"]}))
    changed = {"decode": WIDER, "more": ', "event.extra"', "otherwise": ", otherwise: drop"}
    batches = [
        ({}, [*events(0, 1, 2, 8), "garbage", {"n": 3, "name": "p0", "game": "no name!"}, {"name": "p1"}]),
        (changed, [*events(4, 5, 9, extra={"deep": 1.5}), {"n": 6, "name": "p6", "game": "odd"}, "[]"]),
        ({**changed, "evolution": "quarantine"}, [{"n": 6, "name": "p6", "game": "odd"}, *events(1)]),
    ]
    for batch, (words, records) in enumerate(batches):
        game.says(**words)
        game.gets(*records)
        before, traces, flown = game.counts(), traces_of(game.folder), game.flown()
        columns = {table: game.columns(table) for table in before}

        found = game.document("--source", "topic", "--samples", "100")

        assert traces_of(game.folder) == traces
        caplog.clear()
        game.runs()
        gained = +(game.counts() - before)
        rows: Counter[str] = Counter()
        for table in found["tables"]:
            merges = table["target"] == "all/upsert"
            rows["outbox.games__all__upsert" if merges else table["table"]] += table["rows"]
            assert len(table["samples"]) == table["rows"]
            if not merges:
                known = columns.get(table["table"], set())
                assert (table["change"] == "new") == (table["table"] not in columns)
                assert game.columns(table["table"]) - known == set(table["columns"]) - known
        (sink,) = found["sinks"]
        rows["outbox.games__all__flock"] = sink["rows"]
        appended = ("silver", "bronze", "quarantine", "outbox")
        assert rows == {
            table: count
            for table, count in gained.items()
            if table.split(".")[0] in appended and table != "silver.newest"
        }
        assert [str(call["bird"]) for call in sink["calls"]] == game.flown()[len(flown) :]
        dead = [row for row in game.rows("ops.dead") if row["batch_id"] == batch]
        assert letters_of(found["dead_letters"]) == letters_of(dead)
        assert found["read"] == len(records) == gained["bronze.all"]
        assert found["stops"] == []
        # The same of its records in bronze, held against the table as it was before them.
        again = game.document("--last", str(len(records)))
        assert merges_of(found) == merges_of(again) == merges_in(caplog.text)


def test_an_upsert_is_held_against_the_table_before_its_records(game: Game) -> None:
    """Without it all records of bronze are late in a table that has them."""
    game.says(most="1000")
    for first in (0, 3, 6):
        game.gets(*({"n": n, "name": f"p{n}", "game": "uno"} for n in range(first, first + 5)))
        game.runs()

    def merge(*arguments: str) -> dict[str, Any]:
        found = game.document(*arguments)
        (of_table,) = [table["merge"] for table in found["tables"] if table["target"] == "all/upsert"]
        return dict(of_table)

    newest = merge("--last", "5")
    assert merges_of(game.document("--last", "5")) == {"inserted": 3, "updated": 2}
    assert (newest["held_against"] >= 1, newest["is_lost"]) == (True, False)
    assert merge("--last", "10")["counts"]["inserted"] == 6
    first = merge("--last", "15")
    assert (first["counts"]["inserted"], first["held_against"], first["is_lost"]) == (11, 0, False)
    # Those of the source are the same records, until there are others.
    assert merges_of(game.document("--source", "topic")) == {"inserted": 3, "updated": 2}
    game.gets(*({"n": n, "name": f"p{n}", "game": "uno"} for n in range(9, 13)))
    assert merges_of(game.document("--source", "topic")) == {"inserted": 2, "updated": 2}

    log = game.folder / "lake" / "silver" / "newest" / "_delta_log"
    handle = game.lake.open("silver.newest")
    assert handle is not None
    handle.create_checkpoint()
    for commit in sorted(log.glob("*.json"))[:-1]:
        commit.unlink()
    lost = merge("--last", "15")
    assert (lost["is_lost"], lost["counts"]["inserted"]) == (True, 11)
    assert "11 inserted; of an empty table, since its log does not reach back" in game.preview("--last", "15").output


TWO = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, name string, gone boolean"}}
bronze: bronze.all
routes:
  - name: odd
    match: {{sql: "event.n % 2 = 1"}}
    select: ["event.n", "event.name"]
    sinks: [{{upsert: {{table: silver.newest, keys: [name], delete_when: event.gone}}}}]
  - name: even
    match: {{sql: "event.n % 2 = 0"}}
    select: ["event.n", "event.name"]
    sinks: [{{upsert: {{table: silver.newest, keys: [name], delete_when: event.gone}}}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""


def test_two_upserts_of_a_table_and_its_deletions_are_held_against_it(
    game: Game, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it rows of a key are late since it was deleted by records that come after them."""
    (game.folder / "games.yaml").write_text(TWO.format(folder=game.folder))
    batches = [
        [{"n": n, "name": f"p{n}"} for n in range(6)],
        [{"n": 1, "name": "p1", "gone": True}, {"n": 2, "name": "p2", "gone": True}, {"n": 4, "name": "p9"}],
        [{"n": 3, "name": "p1"}, {"n": 4, "name": "p2"}, {"n": 5, "name": "p9", "gone": True}],
    ]
    logged = []
    for records in batches:
        game.gets(*records)
        caplog.clear()
        game.runs()
        lines = re.findall(r"(odd|even)/upsert: 1 tables, (.*)", caplog.text)
        logged.append(
            {key: {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", text) if int(n)} for key, text in lines}
        )

    def merges(last: int) -> dict[str, dict[str, int]]:
        found = {}
        for table in game.document("--last", str(last))["tables"]:
            assert not table["merge"]["unknown"]
            counts = table["merge"]["counts"]
            found[table["target"].partition("/")[0]] = {name: counts[name] for name in MERGE_COUNTS if counts.get(name)}
        return found

    assert merges(3) == logged[2]
    (game.folder / "in").mkdir(exist_ok=True)
    first = merges(12)
    assert sum(counts.get("inserted", 0) for counts in first.values()) == 7
    assert not any("late" in counts for counts in logged)


def test_a_deletion_before_the_records_counts_and_so_does_a_constraint(
    game: Game, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a row that comes late is a new one, or all are, since the table could not be copied."""
    text = TWO.replace("keys: [name],", "keys: [name], newest_by: event.n,").format(folder=game.folder)
    (game.folder / "games.yaml").write_text(text)
    for record in ({"n": 5, "name": "a"}, {"n": 7, "name": "a", "gone": True}, {"n": 3, "name": "a"}):
        game.gets(record)
        caplog.clear()
        game.runs()
    assert merges_in(caplog.text.replace("odd/", "all/")) == {"late": 1}

    def merge(count: int) -> dict[str, Any]:
        (table,) = game.document("--last", str(count))["tables"]
        assert not table["merge"]["unknown"]
        return {name: table["merge"]["counts"][name] for name in MERGE_COUNTS if table["merge"]["counts"].get(name)}

    assert merge(1) == {"late": 1}
    handle = game.lake.open("silver.newest")
    assert handle is not None
    handle.alter.add_constraint({"small": "n < 100"})
    game.gets({"n": 9, "name": "b"}, {"n": 999, "name": "c"})
    found = game.document("--source", "topic")["tables"]
    counts = next(table["merge"]["counts"] for table in found if table["target"] == "odd/upsert")
    assert (counts["inserted"], counts["refused"]) == (1, 1)
    # A key that the table does not have: it cannot be said, and the rest is.
    (game.folder / "games.yaml").write_text(text.replace("keys: [name]", "keys: [name2]").replace(
        '"event.name"', '"event.name AS name2"'
    ))  # fmt: skip
    tables = game.document("--source", "topic")["tables"]
    assert all(table["merge"]["unknown"] for table in tables if table["target"] == "odd/upsert")


def test_what_would_stop_the_batch_is_told_and_the_rest_is_shown(game: Game) -> None:
    """Without it people find one reason after the other, each by a run that stops."""
    game.gets(*events(1, 2))
    game.runs()
    more = {"decode": WIDER, "more": ', "event.extra"'}
    game.says(**more, otherwise=", otherwise: fail", evolution="fail", at_most=", at_most: 1%")
    game.gets(*events(*range(60), extra={"deep": 1.5}), *(["garbage"] * 50))

    found = game.document("--source", "topic", code=1)

    told = " ".join(found["stops"])
    assert len(found["stops"]) == 4
    assert "all/small on 53 rows" in told
    assert "table silver.chess: it cannot store the columns extra" in told
    assert "table silver.uno: it cannot store the columns extra" in told
    assert "50 of 110 records (45.5%) become dead letters" in told
    assert {table["table"] for table in found["tables"]} >= {"silver.uno", "silver.chess", "silver.newest"}
    shown = game.preview("--source", "topic")
    assert shown.exit_code == 1
    assert shown.output.count("the batch would stop") == 4


def test_a_quarantine_that_would_get_too_large_stops_the_batch(game: Game) -> None:
    """Without it the preview of a change ends well, and the stream stops at its first batch."""
    game.gets(*events(1, 2))
    game.runs()
    game.says(decode=WIDER, more=', "event.extra"', evolution="quarantine")
    with (game.folder / "games.yaml").open("a") as file:
        file.write("quarantine: {at_most: 10}\n")
    game.gets(*events(3, extra={"deep": 1.5}))

    (stop,) = game.document("--source", "topic", code=1)["stops"]

    assert "bytes of 10 that it may have (`quarantine: at_most`)" in stop
    with pytest.raises(BatchError, match="`quarantine: at_most`"):
        game.runs()


def test_records_are_chosen_in_bronze(game: Game) -> None:
    """Without it a change is tried on other records than those that it was made for."""
    game.says(most="100")
    for first in (0, 10, 20):
        game.gets(*events(*range(first, first + 10)))
        game.runs()

    def numbers(*arguments: str) -> list[int]:
        found = game.document(*arguments, "--samples", "100")
        assert found["place"] == "bronze"
        assert not any(table["table"] == "bronze.all" for table in found["tables"])
        return sorted(call["bird"] for call in found["sinks"][0]["calls"])

    records = [(row["topic"], row["offset"], json.loads(row["value"])["n"]) for row in game.rows("bronze.all")]
    (topic, first), *_ = [(topic, offset) for topic, offset, n in sorted(records) if n == 12]
    assert numbers("--last", "15") == [*range(15, 30)]
    assert numbers("--records", f"{topic}/0/{first}-{first + 2}") == [12, 13, 14]
    assert numbers("--since", "1 h") == [*range(30)]


def test_records_are_chosen_in_a_topic_without_a_trace_there(game: Game, broker: EmbeddedKafka) -> None:
    """Without it a preview of a stream that has no bronze yet is one of no records, or commits offsets."""
    broker.create_topic("previewed", 2)
    producer = Producer({"bootstrap.servers": broker.servers})
    begin = int(time.time()) - 200 * 60
    for n in range(20):
        value = json.dumps(events(n)[0]).encode()
        producer.produce("previewed", value, partition=n % 2, timestamp=(begin + 600 * n) * 1000)
    assert producer.flush(60) == 0
    admin = AdminClient({"bootstrap.servers": broker.servers})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    game.says(source=f'{{kafka: {{servers: "{broker.servers}", topics: [previewed]}}}}', most="100")

    def numbers(*arguments: str) -> list[int]:
        found = game.document(*arguments, "--samples", "100")
        assert found["place"] == "the topic"
        assert found["read"] == sum(table["rows"] for table in found["tables"] if table["target"] == "/bronze")
        return sorted(call["bird"] for call in found["sinks"][0]["calls"])

    assert numbers("--last", "6") == [*range(14, 20)]
    assert numbers("--records", "previewed/1/3-5") == [7, 9, 11]
    assert numbers("--since", "45 minutes") == [*range(16, 20)]
    assert {group.group_id for group in admin.list_consumer_groups().result().valid} == groups
    assert not (game.folder / "lake").exists()


LOOKED_UP = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, name string"}}
routes:
  - name: all
    match: {{sql: "event.n IS NOT NULL"}}
    lookup: [{{name: billing, table: ref.billing, on: {{who: event.name}}}}]
    select: ["event.n", "billing.plan"]
    sinks: [{{delta: silver.played}}]
views:
  - {{name: plans, from: silver.played, into: gold.plans, sql: "SELECT plan, count(*) AS n FROM source GROUP BY plan"}}
trigger: {{once: true}}
dead_letters: ops.dead
"""


def test_views_of_the_records_alone_look_up_in_the_real_lake(game: Game) -> None:
    """Without it a preview of a configuration with a view and a lookup waits for a table that its own lake lacks."""
    (game.folder / "games.yaml").write_text(LOOKED_UP.format(folder=game.folder))
    write_deltalake(f"{game.folder}/lake/ref/billing", pa.table({"who": ["ann"], "plan": ["gold"]}))
    game.gets({"n": 1, "name": "ann"}, {"n": 2, "name": "ann"}, {"n": 3, "name": "bob"})
    traces = traces_of(game.folder)

    (view,) = game.document("--samples", "9")["views"]

    assert sorted((row["plan"] or "", row["n"]) for row in view["samples"]) == [("", 1), ("gold", 2)]
    assert traces_of(game.folder) == traces


SENDING = """\
name: games
lake: {folder}/lake
source: {{kafka: {{servers: "{servers}", topics: [{topic}]}}}}
decode: {{avro: {{registry: "{registry}", subjects: [{topic}-value]}}}}
routes:
  - name: wins
    match: {{sql: "event.n > 2"}}
    select: ["event.n"]
    sinks:
      - {{rest: "{api}/wins"}}
      - {{kafka: {{servers: "{servers}", topic: "{topic}-{{event.n}}", create_topics: {{partitions: 1}}}}}}
      - {{sql: {{url: "postgresql://nobody@127.0.0.1:9/none", table: wins}}}}
trigger: {{once: true}}
dead_letters: ops.dead
"""


def test_registry_broker_and_api_are_as_before(game: Game, broker: EmbeddedKafka, faulty: FaultyRegistry) -> None:
    """Without it somebody who looks registers schemas, makes topics, or pays players."""
    topic = "seen-before"
    schema = {"type": "record", "name": "win", "fields": [{"name": "n", "type": "long"}]}
    number = faulty.book.add(f"{topic}-value", json.dumps(schema), "AVRO")
    broker.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": broker.servers})
    for n in range(5):
        producer.produce(topic, b"\0" + number.to_bytes(4, "big") + bytes([2 * n]))  # a long is zigzag
    assert producer.flush(60) == 0
    admin = AdminClient({"bootstrap.servers": broker.servers})

    def topics() -> set[str]:
        return set(admin.list_topics(timeout=20).topics)

    def groups() -> set[str]:
        return {group.group_id for group in admin.list_consumer_groups().result().valid}

    with Api() as api:
        places = {"servers": broker.servers, "topic": topic, "registry": faulty.url, "api": api.url}
        (game.folder / "games.yaml").write_text(SENDING.format(folder=game.folder, **places))
        before = topics(), groups(), deepcopy(faulty.book), traces_of(game.folder)

        found = game.document("--samples", "100")

        assert (topics(), groups(), faulty.book, traces_of(game.folder)) == before
        assert api.requests() == []
    assert {seen.method for seen in faulty.seen} == {"GET"}
    calls = {sink["sink"]: sink["calls"] for sink in found["sinks"]}
    assert [call["body"] for call in calls["wins/rest"]] == [{"n": 3}, {"n": 4}]
    placed = [{"router.topic": topic, "router.partition": 0, "router.offset": n} for n in (3, 4)]
    assert calls["wins/kafka"] == [
        {"topic": f"{topic}-{n}", "key": None, "value": {"n": n}, "headers": headers}
        for n, headers in zip((3, 4), placed, strict=True)
    ]
    # A sink that cannot say what it would send: the rows that it would get.
    assert sorted(calls["wins/sql"], key=str) == [{"n": 3}, {"n": 4}]


def test_a_record_of_8_mb_goes_where_its_batch_puts_it(game: Game) -> None:
    """Without it one huge record hides where all others go, or fills the terminal."""
    game.gets({"n": 1, "name": "x" * (8 << 20), "game": "uno"}, {"n": 2, "name": "p", "game": "uno"}, "no JSON")

    found = game.document("--samples", "9")
    shown = game.preview().output
    game.runs()

    (uno,) = [table for table in found["tables"] if table["table"] == "silver.uno"]
    rows = game.rows("silver.uno")
    assert sorted((row["n"], len(row["name"])) for row in rows) == [(1, 8 << 20), (2, 1)]
    assert sorted((row["n"], len(row["name"])) for row in uno["samples"]) == [(1, 8 << 20), (2, 1)]
    assert letters_of(found["dead_letters"]) == letters_of(game.rows("ops.dead"))
    assert len(shown) < 10_000


UNSENDABLE = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int"}}
routes:
  - name: wins
    match: {{sql: "event.n IS NOT NULL"}}
    sinks:
      - {{kafka: {{servers: "127.0.0.1:9", topic: away, value: {{to_avro: {{registry: "http://127.0.0.1:9"}}}}}}}}
      - {{kafka: {{servers: "127.0.0.1:9", topic: none, value: {{to_avro: {{registry: "{registry}"}}}}}}}}
      - {{kafka: {{servers: "127.0.0.1:9", topic: some, value: {{to_json: {{}}}}, key: "concat('p', event.n)"}}}}
dead_letters: ops.dead
"""


def test_a_sink_that_could_not_send_says_why(game: Game, faulty: FaultyRegistry) -> None:
    """Without it a registry that is away, or a subject without a schema, hides where all other rows go."""
    (game.folder / "games.yaml").write_text(UNSENDABLE.format(folder=game.folder, registry=faulty.url))
    game.gets({"n": 1})

    found = game.document(code=1)

    assert found["stops"] == ["wins/kafka_2: subject none-value has no schema; register one, or set `register: true`"]
    assert found["waiting"].keys() == {"wins/kafka"}
    assert "waiting for the schema registry" in found["waiting"]["wins/kafka"]
    former = game.folder / "former.yaml"
    former.write_text((game.folder / "games.yaml").read_text().replace("topic: some", "topic: other"))
    compared = game.preview("--against", str(former))
    assert compared.exit_code == 2
    assert "what wins/kafka would send cannot be compared now: waiting for the schema registry" in compared.output
    messages = {sink["sink"]: sink["calls"] for sink in found["sinks"]}
    assert [(message["topic"], message["key"]) for message in messages["wins/kafka_3"]] == [("some", "p1")]


def test_a_choice_that_cannot_be_made_is_refused(game: Game) -> None:
    game.gets(*events(1))

    refused = [
        game.preview("--since", "2 h"),
        game.preview("--source", "bronze"),
        game.preview("--records", "no range"),
        game.preview("--records", "t/0/1-2", "--since", "2 h"),
    ]

    assert [result.exit_code for result in refused] == [2] * 4
    assert "in bronze or in a topic only; choose --last" in refused[0].output
    assert "has no bronze with records; take them from the source: --source topic" in refused[1].output
    assert "is not TOPIC/PARTITION/FROM-TO" in refused[2].output
    assert not (game.folder / "lake").exists()


def test_what_a_killed_preview_has_left_is_deleted_by_the_next(game: Game, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it disks fill up with files that no table names."""
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(game.folder / "tmp"))
    (game.folder / "tmp").mkdir()
    around = game.folder / "tmp" / f"router-previews-{os.getuid()}"
    names = ["20200101T000000Z-0a1b2c3d", "20200102T000000Z-0a1b2c3d", "29990101T000000Z-0a1b2c3d"]
    for name in names:
        (around / name / "silver").mkdir(parents=True)
        (around / name / "silver" / "part.parquet").touch()
    game.gets(*events(1))

    with hold_file_lock(Lake.at(str(around / names[1])), RUN_LOCK, "held"):
        assert game.document()["read"] == 1

    assert {path.name for path in around.iterdir()} == {*names[1:]}  # that of one at work, and of one that begins


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("", id="as it begins", marks=pytest.mark.slow),
        pytest.param("*/*/*/*.parquet", id="as rows are staged"),
        pytest.param("*/silver/newest/_delta_log", id="as rows are merged", marks=pytest.mark.slow),
    ],
)
def test_a_killed_preview_leaves_files_in_its_own_folder_only(
    game: Game, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Without it a preview that ends badly is a change of the lake, or fills a disk."""
    game.gets(*events(*range(200)))
    game.says(most="1000")
    game.runs()
    temporary = game.folder.parent / f"{game.folder.name}_tmp"
    temporary.mkdir()
    around = temporary / f"router-previews-{os.getuid()}"
    traces = traces_of(game.folder)
    command = [sys.executable, "-m", "router", "preview", "games.yaml", "--plugin", "flock.py"]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=game.folder, env=environ, **quiet) as process:  # type: ignore[call-overload]
        while not (around.exists() and any(around.glob(moment or "*"))):
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()

    assert [*around.iterdir()]
    assert traces_of(game.folder) == traces
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(temporary))
    time.sleep(3)  # a preview that has just begun is left alone
    game.document()
    assert [*around.iterdir()] == []
    assert traces_of(game.folder) == traces


def test_records_are_staged_in_no_folder_of_another_user(game: Game, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it whoever makes the folder first reads what others preview."""
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(game.folder))
    (game.folder / f"router-previews-{os.getuid()}").symlink_to(game.folder / "in")
    game.gets(*events(1))

    refused = game.preview()

    assert (refused.exit_code, "set TMPDIR to another folder" in refused.output) == (2, True)
