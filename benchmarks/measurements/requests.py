"""Requests of an object store, by table: those of a batch, and how many of them are for data files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, met
from benchmarks.measurements import Measurement, Table
from benchmarks.results import last_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.cells import Scale
    from benchmarks.results import Results

BAR = 5.0
GAMES = 3
NOTES = (
    "Mean of all batches after the first, with the checkpoints of the tables; delta-rs commits. "
    "A table that no later batch touches is not in the list. Data files are read by maintenance, which joins "
    "those of 100 batches.",
)


def _cell(scale: Scale) -> Cell:
    return Cell("requests", "single", 101 if scale.full else 11, GAMES, 1, feed="")


def _table(results: Results, scale: Scale) -> Table:
    run = last_run(results.of(_cell(scale)))
    counts = run.counts if run else {}
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for table, requests in sorted(counts.items()):
        # With a method behind the table's name it is a count of the requests for data files.
        if " " in table:
            continue
        outcome = met(requests, BAR, at_least=False)
        rows.append((table, f"{requests:.1f}", f"{BAR:.0f}", outcome, *_of_files(counts, table)))
        figures[f"requests_{table}"] = requests
    columns = ("table", "requests per batch", "bar", "", "data files written", "data files read")
    return Table(columns, tuple(rows) or ((MISSING,) * len(columns),), figures, NOTES)


def _of_files(counts: Mapping[str, float], table: str) -> tuple[str, str]:
    """Return the requests that write the data files of a table, and those that read them."""
    written = sum(counts.get(f"{table} {method}", 0.0) for method in ("PUT", "POST"))
    read = sum(counts.get(f"{table} {method}", 0.0) for method in ("GET", "HEAD", "DELETE"))
    return f"{written:.1f}", f"{read:.1f}"


REQUESTS = Measurement(
    "requests", "Requests of an object store", 120, lambda scale: [_cell(scale)], _table, short=False
)
