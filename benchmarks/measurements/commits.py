"""Ask what one commit costs where a batch touches 200 tables."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.format import MISSING, count, verdict
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import CellResult, Results

BAR = 10.0
GAMES = 200


def _cells(scale: Scale) -> list[Cell]:
    return [scale.warm("router", GAMES)]


def _table(results: Results, scale: Scale) -> Table:
    result = results.of(_cells(scale)[0])
    each = milliseconds(result)
    first = milliseconds(result, first=True)
    shown = [MISSING if value is None else f"{value:.1f} ms" for value in (each, first)]
    row = (count(GAMES), *shown, f"at most {BAR:g} ms", verdict(each, BAR, at_least=False))
    return Table(
        ("tables", "one commit, warm", "in the first batch", "bar", ""),
        (row,),
        {"commit_ms": each, "commit_ms_first": first},
        ("Seconds of the step `commit` by the number of tables it touched; every run commits to new tables.",),
    )


def milliseconds(result: CellResult | None, *, first: bool = False) -> float | None:
    """Return the milliseconds of the commit step per table and batch; None when there is no valid figure."""
    if result is None or result.problem:
        return None
    runs = [run for run in ([result.first] if first else result.counted) if run]
    values = [1000 * run.steps["commit"] / (run.tables * run.batches) for run in runs if run.steps.get("commit")]
    return statistics.median(values) if values else None


COMMITS = Measurement("commits", "Commits", 40, _cells, _table)
