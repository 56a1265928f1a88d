"""Rows that no engine can merge into their table: they are dead letters, and all others of the table are merged.

Without that one value holds up its table for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake.exceptions import DeltaError

from router.engine.audit.verify import Verification
from router.engine.merge import delta_rs, refused_keys
from router.engine.merge.coordinator import MergeCoordinator
from router.engine.merge.refused_keys import RefusedKeys
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.merge.test_backlogs_at_starts import KEY, backlog, booked
from tests.engine.profiles import event, raw, route
from tests.kills import ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.engine.query import Query

DDL = "game string, gamer string, level int, inner struct<x: int>"
SINK = Upsert(table="silver.{event.game}", keys=["event.gamer"])


def generated(spark: SparkSession, address: str) -> None:
    table = SparkTable.create(spark).location(address).addColumn("game", "STRING").addColumn("gamer", "STRING")
    table.addColumn("number", "INT", generatedAlwaysAs="CAST(gamer AS INT)").execute()


def short(spark: SparkSession, address: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{address}` (game STRING, gamer VARCHAR(3)) USING delta PARTITIONED BY (game)")


TABLES: dict[str, tuple[Callable[[SparkSession, str], None], str]] = {
    "generated": (generated, "CAST_INVALID_INPUT"),
    "short": (short, "DELTA_EXCEED_CHAR_VARCHAR_LIMIT"),
}
GOOD = {"inner": {"x": 1}}
BATCH = raw(
    event("uno", "1", 1, **GOOD), event("uno", "what", 1, inner={}), event("uno", "2", 1, **GOOD),
    event("uno", None, 1, **GOOD), event("poker", "a", 1), event("uno", "1", 2, **GOOD),
)  # fmt: skip


LIMIT = refused_keys.SEARCH_SECONDS


@pytest.fixture(autouse=True)
def _time_for_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search take as long as it takes on a busy machine, but in the test of the limit."""
    monkeypatch.setattr(refused_keys, "SEARCH_SECONDS", 150.0)


def made(make_query: Any, folder: Path, make: Callable[[SparkSession, str], None] = generated) -> Query:
    query: Query = make_query(folder, decode=Json(schema=DDL), bronze="bronze.all", routes=route(SINK))
    make(query.spark, query.lake.spark_address("silver.uno"))
    return query


def complete(query: Query, cause: str = "CAST_INVALID_INPUT") -> None:
    """Compare with what must be there after the batch, however often it was begun."""
    assert query.rows("silver.uno", "gamer", "level") == [{"gamer": "1", "level": 2}, {"gamer": "2", "level": 1}]
    assert query.rows("silver.poker", "gamer") == [{"gamer": "a"}]
    letters = {row["offset"]: row for row in query.rows("ops.dead")}
    assert (sorted(letters), {row["stage"] for row in letters.values()}) == ([1, 3], {"apply"})
    assert len(query.rows("ops.dead")) == 2
    assert cause in letters[1]["reason"]
    assert letters[3]["reason"] == "key gamer is null"
    assert booked(query) == {"landed": 6, "applied": 4, "dead": 2, "backlog": 0}
    changes = [entry for entry in query.open("silver.uno").history() if entry["operation"] == "MERGE"]
    assert len(changes) == 1
    assert not list(Path(query.lake.root, "_staged").glob("merge-*"))


@pytest.mark.parametrize("table", TABLES)
def test_all_rows_but_those_that_the_table_refuses_are_merged(make_query: Any, tmp_path: Path, table: str) -> None:
    make, cause = TABLES[table]
    query = made(make_query, tmp_path, make)
    query.take(BATCH)

    complete(query, cause)
    query.restarted().again(0)
    complete(query, cause)
    assert {audit.table: audit.problems for audit in _audits(query) if audit.problems} == {}


def _audits(query: Query) -> list[Any]:
    return list(Verification.of_config(query.config, contents=True).audit_tables())


@pytest.mark.parametrize(
    ("owner", "step"), [(RefusedKeys, "note_reasons"), (MergeCoordinator, "_balance_counts")], ids=["note", "merge"]
)
def test_a_retry_reads_the_note(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    """Without it a kill after the merge makes rows vanish: the table has the batch, and nothing fails any more."""
    query = made(make_query, tmp_path)
    do = getattr(owner, step)

    def end(*args: Any) -> None:
        do(*args)
        raise ProcessKilled

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, end)
        with pytest.raises(ProcessKilled):
            query.take(BATCH)
    monkeypatch.setattr(refused_keys, "find_refused", None)
    query.restarted().again(0)

    complete(query)


def test_a_table_that_is_the_cause_itself_waits(make_query: Any, tmp_path: Path) -> None:
    """Without it good rows are refused because their table is damaged."""
    query = made(make_query, tmp_path)
    query.take(raw(event("uno", "1", 1)))
    for file in Path(query.lake.address("silver.uno")).rglob("*.parquet"):
        file.write_bytes(b"PAR1 damaged")
    query.take(raw(event("uno", "1", 2), event("uno", "2", 2), first=1))

    assert backlog(query) == {"silver.uno": 2}
    assert query.store.json_paths("refused") == []


def test_a_table_that_refuses_every_row_is_the_cause(make_query: Any, tmp_path: Path) -> None:
    """Without it a table with a wrong expression gets no row, and all of them are refused."""
    query = made(make_query, tmp_path)
    query.take(raw(event("uno", "x", 1), event("uno", "y", 1)))
    assert backlog(query) == {"silver.uno": 2}

    query.take(raw(event("uno", "1", 1), first=2))
    assert backlog(query) == {}
    assert query.rows("silver.uno", "gamer") == [{"gamer": "1"}]
    assert booked(query) == {"landed": 3, "applied": 1, "dead": 2, "backlog": 0}


def test_rows_wait_if_the_search_takes_too_long(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a search holds up all other tables."""
    query = made(make_query, tmp_path)
    assert LIMIT <= 30
    monkeypatch.setattr(refused_keys, "SEARCH_SECONDS", 0.01)
    query.take(BATCH)

    assert backlog(query) == {"silver.uno": 5}
    assert query.rows("ops.dead") == []
    assert query.rows("silver.poker", "gamer") == [{"gamer": "a"}]


def test_nothing_is_paid_while_nothing_fails(make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = made(make_query, tmp_path)
    monkeypatch.setattr(refused_keys, "find_refused", None)
    query.take(raw(event("uno", "1", 1), event("uno", "2", 1), event("poker", "a", 1)))

    assert [row["gamer"] for row in query.rows("silver.uno", "gamer")] == ["1", "2"]
    assert query.store.json_paths("refused") == []


def test_delta_on_spark_merges_what_delta_rs_refuses(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it rows wait for a table that the other engine can write."""
    query = make_query(tmp_path, decode=Json(schema=DDL), bronze="bronze.all", routes=route(SINK))

    def refuse(*args: Any) -> None:
        raise DeltaError("Generic error: no such function")

    monkeypatch.setattr(delta_rs, "upsert_rows", refuse)
    query.take(raw(event("uno", "1", 1), event("uno", "2", 1)))

    assert [row["gamer"] for row in query.rows("silver.uno", "gamer")] == ["1", "2"]
    assert KEY in query.batches.outboxes.merger.left
