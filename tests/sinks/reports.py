"""Reports of tasks that send rows."""

from __future__ import annotations

from collections import Counter
from typing import Any


def rows_by_kind(reports: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many rows a task reports of each kind: sent, refused and so on."""
    rows: Counter[str] = Counter()
    for report in reports:
        rows[report["kind"]] += report["rows"] or 0
    return dict(rows)
