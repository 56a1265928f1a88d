"""Ask how old events are when tables have them, while the API that they are posted to works, and while it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, seconds, times, verdict
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

PER_SECOND, SECONDS = 200, 10
TABLES = 4
HEALTHY = "healthy"
APIS = (HEALTHY, "ten times slower", "black-holed", "refusing", "back again")
BAR = 1.5
COLUMNS = ("batches", "p50", "p99", "max", "p50 over healthy", "bar", "", "calls taken")
EVENTS = PER_SECOND * SECONDS * len(APIS)
"""Those that are looked at: others come before, and while the sink has not noticed that the API has changed."""
CELL = Cell("freshness", "single", EVENTS, TABLES, 4, feed="")


def _cells(scale: Scale) -> list[Cell]:
    return [CELL]


def _table(results: Results, scale: Scale) -> Table:
    result = results.of(CELL)
    if result is None or result.problem:
        rows = tuple((api, figure(result), *[MISSING] * (len(COLUMNS) - 1)) for api in APIS)
        return Table(("API", *COLUMNS), rows, {}, _NOTES)
    counts = result.counted[0].counts
    healthy = counts[f"{HEALTHY}: p50"]
    over = {api: counts[f"{api}: p50"] / healthy for api in APIS}
    figures: dict[str, float | None] = {f"over healthy: {api}": ratio for api, ratio in over.items()}
    figures |= {name: value for name, value in counts.items() if name.endswith(("p50", "p99", "max"))}
    return Table(("API", *COLUMNS), tuple(_row(api, counts, over[api]) for api in APIS), figures, _NOTES)


def _row(api: str, counts: dict[str, float], over: float) -> tuple[str, ...]:
    ages = [seconds(counts[f"{api}: {name}"]) for name in ("p50", "p99", "max")]
    bar = ("", "") if api == HEALTHY else (f"{BAR} x", verdict(over, BAR, at_least=False))
    return (api, count(counts[f"{api}: batches"]), *ages, times(over), *bar, count(counts[f"{api}: taken"]))


_NOTES = (
    f"From an event's writing to its topic to the commit that it is in: one router, {PER_SECOND} events per second, "
    f"{TABLES} tables, and a detached sink that posts each of them. The API answers after 34 ms; after 340 ms; takes "
    f"calls and never answers; takes no connection; and answers after 34 ms again. {SECONDS} s each.",
    "Calls taken: while it was so; in the end also those that had waited in their lane.",
)
FRESHNESS = Measurement("freshness", "Tables beside an API that is away", 112, _cells, _table, short=False)
