"""Tell how old events were when a table had them: by the log of the table, where every commit has its time."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WRITTEN = "sent"
"""The column with the time at which an event was written to its source, in seconds since 1970."""


def ages(tables: Iterable[Path], since: float, until: float) -> list[float]:
    """Return the seconds from an event's writing to its commit, for every event written from `since` to `until`.

    A commit's file is written whole just before it is in the log: its time is that of the commit, or a bit earlier.
    """
    found: list[float] = []
    for table in tables:
        for commit in sorted((table / "_delta_log").glob("*.json")):
            actions = map(json.loads, commit.read_text().splitlines())
            added = [table / action["add"]["path"] for action in actions if "add" in action]
            written = [time for file in added for time in pq.read_table(file, columns=[WRITTEN]).column(0).to_pylist()]
            found += [commit.stat().st_mtime - time for time in written if since <= time < until]
    return found


def figures(found: list[float]) -> dict[str, float]:
    """Return the median age, the 99th percentile and the highest."""
    if not found:
        return {}
    found = sorted(found)
    return {"p50": statistics.median(found), "p99": found[int(len(found) * 0.99)], "max": found[-1]}
