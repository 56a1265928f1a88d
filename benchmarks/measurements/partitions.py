"""Throughput against the number of partitions of the topic, into bronze + 7 tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measurements import Chart, Measurement, Table
from benchmarks.throughput import lines, table

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

SUBJECTS = {"router": "router", "loop": "loop of appends"}


def _grid(scale: Scale) -> dict[str, dict[int, Cell]]:
    points = scale.of_size((1, 4), (1, 2, 4, 8, 16))
    return {name: {point: scale.warm(name, 7, partitions=point) for point in points} for name in SUBJECTS}


def _cells(scale: Scale) -> list[Cell]:
    ours, loop = _grid(scale).values()
    return [column[point] for point in ours for column in (ours, loop)]


def _table(results: Results, scale: Scale) -> Table:
    return table("partitions", _grid(scale), SUBJECTS, results)


def _chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by partitions of the topic (bronze + 7 tables, warm)"
    return Chart(title, "partitions", lines(_grid(scale), SUBJECTS, results))


PARTITIONS = Measurement("partitions", "Throughput against partitions", 70, _cells, _table, _chart)
