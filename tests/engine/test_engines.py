"""Both engines make the same tables of the same records."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine import scenarios
from tests.engine.parts import copied

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from tests.engine.query import Query

SCENARIOS = [scenarios.garbage, scenarios.evolution, scenarios.cap, scenarios.shared]
TIMES = {"finished"}


def shape(query: Query, table: str) -> list[tuple[str, pa.DataType]]:
    return [(column.name, column.type) for column in query.content(table).schema]


def multiset(query: Query, table: str) -> Counter[str]:
    rows = [{name: value for name, value in row.items() if name not in TIMES} for row in query.rows(table)]
    return Counter(repr(row) for row in rows)


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.__name__)
def both(request: pytest.FixtureRequest, played: Callable[..., Query]) -> tuple[Query, Query]:
    """Play a scenario with both engines."""
    return played(request.param, "arrow"), played(request.param, "spark")


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


def test_both_engines_apply_the_same(both: tuple[Query, Query]) -> None:
    """Without it a change of the engine sends other rows to a service."""
    if not (both[0].folder / "copy").exists():
        pytest.skip("no sink of this scenario applies anything")
    arrow, spark = (sorted(map(repr, copied(query.folder / "copy"))) for query in both)
    assert arrow == spark
