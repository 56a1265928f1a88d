"""Ask what decoding one value costs, by format and shape, and which part of a batch that is."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.format import MISSING
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.formats import cell as drained
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results

SHAPES = {"flat": "{}", "nested": "nested_{}"}
FORMATS = {"json": "JSON", "protobuf": "Protobuf", "avro": "Avro"}
CORES = os.cpu_count() or 1


def _cell(scale: Scale, form: str, shape: str) -> Cell:
    feed = SHAPES[shape].format(form)
    return replace(scale.warm("decoding", 7), feed=feed, events=scale.events // 5)


def _cells(scale: Scale) -> list[Cell]:
    return [_cell(scale, form, shape) for shape in SHAPES for form in FORMATS] + [drained(scale, f) for f in FORMATS]


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for form, name in FORMATS.items():
        costs = {shape: _micros(results, _cell(scale, form, shape)) for shape in SHAPES}
        batch = median(results.of(drained(scale, form)))
        core_micros = None if batch is None else batch * CORES / scale.events * 1e6
        share = ratio(costs["flat"], core_micros)
        figures |= {f"{form}_{shape}_micros": value for shape, value in costs.items()} | {f"{form}_share": share}
        shown = [MISSING if value is None else f"{value:.2f} us" for value in costs.values()]
        rows.append((name, *shown, MISSING if share is None else f"{share:.0%}"))
    return Table(
        ("format", *SHAPES, "share of a batch (flat)"),
        tuple(rows),
        figures,
        (
            "Per value, on one core, from memory, in batches of 10 000 as tasks get them; Avro, which Spark's own "
            "expressions decode, as what it adds to reading.",
            "Flat: the ten fields of the other measurements. Nested: the simulator's events, with lists and structs. "
            f"Share: of {CORES} cores for as long as bronze + 7 tables take.",
        ),
    )


def _micros(results: Results, cell: Cell) -> float | None:
    seconds = median(results.of(cell))
    return None if seconds is None else seconds / cell.events * 1e6


DECODING = Measurement("decoding", "What decoding costs", 42, _cells, _table, short=False)
