"""How many tables may one configuration have? A batch that touches all of them, and the memory of the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, megabytes, met, seconds
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.memory import peak
from benchmarks.results import last_run, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

EVENTS = 200_000
BATCHES = 6
GAMES = (200, 1_000, 5_000)
TABLE_MS = 8.0
"""Milliseconds that a batch may take for each of its tables."""
MEMORY = 1.5
"""Times the memory of the driver's Python at the fewest tables."""
STEPS = ("land", "decide", "manifest", "commit")


def _cell(games: int) -> Cell:
    return Cell("wide", "single", EVENTS, games, feed="", options=(("batches", str(BATCHES)),))


def _wide_cells(scale: Scale) -> list[Cell]:
    return [_cell(games) for games in GAMES]


def _wide_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    fewest = GAMES[0]
    python_of_fewest = peak(results.of(_cell(fewest)), "python_mb")
    for games in GAMES:
        result = results.of(_cell(games))
        run = last_run(result)
        steps = run.steps if run else {}
        table_ms = 1000 * run.seconds / games if run else None
        python = peak(result, "python_mb")
        growth = ratio(python, python_of_fewest)
        figures[f"ms_{games}"] = table_ms
        figures[f"python_mb_{games}"] = python
        figures[f"memory_{games}_over_{fewest}"] = growth
        rows.append(
            (
                count(games),
                seconds(run.seconds if run else None),
                MISSING if table_ms is None else f"{table_ms:.1f} ms",
                met(table_ms, TABLE_MS, at_least=False),
                *(seconds(steps.get(name)) for name in STEPS),
                megabytes(python),
                met(growth, MEMORY, at_least=False),
                megabytes(peak(result, "java_mb")),
            )
        )
    notes = (
        f"{EVENTS:,} events a batch, into bronze and every table; the median of {BATCHES - 1} batches after the one "
        f"that makes the tables. Bars: {TABLE_MS:g} ms for each table, everything included, and {MEMORY:g} times the "
        f"memory of the driver's Python at {GAMES[0]} tables.",
    )
    columns = ("tables", "a batch", "for each table", "bar", *STEPS, "driver's Python", "bar", "JVM")
    return Table(columns, tuple(rows), figures, notes)


WIDE = Measurement("wide", "Very many tables in one configuration", 66, _wide_cells, _wide_table, short=False)
