"""Posting to an HTTP API: against the published table, and against the published way on this machine.

Is a limit held by all tasks together, and how much of it is used? How old are events when tables have them, while the
API that they are posted to works, and while it does not?
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, events_per_second, figure, megabytes, met, rate, seconds, times
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.memory import peak
from router_bench.chart import Chart

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results
    from benchmarks.runs import Run


POSTING_EVENTS = 21_932
"""Rows of the published runs."""
IN_FLIGHT = {1: 256, 10: 512}
"""Calls by the rows of each: what takes longer to be answered needs more at once for the same speed."""
WARM_UP = 10
"""Batches before those that count: with fewer the JVM still compiles, for a fifth of the time of a batch."""
REPEAT = 5
PUBLISHED = {(1, 4): 122, (1, 8): 249, (1, 16): 447, (10, 4): 456, (10, 8): 877, (10, 16): 1687}
"""Rows per second by (rows per call, partitions), on one worker of 16 cores."""
BARS = {(1, 4): 20, (1, 8): 15, (1, 16): 10, (10, 4): 15, (10, 8): 10, (10, 16): 8}
POSTING_COLUMNS = (
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
    return Cell("posting", "warm", POSTING_EVENTS, 1, partitions, repeat, feed="", options=options, warm_up=WARM_UP)


def theirs(scale: Scale, rows_per_call: int, partitions: int) -> Cell:
    """Return the cell of the published way: one run, after a warm-up that is not counted."""
    options = (("rows_per_call", str(rows_per_call)),)
    return Cell("udf_posts", "single", POSTING_EVENTS, 1, partitions, feed="", options=options)


def _posting_cells(scale: Scale) -> list[Cell]:
    cells = []
    for rows_per_call, partitions in PUBLISHED:
        cells += [theirs(scale, rows_per_call, partitions), ours(scale, rows_per_call, partitions)]
    return cells


def _posting_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for (rows_per_call, partitions), published in PUBLISHED.items():
        router = results.of(ours(scale, rows_per_call, partitions))
        udf = results.of(theirs(scale, rows_per_call, partitions))
        over_published = _over(events_per_second(router), published)
        over_udf = _over(events_per_second(router), events_per_second(udf))
        name = f"{rows_per_call}_rows_{partitions}_partitions"
        figures[f"over_published_{name}"] = over_published
        figures[f"over_udf_{name}"] = over_udf
        # The bar is for the smaller of the two. If one is missing, the other decides nothing.
        smaller = None
        if over_published is not None and over_udf is not None:
            smaller = min(over_published, over_udf)
        bar = BARS[rows_per_call, partitions]
        rows.append(
            (
                str(rows_per_call),
                str(partitions),
                count(published),
                rate(udf),
                _first(router),
                _sending(router),
                rate(router),
                times(over_published),
                times(over_udf),
                f"{bar} x",
                met(smaller, bar, at_least=True),
            )
        )
    return Table((*POSTING_COLUMNS, *RATIOS), tuple(rows), figures, _notes(results, scale))


def _notes(results: Results, scale: Scale) -> tuple[str, ...]:
    result = results.of(ours(scale, 1, 4))
    connections = None
    if result and not result.problem:
        connections = result.counted[0].counts.get("connections")
    return (
        f"Rows per second. {POSTING_EVENTS:,} rows of about 400 bytes as JSON to an API in a process of its own "
        "that answers after 34 ms, 100 ms for 10 rows; every row is counted there, and has its receipt.",
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
            label = f"{LABELS[cell(scale, rows_per_call, 4).subject]}, {rows_per_call} per call"
            points = lines.setdefault(label, [])
            for rows, partitions in PUBLISHED:
                if rows != rows_per_call:
                    continue
                speed = events_per_second(results.of(cell(scale, rows, partitions)))
                if speed:
                    points.append((partitions, speed))
    title = "Rows per second to an HTTP API (34 ms; 100 ms for 10 rows)"
    return Chart(title, "partitions", lines, "rows per second", True)


def _first(result: CellResult | None) -> str:
    """Return the speed of the first batch of a process."""
    if result is None or result.problem or result.first is None:
        return MISSING
    return count(POSTING_EVENTS / result.first.seconds)


def _sending(result: CellResult | None) -> str:
    """Return the speed between the first call and the last of warm batches."""
    if result is None or result.problem:
        return MISSING
    return count(POSTING_EVENTS / statistics.median(run.counts["sending"] for run in result.counted))


def _over(speed: float | None, other: float | None) -> float | None:
    if not speed or not other:
        return None
    return speed / other


POSTING = Measurement("posting", "Posting to an HTTP API", 110, _posting_cells, _posting_table, _chart, short=False)


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
    "three queries at 200 per second": (12, (("queries", "3"), ("limit", "200"))),
}
LIMITS_COLUMNS = ("events", "calls", "most in 1 s", "limit", "", "429", "bar", "", "limit used", "bar", "")


def cell(scale: Scale, partitions: int, more: tuple[tuple[str, str], ...]) -> Cell:
    """Return the cell of one way to spread events."""
    options = {"rows_per_call": "1", "limit": str(LIMIT), "tasks": str(TASKS), **dict(more)}
    # Events in proportion to the limit, so that every way takes the same time; so many for each query.
    events_at_full_limit = 24_000 if scale.full else 6_000
    events_per_query = events_at_full_limit * limit_of(more) // LIMIT
    events = events_per_query * int(options.get("queries", "1"))
    return Cell("posting", "warm", events, 1, partitions, scale.repeat, feed="", options=tuple(options.items()))


def limit_of(more: tuple[tuple[str, str], ...]) -> int:
    """Return the calls per second of a way."""
    return int(dict(more).get("limit", LIMIT))


def _limits_cells(scale: Scale) -> list[Cell]:
    return [cell(scale, partitions, more) for partitions, more in WAYS.values()]


def _limits_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for name, (partitions, more) in WAYS.items():
        result = results.of(cell(scale, partitions, more))
        if result is None or result.problem:
            rows.append((name, figure(result), *[MISSING] * (len(LIMITS_COLUMNS) - 2)))
            continue
        calls, highest, throttled, used = worst(list(result.runs))
        figures[f"highest: {name}"] = highest
        figures[f"throttled: {name}"] = throttled
        figures[f"used: {name}"] = used
        limit = limit_of(more)
        rows.append(
            (
                name,
                count(calls),
                count(highest),
                count(limit),
                met(highest, limit, at_least=False),
                f"{throttled:.3%}",
                f"{THROTTLED:.2%}",
                met(throttled, THROTTLED, at_least=False),
                f"{used:.1%}",
                f"{USED:.0%}",
                met(used, USED, at_least=True),
            )
        )
    return Table(LIMITS_COLUMNS, tuple(rows), figures, _LIMITS_NOTES)


def worst(runs: list[Run]) -> tuple[float, float, float, float]:
    """Return the calls of all runs, and of each other figure the worst: in one second, share of 429, share used."""
    counts_of_runs = [run.counts for run in runs]
    return (
        sum(counts["calls"] for counts in counts_of_runs),
        max(counts["highest"] for counts in counts_of_runs),
        max(counts["throttled"] / counts["calls"] for counts in counts_of_runs),
        min(counts["limit_used"] for counts in counts_of_runs),
    )


_LIMITS_NOTES = (
    f"An API that lets {LIMIT:,} calls per second through, or as many as the line says, 20 of them at once, and "
    "answers 429 to others. Most in 1 s: of all seconds, wherever they begin, counted from the time of every call "
    "at the API, refused ones too.",
    "Used: of what the limit allows between the first call and the last. The worst of all runs, the first batch of the "
    f"process too. {TASKS} tasks send at once; several queries are sinks at once, with one limit between them.",
)

LIMITS = Measurement("limits", "Holding an API's limit", 111, _limits_cells, _limits_table, short=False)


PER_SECOND = 200
SECONDS = 10
TABLES = 4
HEALTHY = "healthy"
APIS = (HEALTHY, "ten times slower", "black-holed", "refusing", "back again")
BAR = 1.5
FRESHNESS_COLUMNS = ("batches", "p50", "p99", "max", "p50 over healthy", "bar", "", "calls taken")
FRESHNESS_EVENTS = PER_SECOND * SECONDS * len(APIS)
"""Those that are looked at: others come before, and while the sink has not noticed that the API has changed."""
CELL = Cell("freshness", "single", FRESHNESS_EVENTS, TABLES, 4, feed="")


def _freshness_cells(scale: Scale) -> list[Cell]:
    return [CELL]


def _freshness_table(results: Results, scale: Scale) -> Table:
    result = results.of(CELL)
    if result is None or result.problem:
        empty = [MISSING] * (len(FRESHNESS_COLUMNS) - 1)
        empty_rows = tuple((api, figure(result), *empty) for api in APIS)
        return Table(("API", *FRESHNESS_COLUMNS), empty_rows, {}, _FRESHNESS_NOTES)
    counts = result.counted[0].counts
    healthy = counts[f"{HEALTHY}: p50"]
    rows = []
    figures: dict[str, float | None] = {}
    for api in APIS:
        over_healthy = counts[f"{api}: p50"] / healthy
        figures[f"over healthy: {api}"] = over_healthy
        rows.append(_freshness_row(api, counts, over_healthy))
    figures |= {name: value for name, value in counts.items() if name.endswith(("p50", "p99", "max"))}
    return Table(("API", *FRESHNESS_COLUMNS), tuple(rows), figures, _FRESHNESS_NOTES)


def _freshness_row(api: str, counts: dict[str, float], over_healthy: float) -> tuple[str, ...]:
    ages = [seconds(counts[f"{api}: {name}"]) for name in ("p50", "p99", "max")]
    bar = ("", "")
    if api != HEALTHY:
        bar = (f"{BAR} x", met(over_healthy, BAR, at_least=False))
    return (api, count(counts[f"{api}: batches"]), *ages, times(over_healthy), *bar, count(counts[f"{api}: taken"]))


_FRESHNESS_NOTES = (
    f"From an event's writing to its topic to the commit that it is in: one router, {PER_SECOND} events per second, "
    f"{TABLES} tables, and a detached sink that posts each of them. The API answers after 34 ms; after 340 ms; takes "
    f"calls and never answers; takes no connection; and answers after 34 ms again. {SECONDS} s each.",
    "Calls taken: while it was so; in the end also those that had waited in their outbox.",
)
FRESHNESS = Measurement(
    "freshness", "Tables beside an API that is away", 112, _freshness_cells, _freshness_table, short=False
)


CALL_COLUMNS = ("rows per call", "bytes per call", "in flight", "rows/s", "largest worker", "bound")
ROW_BYTES = 400
WAYS_OF_CALLS: dict[str, tuple[int, int, tuple[tuple[str, str], ...]]] = {
    "small calls": (1, POSTING_EVENTS, (("max_in_flight", "256"),)),
    "small calls, a rule for answers": (1, POSTING_EVENTS, (("max_in_flight", "256"), ("rules", "1"))),
    "calls of 1 MiB": (2600, 260_000, (("max_in_flight", "256"), ("tasks", "1"))),
}
LARGEST_WORKER = 400
"""MB: the interpreter, Arrow's batches, and 64 MiB of calls with what aiohttp and the garbage collector add."""


def call_cell(scale: Scale, way: str) -> Cell:
    """Return the cell of calls of a size."""
    rows, events, more = WAYS_OF_CALLS[way]
    options = (("rows_per_call", str(rows)), *more)
    repeat = max(scale.repeat, 3)
    return Cell("posting", "warm", events, 1, 4, repeat, sample="workers", feed="", options=options, warm_up=3)


def _call_cells(scale: Scale) -> list[Cell]:
    return [call_cell(scale, way) for way in WAYS_OF_CALLS]


def _calls_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for way, (per_call, _, more) in WAYS_OF_CALLS.items():
        result = results.of(call_cell(scale, way))
        worker_mb = peak(result, "worker_mb")
        figures[f"rows_per_second: {way}"] = events_per_second(result)
        figures[f"worker_mb: {way}"] = worker_mb
        worker = ("", "")
        if worker_mb is not None:
            worker = (megabytes(worker_mb), met(worker_mb, LARGEST_WORKER, at_least=False))
        in_flight = dict(more)["max_in_flight"]
        rows.append((way, count(per_call), count(per_call * ROW_BYTES), in_flight, rate(result), *worker))
    return Table(("calls", *CALL_COLUMNS), tuple(rows), figures, _CALL_NOTES)


_CALL_NOTES = (
    f"Largest worker: the peak of resident memory of a task's process, which is to stay below {LARGEST_WORKER} MB. "
    "Calls take `bytes_in_flight` (64 MiB) together, with their bodies. A rule is asked of every answer; with none, "
    "nothing is asked.",
)
CALLS = Measurement("calls", "Memory and rules of calls", 113, _call_cells, _calls_table, short=False)
