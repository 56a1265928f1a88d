"""Does it take longer to process records again if they came in more batches? The same ones in 1 000 and 10 000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import count, met, seconds, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import last_run, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

RECORDS = 1_000_000
BAR = 1.5
POINTS = (1_000, 10_000)
TIMED = ("batches of a topic", "merge again", "list quarantine")


def _cell(batches: int) -> Cell:
    return Cell("reprocessing", "single", RECORDS, 1, feed="", options=(("batches", str(batches)),))


def _reprocessing_cells(scale: Scale) -> list[Cell]:
    return [_cell(batches) for batches in POINTS]


def _reprocessing_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for batches in POINTS:
        steps = _steps(results.of(_cell(batches)))
        figures |= {f"{name} {batches}": steps.get(name) for name in TIMED}
        rows.append((count(batches), *(seconds(steps.get(name)) for name in TIMED)))
    first = _steps(results.of(_cell(POINTS[0])))
    last = _steps(results.of(_cell(POINTS[-1])))
    growth = {name: ratio(last.get(name), first.get(name)) for name in TIMED}
    figures |= {f"{name} grows": value for name, value in growth.items()}
    rows.append(("last over first", *(times(growth[name]) for name in TIMED)))
    rows.append((f"bar {BAR:g} x", *(met(growth[name], BAR, at_least=False) for name in TIMED)))
    notes = (
        f"{RECORDS:,} records of one partition: each is given its batch (`router rebuild --from earliest`), the rows "
        "of a staged outbox are merged into one table (`router rebuild`), rows are listed (`router quarantine list`).",
    )
    return Table(("batches", *TIMED), tuple(rows), figures, notes)


def _steps(result: CellResult | None) -> dict[str, float]:
    run = last_run(result)
    return run.steps if run else {}


REPROCESSING = Measurement(
    "reprocessing", "The same records in more batches", 65, _reprocessing_cells, _reprocessing_table, short=False
)
