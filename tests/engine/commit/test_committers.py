"""Both committers make the same tables of the same records."""

from __future__ import annotations

from base64 import b64decode
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from router.config.models import Route
from router.delta import lake, replace
from tests.engine import scenarios
from tests.engine.conftest import EITHER
from tests.engine.parts import Copy, Events, Fixed, Named, Where, copied
from tests.engine.query import multiset, records, shape
from tests.kills import ProcessKilled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engine.query import Query


def named(scenario: scenarios.Scenario) -> str:
    return scenario.__name__


def by_both(chosen: list[scenarios.Scenario]) -> list[Any]:
    return [pytest.param(s, marks=scenarios.marks("spark"), id=named(s)) for s in chosen]


@pytest.fixture(params=by_both(scenarios.ALL))
def both(request: pytest.FixtureRequest, played: Callable[..., Query]) -> tuple[Query, Query]:
    """Play a scenario with both committers."""
    return played(request.param, "auto"), played(request.param, "spark")


def test_both_committers_make_the_same_tables(both: tuple[Query, Query]) -> None:
    """Without it another committer changes what is in the lake."""
    arrow, spark = both
    assert arrow.tables() == spark.tables()
    for table in arrow.tables():
        assert shape(arrow, table) == shape(spark, table), table
        assert multiset(arrow, table) == multiset(spark, table), table


def test_both_committers_report_the_same(both: tuple[Query, Query]) -> None:
    """Without it another committer looks like a loss on the dashboard."""
    counts: list[list[dict[str, Any]]] = []
    for query in both:
        counts.append([{**vars(report), "seconds": None, "files": None} for report in query.reports])

    assert counts[0] == counts[1]


class ForbiddenError(Exception):
    """Raised where delta-rs is asked for anything."""


def forbidden(*_: Any, **__: Any) -> Any:
    raise ForbiddenError


@pytest.mark.slow
def test_spark_commits_without_delta_rs(
    make_query: Callable[..., Query], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a catalog that only Spark may reach is asked behind its back, and the stream stops there."""
    sinks = (Named(sql="'silver.' || event.game"), Copy(to=str(tmp_path / "copy")))
    route = Route(name="all", match=Where(sql="event.n > 0"), sinks=sinks)
    batches = [{"game": "uno", "n": 1}, {"game": "poker", "n": 0}], [{"game": "uno", "n": 2, "more": "x"}]

    def play(commit: str) -> Query:
        schemas = "game string, n int", "game string, n int, more string"
        settings = {"commit": commit, "bronze": "bronze.all", "routes": (route,)}
        query = make_query(tmp_path / commit, decode=Events(ddl=schemas[0]), **settings)
        query.take(records(batches[0]))
        query = query.restarted(decode=Events(ddl=schemas[1]))
        query.take(records(batches[1], first=100))
        query.again(1)
        query.take(records([]))
        return query

    with monkeypatch.context() as patched:
        patched.setattr(lake, "DeltaTable", forbidden)
        for name in ("create_table_with_add_actions", "write_deltalake"):
            patched.setattr(replace, name, forbidden)
        by_spark = play("spark")
    auto = play("auto")

    assert by_spark.tables() == auto.tables()
    for table in auto.tables():
        assert shape(auto, table) == shape(by_spark, table), table
        assert multiset(auto, table) == multiset(by_spark, table), table
    assert [*(tmp_path / "spark" / "lake" / "_staged").rglob("*.parquet")] == []


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        ("auto", "spark", "commit"),
        pytest.param("spark", "auto", "apply", marks=pytest.mark.slow),
        pytest.param("auto", "spark", "apply", marks=pytest.mark.slow),
        pytest.param("spark", "auto", "commit", marks=pytest.mark.slow),
    ],
)
def test_a_batch_that_another_committer_was_to_finish_is_whole(
    make_query: Callable[..., Query], tmp_path: Path, before: str, after: str, step: str
) -> None:
    """Without it who changes `commit` after a crash has tables that refer to files that are not there."""

    def kill(batch: int, name: str, done: int, of: int) -> None:
        if (batch, name, done) == (1, step, 0):
            raise ProcessKilled

    sinks = (Fixed(name="silver.all"), Copy(to=str(tmp_path / "copy")))
    route = Route(name="all", match=Where(sql="true"), sinks=sinks)
    query = make_query(tmp_path, commit=before, decode=Events(ddl="n int"), bronze="bronze.all", routes=(route,))
    query.take(records([{"n": 1}]))
    query.batches.watch = kill
    with pytest.raises(ProcessKilled):
        query.take(records([{"n": 2}], first=100))

    query = query.restarted(commit=after)
    query.again(1)
    query.take(records([{"n": 3}], first=200))

    for table in ("silver.all", "outbox.games__all__copy"):
        assert [row["n"] for row in query.rows(table, "n")] == [1, 2, 3], table
    assert sorted(row["n"] for row in copied(tmp_path / "copy")) == [1, 2, 3]


@pytest.mark.parametrize("both", by_both(scenarios.APPLYING), indirect=True)
def test_both_committers_apply_the_same(both: tuple[Query, Query]) -> None:
    """Without it another committer sends other rows to a service."""
    arrow, spark = (sorted(map(repr, copied(query.folder / "copy"))) for query in both)
    assert arrow == spark


def landed(i: int) -> dict[str, Any]:
    """Return the row that an event must become."""
    sent = scenarios.event(i)
    rules: dict[str, Callable[[Any], Any]] = {
        "at": datetime.fromisoformat,
        "local": datetime.fromisoformat,
        "day": date.fromisoformat,
        "cost": Decimal,
        "ratio": lambda value: float(np.float32(value)),
        "blob": b64decode,
        "inner": lambda value: {
            **value,
            "deep": {**value["deep"], "at": datetime.fromisoformat(value["deep"]["at"][:-1] + "+00:00")},
        },
        "scores": lambda value: list(value.items()),
    }
    if sent.get("at"):
        sent["at"] = sent["at"].replace("Z", "+00:00")
    return {name: rules.get(name, lambda value: value)(value) for name, value in sent.items() if value is not None}


@pytest.mark.parametrize("commit", EITHER)
def test_values_arrive_as_they_were_sent(played: Callable[..., Query], commit: str) -> None:
    """Without it both make the same mistake: another time zone, a rounded decimal, a lost null."""
    query, checked = played(scenarios.garbage, commit), 0
    for table in ("silver.poker", "silver.rummy", "silver.uno", "silver.hearts"):
        for row in query.rows(table):
            if row["gamer"] != "g":  # one of the odd names
                assert {name: value for name, value in row.items() if value is not None} == landed(
                    int(row["gamer"][1:])
                )
                checked += 1
    assert checked > 40


@pytest.mark.parametrize("commit", EITHER)
def test_a_dead_letter_is_the_record_as_received(played: Callable[..., Query], commit: str) -> None:
    """Without it what was refused cannot be looked at, corrected and sent again."""
    query = played(scenarios.garbage, commit)
    sent = {(r["partition"], r["offset"]): r for taken in query.taken.values() for r in taken.to_pylist()}
    for letter in query.rows("ops.dead"):
        record = sent[letter["partition"], letter["offset"]]
        if letter["stage"] != "apply":  # there the record is in bronze, under the same coordinates
            assert {name: letter[name] for name in record} == record
        assert letter["reason"]
