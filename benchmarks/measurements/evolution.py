"""Ask what a new schema version does to a running stream."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import seconds, verdict
from benchmarks.measurements import Measurement, Table

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

BAR = 1.0
EVENTS = 5000
"""Records of a batch."""
COLUMNS = {
    "after_registration": "column seen after its registration",
    "after_last_record": "after the last record",
    "plain_batch": "batch without news",
    "batch": "batch with a new version",
    "delay": "delay",
}


def _cell(scale: Scale) -> Cell:
    return Cell("evolution", "single", EVENTS, 1, feed="")


def _cells(scale: Scale) -> list[Cell]:
    return [_cell(scale)]


def _table(results: Results, scale: Scale) -> Table:
    found = results.of(_cell(scale))
    samples = found.counted[0].samples if found and not found.problem else []
    columns = {name: [sample[name] for sample in samples] for name in COLUMNS} if samples else {}
    rows = [
        (what, *[seconds(how(columns[name])) if columns else "-" for name in COLUMNS])
        for what, how in (("median", statistics.median), ("slowest", max))
    ]
    worst = max(columns["delay"]) if columns else None
    return Table(
        ("of ten versions", *COLUMNS.values(), f"bar: under {BAR:g} s"),
        (rows[0] + ("",), rows[1] + (verdict(worst, BAR, at_least=False),)),
        {f"{name}_{what}": how(values) for name, values in columns.items() for what, how in _SUMS.items()},
        (f"Batches of {EVENTS:,} records of a stream that is not restarted; each version brings a column.",),
    )


_SUMS = {"median": statistics.median, "slowest": max}
EVOLUTION = Measurement("evolution", "A new schema version in a running stream", 44, _cells, _table, short=False)
