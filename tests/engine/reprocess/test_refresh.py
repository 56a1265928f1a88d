"""Tables are made anew as the configuration says today, equal to those of a lake that was built with it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from router.config.models import Bronze, Route
from router.delta.history import log_commits, log_versions
from router.engine.audit.verify import REPAIRED
from router.engine.reprocess.rebuild import Rebuild
from router.engine.reprocess.refresh import Refresh, Refreshed
from router.errors import StartError, TableError
from router_rules import Sql
from router_sinks import Delta, Tables, Upsert
from tests.engine.query import Query, multiset, shape
from tests.engine.reprocess.repairs import GAMES, audit_problems, game_records, query_of_games, table_folder

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery


def today(**options: Any) -> tuple[Route, ...]:
    """Return routes with a projection, a table that was not there, and fewer rows for one that was."""
    projected = ("event.id", "event.game", "event.id * 2 AS twice")
    every = (Tables(table="silver.{event.game}", **options), Delta(table="gold.all"))
    return (
        Route(name="all", match=Sql(where="event.id != 1"), select=projected, sinks=every),
        Route(name="late", match=Sql(where="event.bonus IS NOT NULL"), sinks=(Tables(table="silver.{event.game}_x"),)),
        Route(name="profiles", match=Sql(where="true"), sinks=(Upsert(table="silver.ids", keys=("event.id",)),)),
    )


def refreshed(query: Query, spark: SparkSession, *patterns: str, **how: bool) -> Refreshed:
    return Refresh(query.context(spark.newSession()), patterns, **how).run()


@pytest.fixture(scope="module")
def former(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Return a query of two batches under the former configuration."""
    return query_of_games(make_query, tmp_path_factory.mktemp("former"), batches=2)


@pytest.fixture
def query(former: Query, make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return the query on a copy of its lake."""
    shutil.copytree(former.folder, tmp_path / "copy")
    copied = query_of_games(make_query, tmp_path / "copy", batches=0)
    copied.taken.update(former.taken)
    return copied


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "fields"),
    [({}, {}), ({"partition_by": ["game"]}, {}), ({}, {"commit": "spark"})],
    ids=["beside the stream", "partitioned", "by Spark"],
)
def test_a_refreshed_lake_equals_one_built_anew(
    query: Query,
    make_query: MakeQuery,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    """Without it a changed projection holds for new rows only, and nobody can tell which are which."""
    query = query.restarted(routes=today(**options), **fields)
    other = query_of_games(make_query, tmp_path / "other", batches=0).restarted(routes=today(**options), **fields)
    stage = Rebuild.stage

    def landed(*arguments: Any) -> Any:
        found = stage(*arguments)
        if len(query.taken) < 3 and not options and not fields:
            query.take(game_records(2))  # the stream goes on under today's configuration
        return found

    monkeypatch.setattr(Rebuild, "stage", landed)
    keyed = not fields  # one row per key by Delta on Spark: its columns stay
    done = refreshed(query, spark, "silver.*" if keyed else "silver.[!i]*", "gold.*", full=True)
    if len(query.taken) < 3:
        query.take(game_records(2))  # Delta on Spark replaces no table beside the stream
    for number in range(3):
        other.take(game_records(number))

    assert (done.failed, done.refused) == ({}, 0)
    names = {
        "gold.all",
        *(["silver.ids"] if keyed else []),
        *(f"silver.{game}{end}" for game in GAMES for end in ("", "_x")),
    }
    assert {one.table for one in done.done} == names
    for either in (query, other):
        either.take(game_records(3))  # and what comes after the swap fits
    for table in names:
        assert multiset(query, table) == multiset(other, table), table
        assert dict(shape(query, table)) == dict(shape(other, table)), table
    assert audit_problems(query) == {}
    commits = log_commits(query.lake, "gold.all", log_versions(query.lake, "gold.all"))
    assert sum(REPAIRED in commit.notes for commit in commits) == 1


def test_only_chosen_tables_are_refreshed_and_keep_their_columns(query: Query, spark: SparkSession) -> None:
    """A refresh of some tables must leave the others as they are, and readers of a column that is gone."""
    before = query.versions()
    query = query.restarted(routes=today())
    done = refreshed(query, spark, "silver.u*")

    assert {one.table: one.rows for one in done.done} == {"silver.uno": 5, "silver.uno_x": 3}
    assert query.versions() == {**before, "silver.uno": query.versions()["silver.uno"], "silver.uno_x": 0}
    assert {"game", "id", "bonus", "twice"} <= set(query.content("silver.uno").column_names)


def test_what_must_not_be_refreshed_is_refused_before_anything_changes(query: Query, spark: SparkSession) -> None:
    """Without it somebody loses what no bronze can give back."""
    before = query.versions()
    with pytest.raises(StartError, match="reset: never"):
        refreshed(query.restarted(routes=today(reset="never")), spark, "silver.*")
    kept = query.restarted(bronze=Bronze(table="bronze.events", reset="never"))
    with pytest.raises(StartError, match="reset: never"):
        refreshed(kept, spark, "*")
    with pytest.raises(StartError, match="no table of games fits"):
        refreshed(query, spark, "platinum.*")
    with pytest.raises(StartError, match="reads no topic"):
        refreshed(query, spark, "silver.uno", topic=True)
    assert query.versions() == before

    DeltaTable(table_folder(query, "silver.euchre")).delete("id < 2")
    DeltaTable(table_folder(query, "bronze.events")).delete("batch_id = 0")
    before = query.versions()
    with pytest.raises(TableError, match="DELETE by delta-rs"):
        refreshed(query, spark, "silver.*")
    with pytest.raises(StartError, match="does not reach back"):
        refreshed(query, spark, "silver.*", accept=True)
    assert query.versions() == before
