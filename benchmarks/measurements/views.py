"""What does a view of 200 tables cost, in full, after changes, and the tables beside it; and a rebuild of tables?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, met, seconds
from benchmarks.measurements import Measurement, Table
from benchmarks.results import last_run, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

ROWS = 5_000_000
TABLES = 200
# The bars: a refresh in full may take QUERY times the query and TABLE_MS for each table, and the loop must take LOOP
# times as long; after changes in two tables a refresh takes at most the part FEW of the full one; after 1 % of new rows
# it reads at most SHARE of the bytes.
QUERY = 1.5
TABLE_MS = 10
LOOP = 10
FEW = 0.15
SHARE = 0.05
LABELS = {
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
    run = last_run(results.of(_cells(scale)[0]))
    steps = run.steps if run else {}
    share = run.peaks.get("share") if run else None
    full = steps.get("full")
    query = steps.get("query")
    # What a refresh in full may take; None if the query has no figure.
    allowed = query and QUERY * query + TABLES * TABLE_MS / 1000
    bars = {
        "full": met(ratio(full, allowed), 1.0, at_least=False),
        "few": met(ratio(steps.get("few"), full), FEW, at_least=False),
        "all": met(ratio(steps.get("all"), full), 1.0, at_least=False),
        "loop": met(ratio(steps.get("loop"), full), LOOP, at_least=True),
    }
    rows = [(label, seconds(steps.get(name)), bars.get(name, "")) for name, label in LABELS.items()]
    share_text = MISSING if share is None else f"{share:.1%}"
    share_outcome = met(share, SHARE, at_least=False)
    rows.append(("bytes of the sources that are read for 1 % of new rows", share_text, share_outcome))
    notes = (
        f"{ROWS:,} rows in {TABLES} tables of two files. Bars: in full {QUERY:g} times the query and "
        f"{TABLE_MS} ms a table, and a {LOOP}th of the loop; after changes in 2 tables {FEW:.0%} of the full one; 1 % "
        f"of new rows {SHARE:.0%} of the bytes, and never slower than in full.",
    )
    figures = {name: steps.get(name) for name in LABELS}
    figures["share"] = share
    return Table(("refresh", "seconds", "bar"), tuple(rows), figures, notes)


VIEWS = Measurement("views", "Views of many tables", 67, _cells, _table, short=False)


P50 = 1.2
P99 = 2.0
SPANS = ("alone", "beside views")


def _beside_cells(scale: Scale) -> list[Cell]:
    return [Cell("beside_views", "single", ROWS, TABLES, feed="")]


def _beside_table(results: Results, scale: Scale) -> Table:
    run = last_run(results.of(_beside_cells(scale)[0]))
    counts = run.counts if run else {}
    bars = {"p50": P50, "p99": P99}
    rows = []
    for name in ("p50", "p99", "max"):
        alone = counts.get(f"alone: {name}")
        beside = counts.get(f"beside views: {name}")
        outcome = ""
        if name in bars:
            outcome = met(ratio(beside, alone), bars[name], at_least=False)
        rows.append((name, seconds(alone), seconds(beside), outcome))
    notes = (
        f"From an event's writing to its topic to the commit that it is in: 200 events per second over {TABLES} tables "
        f"with {ROWS:,} rows, 60 s without views and 60 s with one that is refreshed every 10 s. Bars: p50 at most "
        f"{P50:g} times, p99 at most {P99:g} times that without.",
    )
    figures = {}
    for span in SPANS:
        for name in ("p50", "p99", "max"):
            figures[f"{span}: {name}"] = counts.get(f"{span}: {name}")
    return Table(("freshness of tables", *SPANS, "bar"), tuple(rows), figures, notes)


BESIDE = Measurement("beside_views", "Tables beside their views", 68, _beside_cells, _beside_table, short=False)

REFRESHED = 50


def _refresh_cells(scale: Scale) -> list[Cell]:
    return [Cell("refresh", "single", ROWS, REFRESHED, rows_per_batch=1_000_000)]


def _refresh_table(results: Results, scale: Scale) -> Table:
    run = last_run(results.of(_refresh_cells(scale)[0]))
    steps = run.steps if run else {}
    bronze = steps.get("bronze")
    topic = steps.get("topic")
    rows = (
        ("the topic drained, into bronze and tables", seconds(steps.get("drained")), ""),
        ("tables made anew from the topic", seconds(topic), ""),
        ("tables made anew from bronze", seconds(bronze), met(ratio(topic, bronze), 1.0, at_least=True)),
    )
    notes = (
        f"{ROWS:,} events in {REFRESHED} tables, `router rebuild FILE 'silver.*'`, without its start. Bar: from "
        "bronze at least the throughput of reading Kafka anew.",
    )
    return Table(("work", "seconds", "bar"), rows, dict(steps), notes)


REFRESH = Measurement("refresh", "Tables made anew", 69, _refresh_cells, _refresh_table, short=False)
