"""Memory, and bytes on disk.

Does the memory of Spark's Python workers grow with the batch? Does the driver's stay flat over thousands of small
batches into tables that are maintained? What do all processes take together, and what is left on disk?
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, megabytes
from benchmarks.measurements import Measurement, Table
from benchmarks.results import ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results


def _memory_cells(scale: Scale) -> list[Cell]:
    sizes = (scale.events // 4, scale.events, scale.events * 2) if scale.full else (scale.events // 3, scale.events)
    return [Cell("router", "single", events, 7, sample="workers") for events in sizes]


def _memory_table(results: Results, scale: Scale) -> Table:
    cells = _memory_cells(scale)
    found = [results.of(cell) for cell in cells]
    rows = [_memory_row(cell, result) for cell, result in zip(cells, found, strict=True)]
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


def _memory_row(cell: Cell, result: CellResult | None) -> tuple[str, ...]:
    workers = peak(result, "workers")
    return (
        count(cell.events),
        megabytes(peak(result, "worker_mb")),
        megabytes(peak(result, "workers_mb")),
        MISSING if workers is None else f"{workers:.0f}",
        figure(result),
    )


MEMORY = Measurement("memory", "Memory of the Python workers", 50, _memory_cells, _memory_table)


ROWS = 20
SETTLED = 200
"""Batches after which memory must not grow any more."""
KINDS = {"python_mb": "Python", "java_mb": "Java", "heap_mb": "heap after GC"}


def _driver_cells(scale: Scale) -> list[Cell]:
    batches = 2000 if scale.full else 400
    # A topic that is there already, read in small bites: every batch has the same size and the count can be checked.
    # Maintained as tables that live for weeks are: uncompacted, a table's list of files is what grows.
    options = (("maintain", "*.*"),)
    return [Cell("router", "single", batches * ROWS, 7, rows_per_batch=ROWS, sample="driver", options=options)]


def _driver_table(results: Results, scale: Scale) -> Table:
    result = results.of(_driver_cells(scale)[0])
    columns = ("batches", "seconds", *KINDS.values())
    if result is None or result.problem or not result.counted[0].samples:
        return Table(columns, ((figure(result), *[""] * (len(columns) - 1)),))
    samples = result.counted[0].samples
    figures: dict[str, float | None] = {f"{kind}_per_1000": growth(samples, kind) for kind in KINDS}
    grown = ", ".join(f"{label} {figures[f'{kind}_per_1000'] or 0:+.1f} MB" for kind, label in KINDS.items())
    shown = [sample for index, sample in enumerate(samples) if index % max(1, len(samples) // 10) == 0]
    shown += [] if shown[-1] is samples[-1] else [samples[-1]]
    rows = tuple(_driver_row(sample) for sample in shown)
    return Table(columns, rows, figures, (f"Per 1 000 batches after the first {SETTLED}: {grown} (fitted line).",))


def growth(samples: list[dict[str, float]], kind: str) -> float | None:
    """Return the megabytes gained per 1 000 batches once settled, by a fitted line; None for fewer than three points.

    A line and not first against last: a garbage collection between two samples moves single points.
    """
    settled = [sample for sample in samples if sample["batches"] >= SETTLED]
    if len(settled) < 3:
        return None
    slope, _ = np.polyfit([sample["batches"] for sample in settled], [sample[kind] for sample in settled], 1)
    return float(slope) * 1000


def _driver_row(sample: dict[str, float]) -> tuple[str, ...]:
    sizes = [megabytes(sample[kind]) for kind in KINDS]
    return (count(sample["batches"]), f"{sample['seconds']:.0f}", *sizes)


DRIVER = Measurement("driver", "Memory of the driver over small batches", 60, _driver_cells, _driver_table, short=False)


FOOTPRINT_SUBJECTS = {"router": "router", "loop": "loop of appends", "bare": "PySpark, to nowhere"}


def _footprint_cell(scale: Scale, subject: str) -> Cell:
    return Cell(subject, "cold", scale.events, 7, sample="footprint")


def _footprint_cells(scale: Scale) -> list[Cell]:
    return [_footprint_cell(scale, subject) for subject in FOOTPRINT_SUBJECTS]


def _footprint_table(results: Results, scale: Scale) -> Table:
    rows = []
    figures = {}
    for subject, label in FOOTPRINT_SUBJECTS.items():
        found = results.of(_footprint_cell(scale, subject))
        sizes = {name: peak(found, name) for name in ("pss_mb", "disk_mb")}
        rows.append((label, *map(megabytes, sizes.values()), figure(found)))
        figures |= {f"{subject}_{name}": size for name, size in sizes.items()}
    notes = (
        "The sum of the PSS of a process and all below it (/proc/PID/smaps_rollup), which counts a shared page once, "
        "sampled every half second; on disk: tables and checkpoint after the run.",
    )
    return Table(("cold, bronze + 7 tables", "peak memory", "on disk", "seconds"), tuple(rows), figures, notes)


FOOTPRINT = Measurement(
    "footprint", "Memory of all processes, and bytes on disk", 62, _footprint_cells, _footprint_table, short=False
)
