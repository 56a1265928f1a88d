"""Throughput when warm: into bronze + N tables, against the loops and one single table.

Against the number of tables (bronze included) and of partitions; what many tables cost more than one for the same
number of events; and by rule and schema, the sweeps beside the usual work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.format import MISSING, events_per_second, figure, met, rate, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median, ratio
from router_bench.chart import Chart

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

Grid = dict[str, dict[int, "Cell"]]
"""Per subject the cell of each point on the axis."""


def table(across: str, grid: Grid, labels: dict[str, str], results: Results) -> Table:
    """Return events per second, a row per point and a column per subject, with the ratio to the first subject."""
    first, *others = grid
    points = sorted({point for column in grid.values() for point in column})
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for point in points:
        found = {name: results.of(column[point]) if point in column else None for name, column in grid.items()}
        faster = {name: ratio(median(found[name]), median(found[first])) for name in others}
        figures |= {f"{name}_over_{first}_{point}": value for name, value in faster.items()}
        shown = [rate(result) if result else MISSING for result in found.values()]
        rows.append((str(point), *shown, *[times(value) for value in faster.values()]))
    columns = (across, *[f"{labels[name]}, events/s" for name in grid])
    return Table((*columns, *[f"faster than {labels[name]}" for name in others]), tuple(rows), figures)


def lines(grid: Grid, labels: dict[str, str], results: Results) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each subject that have a valid figure."""
    return {
        labels[name]: [
            (point, value) for point, cell in column.items() if (value := events_per_second(results.of(cell)))
        ]
        for name, column in grid.items()
    }


COLUMNS = (
    "tables",
    "router",
    "loop of appends",
    "router is faster",
    "bar",
    "",
    "loop, 8 threads, tuned",
    "router is faster",
    "one table, partitionBy",
)
BARS = {7: 1.6, 50: 4.0, 200: 10.0}


def _warm_cells(scale: Scale) -> list[Cell]:
    subjects = ("router", "loop", "loop_tuned", "partition_by") if scale.full else ("router", "loop")
    cells = [scale.warm(subject, games) for games in scale.of_size((7, 50), tuple(BARS)) for subject in subjects]
    return cells + ([] if scale.full else [scale.warm("router", 200)])


def _warm_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for games, bar in BARS.items():
        ours, loop, tuned, single = (
            results.of(scale.warm(subject, games)) for subject in ("router", "loop", "loop_tuned", "partition_by")
        )
        faster, than_tuned = ratio(median(loop), median(ours)), ratio(median(tuned), median(ours))
        figures |= {f"loop_over_router_{games}": faster, f"loop_tuned_over_router_{games}": than_tuned}
        outcome = met(faster, bar, at_least=True)
        beside = (figure(tuned), times(than_tuned), figure(single))
        rows.append((str(games), figure(ours), figure(loop), times(faster), f"{bar:g} x", outcome, *beside))
    return Table(
        COLUMNS,
        tuple(rows),
        figures,
        (
            f"{scale.events:,} events, 4 partitions, one batch. Bronze is written by all but the last column.",
            "Tuned: with the JVM's collector and the Kafka consumer's options that the router sets by itself.",
        ),
    )


WARM = Measurement("warm", "Warm: into bronze + N tables", 10, _warm_cells, _warm_table)


SUBJECTS = {"router": "router", "loop": "loop of appends"}


def _tables_grid(scale: Scale) -> dict[str, dict[int, Cell]]:
    ours = scale.of_size((1, 7, 50, 200), (1, 7, 50, 200, 1000))
    loops = scale.of_size((1, 7, 50), ours)
    points = {"router": ours, "loop": loops}
    return {name: {point: scale.warm(name, point) for point in points[name]} for name in SUBJECTS}


def _tables_cells(scale: Scale) -> list[Cell]:
    grid = _tables_grid(scale)
    return [column[point] for point in grid["router"] for column in grid.values() if point in column]


def _tables_table(results: Results, scale: Scale) -> Table:
    return table("tables", _tables_grid(scale), SUBJECTS, results)


def _tables_chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by number of tables (bronze included, warm)"
    return Chart(title, "tables", lines(_tables_grid(scale), SUBJECTS, results))


TABLES = Measurement("tables", "Throughput against tables", 80, _tables_cells, _tables_table, _tables_chart)


def _partitions_grid(scale: Scale) -> dict[str, dict[int, Cell]]:
    points = scale.of_size((1, 4), (1, 2, 4, 8, 16))
    return {name: {point: scale.warm(name, 7, partitions=point) for point in points} for name in SUBJECTS}


def _partitions_cells(scale: Scale) -> list[Cell]:
    ours, loop = _partitions_grid(scale).values()
    return [column[point] for point in ours for column in (ours, loop)]


def _partitions_table(results: Results, scale: Scale) -> Table:
    return table("partitions", _partitions_grid(scale), SUBJECTS, results)


def _partitions_chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by partitions of the topic (bronze + 7 tables, warm)"
    return Chart(title, "partitions", lines(_partitions_grid(scale), SUBJECTS, results))


PARTITIONS = Measurement(
    "partitions", "Throughput against partitions", 70, _partitions_cells, _partitions_table, _partitions_chart
)


BAR = 1.4


def _width_cells(scale: Scale) -> list[Cell]:
    return [scale.warm("router", 1), scale.warm("router", 200)]


def _width_table(results: Results, scale: Scale) -> Table:
    one, many = (results.of(cell) for cell in _width_cells(scale))
    longer = ratio(median(many), median(one))
    row = (figure(one), figure(many), times(longer), f"at most {BAR:g} x", met(longer, BAR, at_least=False))
    return Table(
        ("bronze + 1 table", "bronze + 200 tables", "takes", "bar", ""), (row,), {"two_hundred_over_one": longer}
    )


WIDTH = Measurement("width", "The price of 200 tables", 30, _width_cells, _width_table)


RULES = {
    "tables": "game IS NOT NULL",
    "arrow_rule": "lower, LIKE, a sum",
    "spark_rule": "soundex: Spark only",
    "decimals": "decimals and a map",
}
"""Configurations of the sweeps, and what is special in them."""


def _rules_grid(scale: Scale) -> dict[str, dict[int, Cell]]:
    points = scale.of_size((1, 4), (1, 2, 4, 8, 16))
    return {name: {point: _rule_cell(scale, name, point) for point in points} for name in RULES}


def _rule_cell(scale: Scale, sweep: str, partitions: int) -> Cell:
    usual = scale.warm("router", 7, partitions=partitions)
    feed = "json_decimals" if sweep == "decimals" else "json"
    return usual if sweep == "tables" else replace(usual, feed=feed, options=(("sweep", sweep),))


def _rules_cells(scale: Scale) -> list[Cell]:
    return [cell for column in _rules_grid(scale).values() for cell in column.values()]


def _rules_table(results: Results, scale: Scale) -> Table:
    return table("partitions", _rules_grid(scale), RULES, results)


def _rules_chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by partitions of the topic, by rule and schema (warm)"
    return Chart(title, "partitions", lines(_rules_grid(scale), RULES, results))


RULES_SWEEP = Measurement(
    "rules", "Throughput by rule and schema", 72, _rules_cells, _rules_table, _rules_chart, short=False
)
