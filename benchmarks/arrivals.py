"""Run the API that is posted to, and count what arrived there: a figure of a run that lost a row is no figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.verify import compare
from router_demo.api import Api

if TYPE_CHECKING:
    from typing import Any

LATENCY = {1: 0.034, 10: 0.100}
"""Seconds that the API takes, by the rows of a call: what the published figures were measured at."""


def api(rows_per_call: int, **script: Any) -> Api:
    """Return the API, to be used in a `with` block; a process of its own."""
    return Api(latency=LATENCY[rows_per_call], **script)


def counts(served: Api) -> dict[str, float]:
    """Return what the API counted; `sending` are the seconds between the first call and the last."""
    stats, rows = served.stats(), served.rows("id")
    found = {
        "rows": len(rows),
        "rows_processed": sum(rows.values()),
        "calls": stats.arrived,
        "throttled": stats.statuses.get(429, 0),
        "connections": stats.connections,
        "in_flight": stats.busiest,
        "highest": stats.highest,
        "api_lag": stats.lag,
        "sending": (stats.last or 0.0) - (stats.first or 0.0),
    }
    used = stats.limit_used.get("calls")
    return found if used is None else {**found, "limit_used": used}


def wrong(events: int, found: dict[str, float]) -> str:
    """Return "" when every event arrived once, and else what is wrong."""
    got = {name: int(found[name]) for name in ("rows", "rows_processed")}
    return compare(dict.fromkeys(got, events), got)
