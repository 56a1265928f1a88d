"""Show an API to whoever looks: what it takes, what it does now, what came. A page in a browser, text for curl."""

from __future__ import annotations

import time
from collections import Counter
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np

from router_demo.api_server.calls import THROTTLED, Reply, highest, used

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
    """Answer a look at the API by what the Accept header asks for; a look is no call: no check, nothing is counted."""
    drawn = _drawn(record, time.monotonic())
    if "text/html" in accept:
        body, kind = _html(script, _lines(script, record), *drawn), "text/html"
    else:
        body, kind = _text(script, _lines(script, record), drawn[0]), "text/plain"
    return Reply(200, body.encode(), [("Content-Type", f"{kind}; charset=utf-8"), ("Cache-Control", "no-store")])


def limits_of(script: Script) -> str:
    """Return the limits of the API, as text."""
    limits = [_limit(limit) for limit in script.limits]
    return f"takes {', '.join(limits)}, and answers 429 to more" if limits else "takes as much as comes"


def state_of(script: Script) -> str:
    """Return what the API does at the moment, as text."""
    failures = [_failure(failure) for failure in script.failures]
    latency = f", in {script.latency * 1000:g} ms each" if script.latency else ""
    return AWAY.get(script.outage) or ", ".join(failures) or f"it takes calls{latency}"


def _limit(limit: Limit) -> str:
    how = f"counted again every {limit.window:g} s" if limit.window else f"{limit.burst:g} of them at once"
    return f"{limit.rate:g} {limit.unit} a second ({how})"


def _failure(failure: Failure) -> str:
    share = "every call" if failure.share == 1 else f"{failure.share:.0%} of the calls"
    how = f"answers {failure.status} to" if failure.how == "answer" else f"fails ({failure.how}) on"
    return f"it {how} {share}" + ("" if failure.times is None else f", {failure.times} times at most")


def _drawn(record: Record, now: float) -> tuple[list[int], list[int]]:
    """Return the calls of each of the last seconds, the newest last: all of them, and those that were taken."""
    times, taken = np.array(record.times), np.array(record.processed, bool)
    ages = np.floor(now - times).astype(int)
    return _by_age(ages), _by_age(ages[taken])


def _by_age(ages: NDArray[np.int64]) -> list[int]:
    counts: list[int] = np.bincount(ages[ages < SPAN], minlength=SPAN)[::-1].tolist()
    return counts


def _top(script: Script, seconds: list[int]) -> tuple[float | None, float]:
    """Return the limit of calls per second, and the height of what is drawn."""
    rates = [limit.rate for limit in script.limits if limit.unit == "calls"]
    limit = min(rates, default=None)
    return limit, max([*seconds, limit or 0, 1]) * 1.05


def _lines(script: Script, record: Record) -> list[Line]:
    """Return what is counted."""
    times, statuses = np.array(record.times), np.array(record.statuses)
    now, let_in = time.monotonic(), times[statuses != THROTTLED]
    limit, _ = _top(script, [])
    of = f"of {limit:g}" if limit else ""
    lines = [
        ("calls in the last second", f"{np.count_nonzero(times > now - 1):,}", of),
        ("most in any second", f"{highest(times, 1.0):,.0f}", of),
    ]
    for name in (one.name for one in script.limits if one.unit == "calls"):
        share = used(let_in, record.rates[name])
        lines.append(("limit used", "" if share is None else f"{share:.0%}", "from the first call to the last"))
    lines.append(("calls", f"{len(times):,}", ""))
    for status, count in sorted(Counter(statuses.tolist()).items()):
        lines.append((f"  {status or 'none'}", f"{count:,}", PHRASES.get(status, "no answer" if not status else "")))
    keys = Counter(key for key, done in zip(record.keys, record.processed, strict=True) if done and key)
    return [*lines, ("taken twice", f"{keys.total() - len(keys):,}", "by their idempotency keys")]


def _text(script: Script, lines: list[Line], seconds: list[int]) -> str:
    limit, top = _top(script, seconds)
    full = limit or top
    bars = "".join(BLOCKS[min(8, int(np.ceil(8 * count / full)))] for count in seconds).lstrip() or "none yet"
    counted = [f"{name:<26}{number:>9}   {remark}".rstrip() for name, number, remark in lines]
    drawn = "calls by second, the newest last" + ("; a full block is the limit" if limit else "")
    return "\n".join(
        [f"This is a mock API: it {limits_of(script)}.", f"Now {state_of(script)}.", "", drawn, bars, "", *counted, ""]
    )


def _html(script: Script, lines: list[Line], seconds: list[int], taken: list[int]) -> str:
    limit, top = _top(script, seconds)
    bars = [*_bars("all", seconds, top), *_bars("taken", taken, top)]
    if limit:
        height = 100 - 100 * limit / top
        bars.append(
            f'<line x1="0" x2="{SPAN}" y1="{height:.1f}" y2="{height:.1f}" vector-effect="non-scaling-stroke"/>'
        )
    counted = "\n".join(f"<tr>{''.join(f'<td>{_cell(text)}</td>' for text in line)}</tr>" for line in lines)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="1"><title>A mock API with a limit</title>
<style>{STYLE}</style>
<h1>A mock API with a limit</h1>
<p>It {escape(limits_of(script))}. <strong>Now {escape(state_of(script))}.</strong></p>
<svg viewBox="0 0 {SPAN} 100" preserveAspectRatio="none">{"".join(bars)}</svg>
<table>{counted}</table>
<p>Calls by second, the last minute. Green were taken, red were not; the line is the limit.</p>
</html>
"""


def _bars(kind: str, seconds: list[int], top: float) -> list[str]:
    heights = [100 * count / top for count in seconds]
    return [
        f'<rect class="{kind}" x="{at}" y="{100 - height:.1f}" width=".9" height="{height:.1f}"/>'
        for at, height in enumerate(heights)
        if height
    ]


def _cell(text: str) -> str:
    return escape(text).replace("  ", "&emsp;")
