"""What does a view of 200 tables cost, in full, after changes, and the tables beside it; and tables made anew?"""

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


P50, P99 = 1.2, 2.0
SPANS = ("alone", "beside views")


def _beside_cells(scale: Scale) -> list[Cell]:
    return [Cell("beside_views", "single", ROWS, TABLES, feed="")]


def _beside_table(results: Results, scale: Scale) -> Table:
    result = results.of(_beside_cells(scale)[0])
    run = result.counted[-1] if result and not result.problem and result.counted else None
    counts = run.counts if run else {}
    rows = []
    for name in ("p50", "p99", "max"):
        alone, beside = (counts.get(f"{span}: {name}") for span in SPANS)
        bar = {"p50": P50, "p99": P99}.get(name)
        reached = met(ratio(beside, alone), bar, at_least=False) if bar else ""
        rows.append((name, seconds(alone), seconds(beside), reached))
    notes = (
        f"From an event's writing to its topic to the commit that it is in: 200 events per second over {TABLES} tables "
        f"with {ROWS:,} rows, 60 s without views and 60 s with one that is refreshed every 10 s. Bars: p50 at most "
        f"{P50:g} times, p99 at most {P99:g} times that without.",
    )
    figures = {f"{span}: {name}": counts.get(f"{span}: {name}") for span in SPANS for name in ("p50", "p99", "max")}
    return Table(("freshness of tables", *SPANS, "bar"), tuple(rows), figures, notes)


BESIDE = Measurement("beside_views", "Tables beside their views", 68, _beside_cells, _beside_table, short=False)

REFRESHED = 50


def _refresh_cells(scale: Scale) -> list[Cell]:
    return [Cell("refresh", "single", ROWS, REFRESHED, rows_per_batch=1_000_000)]


def _refresh_table(results: Results, scale: Scale) -> Table:
    result = results.of(_refresh_cells(scale)[0])
    run = result.counted[-1] if result and not result.problem and result.counted else None
    steps = run.steps if run else {}
    bronze, topic = steps.get("bronze"), steps.get("topic")
    rows = (
        ("the topic drained, into bronze and tables", seconds(steps.get("drained")), ""),
        ("tables made anew from the topic", seconds(topic), ""),
        ("tables made anew from bronze", seconds(bronze), met(ratio(topic, bronze), 1.0, at_least=True)),
    )
    notes = (
        f"{ROWS:,} events in {REFRESHED} tables, `router refresh --tables 'silver.*'`, without its start. Bar: from "
        "bronze at least the throughput of reading Kafka anew.",
    )
    return Table(("work", "seconds", "bar"), rows, dict(steps), notes)


REFRESH = Measurement("refresh", "Tables made anew", 69, _refresh_cells, _refresh_table, short=False)
