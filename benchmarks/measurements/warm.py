"""Drain a topic into bronze and N tables with everything warm, against the loops and against one single table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.format import figure, times, verdict
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

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


def _cells(scale: Scale) -> list[Cell]:
    subjects = ("router", "loop", "loop_tuned", "partition_by") if scale.full else ("router", "loop")
    cells = [scale.warm(subject, games) for games in scale.of_size((7, 50), tuple(BARS)) for subject in subjects]
    return cells + ([] if scale.full else [scale.warm("router", 200)])


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for games, bar in BARS.items():
        ours, loop, tuned, single = (
            results.of(scale.warm(subject, games)) for subject in ("router", "loop", "loop_tuned", "partition_by")
        )
        faster, than_tuned = ratio(median(loop), median(ours)), ratio(median(tuned), median(ours))
        figures |= {f"loop_over_router_{games}": faster, f"loop_tuned_over_router_{games}": than_tuned}
        outcome = verdict(faster, bar, at_least=True)
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


WARM = Measurement("warm", "Warm: into bronze + N tables", 10, _cells, _table)
