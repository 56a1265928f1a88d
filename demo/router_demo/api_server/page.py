"""Show what an API takes, what it does now and which calls came: a page in a browser, text for curl."""

from __future__ import annotations

import time
from collections import Counter
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np

from router_demo.api_server.calls import THROTTLED, UNANSWERED, Reply, highest, used

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from router_demo.api_server.calls import Record
    from router_demo.api_server.script import Failure, Limit, Script

PHRASES = {status.value: status.phrase for status in HTTPStatus}
SPAN = 60
"""Seconds that are drawn."""
BLOCKS = " ▁▂▃▄▅▆▇█"
AWAY = {"refused": "it is unavailable: it accepts no connection", "dropped": "it is unavailable: no packet arrives"}
Line = tuple[str, str, str]
"""What is counted, how much, and a remark."""
STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 40rem; margin: 3rem auto; padding: 0 1rem }
svg { width: 100%; height: 8rem; margin: 1rem 0; border-bottom: 1px solid #888 }
.all { fill: #d64545 } .taken { fill: #3c9d5c } line { stroke: #888; stroke-dasharray: 4 }
td { padding: .1rem 2rem .1rem 0; font-variant-numeric: tabular-nums } td + td { text-align: right }
td + td + td, p + p { color: #888; text-align: left }
"""


def page(accept: str, script: Script, record: Record) -> Reply:
    """Return the page, as HTML or as text by the Accept header.

    A look at the page is no call: no check sees it, and it is not counted.
    """
    calls, taken = _calls_by_second(record, time.monotonic())
    lines = _lines(script, record)
    if "text/html" in accept:
        content_type = "text/html"
        body = _html(script, lines, calls, taken)
    else:
        content_type = "text/plain"
        body = _text(script, lines, calls)
    headers = [("Content-Type", f"{content_type}; charset=utf-8"), ("Cache-Control", "no-store")]
    return Reply(200, body.encode(), headers)


def limits_of(script: Script) -> str:
    """Return the limits of the API, as text."""
    if not script.limits:
        return "takes as much as comes"
    limits = ", ".join(_limit(limit) for limit in script.limits)
    return f"takes {limits}, and answers 429 to more"


def state_of(script: Script) -> str:
    """Return what the API does at the moment, as text."""
    if script.outage:
        return AWAY[script.outage]
    if script.failures:
        return ", ".join(_failure(failure) for failure in script.failures)
    if script.latency:
        return f"it takes calls, in {script.latency * 1000:g} ms each"
    return "it takes calls"


def _limit(limit: Limit) -> str:
    pace = f"{limit.rate:g} {limit.unit} a second"
    if limit.window:
        return f"{pace} (counted again every {limit.window:g} s)"
    return f"{pace} ({limit.burst:g} of them at once)"


def _failure(failure: Failure) -> str:
    share = "every call" if failure.share == 1 else f"{failure.share:.0%} of the calls"
    sentence = f"it fails ({failure.how}) on {share}"
    if failure.how == "answer":
        sentence = f"it answers {failure.status} to {share}"
    if failure.times is not None:
        sentence += f", {failure.times} times at most"
    return sentence


def _calls_by_second(record: Record, now: float) -> tuple[list[int], list[int]]:
    """Return the calls of each of the last seconds, the newest last: all of them, and those that were taken."""
    ages = np.floor(now - np.array(record.times)).astype(int)
    is_taken = np.array(record.processed, bool)
    return _count_by_age(ages), _count_by_age(ages[is_taken])


def _count_by_age(ages: NDArray[np.int64]) -> list[int]:
    counts: list[int] = np.bincount(ages[ages < SPAN], minlength=SPAN)[::-1].tolist()
    return counts


def _lowest_limit(script: Script) -> float | None:
    """Return the limit of calls per second, the lowest if there are more."""
    return min((limit.rate for limit in script.limits if limit.unit == "calls"), default=None)


def _top(limit: float | None, calls: list[int]) -> float:
    """Return the height of what is drawn, in calls per second: a little over the limit and the fullest second."""
    return max([*calls, limit or 0, 1]) * 1.05


def _lines(script: Script, record: Record) -> list[Line]:
    """Return what is counted."""
    now = time.monotonic()
    times = np.array(record.times)
    statuses = np.array(record.statuses)
    limit = _lowest_limit(script)
    of_limit = f"of {limit:g}" if limit else ""
    lines = [
        ("calls in the last second", f"{np.count_nonzero(times > now - 1):,}", of_limit),
        ("most in any second", f"{highest(times, 1.0):,.0f}", of_limit),
    ]
    # A call that was answered 429 took nothing of the limit.
    let_in = times[statuses != THROTTLED]
    for each_limit in script.limits:
        if each_limit.unit != "calls":
            continue
        share = used(let_in, record.rates[each_limit.name])
        percentage = "" if share is None else f"{share:.0%}"
        lines.append(("limit used", percentage, "from the first call to the last"))
    lines.append(("calls", f"{len(times):,}", ""))
    for status, count in sorted(Counter(statuses.tolist()).items()):
        if status == UNANSWERED:
            lines.append(("  none", f"{count:,}", "no answer"))
        else:
            lines.append((f"  {status}", f"{count:,}", PHRASES.get(status, "")))
    keys = record.processed_keys(0, len(times))
    lines.append(("taken twice", f"{len(keys) - len(set(keys)):,}", "by their idempotency keys"))
    return lines


def _text(script: Script, lines: list[Line], calls: list[int]) -> str:
    limit = _lowest_limit(script)
    full = limit or _top(limit, calls)
    bars = "".join(BLOCKS[min(8, int(np.ceil(8 * count / full)))] for count in calls)
    caption = "calls by second, the newest last"
    if limit:
        caption += "; a full block is the limit"
    page_lines = [
        f"This is a mock API: it {limits_of(script)}.",
        f"Now {state_of(script)}.",
        "",
        caption,
        bars.lstrip() or "none yet",  # seconds without a call before the first one are not drawn
        "",
    ]
    for name, number, remark in lines:
        page_lines.append(f"{name:<26}{number:>9}   {remark}".rstrip())
    page_lines.append("")
    return "\n".join(page_lines)


def _html(script: Script, lines: list[Line], calls: list[int], taken: list[int]) -> str:
    limit = _lowest_limit(script)
    top = _top(limit, calls)
    # Those that were taken are drawn over all: what stays red was not taken.
    bars = [*_bars("all", calls, top), *_bars("taken", taken, top)]
    if limit:
        height = 100 - 100 * limit / top
        bars.append(
            f'<line x1="0" x2="{SPAN}" y1="{height:.1f}" y2="{height:.1f}" vector-effect="non-scaling-stroke"/>'
        )
    table = "\n".join(_table_row(line) for line in lines)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="1"><title>A mock API with a limit</title>
<style>{STYLE}</style>
<h1>A mock API with a limit</h1>
<p>It {escape(limits_of(script))}. <strong>Now {escape(state_of(script))}.</strong></p>
<svg viewBox="0 0 {SPAN} 100" preserveAspectRatio="none">{"".join(bars)}</svg>
<table>{table}</table>
<p>Calls by second, the last minute. Green were taken, red were not; the line is the limit.</p>
</html>
"""


def _bars(css_class: str, calls: list[int], top: float) -> list[str]:
    bars = []
    for second, count in enumerate(calls):
        if count == 0:
            continue
        height = 100 * count / top
        bars.append(f'<rect class="{css_class}" x="{second}" y="{100 - height:.1f}" width=".9" height="{height:.1f}"/>')
    return bars


def _table_row(line: Line) -> str:
    cells = "".join(f"<td>{_cell(text)}</td>" for text in line)
    return f"<tr>{cells}</tr>"


def _cell(text: str) -> str:
    return escape(text).replace("  ", "&emsp;")
