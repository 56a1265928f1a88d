"""Sending at a stated limit: how much of it real limiters accept, beside a naive client at the same pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, met, seconds, times
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

SECONDS = {True: "35", False: "15"}
"""Seconds of a case, by whether everything is measured; the first 5 do not count."""
BAR = 0.97
"""Of what the naive client, or the case without refusals, uses."""
KEYS = 5_000
KEYS_BAR = 1.1
"""Of the time without the key that is always refused."""
CONTROL = "no refusals, 200/s"
STATED_LESS = "nginx 50/s, 429, two tasks that state 40"
CASES: dict[str, dict[str, str]] = {
    CONTROL: {"limiter": "none", "limit": "200"},
    "2 % at random, 200/s": {"limiter": "none", "limit": "200", "random": "2"},
    "2 % at random, Retry-After: 1, 200/s": {"limiter": "none", "limit": "200", "random": "2", "retry_after": "1"},
    "nginx 50/s, 429": {"limit": "50"},
    "nginx 50/s, 503": {"limit": "50", "status": "503"},
    "nginx 500/s, 429": {"limit": "500"},
    "nginx 500/s, 503": {"limit": "500", "status": "503"},
    "nginx 50/s, 429, burst=10": {"limit": "50", "burst": "10"},
    "nginx 500/s, 429, burst=10": {"limit": "500", "burst": "10"},
    STATED_LESS: {"limit": "50", "stated": "40"},
}
COLUMNS = ("limiter", "used", "naive", "over", "bar", "", "refused", "naive refused", "most in 1 s", "limit", "")
NOTES = (
    "Used: accepted calls over the stated limit, by the log of nginx, after five seconds. The naive client runs in the "
    "same run, at 98 % of the limit as the router does; it sends what was refused again and backs off nowhere.",
    f"Over: of the naive client, at random of the line without refusals. Most in 1 s: calls that the router wrote, "
    f"refused ones too, by its own clock. {KEYS:,} keys, two rows each at 5/s a key: the time until all have arrived, "
    "with 40 rows of one more key whose calls are always refused over without them.",
)


def _cell(scale: Scale, case: str) -> Cell:
    options = {**CASES[case], "seconds": SECONDS[scale.full]}
    tasks = 2 if case == STATED_LESS else 1
    return Cell("limiters", "single", 0, 0, tasks, feed="", options=tuple(options.items()))


def _keys_cell(scale: Scale) -> Cell:
    keys = KEYS if scale.full else KEYS // 5
    return Cell("limiters", "single", 2 * keys, 0, 1, feed="", options=(("limiter", "none"), ("keys", str(keys))))


def _cells(scale: Scale) -> list[Cell]:
    return [*(_cell(scale, case) for case in CASES), _keys_cell(scale)]


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for case, options in CASES.items():
        counts = _counts(results.of(_cell(scale, case)))
        if not counts:
            rows.append((case, figure(results.of(_cell(scale, case))), *[MISSING] * (len(COLUMNS) - 2)))
            continue
        limit = float(options.get("stated", options["limit"]))
        over = _over(results, scale, case, counts)
        figures |= {f"used: {case}": counts["router: used"], f"over: {case}": over}
        rows.append(
            (
                case,
                f"{counts['router: used']:.1%}",
                f"{counts['naive: used']:.1%}",
                *_against_bar(over, case),
                f"{counts['router: refused']:.1%}",
                f"{counts['naive: refused']:.1%}",
                count(counts["highest"]),
                count(limit),
                met(counts["highest"], limit, at_least=False),
            )
        )
    keys = _counts(results.of(_keys_cell(scale)))
    ratio = keys["with"] / keys["without"] if keys else None
    figures["over: a key that is refused"] = ratio
    time = seconds(keys["with"]) if keys else MISSING
    beside = seconds(keys["without"]) if keys else MISSING
    judged = (times(ratio), f"{KEYS_BAR} x", met(ratio, KEYS_BAR, at_least=False))
    rows.append(("one refused key among others", time, beside, *judged, *[""] * 5))
    return Table(COLUMNS, tuple(rows), figures, NOTES)


def _counts(result: CellResult | None) -> dict[str, float]:
    if result is None or result.problem or not result.runs:
        return {}
    return result.runs[0].counts


def _over(results: Results, scale: Scale, case: str, counts: dict[str, float]) -> float | None:
    """Return what was used, over what the naive client used, or over the case without refusals."""
    if "random" not in CASES[case]:
        return counts["router: used"] / counts["naive: used"]
    control = _counts(results.of(_cell(scale, CONTROL)))
    return counts["router: used"] / control["router: used"] if control else None


def _against_bar(over: float | None, case: str) -> tuple[str, str, str]:
    if case == CONTROL:
        return (times(over), "", "")
    return (times(over), f"{BAR} x", met(over, BAR, at_least=True))


LIMITERS = Measurement("limiters", "Sending at the pace of a limit", 114, _cells, _table, short=False)
