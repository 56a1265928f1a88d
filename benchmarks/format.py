"""Write figures the way people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.results import median

if TYPE_CHECKING:
    from benchmarks.results import CellResult

MISSING = "-"


def seconds(value: float | None) -> str:
    """Return seconds with the digits that mean something."""
    if value is None:
        return MISSING
    if value == 0:
        return "0 ms"
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    if value < 1:
        return f"{value:.2f} s"
    if value < 100:
        return f"{value:.1f} s"
    return f"{value:.0f} s"


def times(value: float | None) -> str:
    """Return a ratio: 4.2 x."""
    if value is None:
        return MISSING
    return f"{value:.2f} x" if value < 10 else f"{value:.1f} x"


def megabytes(value: float | None) -> str:
    """Return megabytes."""
    return MISSING if value is None else f"{value:.0f} MB"


def count(value: float | None) -> str:
    """Return a count with thin groups: 1 000 000."""
    return MISSING if value is None else f"{value:,.0f}".replace(",", " ")


def met(value: float | None, bar: float, *, at_least: bool) -> str:
    """Say whether a bar was reached."""
    if value is None:
        return MISSING
    reached = value >= bar if at_least else value <= bar
    return "reached" if reached else "MISSED"


def figure(result: CellResult | None, value: str = "seconds") -> str:
    """Return a cell's median in seconds, or ERROR; `*` marks a noisy one."""
    if result is None:
        return MISSING
    if result.problem:
        return "ERROR"
    return seconds(median(result, value)) + ("*" if result.noisy else "")


def rate(result: CellResult | None) -> str:
    """Return events per second of a cell, or ERROR; `*` marks a noisy one."""
    value = events_per_second(result)
    if result is None or value is None:
        return figure(result)
    return count(value) + ("*" if result.noisy else "")


def events_per_second(result: CellResult | None) -> float | None:
    """Return the throughput of a cell, by its processing time; None when there is no valid figure."""
    seconds_of_run = median(result)
    if result is None or not seconds_of_run:
        return None
    return result.cell.events / seconds_of_run
