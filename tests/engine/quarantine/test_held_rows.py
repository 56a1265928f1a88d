"""Rows that an expectation lets wait: in the quarantine with its name, until somebody lets them in or refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Route
from router.engine import ledger
from router.engine.audit.verify import verify_tables
from router.engine.quarantine.table import list_quarantined, pending_releases, write_approval
from router.errors import StartError, TableError
from router_rules import Sql
from router_sinks import Tables, Upsert
from tests.engine.parts import Events
from tests.engine.query import Query, records
from tests.engine.reprocess.repairs import repair_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

KNOWN = {"name": "known", "sql": "event.n IS NOT NULL", "otherwise": "quarantine"}
EVENTS: list[dict[str, Any] | bytes | None] = [
    {"game": "uno", "n": 1},
    {"game": "uno"},
    {"game": "chess", "n": -1},
    {"game": "chess", "n": 2},
    {"game": "go", "n": 500},
]


def query(make_query: MakeQuery, folder: Path, *expect: dict[str, str], **settings: Any) -> Query:
    more = {"name": "small", "sql": "event.n < 100", "otherwise": "quarantine"}
    sure = {"name": "sure", "sql": "coalesce(event.n, 0) >= 0", "otherwise": "dead_letter"}
    by_spark = {"name": "odd", "sql": "hash(event.game) IS NOT NULL", "otherwise": "warn"}
    given = (KNOWN, more, sure, *((by_spark,) if settings.pop("spark_evaluates", False) else ()), *expect)
    sink = Tables(table="silver.{event.game}")
    route = Route(name="r", match=Sql(where="true"), expect=given, sinks=(sink,))  # type: ignore[arg-type]
    given_to = {"decode": Events(ddl="game string, n int"), "bronze": "bronze.all"}
    return prepared(make_query(folder, routes=(route,), **given_to, **settings))


def prepared(made: Query) -> Query:
    """Return a query as one that a stream runs: it can be repaired."""
    made.write_run_id()
    return made


def numbers(made: Query, table: str) -> list[int | None]:
    return [row.get("n") for row in made.rows(table)] if table in made.tables() else []


def sums(made: Query) -> dict[str, int]:
    found = ledger.read_totals(made.config)["r", "tables"]
    names = ("matched", "landed", "refused", "dropped", "quarantined", "released")
    assert found["matched"] == sum(found[name] for name in names[1:5])
    return {name: found[name] for name in names if found[name]}


@pytest.mark.parametrize("spark_evaluates", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_wait_until_they_are_let_in_or_refused(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, spark_evaluates: bool
) -> None:
    """Without it whoever wants to look at doubtful rows first gets them as records, or writes a second route."""
    made = query(make_query, tmp_path, spark_evaluates=spark_evaluates)
    made.take(records(EVENTS))
    assert (numbers(made, "silver.uno"), numbers(made, "silver.chess"), numbers(made, "silver.go")) == ([1], [2], [])
    assert made.letters("stage", "reason") == {("expect", "expectation sure does not hold"): 1}
    waiting = {one.place.table: (one.rows, one.cause, one.kind) for one in list_quarantined(made.config, made.lake)}
    assert waiting == {
        "silver.uno": (1, "expectation known does not hold", "held"),
        "silver.go": (1, "expectation small does not hold", "held"),
    }
    kept = made.rows("quarantine.games__r__tables", "_topic", "_offset", "game", "_table")
    assert [(row["_offset"], row["game"]) for row in kept] == [(1, "uno"), (4, "go")]
    assert sums(made) == {"matched": 5, "landed": 2, "refused": 1, "quarantined": 2}
    assert made.batches.destination.release.due() == []
    with pytest.raises(TableError, match="wait because of an expectation"):
        repair_table(made, spark, "silver.uno")

    uno, go = sorted(list_quarantined(made.config, made.lake), key=lambda one: one.place.table, reverse=True)
    write_approval(made.store, uno)
    write_approval(made.store, go, discard=True)
    made.take(records([{"game": "uno", "n": 3}, {"game": "uno"}], first=10))
    assert numbers(made, "silver.uno") == [1, 3, None, None]  # a row of the batch that came before it was done, too
    assert made.letters("stage", "reason", "route", "value") == {
        ("expect", "expectation sure does not hold", "r", b'{"game": "chess", "n": -1}'): 1,
        ("expect", "expectation small does not hold", "r", b'{"game": "go", "n": 500}'): 1,
    }
    assert sums(made) == {"matched": 7, "landed": 3, "refused": 2, "quarantined": 2, "released": 2}
    assert [*list_quarantined(made.config, made.lake)] == []
    assert [problem for audit in verify_tables(made.config) for problem in audit.problems] == []
    with pytest.raises(TableError, match=r"`router quarantine release` let 2 rows in.* --accept"):
        repair_table(made, spark, "silver.uno")
    made.take(records([{"game": "uno"}], first=20))
    assert [one.rows for one in list_quarantined(made.config, made.lake)] == [1]


def test_rows_of_a_table_that_cannot_be_written_wait_apart(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a table that can be written again gets the rows that nobody has let in."""
    made = query(make_query, tmp_path)
    made.take(records(EVENTS))
    first = tmp_path / "lake/silver/uno/_delta_log/00000000000000000000.json"
    whole = first.read_bytes()
    first.write_bytes(b"damaged")
    made = made.restarted()
    made.take(records([{"game": "uno", "n": 4}, {"game": "uno"}], first=10))
    first.write_bytes(whole)
    waiting = [one for one in list_quarantined(made.config, made.lake) if one.place.table == "silver.uno"]
    assert sorted((one.kind, one.rows) for one in waiting) == [("held", 2), ("unblock", 1)]
    made.batches.destination.release.carry_out(pending_releases(made.store, "blocked"))
    made.take(records([{"game": "uno", "n": 5}], first=20))
    assert numbers(made, "silver.uno") == [1, 4, 5]
    assert {one.kind for one in list_quarantined(made.config, made.lake)} == {"held"}


def test_only_rows_of_tables_wait(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it rows for an API or a merge would wait where nobody gives them to it."""
    route = Route(
        name="r",
        match=Sql(where="true"),
        expect=(KNOWN,),
        sinks=(Upsert(table="silver.{event.game}", keys=("n",)),),  # type: ignore[arg-type]
    )
    made = make_query(tmp_path, decode=Events(ddl="game string, n int"), routes=(route,))
    with pytest.raises(StartError, match=r"expectation known: rows wait for tables only .* dead_letter"):
        made.take(records(EVENTS))
