"""Every table is as it was when a batch had ended, found by its own log; one that does not go back so far is named."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from router import StartError, TableError, read
from router.cli import commands
from router.config.models import Expectation, Route
from router.delta.history import REPAIRED
from router.delta.kept_versions import KeptVersion, keep_versions
from router.delta.maintenance import MaintenanceOptions, maintain_table
from router.engine import ledger
from router.engine.audit.as_of import LakeMoment
from router.engine.audit.dead_letters import DeadLetterFilter
from router.engine.quarantine.table import list_quarantined, write_approval
from router.engine.reprocess.replay import DeadLetterReplay
from router.engine.views.schedule import create_refresher, in_order
from tests.engine.drawing import raw_table
from tests.engine.query import Query
from tests.engine.stream.test_drawn_configurations import Drawn
from tests.kills import ProcessKilled

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from tests.engine.conftest import MakeQuery

RECORDS = 25
BATCHES = 6
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


def as_texts(content: pa.Table) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in content.to_pylist())


def act_as_others(query: Query, batch: int) -> None:
    """Commit to tables what is of no batch."""
    if batch == 0:
        refresher = create_refresher(query.config, query.spark, query.lake, query.store)
        for view in in_order(query.config.views):
            refresher.refresh_view(view)
    elif batch == 1:
        for table in query.tables():
            maintain_table(query.lake, table, MaintenanceOptions(file_bytes=1 << 20))
    elif batch == 2:
        table = next((name for name in query.tables() if name.startswith("t0.")), "bronze.all")
        write_deltalake(query.open(table), query.content(table).slice(0, 2), mode="append")
    elif batch == 3:
        with suppress(TableError):  # all of its rows may be dead letters
            query.rebuilt("u0.keyed")
    elif batch == 4:
        for waiting in list_quarantined(query.config, query.lake):
            write_approval(query.store, waiting)
        query.batches.destination.release.idle()
        replay = DeadLetterReplay(query.context().with_decoder())
        run = replay.begin(DeadLetterFilter())
        if run is not None:
            replay.send(run)


def take_killed(query: Query, records: pa.Table) -> Query:
    """Take a batch in a process that is killed between two commits; return the query of the next process."""

    def kill(batch: int, step: str, done: int, of: int) -> None:
        if step == "commit" and done == 1:
            raise ProcessKilled

    killed = Query(query.config, query.spark, kill, taken=query.taken)
    with pytest.raises(ProcessKilled):
        killed.take(records)
    restarted = query.restarted()
    restarted.again(len(query.taken) - 1)
    return restarted


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_table_is_as_it_was_after_a_batch(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Without it a report of one moment has the rows of several."""
    drawn = Drawn(seed, make_query, spark, tmp_path)
    held = Expectation(name="held", sql="offset % 7 != 0", otherwise="quarantine")
    appending = drawn.routes[0].model_copy(update={"expect": (held,), "sinks": drawn.routes[0].sinks[:2]})
    more = Route.model_validate({**dict(appending), "name": "held"})
    query = drawn.query.restarted(routes=(*drawn.routes, more))
    query.write_run_id()
    copies = []
    for batch in range(BATCHES):
        records = raw_table(drawn.drawing.records(RECORDS, hostile=0.1), batch * RECORDS)
        if batch == 3:
            query = take_killed(query, records)
        else:
            query.take(records)
        copies.append({table: as_texts(query.content(table)) for table in query.tables()})
        time.sleep(0.01)  # times of commits are in milliseconds
        act_as_others(query, batch)

    for batch, copy in enumerate(copies):
        moment = LakeMoment.of_batches(query.lake, "ops.ledger", {"games": batch})
        found = {}
        for table in query.tables():
            version = moment.find_version(query.lake, table)
            if version is not None:
                then = DeltaTable(query.lake.address(table), version=version)
                found[table] = as_texts(query.read_version(then, table))
        assert found == copy, batch


def write_batch(lake: Lake, table: str, app_id: str, batch: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction(app_id, batch)])
    rows = pa.table({"n": [batch]})
    write_deltalake(lake.address(table), rows, mode="append", commit_properties=properties)


def write_ledger(lake: Lake, query: str, *ends: tuple[str, int]) -> None:
    """Write that batches have ended: run and number, a minute after each other, beginning an hour ago."""
    begin = datetime.now(timezone.utc) - timedelta(hours=1)
    rows = []
    for minute, (run, batch) in enumerate(ends):
        finished = begin + timedelta(minutes=minute)
        rows.append({"query": query, "run": run, "batch_id": batch, "finished": finished})
    write_deltalake(lake.address("ops.ledger"), pa.Table.from_pylist(rows, ledger.SCHEMA), mode="append")


def test_a_batch_is_that_of_the_newest_run_that_has_it(lake: Lake) -> None:
    """Without it the batches of a new checkpoint, which are numbered anew, are taken for those of the former one."""
    for run, batch in (("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)):
        write_batch(lake, "silver.uno", f"games:{run}/all/tables/silver.uno", batch)
    write_batch(lake, "silver.old", "games:a/all/tables/silver.old", 1)
    write_batch(lake, "silver.new", "games:b/all/tables/silver.new", 1)
    write_ledger(lake, "games", ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1))

    def versions(batch: int) -> list[int | None]:
        moment = LakeMoment.of_batches(lake, "ops.ledger", {"games": batch})
        return [moment.find_version(lake, table) for table in ("silver.uno", "silver.old", "silver.new")]

    assert versions(0) == [3, 0, None]
    assert versions(1) == [4, 0, 0]
    assert versions(2) == [2, 0, None]
    with pytest.raises(StartError, match=r"ops\.ledger has no batch 3 of games"):
        versions(3)


def test_a_table_with_a_new_log_is_named(lake: Lake) -> None:
    """Without it a rebuilt table looks as if it had not existed."""
    write_ledger(lake, "games", ("a", 0))
    ids = [Transaction("games:a/all/tables/silver.uno", 0)]
    properties = CommitProperties(custom_metadata={REPAIRED: "{}"}, app_transactions=ids)
    write_deltalake(lake.address("silver.uno"), pa.table({"n": [1]}), commit_properties=properties)
    moment = LakeMoment.of_batches(lake, "ops.ledger", {"games": 0})

    with pytest.raises(TableError, match="it was rebuilt with a new log"):
        moment.find_version(lake, "silver.uno")
    with pytest.raises(StartError, match="has no batch"):
        LakeMoment.of_batches(lake, "ops.ledger", {"games": 10**30})


def test_two_queries_that_share_a_table_each_have_their_own_batch(lake: Lake) -> None:
    for query, batch in (("games", 0), ("wins", 0), ("games", 1), ("wins", 1), ("games", 2)):
        write_batch(lake, "silver.uno", f"{query}:a/all/tables/silver.uno", batch)
    write_ledger(lake, "games", ("a", 0), ("a", 1), ("a", 2))
    write_ledger(lake, "wins", ("a", 0), ("a", 1))

    def version(games: int, wins: int) -> int | None:
        moment = LakeMoment.of_batches(lake, "ops.ledger", {"games": games, "wins": wins})
        return moment.find_version(lake, "silver.uno")

    assert [version(0, 0), version(1, 0), version(1, 1), version(2, 1)] == [1, 2, 3, 4]
    with pytest.raises(TableError, match="no version has games up to batch 0 and wins up to batch 1 alone"):
        version(0, 1)
    with pytest.raises(TableError, match="no version has games up to batch 2 and wins up to batch 0 alone"):
        version(2, 0)


def test_what_does_not_go_back_so_far_is_named(lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    """Without it a table is silently a newer one."""
    for batch in range(3):
        for table in ("silver.cut", "silver.vacuumed", "silver.whole"):
            write_batch(lake, table, f"games:a/all/tables/{table}", batch)
    write_ledger(lake, "games", ("a", 0), ("a", 1), ("a", 2))
    DeltaTable(lake.address("silver.cut")).create_checkpoint()
    for version in (0, 1):
        lake.delete(f"silver/cut/_delta_log/{version:020}.json")
    compacted = DeltaTable(lake.address("silver.vacuumed"))
    compacted.optimize.compact()
    compacted.vacuum(0, dry_run=False, enforce_retention_duration=False)
    file = tmp_path / "games.yaml"
    file.write_text(
        f"{{name: games, lake: '{lake.root}', source: {{files: {{path: in}}}}, decode: {{json: 'n int'}}, "
        "routes: [{name: all, match: {sql: 'true'}, sinks: [{tables: 'silver.{event.n}'}]}], dead_letters: ops.dead}"
    )

    shown = CliRunner(env={"COLUMNS": "200"}).invoke(commands, ["tables", str(file), "silver.*", "--as-of", "1"])
    newest = CliRunner().invoke(commands, ["tables", str(file), "silver.*", "--as-of", "2"])
    ago = CliRunner().invoke(commands, ["tables", str(file), "silver.*", "--as-of", "3 h"])
    write_batch(lake, "outbox.games__all__rest", "games:a/all/rest", 2)
    unnamed = CliRunner().invoke(commands, ["tables", str(file), "--as-of", "2"])
    named = CliRunner().invoke(commands, ["tables", str(file), "outbox.*", "--as-of", "2"])

    lines = {line.split()[0]: line for line in shown.output.splitlines() if line.startswith("silver.")}
    assert shown.exit_code == 1
    assert "its log begins with version 2, which is younger" in lines["silver.cut"]
    assert "2 files of version 1 are gone" in lines["silver.vacuumed"]
    assert lines["silver.whole"].split() == ["silver.whole", "1", "2"]
    assert newest.exit_code == 1
    assert "3 files of version 2 are gone" in newest.output
    assert ("outbox." in unnamed.output, "silver.whole" in unnamed.output) == (False, True)
    assert "outbox.games__all__rest" in named.output
    assert ago.exit_code == 1
    assert "silver.whole" not in ago.output
    assert "silver.cut" in ago.output
    assert read("silver.whole", lake=lake.root, as_of={"games": 0}).count() == 1
    with pytest.raises(TableError, match=r"silver\.cut, silver\.vacuumed: "):
        read("silver.*", lake=lake.root, as_of={"games": 0})


def test_a_kept_version_is_of_a_batch_only_if_nothing_was_committed_since(lake: Lake) -> None:
    """Without it rows that others wrote while the stream was down are shown as those after its last batch."""
    write_ledger(lake, "games", ("a", 0))
    for table in ("silver.own", "silver.compacted", "silver.shared"):
        write_batch(lake, table, f"games:a/all/tables/{table}", 0)
        write_batch(lake, table, f"games:a/all/tables/{table}", 1)
    DeltaTable(lake.address("silver.compacted")).optimize.compact()
    write_deltalake(lake.address("silver.shared"), pa.table({"n": [7]}), mode="append")
    now = int(time.time() * 1000) + 1
    for table in ("silver.own", "silver.compacted", "silver.shared"):
        keep_versions(lake, table, [KeptVersion(DeltaTable(lake.address(table)).version(), now)], 0)
    write_ledger(lake, "games", ("a", 1))

    def versions(moment: LakeMoment) -> list[int | None]:
        found = [moment.find_kept_version(lake, table) for table in ("silver.own", "silver.compacted", "silver.shared")]
        return [version and version.version for version in found]

    assert versions(LakeMoment.of_batches(lake, "ops.ledger", {"games": 1})) == [1, 2, None]
    assert versions(LakeMoment.of_batches(lake, "ops.ledger", {"games": 0})) == [None, None, None]
    assert versions(LakeMoment(now)) == [1, 2, 2]
    assert versions(LakeMoment(now + 1)) == [None, None, None]
