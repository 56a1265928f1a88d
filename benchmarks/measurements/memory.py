"""Ask whether the memory of Spark's Python workers grows with the batch."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, megabytes
from benchmarks.measurements import Measurement, Table
from benchmarks.results import ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results


def _cells(scale: Scale) -> list[Cell]:
    sizes = (scale.events // 4, scale.events, scale.events * 2) if scale.full else (scale.events // 3, scale.events)
    return [Cell("router", "single", events, 7, sample="workers") for events in sizes]


def _table(results: Results, scale: Scale) -> Table:
    cells = _cells(scale)
    found = [results.of(cell) for cell in cells]
    rows = [_row(cell, result) for cell, result in zip(cells, found, strict=True)]
    least, most = peak(found[0], "worker_mb"), peak(found[-1], "worker_mb")
    growth = ratio(most, least)
    figures = {f"worker_mb_{cell.events}": peak(result, "worker_mb") for cell, result in zip(cells, found, strict=True)}
    times = cells[-1].events / cells[0].events
    notes = ["Peak resident memory, sampled every 100 ms; one batch into bronze + 7 tables."]
    if growth is not None:
        notes.append(f"{times:g} times the rows take {growth:.2f} times the memory of a worker.")
    return Table(
        ("rows in one batch", "largest worker", "all workers together", "workers", "seconds"),
        tuple(rows),
        {**figures, "growth": growth},
        tuple(notes),
    )


def peak(result: CellResult | None, name: str) -> float | None:
    """Return the median of a sampled peak; None when there is no valid figure."""
    if result is None or result.problem:
        return None
    values = [run.peaks[name] for run in result.counted if name in run.peaks]
    return statistics.median(values) if values else None


def _row(cell: Cell, result: CellResult | None) -> tuple[str, ...]:
    workers = peak(result, "workers")
    return (
        count(cell.events),
        megabytes(peak(result, "worker_mb")),
        megabytes(peak(result, "workers_mb")),
        MISSING if workers is None else f"{workers:.0f}",
        figure(result),
    )


MEMORY = Measurement("memory", "Memory of the Python workers", 50, _cells, _table)
