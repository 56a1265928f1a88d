"""Does anything get slower with the number of batches? Commits, a batch, and `router ledger`, after more and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, megabytes, met, seconds, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import last_run, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

EVENTS = 2_000
GAMES = 3
BAR = 1.5
LEDGER_SECONDS = 1.0
LEDGER_MB = 300.0
WAYS = {"yes": "maintained", "no": "never maintained"}
TIMED = ("open", "commit", "batch", "ledger")


def _points(scale: Scale) -> tuple[int, ...]:
    return scale.of_size((1_000, 10_000), (1_000, 10_000, 100_000))


def _cell(batches: int, way: str) -> Cell:
    options = (("batches", str(batches)), ("maintained", way))
    return Cell("history", "single", EVENTS, GAMES, feed="", options=options)


def _history_cells(scale: Scale) -> list[Cell]:
    cells = []
    for way in WAYS:
        cells += [_cell(batches, way) for batches in _points(scale)]
    return cells


def _history_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for way, label in WAYS.items():
        for batches in _points(scale):
            run = last_run(results.of(_cell(batches, way)))
            steps = run.steps if run else {}
            memory = run.counts.get("ledger_mb") if run else None
            figures |= {f"{name} {label} {batches}": steps.get(name) for name in TIMED}
            figures[f"ledger_mb {label} {batches}"] = memory
            rows.append((label, count(batches), *(_time(steps.get(name)) for name in TIMED), megabytes(memory)))
        first = _steps(results.of(_cell(_points(scale)[0], way)))
        last = _steps(results.of(_cell(_points(scale)[-1], way)))
        growth = {name: ratio(last.get(name), first.get(name)) for name in TIMED}
        figures |= {f"{name} {label} grows": value for name, value in growth.items()}
        rows.append((label, "last over first", *(times(growth[name]) for name in TIMED), ""))
        # Only a lake that is maintained must not get slower. The ledger has bars of its own.
        if way == "yes":
            outcomes = [met(growth[name], BAR, at_least=False) for name in TIMED if name != "ledger"]
            rows.append(("", f"bar {BAR:g} x", *outcomes, "", ""))
    notes = (
        f"Open and commit of one table, with a fresh handle; a batch: {EVENTS:,} events into bronze + {GAMES} tables; "
        f"the query of `router ledger`: bar {LEDGER_SECONDS:g} s and {LEDGER_MB:g} MB with Python itself.",
        "Maintained: 1 000 commits in the log, 32 files. Never maintained: all of them.",
    )
    return Table(("history", "batches", *TIMED, "ledger's process"), tuple(rows), figures, notes)


def _steps(result: CellResult | None) -> dict[str, float]:
    run = last_run(result)
    return run.steps if run else {}


def _time(value: float | None) -> str:
    if value is None:
        return MISSING
    if value < 1:
        return f"{value * 1000:.1f} ms"
    return seconds(value)


HISTORY = Measurement("history", "After 1 000 to 100 000 batches", 64, _history_cells, _history_table, short=False)
