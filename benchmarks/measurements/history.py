"""Does anything get slower with the number of batches? Commits, a batch, and `router ledger`, after more and more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, megabytes, met, seconds, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

EVENTS, GAMES = 2_000, 3
BAR = 1.5
LEDGER_SECONDS, LEDGER_MB = 1.0, 300.0
WAYS = {"yes": "maintained", "no": "never maintained"}
TIMED = ("open", "commit", "batch", "ledger")


def _points(scale: Scale) -> tuple[int, ...]:
    return scale.of_size((1_000, 10_000), (1_000, 10_000, 100_000))


def _cell(batches: int, way: str) -> Cell:
    options = (("batches", str(batches)), ("maintained", way))
    return Cell("history", "single", EVENTS, GAMES, feed="", options=options)


def _history_cells(scale: Scale) -> list[Cell]:
    return [_cell(batches, way) for way in WAYS for batches in _points(scale)]


def _history_table(results: Results, scale: Scale) -> Table:
    rows, figures = [], {}
    for way, label in WAYS.items():
        least, most = (_steps(results.of(_cell(batches, way))) for batches in (_points(scale)[0], _points(scale)[-1]))
        for batches in _points(scale):
            result = results.of(_cell(batches, way))
            found = _steps(result)
            memory = result.counted[-1].counts.get("ledger_mb") if result and found else None
            figures |= {f"{name} {label} {batches}": found.get(name) for name in TIMED}
            figures[f"ledger_mb {batches}"] = memory
            rows.append((label, count(batches), *(_time(found.get(name)) for name in TIMED), megabytes(memory)))
        grown = {name: ratio(most.get(name), least.get(name)) for name in TIMED}
        figures |= {f"{name} {label} grows": value for name, value in grown.items()}
        rows.append((label, "last over first", *(times(grown[name]) for name in TIMED), ""))
        if way == "yes":
            rows.append(("", f"bar {BAR:g} x", *(met(grown[name], BAR, at_least=False) for name in TIMED[:3]), "", ""))
    notes = (
        f"Open and commit of one table, with a fresh handle; a batch: {EVENTS:,} events into bronze + {GAMES} tables; "
        f"the query of `router ledger`: bar {LEDGER_SECONDS:g} s and {LEDGER_MB:g} MB with Python itself.",
        "Maintained: 1 000 commits in the log, 32 files. Never maintained: all of them.",
    )
    return Table(("history", "batches", *TIMED, "ledger's process"), tuple(rows), figures, notes)


def _steps(result: CellResult | None) -> dict[str, float]:
    return dict(result.counted[-1].steps) if result and not result.problem and result.counted else {}


def _time(value: float | None) -> str:
    return MISSING if value is None else f"{value * 1000:.1f} ms" if value < 1 else seconds(value)


HISTORY = Measurement("history", "After 1 000 to 100 000 batches", 64, _history_cells, _history_table, short=False)
