"""Ask what many tables cost more than one: bronze + 200 against bronze + 1, the same number of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.format import figure, times, verdict
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

BAR = 1.4


def _cells(scale: Scale) -> list[Cell]:
    return [scale.warm("router", 1), scale.warm("router", 200)]


def _table(results: Results, scale: Scale) -> Table:
    one, many = (results.of(cell) for cell in _cells(scale))
    longer = ratio(median(many), median(one))
    row = (figure(one), figure(many), times(longer), f"at most {BAR:g} x", verdict(longer, BAR, at_least=False))
    return Table(
        ("bronze + 1 table", "bronze + 200 tables", "takes", "bar", ""), (row,), {"two_hundred_over_one": longer}
    )


WIDTH = Measurement("width", "The price of 200 tables", 30, _cells, _table)
