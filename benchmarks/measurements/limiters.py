"""Sending at a stated limit: how much of it real limiters accept, beside a naive client at the same pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, met, seconds, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

SECONDS = {True: "35", False: "15"}
"""Seconds of a case, by whether everything is measured; the first 5 do not count."""
MINUTES = "250"
"""Seconds of a case with windows of a minute, the first two of which do not count."""
BAR = 0.97
"""Of what the naive client, or the case without refusals, uses."""
BUSY_BAR = 0.9
"""The same beside a busy loop for each of two cores: calls leave late, and so early for the next."""
BUSY = {"busy": "2"}
KEYS = 5_000
KEYS_BAR = 1.1
"""Of the time without the key that is always refused."""
CONTROL = "no refusals, 200/s"
STATED_LESS = "nginx 50/s, 429, two sinks that state 40 together"
JITTER = {"latency": "20", "jitter": "15"}
"""Milliseconds for which Toxiproxy holds up calls, and answers, and by how much more or less."""
TURNS = {"turns": "5"}
"""Of a case whose refusals come by chance: the medians count, for the figures of 30 seconds vary by 2 %."""
CASES: dict[str, dict[str, str]] = {
    CONTROL: {"limiter": "none", "limit": "200"},
    "2 % at random, 200/s": {"limiter": "none", "limit": "200", "random": "2", **TURNS},
    "2 % at random, Retry-After: 1, 200/s": {
        "limiter": "none",
        "limit": "200",
        "random": "2",
        "retry_after": "1",
        **TURNS,
    },
    "nginx 50/s, 429": {"limit": "50"},
    "nginx 50/s, 503": {"limit": "50", "status": "503"},
    "nginx 500/s, 429": {"limit": "500"},
    "nginx 500/s, 503": {"limit": "500", "status": "503"},
    "nginx 50/s, 429, burst=10": {"limit": "50", "burst": "10"},
    "nginx 500/s, 429, burst=10": {"limit": "500", "burst": "10"},
    STATED_LESS: {"limit": "50", "stated": "20", "senders": "2"},
    "token bucket 50/s, burst 10": {"limiter": "bucket", "limit": "50", "burst": "10"},
    "token bucket 500/s, burst 50": {"limiter": "bucket", "limit": "500", "burst": "50"},
    "nginx 50/s, 429, 4 tasks": {"limit": "50", "tasks": "4"},
    "token bucket 500/s, burst 50, 16 tasks": {"limiter": "bucket", "limit": "500", "burst": "50", "tasks": "16"},
    "sliding window 50/s": {"limiter": "sliding", "limit": "50"},
    "fixed windows of a second, 50": {"limiter": "fixed", "limit": "50"},
    "fixed windows of a minute, 1000": {"limiter": "fixed", "limit": "1000", "window": "60"},
    "moving window of a second, 50": {"limiter": "moving", "limit": "50"},
    "jitter: nginx 50/s, 429": {"limit": "50", **JITTER, **TURNS},
    "jitter: nginx 50/s, 429, burst=10": {"limit": "50", "burst": "10", **JITTER},
    "jitter: token bucket 500/s, burst 50": {"limiter": "bucket", "limit": "500", "burst": "50", **JITTER},
    "jitter: sliding window 50/s": {"limiter": "sliding", "limit": "50", **JITTER},
    "busy: nginx 500/s, 429": {"limit": "500", **BUSY, **TURNS},
    "busy: nginx 50/s, 429": {"limit": "50", **BUSY, **TURNS},
    "busy: token bucket 500/s, burst 50": {"limiter": "bucket", "limit": "500", "burst": "50", **BUSY, **TURNS},
    "hidden: token bucket 50/s": {"limiter": "bucket", "limit": "50", "burst": "10", "stated": "none"},
    "hidden: fixed windows of a minute, 1000": {
        "limiter": "fixed",
        "limit": "1000",
        "window": "60",
        "stated": "none",
    },
    "two processes, each states half": {
        "limiter": "bucket",
        "limit": "50",
        "burst": "5",
        "stated": "25",
        "senders": "2",
    },
    "two processes, each states all": {"limiter": "bucket", "limit": "50", "burst": "5", "senders": "2"},
}
BARS = {
    STATED_LESS: 0.93,
    "hidden: token bucket 50/s": 0.85,
    "hidden: fixed windows of a minute, 1000": 0.85,
    "two processes, each states half": 0.93,
    "two processes, each states all": 0.85,
}
"""Of the limit itself; others are held against the naive client."""
WINDOW_BAR = 0.95
"""Of the limit, where it is stated as it is."""
COLUMNS = ("limiter", "used", "naive", "over", "bar", "", "refused", "naive refused", "most in a window", "limit", "")
NOTES = (
    "Used: accepted calls over the limit, by the server's log, after five seconds (windows of a minute: after two). "
    "The naive client runs in the same run, at 98 % of the limit; it sends refused calls again and backs off nowhere.",
    "Over: of the naive client; at random of the line without refusals; with bars of 0.95 and less of the limit. "
    "Most in a window: calls that the router wrote, refused ones also, by its own clock.",
    f"At random, nginx behind jitter, and busy: medians of {TURNS['turns']} turns.",
    f"Busy: {BUSY['busy']} processes that do nothing but loop run beside clients and servers, on two cores.",
    f"{KEYS:,} keys, two rows each at 5/s a key: the time until all have arrived, with 40 rows of one more key whose "
    "calls are always refused over without them.",
    f"Jitter: both clients behind Toxiproxy, which holds calls and answers up for {JITTER['latency']} ms, "
    f"{JITTER['jitter']} more or less.",
)


def _cell(scale: Scale, case: str) -> Cell:
    options = {**CASES[case], "seconds": SECONDS[scale.full]}
    if "window" in options:
        options["seconds"] = MINUTES
    tasks = int(options.pop("tasks", "1"))
    return Cell("limiters", "single", 0, 0, tasks, feed="", options=tuple(options.items()))


def _keys_cell(scale: Scale) -> Cell:
    keys = KEYS if scale.full else KEYS // 5
    return Cell("limiters", "single", 2 * keys, 0, 1, feed="", options=(("limiter", "none"), ("keys", str(keys))))


def _cells(scale: Scale) -> list[Cell]:
    cells = []
    for case, options in CASES.items():
        # Windows of a minute take too long for the short version.
        if scale.full or "window" not in options:
            cells.append(_cell(scale, case))
    cells.append(_keys_cell(scale))
    return cells


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    shares: list[str] = []
    for case, options in CASES.items():
        counts = _counts(results.of(_cell(scale, case)))
        if not counts:
            rows.append((case, figure(results.of(_cell(scale, case))), *[MISSING] * (len(COLUMNS) - 2)))
            continue
        over = _over(results, scale, case, counts)
        figures[f"used: {case}"] = counts["router: used"]
        figures[f"over: {case}"] = over
        stated = options.get("stated", options["limit"])
        senders = int(options.get("senders", "1"))
        if stated == "none":
            limit = float(options["limit"]) * senders
            # What is not stated has to be exceeded, or it is not found.
            limit_met = ""
        else:
            limit = float(stated) * senders
            limit_met = met(counts["highest"], limit, at_least=False)
        if "senders" in options:
            figures[f"least share: {case}"] = counts["least share"]
            shares.append(f"{case}: {counts['least share']:.0%}")
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
                limit_met,
            )
        )
    key_seconds = _counts(results.of(_keys_cell(scale)))
    with_refused_key = key_seconds.get("with")
    without_refused_key = key_seconds.get("without")
    longer = ratio(with_refused_key, without_refused_key)
    figures["over: a key that is refused"] = longer
    rows.append(
        (
            "one refused key among others",
            seconds(with_refused_key),
            seconds(without_refused_key),
            times(longer),
            f"{KEYS_BAR} x",
            met(longer, KEYS_BAR, at_least=False),
            *[""] * 5,
        )
    )
    notes = NOTES
    if shares:
        text = f"Of two senders the one that sent less had this part of the calls (bar: 35 %): {'; '.join(shares)}."
        notes = (*NOTES, text)
    return Table(COLUMNS, tuple(rows), figures, notes)


def _counts(result: CellResult | None) -> dict[str, float]:
    if result is None or result.problem or not result.runs:
        return {}
    return result.runs[0].counts


def _over(results: Results, scale: Scale, case: str, counts: dict[str, float]) -> float | None:
    """Return what was used, as it is, or over what the naive client or the case without refusals used."""
    used = counts["router: used"]
    options = CASES[case]
    if _bar(case) not in {BAR, BUSY_BAR}:
        return used
    if "random" not in options:
        return counts["of naive"]
    control = _counts(results.of(_cell(scale, CONTROL)))
    return used / control["router: used"] if control else None


def _bar(case: str) -> float:
    if case in BARS:
        return BARS[case]
    options = CASES[case]
    if "busy" in options:
        return BUSY_BAR
    is_held_against_naive = options.get("limiter", "nginx") in {"nginx", "none"} and "burst" not in options
    return BAR if is_held_against_naive else WINDOW_BAR


def _against_bar(over: float | None, case: str) -> tuple[str, str, str]:
    if case == CONTROL:
        return (times(over), "", "")
    bar = _bar(case)
    return (times(over), f"{bar} x", met(over, bar, at_least=True))


LIMITERS = Measurement("limiters", "Sending at the pace of a limit", 114, _cells, _table, short=False)
