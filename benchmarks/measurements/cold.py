"""Drain a topic with a fresh process, from its start to its end, against the loop and N streaming queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measurements import Measurement, Table
from benchmarks.report import figure, times, verdict
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

BARS = {7: 2.5, 50: 9.0}
SUBJECTS = ("router", "loop", "queries")


def _cells(scale: Scale) -> list[Cell]:
    return [scale.cold(subject, games) for games in scale.of_size((7,), tuple(BARS)) for subject in SUBJECTS]


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for games, bar in BARS.items():
        found = {subject: results.of(scale.cold(subject, games)) for subject in SUBJECTS}
        whole = {subject: median(result, "process_seconds") for subject, result in found.items()}
        faster = ratio(whole["queries"], whole["router"])
        than_loop = ratio(whole["loop"], whole["router"])
        figures |= {f"queries_over_router_{games}": faster, f"loop_over_router_{games}": than_loop}
        cells = [text for result in found.values() for text in (figure(result, "process_seconds"), figure(result))]
        outcome = verdict(faster, bar, at_least=True)
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


COLD = Measurement("cold", "Cold: a fresh process", 20, _cells, _table)
