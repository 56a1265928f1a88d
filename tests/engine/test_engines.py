"""Both engines make the same tables of the same records."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.engine import scenarios
from tests.engine.conftest import COMMITS
from tests.engine.parts import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tests.engine.query import Query

TIMES = {"finished"}


def shape(query: Query, table: str) -> list[tuple[str, pa.DataType]]:
    return [(column.name, column.type) for column in query.content(table).schema]


def multiset(query: Query, table: str) -> Counter[str]:
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in query.rows(table)]
    return Counter(repr(row) for row in rows)


def named(scenario: scenarios.Scenario) -> str:
    return scenario.__name__


@pytest.fixture(params=scenarios.ALL, ids=named)
def both(request: pytest.FixtureRequest, played: Callable[..., Query]) -> tuple[Query, Query]:
    """Play a scenario with both engines."""
    return played(request.param, "auto"), played(request.param, "spark")


def test_both_engines_make_the_same_tables(both: tuple[Query, Query]) -> None:
    """Without it a change of the engine changes what is in the lake."""
    arrow, spark = both
    assert arrow.tables() == spark.tables()
    for table in arrow.tables():
        assert shape(arrow, table) == shape(spark, table), table
        assert multiset(arrow, table) == multiset(spark, table), table


def test_both_engines_report_the_same(both: tuple[Query, Query]) -> None:
    """Without it a change of the engine looks like a loss on the dashboard."""
    counts: list[list[dict[str, Any]]] = []
    for query in both:
        counts.append([{**vars(report), "seconds": None, "files": None} for report in query.reports])

    assert counts[0] == counts[1]


@pytest.mark.parametrize("both", scenarios.APPLYING, ids=named, indirect=True)
def test_both_engines_apply_the_same(both: tuple[Query, Query]) -> None:
    """Without it a change of the engine sends other rows to a service."""
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


@pytest.mark.parametrize("commit", COMMITS)
def test_values_arrive_as_they_were_sent(played: Callable[..., Query], commit: str) -> None:
    """Without it both engines make the same mistake: another time zone, a rounded decimal, a lost null."""
    query, checked = played(scenarios.garbage, commit), 0
    for table in ("silver.poker", "silver.rummy", "silver.uno", "silver.hearts"):
        for row in query.rows(table):
            if row["gamer"] != "g":  # one of the odd names
                assert {name: value for name, value in row.items() if value is not None} == landed(
                    int(row["gamer"][1:])
                )
                checked += 1
    assert checked > 40


@pytest.mark.parametrize("commit", COMMITS)
def test_a_dead_letter_is_the_record_as_received(played: Callable[..., Query], commit: str) -> None:
    """Without it what was refused cannot be looked at, corrected and sent again."""
    query = played(scenarios.garbage, commit)
    sent = {(r["partition"], r["offset"]): r for taken in query.taken.values() for r in taken.to_pylist()}
    for letter in query.rows("ops.dead"):
        record = sent[letter["partition"], letter["offset"]]
        if letter["stage"] != "apply":  # there the record is in bronze, under the same coordinates
            assert {name: letter[name] for name in record} == record
        assert letter["reason"]
