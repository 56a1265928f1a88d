"""Throughput against the number of tables, bronze included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measurements import Chart, Measurement, Table
from benchmarks.throughput import lines, table

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

SUBJECTS = {"router": "router", "loop": "loop of appends"}


def _grid(scale: Scale) -> dict[str, dict[int, Cell]]:
    ours = scale.of_size((1, 7, 50, 200), (1, 7, 50, 200, 1000))
    loops = scale.of_size((1, 7, 50), ours)
    points = {"router": ours, "loop": loops}
    return {name: {point: scale.warm(name, point) for point in points[name]} for name in SUBJECTS}


def _cells(scale: Scale) -> list[Cell]:
    grid = _grid(scale)
    return [column[point] for point in grid["router"] for column in grid.values() if point in column]


def _table(results: Results, scale: Scale) -> Table:
    return table("tables", _grid(scale), SUBJECTS, results)


def _chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by number of tables (bronze included, warm)"
    return Chart(title, "tables", lines(_grid(scale), SUBJECTS, results))


TABLES = Measurement("tables", "Throughput against tables", 80, _cells, _table, _chart)
