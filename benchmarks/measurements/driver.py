"""Ask whether the driver's memory stays flat over thousands of small batches into tables that are maintained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cells import Cell
from benchmarks.format import count, figure, megabytes
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

ROWS = 20
SETTLED = 200
"""Batches after which memory must not grow any more."""
KINDS = {"python_mb": "Python", "java_mb": "Java", "heap_mb": "heap after GC"}


def _cells(scale: Scale) -> list[Cell]:
    batches = 2000 if scale.full else 400
    # A topic that is there already, read in small bites: every batch has the same size and the count can be checked.
    # Maintained as tables that live for weeks are: uncompacted, a table's list of files is what grows.
    options = (("maintain", "*.*"),)
    return [Cell("router", "single", batches * ROWS, 7, rows_per_batch=ROWS, sample="driver", options=options)]


def _table(results: Results, scale: Scale) -> Table:
    result = results.of(_cells(scale)[0])
    columns = ("batches", "seconds", *KINDS.values())
    if result is None or result.problem or not result.counted[0].samples:
        return Table(columns, ((figure(result), *[""] * (len(columns) - 1)),))
    samples = result.counted[0].samples
    figures: dict[str, float | None] = {f"{kind}_per_1000": growth(samples, kind) for kind in KINDS}
    grown = ", ".join(f"{label} {figures[f'{kind}_per_1000'] or 0:+.1f} MB" for kind, label in KINDS.items())
    shown = [sample for index, sample in enumerate(samples) if index % max(1, len(samples) // 10) == 0]
    shown += [] if shown[-1] is samples[-1] else [samples[-1]]
    rows = tuple(_row(sample) for sample in shown)
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


def _row(sample: dict[str, float]) -> tuple[str, ...]:
    sizes = [megabytes(sample[kind]) for kind in KINDS]
    return (count(sample["batches"]), f"{sample['seconds']:.0f}", *sizes)


DRIVER = Measurement("driver", "Memory of the driver over small batches", 60, _cells, _table, short=False)
