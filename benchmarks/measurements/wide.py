"""How many tables may one configuration have? A batch that touches all of them, and the memory of the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, megabytes, met, seconds
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.memory import peak
from benchmarks.results import ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

EVENTS, BATCHES = 200_000, 6
GAMES = 200, 1_000, 5_000
TABLE_MS, MEMORY = 8.0, 1.5
STEPS = "land", "decide", "manifest", "commit"


def _cell(games: int) -> Cell:
    return Cell("wide", "single", EVENTS, games, feed="", options=(("batches", str(BATCHES)),))


def _wide_cells(scale: Scale) -> list[Cell]:
    return [_cell(games) for games in GAMES]


def _wide_table(results: Results, scale: Scale) -> Table:
    rows, figures = [], dict[str, float | None]()
    few = peak(results.of(_cell(GAMES[0])), "python_mb")
    for games in GAMES:
        result = results.of(_cell(games))
        each, python = _milliseconds(result), peak(result, "python_mb")
        grown = ratio(python, few)
        figures |= {f"ms_{games}": each, f"python_mb_{games}": python, f"memory_{games}_over_{GAMES[0]}": grown}
        steps = result.counted[-1].steps if result and not result.problem and result.counted else {}
        rows.append((
            count(games),
            seconds(each and each * games / 1000),
            MISSING if each is None else f"{each:.1f} ms",
            met(each, TABLE_MS, at_least=False),
            *(seconds(steps.get(name)) for name in STEPS),
            megabytes(python),
            met(grown, MEMORY, at_least=False),
            megabytes(peak(result, "java_mb")),
        ))  # fmt: skip
    notes = (
        f"{EVENTS:,} events a batch, into bronze and every table; the median of {BATCHES - 1} batches after the one "
        f"that makes the tables. Bars: {TABLE_MS:g} ms for each table, everything included, and {MEMORY:g} times the "
        f"memory of the driver's Python at {GAMES[0]} tables.",
    )
    columns = ("tables", "a batch", "for each table", "bar", *STEPS, "driver's Python", "bar", "JVM")
    return Table(columns, tuple(rows), figures, notes)


def _milliseconds(result: CellResult | None) -> float | None:
    """Return the milliseconds of a batch for each of its tables."""
    if result is None or result.problem or not result.counted:
        return None
    run = result.counted[-1]
    return 1000 * run.seconds / result.cell.games


WIDE = Measurement("wide", "Very many tables in one configuration", 66, _wide_cells, _wide_table, short=False)
