"""Requests of an object store, by table: what a batch asks beside the data files that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, met
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

BAR = 5.0
GAMES = 3
NOTES = (
    "Mean of all batches after the first, with the checkpoints of the tables; delta-rs commits. "
    "A table that no later batch touches is not in the list.",
)


def _cell(scale: Scale) -> Cell:
    return Cell("requests", "single", 101 if scale.full else 11, GAMES, 1, feed="")


def _table(results: Results, scale: Scale) -> Table:
    found = results.of(_cell(scale))
    counts = found.runs[0].counts if found and found.runs else {}
    rows = [
        (table, f"{asked:.1f}", f"{BAR:.0f}", met(asked, BAR, at_least=False))
        for table, asked in sorted(counts.items())
    ]
    figures: dict[str, float | None] = {f"requests_{table}": asked for table, asked in counts.items()}
    columns = ("table", "requests per batch", "bar", "")
    return Table(columns, tuple(rows) or ((MISSING,) * len(columns),), figures, NOTES)


REQUESTS = Measurement(
    "requests", "Requests of an object store", 120, lambda scale: [_cell(scale)], _table, short=False
)
