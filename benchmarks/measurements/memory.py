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
    short = (scale.events // 3, scale.events)
    full = (scale.events // 4, scale.events, scale.events * 2)
    sizes = scale.of_size(short, full)
    return [Cell("router", "single", events, 7, sample="workers") for events in sizes]


def _memory_table(results: Results, scale: Scale) -> Table:
    rows = []
    figures = {}
    cells = _memory_cells(scale)
    for cell in cells:
        result = results.of(cell)
        rows.append(_memory_row(cell, result))
        figures[f"worker_mb_{cell.events}"] = peak(result, "worker_mb")
    fewest, most = cells[0].events, cells[-1].events
    worker_growth = ratio(figures[f"worker_mb_{most}"], figures[f"worker_mb_{fewest}"])
    figures["growth"] = worker_growth
    notes = ["Peak resident memory, sampled every 100 ms; one batch into bronze + 7 tables."]
    if worker_growth is not None:
        notes.append(f"{most / fewest:g} times the rows take {worker_growth:.2f} times the memory of a worker.")
    columns = ("rows in one batch", "largest worker", "all workers together", "workers", "seconds")
    return Table(columns, tuple(rows), figures, tuple(notes))


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
    figures: dict[str, float | None] = {}
    growth_texts = []
    for kind, label in KINDS.items():
        gained = growth(samples, kind)
        figures[f"{kind}_per_1000"] = gained
        growth_texts.append(f"{label} {gained or 0:+.1f} MB")
    # About ten rows, evenly apart, and the last sample in any case.
    shown = samples[:: max(1, len(samples) // 10)]
    if shown[-1] is not samples[-1]:
        shown.append(samples[-1])
    rows = tuple(_driver_row(sample) for sample in shown)
    note = f"Per 1 000 batches after the first {SETTLED}: {', '.join(growth_texts)} (fitted line)."
    return Table(columns, rows, figures, (note,))


def growth(samples: list[dict[str, float]], kind: str) -> float | None:
    """Return the megabytes gained per 1 000 batches once settled, by a fitted line; None for fewer than three points.

    A line and not first against last: a garbage collection between two samples moves single points.
    """
    settled = [sample for sample in samples if sample["batches"] >= SETTLED]
    if len(settled) < 3:
        return None
    batches = [sample["batches"] for sample in settled]
    sizes = [sample[kind] for sample in settled]
    slope, _ = np.polyfit(batches, sizes, 1)
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
        result = results.of(_footprint_cell(scale, subject))
        memory = peak(result, "pss_mb")
        disk = peak(result, "disk_mb")
        rows.append((label, megabytes(memory), megabytes(disk), figure(result)))
        figures[f"{subject}_pss_mb"] = memory
        figures[f"{subject}_disk_mb"] = disk
    notes = (
        "The sum of the PSS of a process and all below it (/proc/PID/smaps_rollup), which counts a shared page once, "
        "sampled every half second; on disk: tables and checkpoint after the run.",
    )
    return Table(("cold, bronze + 7 tables", "peak memory", "on disk", "seconds"), tuple(rows), figures, notes)


FOOTPRINT = Measurement(
    "footprint", "Memory of all processes, and bytes on disk", 62, _footprint_cells, _footprint_table, short=False
)
