"""Fresh processes: against the loop and N queries, against PySpark that only reads, and a first batch of upserts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import figure, met, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

BARS = {7: 2.5, 50: 9.0}
SUBJECTS = ("router", "loop", "queries")


def _cold_cells(scale: Scale) -> list[Cell]:
    cells = []
    for games in scale.of_size((7,), tuple(BARS)):
        cells += [scale.cold(subject, games) for subject in SUBJECTS]
    return cells


def _cold_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for games, bar in BARS.items():
        seconds_by_subject: list[str] = []
        process_seconds: dict[str, float | None] = {}
        for subject in SUBJECTS:
            result = results.of(scale.cold(subject, games))
            seconds_by_subject += [figure(result, "process_seconds"), figure(result)]
            process_seconds[subject] = median(result, "process_seconds")
        faster_than_loop = ratio(process_seconds["loop"], process_seconds["router"])
        faster_than_queries = ratio(process_seconds["queries"], process_seconds["router"])
        figures[f"queries_over_router_{games}"] = faster_than_queries
        figures[f"loop_over_router_{games}"] = faster_than_loop
        rows.append(
            (
                str(games),
                *seconds_by_subject,
                times(faster_than_loop),
                times(faster_than_queries),
                f"{bar:g} x",
                met(faster_than_queries, bar, at_least=True),
            )
        )
    columns: list[str] = []
    for subject in SUBJECTS:
        columns += [f"{subject}: process", "processing"]
    return Table(
        ("tables", *columns, "faster than loop", "faster than queries", "bar", ""),
        tuple(rows),
        figures,
        (
            f"{scale.events:,} events, 4 partitions. The queries write no bronze; router and loop do.",
            "Process: its whole life; processing: from the start of the query to the end of its last batch.",
        ),
    )


COLD = Measurement("cold", "Cold: a fresh process", 20, _cold_cells, _cold_table)


TURNS = 5
"""Processes of each, in turns."""
START = {
    "router": "router run --once",
    "bare": "PySpark, to nowhere, in the router's JVM",
    "plain": "PySpark, to nowhere, in a plain JVM",
}


def start_cell(scale: Scale, subject: str) -> Cell:
    """Return the cell of a process that takes turns with those of the other subject."""
    repeat = TURNS if scale.full else scale.repeat
    return replace(scale.cold(subject, 7), repeat=repeat, options=(("beside", "bare"),), turns="start")


def _start_cells(scale: Scale) -> list[Cell]:
    return [start_cell(scale, subject) for subject in START]


def _start_table(results: Results, scale: Scale) -> Table:
    result_by_subject = {subject: results.of(start_cell(scale, subject)) for subject in START}
    process_seconds = {subject: median(result, "process_seconds") for subject, result in result_by_subject.items()}
    rows = []
    for subject, label in START.items():
        result = result_by_subject[subject]
        over_bare = ratio(process_seconds[subject], process_seconds["bare"])
        over_plain = ratio(process_seconds[subject], process_seconds["plain"])
        rows.append((label, figure(result, "process_seconds"), figure(result), times(over_bare), times(over_plain)))
    figures = {
        "router_over_bare": ratio(process_seconds["router"], process_seconds["bare"]),
        "router_over_plain": ratio(process_seconds["router"], process_seconds["plain"]),
    }
    notes = (
        f"{scale.events:,} events into bronze + 7 tables, against a process that reads the same topic and drops it, "
        "with the same session and consumer options, and with the JVM's own collector, compiler and classes; "
        f"{start_cell(scale, 'bare').repeat} processes of each in turns, the median.",
    )
    columns = ("process", "its whole life", "query", "over PySpark", "over PySpark in a plain JVM")
    return Table(columns, tuple(rows), figures, notes)


PROFILES = 10_000
SWEEPS = {"upserts": "one upsert, no tombstones", "profiles": "routes/profiles.yaml: tombstones, and a history"}


def _profile_cell(scale: Scale, sweep: str) -> Cell:
    return Cell("profiles", "cold", PROFILES, 7, repeat=scale.repeat, feed="profiles", options=(("sweep", sweep),))


def _profile_cells(scale: Scale) -> list[Cell]:
    return [_profile_cell(scale, sweep) for sweep in SWEEPS]


def _profile_table(results: Results, scale: Scale) -> Table:
    rows = []
    figures = {}
    for sweep, label in SWEEPS.items():
        result = results.of(_profile_cell(scale, sweep))
        rows.append((label, figure(result), figure(result, "process_seconds")))
        figures[f"seconds: {sweep}"] = median(result)
    note = f"{PROFILES:,} records, each a new key, over 7 tables; from the start of the query to the end of the batch."
    return Table(("first batch of a process", "query", "whole process"), tuple(rows), figures, (note,))


START_UP = Measurement("start", "Cold: beside PySpark that only reads", 21, _start_cells, _start_table, short=False)
FIRST_UPSERTS = Measurement(
    "first_upserts", "Cold: the first batch of upserts", 22, _profile_cells, _profile_table, short=False
)
