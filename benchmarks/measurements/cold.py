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
    return [scale.cold(subject, games) for games in scale.of_size((7,), tuple(BARS)) for subject in SUBJECTS]


def _cold_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for games, bar in BARS.items():
        found = {subject: results.of(scale.cold(subject, games)) for subject in SUBJECTS}
        whole = {subject: median(result, "process_seconds") for subject, result in found.items()}
        faster = ratio(whole["queries"], whole["router"])
        than_loop = ratio(whole["loop"], whole["router"])
        figures |= {f"queries_over_router_{games}": faster, f"loop_over_router_{games}": than_loop}
        cells = [text for result in found.values() for text in (figure(result, "process_seconds"), figure(result))]
        outcome = met(faster, bar, at_least=True)
        rows.append((str(games), *cells, times(than_loop), times(faster), f"{bar:g} x", outcome))
    columns = [name for subject in ("router", "loop", "queries") for name in (f"{subject}: process", "processing")]
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
    found = {subject: results.of(start_cell(scale, subject)) for subject in START}
    whole = {subject: median(result, "process_seconds") for subject, result in found.items()}
    longer = {f"router_over_{name}": ratio(whole["router"], whole[name]) for name in ("bare", "plain")}
    rows = tuple(
        (
            label,
            figure(found[name], "process_seconds"),
            figure(found[name]),
            *(times(ratio(whole[name], whole[other])) for other in ("bare", "plain")),
        )
        for name, label in START.items()
    )
    notes = (
        f"{scale.events:,} events into bronze + 7 tables, against a process that reads the same topic and drops it, "
        "with the same session and consumer options, and with the JVM's own collector, compiler and classes; "
        f"{start_cell(scale, 'bare').repeat} processes of each in turns, the median.",
    )
    columns = ("process", "its whole life", "query", "over PySpark", "over PySpark in a plain JVM")
    return Table(columns, rows, longer, notes)


PROFILES = 10_000
SWEEPS = {"upserts": "one upsert, no tombstones", "profiles": "routes/profiles.yaml: tombstones, and a history"}


def _profile_cell(scale: Scale, sweep: str) -> Cell:
    return Cell("profiles", "cold", PROFILES, 7, repeat=scale.repeat, feed="profiles", options=(("sweep", sweep),))


def _profile_cells(scale: Scale) -> list[Cell]:
    return [_profile_cell(scale, sweep) for sweep in SWEEPS]


def _profile_table(results: Results, scale: Scale) -> Table:
    found = {label: results.of(_profile_cell(scale, sweep)) for sweep, label in SWEEPS.items()}
    rows = tuple((label, figure(result), figure(result, "process_seconds")) for label, result in found.items())
    figures = {f"seconds: {sweep}": median(result) for sweep, result in zip(SWEEPS, found.values(), strict=True)}
    note = f"{PROFILES:,} records, each a new key, over 7 tables; from the start of the query to the end of the batch."
    return Table(("first batch of a process", "query", "whole process"), rows, figures, (note,))


START_UP = Measurement("start", "Cold: beside PySpark that only reads", 21, _start_cells, _start_table, short=False)
FIRST_UPSERTS = Measurement(
    "first_upserts", "Cold: the first batch of upserts", 22, _profile_cells, _profile_table, short=False
)
