"""Calls in windows of time, counted by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_rest.limits.sliding_window import Run


USED_SHARE = 0.98
"""The part of a limit that is used."""


def most_in_a_window(uses: list[tuple[float, int]], seconds: float) -> int:
    """Return the most that any window holds; its end belongs to it, its beginning does not."""
    uses = sorted(uses)
    return max((sum(many for when, many in uses if end - seconds < when <= end) for end, _ in uses), default=0)


def token_times(run: Run) -> list[float]:
    """Return the times of the tokens of a run."""
    return [run.first + number * run.step for number in range(run.calls)]
