"""Ask where the time goes: the steps of a batch, cold and warm, beside reading and decoding alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.format import figure, seconds
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median_steps

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import CellResult, Results
    from benchmarks.runs import Run

AROUND = "around the batches"
FLOORS = {"kafka_noop": "read only", "decode_noop": "read and from_json only"}


def _cells(scale: Scale) -> list[Cell]:
    return [scale.warm(subject, 7) for subject in (*FLOORS, "router")] + [scale.warm("router", 200)]


def _table(results: Results, scale: Scale) -> Table:
    floors = [(label, results.of(scale.warm(subject, 7))) for subject, label in FLOORS.items()]
    rows: list[tuple[str, ...]] = [(label, _first(result), figure(result), "", "") for label, result in floors]
    few, many = results.of(scale.warm("router", 7)), results.of(scale.warm("router", 200))
    rows.append(("router, whole run", _first(few), figure(few), _first(many), figure(many)))
    columns = [_steps(few, first=True), _steps(few), _steps(many, first=True), _steps(many)]
    names = dict.fromkeys(name for column in columns for name in column)
    rows += [(f"- {name}", *[seconds(column.get(name)) for column in columns]) for name in names]
    return Table(
        ("", "7 tables, cold batch", "7 tables, warm", "200 tables, cold batch", "200 tables, warm"),
        tuple(rows),
        {
            f"{name}_{games}": value
            for games, column in ((7, columns[1]), (200, columns[3]))
            for name, value in column.items()
        },
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
    first = result.first if result and not result.problem else None
    return seconds(first.seconds if first else None)


STEPS = Measurement("steps", "Where the time goes", 90, _cells, _table)
