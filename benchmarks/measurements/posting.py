"""Ask how fast events reach an HTTP API: against the published table, and against the published way on this machine."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, events_per_second, rate, times, verdict
from benchmarks.measurements import Chart, Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

EVENTS = 21_932
"""Rows of the published runs."""
IN_FLIGHT = {1: 256, 10: 512}
"""Calls by the rows of each: what takes longer to be answered needs more at once for the same speed."""
WARM_UP = 10
"""Batches before those that count: with fewer the JVM still compiles, for a fifth of the time of a batch."""
REPEAT = 5
PUBLISHED = {(1, 4): 122, (1, 8): 249, (1, 16): 447, (10, 4): 456, (10, 8): 877, (10, 16): 1687}
"""Rows per second by (rows per call, partitions), on one worker of 16 cores."""
BARS = {(1, 4): 20, (1, 8): 15, (1, 16): 10, (10, 4): 15, (10, 8): 10, (10, 16): 8}
COLUMNS = (
    "rows per call",
    "partitions",
    "published",
    "UDF here",
    "router, first batch",
    "router, while it sends",
    "router, warm",
)
RATIOS = ("x published", "x UDF here", "bar", "")
LABELS = {"posting": "router", "udf_posts": "UDF"}


def ours(scale: Scale, rows_per_call: int, partitions: int) -> Cell:
    """Return the cell of the router's sink."""
    options = (("rows_per_call", str(rows_per_call)), ("max_in_flight", str(IN_FLIGHT[rows_per_call])))
    repeat = max(scale.repeat, REPEAT)
    return Cell("posting", "warm", EVENTS, 1, partitions, repeat, feed="", options=options, warm_up=WARM_UP)


def theirs(scale: Scale, rows_per_call: int, partitions: int) -> Cell:
    """Return the cell of the published way: one run, after a warm-up that is not counted."""
    options = (("rows_per_call", str(rows_per_call)),)
    return Cell("udf_posts", "single", EVENTS, 1, partitions, feed="", options=options)


def _cells(scale: Scale) -> list[Cell]:
    return [cell(scale, *point) for point in PUBLISHED for cell in (theirs, ours)]


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for (rows_per_call, partitions), published in PUBLISHED.items():
        mine, other = (results.of(cell(scale, rows_per_call, partitions)) for cell in (ours, theirs))
        speed, beside = events_per_second(mine), events_per_second(other)
        ratios = [_over(speed, published), _over(speed, beside)]
        name, bar = f"{rows_per_call}_rows_{partitions}_partitions", BARS[rows_per_call, partitions]
        figures |= {f"over_published_{name}": ratios[0], f"over_udf_{name}": ratios[1]}
        known = [value for value in ratios if value is not None]
        outcome = verdict(min(known) if len(known) == len(ratios) else None, bar, at_least=True)
        speeds = (count(published), rate(other), _first(mine), _sending(mine), rate(mine))
        rows.append((str(rows_per_call), str(partitions), *speeds, *map(times, ratios), f"{bar} x", outcome))
    return Table((*COLUMNS, *RATIOS), tuple(rows), figures, _notes(results, scale))


def _notes(results: Results, scale: Scale) -> tuple[str, ...]:
    some = results.of(ours(scale, 1, 4))
    connections = some.counted[0].counts.get("connections") if some and not some.problem else None
    return (
        f"Rows per second. {EVENTS:,} rows of about 400 bytes as JSON to an API in a process of its own that answers "
        "after 34 ms, 100 ms for 10 rows; every row is counted there, and has its receipt.",
        f"Router: at most {IN_FLIGHT[1]} calls in flight, {IN_FLIGHT[10]} of 10 rows, from a task per core at most, "
        "with retries, receipts and a limit that is held but far away; a batch is timed from its hand-over to its "
        f"receipts; warm is the median of {max(scale.repeat, REPEAT)} batches after {WARM_UP} others.",
        f"With 1 row per call and 4 partitions the router opened {count(connections)} connections; the published way "
        "opens one for each call.",
        "UDF: the published way, a call in flight per partition; a core for each partition, whatever the machine has.",
    )


def _chart(results: Results, scale: Scale) -> Chart:
    lines: dict[str, list[tuple[int, float]]] = {}
    for rows_per_call in (10, 1):
        for cell in (ours, theirs):
            points = [(rows, partitions) for rows, partitions in PUBLISHED if rows == rows_per_call]
            found = [(partitions, results.of(cell(scale, rows, partitions))) for rows, partitions in points]
            label = f"{LABELS[cell(scale, rows_per_call, 4).subject]}, {rows_per_call} per call"
            lines[label] = [(point, speed) for point, one in found if (speed := events_per_second(one))]
    return Chart(
        "Rows per second to an HTTP API (34 ms; 100 ms for 10 rows)", "partitions", lines, "rows per second", True
    )


def _first(result: CellResult | None) -> str:
    """Return the speed of the first batch of a process."""
    first = result.first if result and not result.problem else None
    return count(EVENTS / first.seconds if first else None)


def _sending(result: CellResult | None) -> str:
    """Return the speed between the first call and the last of warm batches."""
    if result is None or result.problem:
        return MISSING
    return count(EVENTS / statistics.median(run.counts["sending"] for run in result.counted))


def _over(speed: float | None, other: float | None) -> float | None:
    return speed / other if speed and other else None


POSTING = Measurement("posting", "Posting to an HTTP API", 110, _cells, _table, _chart, short=False)
