"""`router trace` on lakes that were written by hand: what is gone, cut off or hostile is said, nothing is guessed."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from router.cli import commands
from router.config.loader import load_config
from router.delta.lake import Lake
from router.delta.replace import set_properties
from router.engine.audit.record_search import find_commit
from router.engine.checkpoint_store import CheckpointStore
from router.engine.deploys import note_deploy
from router.engine.label.layout import BRONZE_SCHEMA, DEAD_SCHEMA
from router.engine.ledger import SCHEMA
from router.errors import TableError
from router.registry import load_registry
from tests.engine.written_lake import GAMES, WrittenLake

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TEXT = """\
name: games
lake: ./lake
source: {kafka: {servers: "127.0.0.1:9092", topics: [events]}}
decode: {json: "game string, id int"}
bronze: bronze.events
routes:
  - name: all
    match: {sql: "event.game IS NOT NULL"}
    sinks: [{tables: {table: "silver.{event.game}", evolution: quarantine}}]
  - name: newest
    match: {sql: "event.id >= 0"}
    sinks: [{upsert: {table: gold.newest, keys: [id]}}]
  - name: news
    match: {sql: "event.id = 0"}
    sinks: [{kafka: {servers: "127.0.0.1:9092", topic: news}}]
dead_letters: ops.dead
"""
RUN = "games:run-1"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class HandLake:
    """A lake in a folder, written table by table, and the configuration beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint = "of then"
        self.file = folder / "games.yaml"
        self.file.write_text(TEXT)
        metadata = folder / "lake/_router/games/spark/metadata"
        metadata.parent.mkdir(parents=True)
        metadata.write_text('{"id": "run-1"}')

    def path(self, table: str) -> Path:
        return self.folder.joinpath("lake", *table.split("."))

    def write(
        self,
        table: str,
        rows: Iterable[dict[str, Any]],
        app_id: str = "",
        number: int = 0,
        schema: pa.Schema | None = None,
    ) -> None:
        """Append rows to a table, under a transaction id if there is one."""
        ids = [Transaction(app_id, number)] if app_id else []
        write_deltalake(
            self.path(table),
            pa.Table.from_pylist(list(rows), schema),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=ids),
        )

    def receive(self, batch: int, *records: dict[str, Any]) -> None:
        """Write a batch: its records into bronze, their span into the ledger."""
        rows = [_raw_record(batch, number, record) for number, record in enumerate(records)]
        self.write("bronze.events", rows, f"{RUN}/bronze/bronze.events", batch, BRONZE_SCHEMA)
        span = {"query": "games", "run": "run-1", "batch_id": batch, "topic": rows[0]["topic"]}
        span |= {"partition": rows[0]["partition"], "from_offset": rows[0]["offset"], "read": len(rows)}
        span |= {"to_offset": rows[-1]["offset"], "finished": _time(batch), "configuration": self.fingerprint}
        self.write("ops.ledger", [span], f"{RUN}/ledger", batch, SCHEMA)

    def trace(self, *arguments: str) -> Result:
        done = CliRunner().invoke(commands, ["trace", str(self.file), *arguments], prog_name="router")
        assert isinstance(done.exception, SystemExit | None), done.output
        return done

    def lines(self, place: str, about: str = "") -> list[dict[str, Any]]:
        """Return the lines about a record, or those of one subject."""
        document = json.loads(self.trace(place, "--json").stdout)
        assert document["name"] == "games"
        return [line for line in document["lines"] if about in ("", line["about"])]


def merge_again(lake: HandLake, table: str, key: str) -> None:
    """Let a merge of delta-rs rewrite a table with its own rows: it writes texts that are read as views."""
    handle = DeltaTable(lake.path(table))
    rows = handle.to_pyarrow_table()
    merge = handle.merge(rows, f"t.{key} = s.{key}", source_alias="s", target_alias="t")
    merge.when_matched_update_all().execute()


def _raw_record(batch: int, number: int, record: dict[str, Any]) -> dict[str, Any]:
    """Return a row of bronze: ten offsets are of a batch."""
    about = {"topic": "events", "partition": 0, "offset": batch * 10 + number, "timestamp": _time(batch)}
    return {**about, "timestamp_type": 0, "arrival": batch, "batch_id": batch, **record}


def _time(batch: int) -> datetime:
    return BEGIN + timedelta(minutes=batch)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandLake:
    monkeypatch.chdir(tmp_path)
    return HandLake(tmp_path)


def test_a_record_that_was_received_is_shown_with_its_batch(lake: HandLake) -> None:
    """Without it an operator asks bronze and ledger by hand, record by record."""
    lake.receive(0, {"key": b"k", "value": b'{"game": "uno"}'})
    lake.receive(1, {"value": b'{"game": "go"}'}, {"value": None})

    done = lake.trace("events/0/10")
    assert done.exit_code == 0
    assert 'value {"game": "go"} (14 bytes); batch 1 landed it' in done.output
    (batch,) = lake.lines("events/0/10", "batch")
    assert (batch["known"], batch["facts"]["run"], batch["facts"]["batch"]) == ("derived", "run-1", 1)
    assert [line["known"] for line in lake.lines("events/0/10", "decoder")] == ["unknown"]
    assert lake.trace("events/0/11").exit_code == 0


@pytest.mark.parametrize("place", ["events/0/99", "events/1/0", "other/0/0"])
def test_a_record_that_is_nowhere_ends_with_exit_code_1(lake: HandLake, place: str) -> None:
    """Without it a script takes a place that was misspelt for a record that was lost."""
    lake.receive(0, {"value": b"{}"})
    done = lake.trace(place)
    assert done.exit_code == 1
    assert "there is no such record" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["events-0-1"], "is not TOPIC/PARTITION/OFFSET"),
        ([], "give the place of one record"),
        (["events/0/1", "--key", "k"], "give the place of one record"),
        (["--key", "k"], "need a bound"),
        (["--key", "k", "--since", "2 h", "--last", "5"], "need a bound"),
        (["events/0/0", "--last", "5"], "need a bound"),
    ],
)
def test_what_cannot_be_searched_ends_with_exit_code_2(lake: HandLake, arguments: list[str], message: str) -> None:
    """Without it a search without a bound reads all of bronze."""
    done = lake.trace(*arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_a_hostile_record_gives_no_orders_to_the_terminal(lake: HandLake) -> None:
    """Without it a producer writes into the terminal of whoever looks for its records."""
    evil = b"\x1b[2J\r\n\x00\xff" + b"x" * 2_000_000
    lake.receive(0, {"key": evil, "value": evil, "headers": [{"key": "\x1b[31m", "value": evil}]})
    letter = {"stage": "decode", "reason": "\x1b]0;owned\x07" * 99, "topic": "events", "partition": 0, "offset": 0}
    lake.write("ops.dead", [letter], schema=DEAD_SCHEMA)

    text = lake.trace("events/0/0").output
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text) < 8_000
    assert len(lake.trace("events/0/0", "--json").output) < 20_000
    (record,) = lake.lines("events/0/0", "record")
    assert record["facts"]["value_bytes"] == len(evil)


def test_topics_may_be_paths_and_sources_may_have_none(lake: HandLake) -> None:
    """Without it records of files, and of Spark's other sources, cannot be looked for."""
    lake.receive(0, {"topic": "file:/in/a b.json", "partition": None, "value": b"{}"})
    lake.receive(1, {"topic": None, "partition": None, "value": b"{}"})
    assert lake.trace("file:/in/a b.json//0").exit_code == 0
    assert lake.trace("//10").exit_code == 0
    assert [line["facts"]["batch"] for line in lake.lines("//10", "batch")] == [1]


def test_records_are_found_by_key_within_a_bound(lake: HandLake) -> None:
    """Without it nobody knows the offset of the record of a customer."""
    for batch in range(4):
        lake.receive(batch, {"key": b"k"}, {"key": b"other"}, {"key": b"k"})

    found = lake.trace("--key", "k", "--since", _time(2).isoformat(), "--json")
    places = [row["place"] for row in json.loads(found.stdout)["records"]]
    assert places == ["events/0/20", "events/0/22", "events/0/30", "events/0/32"]
    assert lake.trace("--key", "k", "--last", "3").output.split() == ["record", "─" * 12, "events/0/30", "events/0/32"]
    assert lake.trace("--key", "no", "--last", "3").exit_code == 1


def test_the_deploy_of_a_batch_is_named_if_its_configuration_was_another_one(lake: HandLake) -> None:
    """Without it nobody knows which of a hundred texts the rules of then stand in."""
    store = CheckpointStore(Lake.at(str(lake.folder / "lake/_router/games")), "run-1")
    for batch, columns in enumerate(["game string", "game string, id int, more int"]):
        lake.file.write_text(TEXT.replace("game string, id int", columns))
        loaded = load_config(lake.file, load_registry())
        note_deploy(loaded, store, Lake.at(loaded.config.lake), 0, batch)
        lake.fingerprint = loaded.fingerprint
    lake.receive(1, {"value": b"{}"})
    lake.file.write_text(TEXT)
    (decoder,) = lake.lines("events/0/10", "decoder")
    assert (decoder["known"], decoder["origin"]) == (
        "unknown",
        "its batch had that of deploy 2: `--then` shows what it did",
    )


def test_a_replay_shows_the_tables_that_it_committed_rows_to(lake: HandLake) -> None:
    """Without it whoever sent dead letters again has to compare tables with them."""
    lake.receive(0, {"value": b'{"game": "uno"}'})
    about = {"topic": "events", "partition": 0, "offset": 0, "stage": "expect", "reason": "why", "route": "all"}
    schema = DEAD_SCHEMA.append(pa.field("replayed", pa.string()))
    lake.write("ops.dead", [{**about, "replayed": "replay-1"}], schema=schema)
    lake.write("silver.uno", [{"game": "uno"}], "games:replay-1/all/tables/silver.uno", 3)
    (letter,) = lake.lines("events/0/0", "dead letter")
    assert letter["text"] == "all, stage expect: why; taken by replay-1"
    (line,) = lake.lines("events/0/0", "all/tables")
    assert line["text"].startswith("replay-1 committed rows to silver.uno (version 0, ")


def test_a_backfill_shows_the_tables_that_it_committed_rows_to(lake: HandLake) -> None:
    """Without it nobody finds where a record's rows have come from that a backfill made weeks later."""
    lake.receive(0, {"value": b'{"game": "uno"}'}, {"value": b'{"game": "go"}'})
    booked = {"query": "games", "run": "replay-1", "topic": "events", "partition": 0, "from_offset": 1, "to_offset": 1}
    rows = [{**booked, "route": "all", "sink": sink, "landed": 1} for sink in ("tables", "tables_2")]
    lake.write("ops.ledger", rows, schema=SCHEMA)
    lake.write("silver.go", [{"game": "go"}], "games:replay-1/all/tables/silver.go", 0)

    assert lake.lines("events/0/0", "backfill") == []
    (line,) = lake.lines("events/0/1", "backfill")
    assert (line["known"], line["origin"], line["facts"]) == ("derived", "ops.ledger", {"run": "replay-1"})
    (committed,) = (line for line in lake.lines("events/0/1", "all/tables") if "commits" in line["facts"])
    assert committed["text"].startswith("replay-1 committed rows to silver.go (version 0,")


def test_tables_without_coordinates_have_batches_and_no_row(lake: HandLake) -> None:
    """Without it a row that only looks like that of the record is taken for it."""
    lake.receive(0, {"value": b'{"game": "uno"}'})
    lake.write("silver.uno", [{"game": "uno"}], f"{RUN}/all/tables/silver.uno", 0)
    lake.write("silver.go", [{"game": "go"}], f"{RUN}/all/tables/silver.go", 1)
    lake.write("silver.foreign", [{"topic": 1, "partition": "0", "offset": "0"}])

    (line,) = lake.lines("events/0/0", "all/tables")
    (commit,) = line["facts"]["commits"]
    assert (line["known"], commit["table"], commit["version"], commit["rows"]) == ("read", "silver.uno", 0, 1)


def test_tables_outside_of_the_lake_are_found(tmp_path: Path) -> None:
    """Without it a sink whose tables have a location looks as if it had got nothing."""
    written = WrittenLake(tmp_path, games=f"{tmp_path}/elsewhere/{{event.game}}").take(2)
    done = CliRunner().invoke(commands, ["trace", str(written.file), "events/0/101", "--json"])
    lines = json.loads(done.stdout)["lines"]
    (line,) = (line for line in lines if line["about"] == "all/tables")
    tables = {commit["table"]: commit["version"] for commit in line["facts"]["commits"]}
    assert tables == {f"silver.{game}": 1 for game in GAMES}


def test_a_log_is_searched_by_halves_and_says_where_it_begins(lake: HandLake) -> None:
    """Without it a batch whose commit was cleaned away looks like one that the table never got."""
    app_id = f"{RUN}/all/tables/silver.uno"
    for batch in range(0, 80, 2):
        lake.write("silver.uno", [{"game": "uno"}], app_id, batch)
        if batch % 10 == 0:
            lake.write("silver.uno", [{"game": "uno"}])  # of another writer
    on_disk = Lake.at(str(lake.folder / "lake"))
    versions = {}
    for batch in range(80):
        commit = find_commit(on_disk, "silver.uno", app_id, batch)
        assert (commit is not None) == (batch % 2 == 0)
        if commit is not None:
            assert commit.transactions == {app_id: batch}
            versions[batch] = commit.version
        later = find_commit(on_disk, "silver.uno", app_id, batch, exact=False)
        assert (later is None) == (batch > 78)
        assert later is None or later.transactions[app_id] in (batch, batch + 1)
    assert find_commit(on_disk, "silver.nothing", app_id, 3) is None

    DeltaTable(lake.path("silver.uno")).create_checkpoint()
    for version in range(versions[20]):
        (lake.path("silver.uno") / "_delta_log" / f"{version:020}.json").unlink()
    for batch in range(20):
        with pytest.raises(TableError, match="its log begins with version"):
            find_commit(on_disk, "silver.uno", app_id, batch)
    assert find_commit(on_disk, "silver.uno", app_id, 21) is None
    for batch in range(20, 80, 2):
        commit = find_commit(on_disk, "silver.uno", app_id, batch)
        assert commit is not None
        assert commit.version == versions[batch]


def test_quarantined_rows_are_told_for_as_long_as_their_files_are_there(lake: HandLake) -> None:
    """Without it nobody knows that a row waited, once it was let in."""
    quarantine = "quarantine.games__all__tables"
    lake.receive(0, {"value": b'{"game": "uno"}'}, {"value": b'{"game": "uno"}'})
    row = {"game": "uno", "_table": "silver.uno", "_query": RUN, "_batch_id": 0, "_cause": None}
    row |= {"_topic": "events", "_partition": 0, "_offset": 1}
    texts = ["game", "_table", "_query", "_cause", "_topic"]
    numbers = {"_batch_id": pa.int64(), "_partition": pa.int32(), "_offset": pa.int64()}
    schema = pa.schema({**dict.fromkeys(texts, pa.string()), **numbers})
    lake.write(quarantine, [row], f"{RUN}/all/tables/quarantine/{quarantine}", 0, schema)
    (waits,) = lake.lines("events/0/1", "all/tables")
    assert waits["text"] == "its row for silver.uno waits for its approval: its table would change"
    assert lake.lines("events/0/0", "all/tables") == []

    lake.write("silver.uno", [{"game": "uno"}], f"{RUN}/release/all/tables/silver.uno", 0)
    DeltaTable(lake.path(quarantine)).delete()
    was, released = lake.lines("events/0/1", "all/tables")
    assert (was["known"], released["known"]) == ("read", "derived")
    assert released["text"] == "it was released into silver.uno with version 0"
    assert lake.lines("events/0/0", "all/tables") == []

    for file in lake.path(quarantine).glob("*.parquet"):
        file.unlink()
    (gone,) = lake.lines("events/0/1", "all/tables")
    assert (gone["known"], gone["origin"]) == ("unknown", "their file was deleted")


def test_an_upsert_shows_whose_row_the_key_has(lake: HandLake) -> None:
    """Without it a row that came late and one that was overwritten look alike: both are not there."""
    outbox = "outbox.games__newest__upsert"
    keyed = {"router.keyed": json.dumps({"keys": ["id"], "order": ["offset"], "history": False})}

    def row(number: int, offset: int, arrival: int) -> dict[str, Any]:
        return {"id": number, "_topic": "events", "_partition": 0, "_offset": offset, "_arrival": arrival}

    lake.receive(0, {"value": b"1"}, {"value": b"2"})
    lake.receive(1, {"value": b"1"}, {"value": b"3"})
    rows = [row(1, 0, 0), row(2, 1, 0), row(1, 10, 1), row(3, 11, 1)]
    lake.write(outbox, [{**one, "_table": "gold.newest"} for one in rows])
    lake.write("gold.newest", [row(1, 10, 1), row(2, 1, 0), row(3, 1, 0)])
    set_properties(DeltaTable(lake.path("gold.newest")), keyed)
    merge_again(lake, "gold.newest", "id")

    def told(offset: int) -> list[tuple[str, str]]:
        return [(line["known"], line["text"]) for line in lake.lines(f"events/0/{offset}", "newest/upsert")[1:]]

    assert told(1)[0] == ("read", 'gold.newest has its row: {"id": 2}')
    overwritten = 'the row of its key ({"id": 1}) in gold.newest is of record events/0/10 today'
    assert told(0) == [("read", "gold.newest has no row of it today"), ("read", overwritten)]
    late = ("derived", "it came late, or waits, or one that was processed again took its place")
    assert told(11)[2] == late


def test_a_row_is_not_said_to_be_delivered_before_its_batch_has_ended(lake: HandLake) -> None:
    """Without it a row that a sink is about to send, or has parked, looks as if it had arrived."""
    outbox = [{"id": 0, "_topic": "events", "_partition": 0, "_offset": offset} for offset in (0, 10)]
    lake.write("outbox.games__news__kafka", outbox)
    lake.receive(0, {"value": b"{}"})
    counts = {"query": "games", "run": "run-1", "batch_id": 0, "route": "news", "sink": "kafka", "finished": _time(0)}
    lake.write("ops.ledger", [{**counts, "landed": 1, "applied": 1, "backlog": 0}], schema=SCHEMA)
    lake.write("bronze.events", [_raw_record(1, 0, {"value": b"{}"})], schema=BRONZE_SCHEMA)

    def delivered(offset: int) -> tuple[str, str]:
        line = lake.lines(f"events/0/{offset}", "news/kafka")[-1]
        return line["known"], line["text"]

    assert delivered(0) == ("derived", "it was delivered")
    assert delivered(10) == ("unknown", "whether it was delivered")
    lake.write("ops.ledger", [{**counts, "backlog": 2}], schema=SCHEMA)
    assert delivered(0) == ("unknown", "whether it was delivered")


def test_without_bronze_the_ledger_says_which_batch_read_the_offset(lake: HandLake) -> None:
    """Without it a configuration without bronze knows nothing of its records."""
    lake.receive(3, {"value": b"{}"}, {"value": b"{}"})
    lake.file.write_text(TEXT.replace("bronze: bronze.events\n", ""))
    assert [line["known"] for line in lake.lines("events/0/31", "record")] == ["unknown"]
    assert [line["facts"]["batch"] for line in lake.lines("events/0/31", "batch")] == [3]
    assert lake.trace("events/0/32").exit_code == 1


def test_a_table_that_cannot_be_read_hides_no_other(lake: HandLake) -> None:
    """Without it one damaged log leaves nobody a way to see what is left."""
    lake.receive(0, {"value": b'{"game": "uno"}'})
    lake.write("silver.uno", [{"game": "uno"}], f"{RUN}/all/tables/silver.uno", 0)
    lake.write("silver.go", [{"game": "go"}], f"{RUN}/all/tables/silver.go", 0)
    for table in ("silver.go", "ops.ledger"):
        (lake.path(table) / "_delta_log" / f"{0:020}.json").write_text("damaged")

    (batch,) = lake.lines("events/0/0", "batch")
    assert (batch["known"], batch["text"]) == ("unknown", "what else is written of it")
    lines = lake.lines("events/0/0", "all/tables")
    assert {line["known"] for line in lines} == {"read", "unknown"}
    assert [line["facts"]["commits"][0]["table"] for line in lines if line["known"] == "read"] == ["silver.uno"]
