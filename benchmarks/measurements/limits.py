"""Ask whether a limit of an API is held by all tasks together, and how much of it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, verdict
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results
    from benchmarks.runs import Run

LIMIT = 1000
"""Calls per second."""
TASKS = 4
THROTTLED = 0.0005
USED = 0.93
WAYS: dict[str, tuple[int, tuple[tuple[str, str], ...]]] = {
    "4 partitions": (4, ()),
    "8 partitions": (8, ()),
    "16 partitions": (16, ()),
    "4 partitions, 70/10/10/10": (4, (("skew", "70/10/10/10"),)),
    "two queries, 4 partitions each": (8, (("queries", "2"),)),
}
COLUMNS = ("events", "calls", "most in 1 s", "limit", "", "429", "bar", "", "limit used", "bar", "")


def cell(scale: Scale, partitions: int, more: tuple[tuple[str, str], ...]) -> Cell:
    """Return the cell of one way to spread events."""
    options = (("rows_per_call", "1"), ("limit", str(LIMIT)), ("tasks", str(TASKS)), *more)
    events = (24_000 if scale.full else 6_000) * int(dict(more).get("queries", "1"))
    return Cell("posting", "warm", events, 1, partitions, scale.repeat, feed="", options=options)


def _cells(scale: Scale) -> list[Cell]:
    return [cell(scale, *way) for way in WAYS.values()]


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for name, way in WAYS.items():
        result = results.of(cell(scale, *way))
        if result is None or result.problem:
            rows.append((name, figure(result), *[MISSING] * (len(COLUMNS) - 2)))
            continue
        calls, highest, throttled, used = worst(list(result.runs))
        figures |= {f"highest: {name}": highest, f"throttled: {name}": throttled, f"used: {name}": used}
        rows.append(
            (
                name,
                *(count(calls), count(highest), count(LIMIT), verdict(highest, LIMIT, at_least=False)),
                *(f"{throttled:.3%}", f"{THROTTLED:.2%}", verdict(throttled, THROTTLED, at_least=False)),
                *(f"{used:.1%}", f"{USED:.0%}", verdict(used, USED, at_least=True)),
            )
        )
    return Table(COLUMNS, tuple(rows), figures, _NOTES)


def worst(runs: list[Run]) -> tuple[float, float, float, float]:
    """Return the calls of all runs, and of each other figure the worst: in one second, share of 429, share used."""
    counted = [run.counts for run in runs]
    return (
        sum(found["calls"] for found in counted),
        max(found["highest"] for found in counted),
        max(found["throttled"] / found["calls"] for found in counted),
        min(found["limit_used"] for found in counted),
    )


_NOTES = (
    f"An API that lets {LIMIT:,} calls per second through, 20 of them at once, and answers 429 to others. Most in 1 s: "
    "of all seconds, wherever they begin, counted from the time of every call at the API, refused ones too.",
    "Used: of what the limit allows between the first call and the last. The worst of all runs, the first batch of the "
    f"process too. {TASKS} tasks send at once; two queries are two sinks at once, with one limit between them.",
)

LIMITS = Measurement("limits", "Holding an API's limit", 111, _cells, _table, short=False)
