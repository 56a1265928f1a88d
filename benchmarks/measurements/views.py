"""What does a view of 200 tables cost, in full and after changes?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, met, seconds
from benchmarks.measurements import Measurement, Table
from benchmarks.results import ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

ROWS, TABLES = 5_000_000, 200
QUERY, TABLE_MS, LOOP, FEW, SHARE = 1.5, 10, 10, 0.15, 0.05
WHAT = {
    "query": "one query of Spark over one table of the same rows, into one table",
    "full": "the view, in full",
    "nothing": "the view, nothing has changed",
    "few": f"the view, new rows in 2 of {TABLES} tables",
    "all": "the view, 1 % of new rows in every table",
    "loop": "a loop of a query for each table",
}


def _cells(scale: Scale) -> list[Cell]:
    return [Cell("views", "single", ROWS, TABLES, feed="")]


def _table(results: Results, scale: Scale) -> Table:
    result = results.of(_cells(scale)[0])
    run = result.counted[-1] if result and not result.problem and result.counted else None
    steps = run.steps if run else {}
    full, query, share = steps.get("full"), steps.get("query"), run.peaks.get("share") if run else None
    allowed = query and QUERY * query + TABLES * TABLE_MS / 1000
    bars = {
        "full": met(ratio(full, allowed), 1.0, at_least=False),
        "few": met(ratio(steps.get("few"), full), FEW, at_least=False),
        "all": met(ratio(steps.get("all"), full), 1.0, at_least=False),
        "loop": met(ratio(steps.get("loop"), full), LOOP, at_least=True),
    }
    rows = tuple((what, seconds(steps.get(name)), bars.get(name, "")) for name, what in WHAT.items())
    shown = MISSING if share is None else f"{share:.1%}"
    rows += (("bytes of the sources that are read for 1 % of new rows", shown, met(share, SHARE, at_least=False)),)
    notes = (
        f"{ROWS:,} rows in {TABLES} tables of two files. Bars: in full {QUERY:g} times the query and "
        f"{TABLE_MS} ms a table, and a {LOOP}th of the loop; after changes in 2 tables {FEW:.0%} of the full one; 1 % "
        f"of new rows {SHARE:.0%} of the bytes, and never slower than in full.",
    )
    figures = {**{name: steps.get(name) for name in WHAT}, "share": share}
    return Table(("refresh", "seconds", "bar"), rows, figures, notes)


VIEWS = Measurement("views", "Views of many tables", 67, _cells, _table, short=False)
