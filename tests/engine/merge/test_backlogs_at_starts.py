"""Rows that wait for a table of upserts are merged by every start: no later batch may come for a day, or ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router.config.loader import load_config
from router.engine import ledger
from router.engine.audit.verify import verify_tables
from router.engine.merge.backlog import BacklogStore
from router.engine.merge.coordinator import MergeCoordinator
from router.engine.status.summary import stream_summary
from router.registry import load_registry
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.conftest import EITHER
from tests.engine.profiles import event, raw, route
from tests.kills import ProcessKilled

if TYPE_CHECKING:
    from tests.engine.query import Query

DDL = "game string, gamer string, level int, note string"
SINK = Upsert(table="silver.{event.game}", keys=["event.gamer"])
KEY = "profiles/upsert"


def waiting(make_query: Any, folder: Path, commit: str) -> Query:
    """Play two batches of which the rows of two tables wait, in whose places files stand."""
    query: Query = make_query(folder, commit=commit, decode=Json(schema=DDL), routes=route(SINK))
    for game in ("uno", "gin"):
        place = Path(query.lake.address(f"silver.{game}"))
        place.mkdir(parents=True)
        (place / "notes.csv").write_text("mine")
    query.take(raw(event("uno", "a", 1), event("gin", "a", 1), event("hearts", "a", 1), event("uno", "b", 1)))
    query.take(raw(event("uno", "a", 2), event("hearts", "b", 2), event("uno", None, 2), first=4))
    return query


def merge_backlogs(query: Query) -> None:
    outboxes = query.batches.outboxes
    outboxes.merge_backlogs(outboxes.with_backlogs())


def mend(query: Query, *games: str) -> None:
    for game in games:
        (Path(query.lake.address(f"silver.{game}")) / "notes.csv").unlink()


def backlog(query: Query) -> dict[str, int]:
    return {table: found.rows for table, found in BacklogStore(query.store, KEY).read_now().items()}


def booked(query: Query) -> dict[str, int]:
    """Return the sums of what the ledger says of the sink."""
    rows = [row for row in query.rows("ops.ledger") if row["sink"] == "upsert"]
    return {name: sum(row[name] or 0 for row in rows) for name in ("landed", "applied", "dead", "backlog")}


def complete(query: Query) -> None:
    """Compare everything with what must be there once both tables are mended, then with a batch after it."""
    assert backlog(query) == {}
    assert query.rows("silver.uno", "gamer", "level") == [{"gamer": "a", "level": 2}, {"gamer": "b", "level": 1}]
    assert query.rows("silver.gin", "gamer", "level") == [{"gamer": "a", "level": 1}]
    assert query.letters("reason") == {"key gamer is null": 1}
    assert booked(query) == {"landed": 7, "applied": 6, "dead": 1, "backlog": 0}

    batches = len(query.taken)
    query.take(raw(event("uno", "c", 3), event("gin", "a", 3), first=7))
    query.restarted().again(batches)
    assert query.rows("silver.uno", "gamer") == [{"gamer": "a"}, {"gamer": "b"}, {"gamer": "c"}]
    assert query.rows("silver.gin", "gamer", "level") == [{"gamer": "a", "level": 3}]
    assert booked(query) == {"landed": 9, "applied": 8, "dead": 1, "backlog": 0}


@pytest.mark.parametrize("commit", EITHER)
def test_a_start_merges_what_waits(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it rows wait for a batch that may never come, after their table was mended."""
    query = waiting(make_query, tmp_path, commit)
    assert backlog(query) == {"silver.uno": 4, "silver.gin": 1}
    merge_backlogs(query.restarted())  # nothing is mended
    assert booked(query) == {"landed": 7, "applied": 2, "dead": 0, "backlog": 5}

    mend(query, "uno")
    query = query.restarted()
    merge_backlogs(query)
    assert backlog(query) == {"silver.gin": 1}
    mend(query, "gin")
    query = query.restarted()
    merge_backlogs(query)
    complete(query)


STEPS = {
    "tables": (MergeCoordinator, "_commit_dead_letters"),
    "dead letters": (MergeCoordinator, "_balance_counts"),
    "note": (BacklogStore, "write_backlog"),
    "ledger": (ledger, "append"),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_start_that_is_killed(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Without it a second kill, in the night of the first, loses rows, or counts and refuses them twice."""
    query = waiting(make_query, tmp_path, "auto")
    mend(query, "uno", "gin")
    owner, name = STEPS[step]
    do = getattr(owner, name)

    def end(*args: Any, **options: Any) -> None:
        if after:
            do(*args, **options)
        raise ProcessKilled

    kills = 0
    for _ in range(2):  # the second start may find nothing left to do
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, end)
            try:
                merge_backlogs(query.restarted())
            except ProcessKilled:
                kills += 1
    assert kills
    query = query.restarted()
    merge_backlogs(query)
    complete(query)


CONFIGURATION = """
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: {schema: 'game string, gamer string'}}
bronze: bronze.all
dead_letters: ops.dead
spark: {spark.ui.enabled: false}
routes:
  - {name: profiles, match: {sql: "event.gamer IS NOT NULL"}, sinks: [{upsert: {table: silver.p, keys: [event.gamer]}}]}
  - {name: all, match: {sql: "event.game IS NOT NULL"}, sinks: [{delta: silver.all}]}
"""


@pytest.mark.timeout(900)
def test_a_drained_run_says_that_rows_wait(tmp_path: Path) -> None:
    """Without it a scheduler takes the run for a good one, for weeks."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"game": "uno", "gamer": "a"}\n{"game": "uno"}\n')
    (tmp_path / "games.yaml").write_text(CONFIGURATION)
    config = load_config(tmp_path / "games.yaml", load_registry()).config.model_copy(
        update={"lake": f"{tmp_path}/lake"}
    )
    (tmp_path / "lake/silver/p").mkdir(parents=True)
    (tmp_path / "lake/silver/p/notes.csv").write_text("mine")
    (tmp_path / "lake/silver/all/_delta_log").mkdir(parents=True)
    (tmp_path / "lake/silver/all/_delta_log/00000000000000000000.json").write_text("{")

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "router", "run", "--once", "games.yaml"]
        return subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)

    for tables in (("all", "p"), ()):
        done = run()
        assert done.returncode == (2 if tables else 0), done.stderr
        blocked = stream_summary(config, "games.yaml")["blocked"]
        assert blocked.keys() == {f"silver.{table}" for table in tables}, done.stderr
        wrong = {audit.table for audit in verify_tables(config) if any("rows wait" in what for what in audit.wrong)}
        assert wrong == {f"silver.{table}" for table in tables}
        if tables:
            assert "table silver.all: rows wait for it" in done.stderr.splitlines()[-1]
            shutil.rmtree(tmp_path / "lake/silver")


def test_an_outbox_that_cannot_be_read_holds_up_its_backlog_only(
    make_query: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a damaged file of an outbox with a backlog ends the run at every start, and no table gets its rows."""
    query = waiting(make_query, tmp_path, "auto")
    outbox = "outbox.games__profiles__upsert"
    contents = {path: path.read_bytes() for path in Path(query.lake.address(outbox)).glob("part-0000000000*")}
    for path, content in contents.items():
        path.write_bytes(b"PAR1" + bytes(len(content) - 8) + b"PAR1")

    query.take(raw(event("uno", "c", 3), event("hearts", "c", 3), event("poker", "a", 3), first=7))
    merge_backlogs(query.restarted())
    assert backlog(query) == {"silver.uno": 5, "silver.gin": 1}
    assert query.rows("silver.hearts", "gamer") == [{"gamer": "a"}, {"gamer": "b"}, {"gamer": "c"}]
    assert query.rows("silver.poker", "gamer") == [{"gamer": "a"}]
    assert f"5 rows wait for silver.uno: the outbox {outbox} cannot be read" in caplog.text
    assert "cannot be read" in query.batches.outboxes.waiting_reasons()[f"{KEY}/silver.gin"]

    for path, content in contents.items():
        path.write_bytes(content)
    mend(query, "uno", "gin")
    query = query.restarted()
    merge_backlogs(query)
    assert backlog(query) == {}
    assert query.rows("silver.uno", "gamer", "level") == [
        {"gamer": "a", "level": 2}, {"gamer": "b", "level": 1}, {"gamer": "c", "level": 3}
    ]  # fmt: skip
    assert query.rows("silver.gin", "gamer", "level") == [{"gamer": "a", "level": 1}]
    assert booked(query) == {"landed": 10, "applied": 9, "dead": 1, "backlog": 0}
