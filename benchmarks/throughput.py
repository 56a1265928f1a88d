"""Tables and lines of throughput over something that grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.format import MISSING, events_per_second, rate, times
from benchmarks.measurements import Table
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Cell
    from benchmarks.results import Results

Grid = dict[str, dict[int, "Cell"]]
"""Per subject the cell of each point on the axis."""


def table(across: str, grid: Grid, labels: dict[str, str], results: Results) -> Table:
    """Return events per second, a row per point and a column per subject, with the ratio to the first subject."""
    first, *others = grid
    points = sorted({point for column in grid.values() for point in column})
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for point in points:
        found = {name: results.of(column[point]) if point in column else None for name, column in grid.items()}
        faster = {name: ratio(median(found[name]), median(found[first])) for name in others}
        figures |= {f"{name}_over_{first}_{point}": value for name, value in faster.items()}
        shown = [rate(result) if result else MISSING for result in found.values()]
        rows.append((str(point), *shown, *[times(value) for value in faster.values()]))
    columns = (across, *[f"{labels[name]}, events/s" for name in grid])
    return Table((*columns, *[f"faster than {labels[name]}" for name in others]), tuple(rows), figures)


def lines(grid: Grid, labels: dict[str, str], results: Results) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each subject that have a valid figure."""
    return {
        labels[name]: [
            (point, value) for point, cell in column.items() if (value := events_per_second(results.of(cell)))
        ]
        for name, column in grid.items()
    }
