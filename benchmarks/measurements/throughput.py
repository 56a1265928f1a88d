"""Throughput when warm: the router into bronze + N tables, compared with the loops and with one single table.

By the number of tables (bronze included) and of partitions; how much longer many tables take than one for the same
events; and by rule and schema.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.format import MISSING, count, events_per_second, figure, met, rate, times
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.posting import ours
from benchmarks.results import median, ratio
from router_bench.chart import Chart

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

Grid = dict[str, dict[int, "Cell"]]
"""Subject -> point on the axis -> cell."""


def table(across: str, grid: Grid, labels: dict[str, str], results: Results) -> Table:
    """Return events per second, a row per point and a column per subject, with the ratio to the first subject."""
    first, *others = grid
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for point in sorted(set().union(*grid.values())):
        rates = []
        medians: dict[str, float | None] = {}
        for name, column in grid.items():
            result = results.of(column[point]) if point in column else None
            rates.append(rate(result))
            medians[name] = median(result)
        ratios = []
        for name in others:
            faster = ratio(medians[name], medians[first])
            figures[f"{name}_over_{first}_{point}"] = faster
            ratios.append(times(faster))
        rows.append((str(point), *rates, *ratios))
    columns = [f"{labels[name]}, events/s" for name in grid]
    columns += [f"faster than {labels[name]}" for name in others]
    return Table((across, *columns), tuple(rows), figures)


def lines(grid: Grid, labels: dict[str, str], results: Results) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each subject that have a valid figure, by label."""
    points_by_label: dict[str, list[tuple[int, float]]] = {}
    for name, column in grid.items():
        points = points_by_label.setdefault(labels[name], [])
        for point, cell in column.items():
            if value := events_per_second(results.of(cell)):
                points.append((point, value))
    return points_by_label


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
    subjects = ["router", "loop"]
    if scale.full:
        subjects += ["loop_tuned", "partition_by"]
    cells = []
    for games in scale.of_size((7, 50), tuple(BARS)):
        cells += [scale.warm(subject, games) for subject in subjects]
    # The short benchmark measures 200 tables with the router only.
    if not scale.full:
        cells.append(scale.warm("router", 200))
    return cells


def _warm_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for games, bar in BARS.items():
        router = results.of(scale.warm("router", games))
        loop = results.of(scale.warm("loop", games))
        tuned = results.of(scale.warm("loop_tuned", games))
        single = results.of(scale.warm("partition_by", games))
        faster = ratio(median(loop), median(router))
        faster_than_tuned = ratio(median(tuned), median(router))
        figures[f"loop_over_router_{games}"] = faster
        figures[f"loop_tuned_over_router_{games}"] = faster_than_tuned
        rows.append(
            (
                str(games),
                figure(router),
                figure(loop),
                times(faster),
                f"{bar:g} x",
                met(faster, bar, at_least=True),
                figure(tuned),
                times(faster_than_tuned),
                figure(single),
            )
        )
    notes = (
        f"{scale.events:,} events, 4 partitions, one batch. Bronze is written by all but the last column.",
        "Tuned: with the JVM's collector and the Kafka consumer's options that the router sets by itself.",
    )
    return Table(COLUMNS, tuple(rows), figures, notes)


WARM = Measurement("warm", "Warm: into bronze + N tables", 10, _warm_cells, _warm_table)


SUBJECTS = {"router": "router", "loop": "loop of appends"}


def _tables_grid(scale: Scale) -> Grid:
    games = scale.of_size((1, 7, 50, 200), (1, 7, 50, 200, 1000))
    games_of_loop = scale.of_size((1, 7, 50), games)
    return {
        "router": {number: scale.warm("router", number) for number in games},
        "loop": {number: scale.warm("loop", number) for number in games_of_loop},
    }


def _cells_by_point(grid: Grid) -> list[Cell]:
    """Return the cells in the order of the points, so that the subjects of one point run close together."""
    cells = []
    for point in sorted(set().union(*grid.values())):
        cells += [column[point] for column in grid.values() if point in column]
    return cells


def _tables_cells(scale: Scale) -> list[Cell]:
    return _cells_by_point(_tables_grid(scale))


def _tables_table(results: Results, scale: Scale) -> Table:
    return table("tables", _tables_grid(scale), SUBJECTS, results)


def _tables_chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by number of tables (bronze included, warm)"
    return Chart(title, "tables", lines(_tables_grid(scale), SUBJECTS, results))


TABLES = Measurement("tables", "Throughput against tables", 80, _tables_cells, _tables_table, _tables_chart)


POINTS = (1, 2, 4, 8, 16)
"""Partitions of the topic."""
CORES = (4, 8, 16, 32)
"""Cores for which the throughput of a larger machine is computed."""
MEASURED_AT = 4
"""Partitions of the run whose CPU seconds that takes."""
WAYS = {
    "decode_noop": "Spark reads and parses",
    "router": "tables",
    "profiles": "upserts",
    "loop": "loop of appends",
    "posting": "REST, 10 rows a call",
}
COMPUTED = "tables, computed"


def _partitions_grid(scale: Scale) -> Grid:
    grid: Grid = {}
    for name in WAYS:
        # The loop takes longer than all others together.
        points = scale.of_size((1, 4), POINTS) if name == "loop" else POINTS
        grid[name] = {point: _partitions_cell(scale, name, point) for point in points}
    return grid


def _partitions_cell(scale: Scale, name: str, partitions: int) -> Cell:
    if name == "posting":
        cell = ours(scale, 10, partitions)
        return cell if scale.full else replace(cell, repeat=1, warm_up=1)
    cell = scale.warm(name, 7, partitions=partitions)
    if name == "profiles":
        return replace(cell, feed="profiles", options=(("sweep", "upserts"),))
    return cell


def _partitions_cells(scale: Scale) -> list[Cell]:
    return _cells_by_point(_partitions_grid(scale))


def _partitions_table(results: Results, scale: Scale) -> Table:
    grid = _partitions_grid(scale)
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for point in POINTS:
        result_by_way = {}
        for way, column in grid.items():
            result_by_way[way] = results.of(column[point]) if point in column else None
        faster = ratio(median(result_by_way["loop"]), median(result_by_way["router"]))
        figures[f"loop_over_router_{point}"] = faster
        rows.append((str(point), *map(rate, result_by_way.values()), times(faster)))
    for cores, speed in _computed(results, scale):
        figures[f"computed_{cores}_cores"] = speed
        empty = [MISSING] * (len(WAYS) - 2)
        rows.append((f"computed: {cores} cores", MISSING, count(speed), *empty, MISSING))
    notes = (
        "Records per second, warm; of REST rows per second, at an API that answers after 100 ms. The first column is "
        "the floor: nothing is kept.",
        f"Computed: the events of a run with {MEASURED_AT} partitions, over its CPU seconds (driver, JVM and Python "
        "workers, not the broker), times the cores: what a larger machine can do at most, if nothing else is scarce.",
    )
    return Table(("partitions", *WAYS.values(), "tables are faster than the loop"), tuple(rows), figures, notes)


def _computed(results: Results, scale: Scale) -> list[tuple[int, float]]:
    """Return events per second by cores, from the measured CPU seconds of a run."""
    result = results.of(_partitions_cell(scale, "router", MEASURED_AT))
    used = median(result, "cpu_seconds")
    read = median(result, "read")
    if not used or not read:
        return []
    return [(cores, cores * read / used) for cores in CORES]


def _partitions_chart(results: Results, scale: Scale) -> Chart:
    title = "Records per second by partitions of the topic (warm; bronze + 7 tables)"
    points = lines(_partitions_grid(scale), WAYS, results)
    points[COMPUTED] = _computed(results, scale)
    return Chart(title, "partitions; computed: cores", points, "records per second", log=True)


PARTITIONS = Measurement(
    "partitions", "Throughput against partitions", 70, _partitions_cells, _partitions_table, _partitions_chart
)


BAR = 1.4


def _width_cells(scale: Scale) -> list[Cell]:
    return [scale.warm("router", 1), scale.warm("router", 200)]


def _width_table(results: Results, scale: Scale) -> Table:
    one_table, many_tables = [results.of(cell) for cell in _width_cells(scale)]
    longer = ratio(median(many_tables), median(one_table))
    outcome = met(longer, BAR, at_least=False)
    row = (figure(one_table), figure(many_tables), times(longer), f"at most {BAR:g} x", outcome)
    columns = ("bronze + 1 table", "bronze + 200 tables", "takes", "bar", "")
    return Table(columns, (row,), {"two_hundred_over_one": longer})


WIDTH = Measurement("width", "The price of 200 tables", 30, _width_cells, _width_table)


RULES = {
    "tables": "game IS NOT NULL",
    "arrow_rule": "lower, LIKE, a sum",
    "spark_rule": "soundex: Spark only",
    "decimals": "decimals and a map",
}
"""Configurations of the sweeps, and what is special in them."""


def _rules_grid(scale: Scale) -> Grid:
    points = scale.of_size((1, 4), (1, 2, 4, 8, 16))
    grid: Grid = {}
    for name in RULES:
        grid[name] = {point: _rule_cell(scale, name, point) for point in points}
    return grid


def _rule_cell(scale: Scale, sweep: str, partitions: int) -> Cell:
    usual = scale.warm("router", 7, partitions=partitions)
    if sweep == "tables":
        return usual
    feed = "json_decimals" if sweep == "decimals" else "json"
    return replace(usual, feed=feed, options=(("sweep", sweep),))


def _rules_cells(scale: Scale) -> list[Cell]:
    cells: list[Cell] = []
    for column in _rules_grid(scale).values():
        cells += column.values()
    return cells


def _rules_table(results: Results, scale: Scale) -> Table:
    return table("partitions", _rules_grid(scale), RULES, results)


def _rules_chart(results: Results, scale: Scale) -> Chart:
    title = "Events per second by partitions of the topic, by rule and schema (warm)"
    return Chart(title, "partitions", lines(_rules_grid(scale), RULES, results))


RULES_SWEEP = Measurement(
    "rules", "Throughput by rule and schema", 72, _rules_cells, _rules_table, _rules_chart, short=False
)
