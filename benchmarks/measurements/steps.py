"""Where the time of a batch goes: its steps, cold and warm, beside reading and decoding alone; its commits."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.format import MISSING, count, figure, met, seconds
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median_steps

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import CellResult, Results
    from benchmarks.runs import Run


AROUND = "around the batches"
FLOORS = {"kafka_noop": "read only", "decode_noop": "read and from_json only"}


def _steps_cells(scale: Scale) -> list[Cell]:
    cells = [scale.warm(floor, 7) for floor in FLOORS]
    cells += [scale.warm("router", 7), scale.warm("router", 200)]
    return cells


def _steps_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    for subject, label in FLOORS.items():
        result = results.of(scale.warm(subject, 7))
        rows.append((label, _first(result), figure(result), "", ""))
    few_tables = results.of(scale.warm("router", 7))
    many_tables = results.of(scale.warm("router", 200))
    whole_runs = (_first(few_tables), figure(few_tables), _first(many_tables), figure(many_tables))
    rows.append(("router, whole run", *whole_runs))
    few_warm = _steps(few_tables)
    many_warm = _steps(many_tables)
    columns = (_steps(few_tables, first=True), few_warm, _steps(many_tables, first=True), many_warm)
    # Every step of any column, in the order of their first mention: a dict is a set that keeps its order.
    names: dict[str, None] = {}
    for column in columns:
        names |= dict.fromkeys(column)
    for name in names:
        rows.append((f"- {name}", *(seconds(column.get(name)) for column in columns)))
    figures: dict[str, float | None] = {f"{name}_7": value for name, value in few_warm.items()}
    figures |= {f"{name}_200": value for name, value in many_warm.items()}
    return Table(
        ("", "7 tables, cold batch", "7 tables, warm", "200 tables, cold batch", "200 tables, warm"),
        tuple(rows),
        figures,
        (
            "Reading and decoding happen inside the step that lands. The floors are what Spark alone takes to read, "
            "and to decode with from_json; the router decodes in the Python tasks that write.",
            f"{AROUND.capitalize()}: starting the query, a look at the executors, offsets, Spark's checkpoint.",
        ),
    )


def _steps(result: CellResult | None, *, first: bool = False) -> dict[str, float]:
    if result is None or result.problem:
        return {}
    runs = [result.first] if first else result.counted
    return median_steps([_whole(run) for run in runs if run])


def _whole(run: Run) -> Run:
    """Return a run whose steps add up to its seconds."""
    return replace(run, steps={**run.steps, AROUND: run.seconds - sum(run.steps.values())})


def _first(result: CellResult | None) -> str:
    """Return the seconds of the first run of a process."""
    if result is None or result.problem or result.first is None:
        return MISSING
    return seconds(result.first.seconds)


STEPS = Measurement("steps", "Where the time goes", 90, _steps_cells, _steps_table)


BAR = 10.0
GAMES = 200


def _commits_cells(scale: Scale) -> list[Cell]:
    return [scale.warm("router", GAMES)]


def _commits_table(results: Results, scale: Scale) -> Table:
    result = results.of(_commits_cells(scale)[0])
    warm = milliseconds(result)
    first = milliseconds(result, first=True)
    texts = [MISSING if value is None else f"{value:.1f} ms" for value in (warm, first)]
    row = (count(GAMES), *texts, f"at most {BAR:g} ms", met(warm, BAR, at_least=False))
    return Table(
        ("tables", "one commit, warm", "in the first batch", "bar", ""),
        (row,),
        {"commit_ms": warm, "commit_ms_first": first},
        ("Seconds of the step `commit` by the number of tables it touched; every run commits to new tables.",),
    )


def milliseconds(result: CellResult | None, *, first: bool = False) -> float | None:
    """Return the milliseconds of the commit step per table and batch; None when there is no valid figure."""
    if result is None or result.problem:
        return None
    runs = [result.first] if first else result.counted
    values = []
    for run in runs:
        if run and run.steps.get("commit"):
            values.append(1000 * run.steps["commit"] / (run.tables * run.batches))
    return statistics.median(values) if values else None


COMMITS = Measurement("commits", "Commits", 40, _commits_cells, _commits_table)
