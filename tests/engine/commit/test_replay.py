"""A batch that runs again changes nothing; one that was cut off is finished from its manifest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router import RAW_SCHEMA, BatchError
from router.config.models import Expectation, Route
from router.engine.commit.committers import Committers
from tests.engine import scenarios
from tests.engine.conftest import EITHER
from tests.engine.parts import Copy, Events, Fixed, Named, Where, copied
from tests.engine.query import Query, records
from tests.kills import ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

DDL = "game string, n int"
EVENTS = records([{"game": game, "n": n} for n in range(8) for game in ("uno", "poker")] + [b"garbage"], partitions=3)


@pytest.fixture
def poisoned(spark: SparkSession) -> DataFrame:
    """Return raw records that fail whoever reads them."""
    columns = [
        F.raise_error(F.lit("the source was read")).cast(f.dataType).alias(f.name)
        for f in StructType.fromDDL(RAW_SCHEMA)
    ]
    return spark.range(1).select(*columns)


def state(query: Query) -> tuple[dict[str, int], dict[str, Counter[str]]]:
    """Return the version and the rows of every table."""
    return query.versions(), {table: Counter(map(repr, query.rows(table))) for table in query.tables()}


@pytest.mark.parametrize("commit", EITHER)
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_batch_that_runs_again_changes_nothing(played: Callable[..., Query], commit: str, batch: int) -> None:
    """Without it a crash between the last commit and Spark's own doubles a batch."""
    query = played(scenarios.garbage, commit)
    before, copies = state(query), copied(query.folder / "copy")

    report = query.restarted().again(batch)

    assert state(query) == before
    assert copied(query.folder / "copy") == copies
    assert {**vars(report), "seconds": None} == {**vars(query.reports[batch]), "seconds": None}


def test_a_finished_batch_does_not_read_the_source(played: Callable[..., Query], poisoned: DataFrame) -> None:
    """Without it a replay depends on records that the topic may have deleted since."""
    query = played(scenarios.garbage, "auto")
    before = state(query)

    query.restarted().again(0, poisoned)

    assert state(query) == before


def routes(folder: Path) -> tuple[Route, ...]:
    return (
        Route(
            name="games",
            match=Where(sql="true"),
            sinks=(Named(sql="concat('silver.', event.game)"), Copy(to=str(folder / "copy"))),
        ),
        Route(name="odd", match=Where(sql="event.n % 2 = 1"), select=("event.n",), sinks=(Fixed(name="gold.odd"),)),
    )


@pytest.fixture(scope="module")
def undisturbed(make_query: Callable[..., Query], tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Run the batch without a crash."""
    folder = tmp_path_factory.mktemp("undisturbed")
    steps: list[tuple[int, str, int, int]] = []
    query = make_query(folder, decode=Events(ddl=DDL), bronze="bronze.all", routes=routes(folder))
    query.batches.watch = lambda *step: steps.append(step)
    query.take(EVENTS)
    query.steps = steps
    return query


def contents(query: Query) -> dict[str, Counter[str]]:
    """Return the rows of every table, without the time the batch was finished."""
    found = {table: query.rows(table) for table in query.tables()}
    return {table: Counter(repr({**row, "finished": None}) for row in rows) for table, rows in found.items()}


def test_whoever_watches_sees_every_step(undisturbed: Query) -> None:
    """Without it the progress line of a run stands still."""
    steps = undisturbed.steps
    every = list(dict.fromkeys(name for _, name, _, _ in steps))
    sinks = [name.removeprefix("apply ") for name in every if name.startswith("apply ")]
    order = [name for name in every if not name.startswith("apply ")]

    layout = undisturbed.batches.decider.planner.stages.labelling.layout
    outboxes = [target.key for target in layout.targets if target.outbox]
    assert sinks == outboxes
    assert order == ["plan", "land", "decide", "manifest", "commit", "apply", "ledger"]
    for name in order:
        seen = [(done, of) for batch, step, done, of in steps if step == name and batch == 0]
        assert seen[0][0] == 0
        assert seen[-1][0] == seen[-1][1] > 0
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


PLACES = [
    *[("land", False), ("land", True), ("manifest", False), ("manifest", True), ("commit", False), ("commit", True)],
    *[("apply", False), ("apply", True), ("ledger", False)],
]
UNDECIDED = PLACES[:3]


@pytest.mark.parametrize(
    ("step", "finished"), PLACES, ids=[f"{'after' if end else 'before'} {step}" for step, end in PLACES]
)
def test_a_batch_that_was_cut_off_ends_as_if_it_had_not_been(
    make_query: Callable[..., Query], tmp_path: Path, poisoned: DataFrame, undisturbed: Query, step: str, finished: bool
) -> None:
    """Without it a crash leaves some tables with the batch and some without."""
    query = make_query(tmp_path, decode=Events(ddl=DDL), bronze="bronze.all", routes=routes(tmp_path))

    def kill(batch: int, name: str, done: int, of: int) -> None:
        if name == step and done == (of if finished else 0):
            raise ProcessKilled

    query.batches.watch = kill
    with pytest.raises(ProcessKilled):
        query.take(EVENTS)
    decided = query.store.read_manifest(0) is not None
    assert decided == ((step, finished) not in UNDECIDED)

    query.restarted().again(0, poisoned if decided else None)

    assert contents(query) == contents(undisturbed)
    once = {repr({**row, "replay": None}) for row in copied(tmp_path / "copy")}
    assert once == {repr({**row, "replay": None}) for row in copied(undisturbed.folder / "copy")}


@pytest.mark.parametrize("made", [1, 3])
def test_half_of_the_commits_are_completed(
    make_query: Callable[..., Query],
    tmp_path: Path,
    poisoned: DataFrame,
    undisturbed: Query,
    spark: SparkSession,
    made: int,
) -> None:
    """Without it a crash in the middle of 200 commits loses or doubles the rows of some."""
    query = make_query(tmp_path, decode=Events(ddl=DDL), bronze="bronze.all", routes=routes(tmp_path))

    def kill(batch: int, name: str, done: int, of: int) -> None:
        if name == "commit":
            raise ProcessKilled

    query.batches.watch = kill
    with pytest.raises(ProcessKilled):
        query.take(EVENTS)
    manifest = query.store.read_manifest(0)
    assert manifest is not None
    assert query.tables() == []
    assert Committers(query.lake, spark).commit_all(manifest.commits[:made], {}, {}) == made

    query.restarted().again(0, poisoned)

    assert contents(query) == contents(undisturbed)


def test_an_expectation_that_fails_stops_before_anything_is_committed(
    make_query: Callable[..., Query], tmp_path: Path
) -> None:
    """Without it `fail` is noticed when the rows are in the tables."""
    check = Expectation(name="small", sql="event.n < 7", otherwise="fail")
    route = Route(name="all", match=Where(sql="true"), expect=(check,), sinks=(Fixed(name="silver.t"),))
    query = make_query(tmp_path, decode=Events(ddl=DDL), bronze="bronze.all", routes=(route,))

    with pytest.raises(BatchError) as caught:
        query.take(EVENTS)

    assert (caught.value.query, caught.value.batch) == ("games", 0)
    assert "small" in caught.value.what
    assert query.tables() == []
    files: list[Any] = list((tmp_path / "lake").rglob("*.parquet"))
    assert files == []
