"""What formats cost: the same events as JSON, Protobuf and Avro, written with 1 and 10 schemas.

What decoding one value costs, by format and shape, and which part of a batch that is; and what a new schema version
does to a running stream.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, figure, met, rate, seconds, times
from benchmarks.measurements import Measurement, Table
from benchmarks.results import last_run, median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results


NAMES = {
    "json": "JSON",
    "protobuf": "Protobuf, 1 version",
    "protobuf_10": "Protobuf, 10 versions",
    "avro": "Avro, 1 writer's schema",
    "avro_10": "Avro, 10 writers' schemas",
}
BARS = {"protobuf": ("json", 1.0), "protobuf_10": ("protobuf", 1.15), "avro_10": ("avro", 1.4)}


def cell(scale: Scale, feed: str) -> Cell:
    """Return the cell that drains a feed into bronze and seven tables."""
    return replace(scale.warm("router", 7), feed=feed)


def _formats_cells(scale: Scale) -> list[Cell]:
    return [cell(scale, feed) for feed in NAMES]


def _formats_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for feed, name in NAMES.items():
        result = results.of(cell(scale, feed))
        comparison = ("", "", "", "")
        if feed in BARS:
            other, bar = BARS[feed]
            longer = ratio(median(result), median(results.of(cell(scale, other))))
            figures[f"{feed}_over_{other}"] = longer
            comparison = (NAMES[other], times(longer), f"at most {bar:g} x", met(longer, bar, at_least=False))
        rows.append((name, figure(result), rate(result), *comparison))
    return Table(
        ("format", "time", "events/s", "beside", "takes", "bar", ""),
        tuple(rows),
        figures,
        (
            f"{scale.events:,} events of ten fields into bronze + 7 tables, 4 partitions, one batch; the same events "
            "in every format, schemas from a registry but for JSON.",
            "Ten versions take turns event by event; each declares one field more, which no event fills.",
        ),
    )


FORMATS_FORMATS = Measurement("formats", "Formats: bronze + 7 tables", 40, _formats_cells, _formats_table, short=False)


SHAPES = {"flat": "{}", "nested": "nested_{}"}
DECODING_FORMATS = {"json": "JSON", "protobuf": "Protobuf", "avro": "Avro"}
CORES = os.cpu_count() or 1


def _decoding_cell(scale: Scale, form: str, shape: str) -> Cell:
    feed = SHAPES[shape].format(form)
    return replace(scale.warm("decoding", 7), feed=feed, events=scale.events // 5)


def _decoding_cells(scale: Scale) -> list[Cell]:
    cells = []
    for shape in SHAPES:
        cells += [_decoding_cell(scale, form, shape) for form in DECODING_FORMATS]
    # The whole batch of each format, of which decoding is a share.
    cells += [cell(scale, form) for form in DECODING_FORMATS]
    return cells


def _decoding_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for form, name in DECODING_FORMATS.items():
        micros_by_shape: dict[str, float | None] = {}
        for shape in SHAPES:
            micros_by_shape[shape] = _micros(results, _decoding_cell(scale, form, shape))
            figures[f"{form}_{shape}_micros"] = micros_by_shape[shape]
        batch_seconds = median(results.of(cell(scale, form)))
        # A batch is charged with all cores, for as long as it takes.
        core_micros = None if batch_seconds is None else batch_seconds * CORES / scale.events * 1e6
        share = ratio(micros_by_shape["flat"], core_micros)
        figures[f"{form}_share"] = share
        micros_texts = [MISSING if micros is None else f"{micros:.2f} us" for micros in micros_by_shape.values()]
        rows.append((name, *micros_texts, MISSING if share is None else f"{share:.0%}"))
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
    """Return the microseconds of a cell for each of its events."""
    seconds = median(results.of(cell))
    if seconds is None:
        return None
    return seconds / cell.events * 1e6


DECODING = Measurement("decoding", "What decoding costs", 42, _decoding_cells, _decoding_table, short=False)


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


def _evolution_cell(scale: Scale) -> Cell:
    return Cell("evolution", "single", EVENTS, 1, feed="")


def _evolution_cells(scale: Scale) -> list[Cell]:
    return [_evolution_cell(scale)]


def _evolution_table(results: Results, scale: Scale) -> Table:
    run = last_run(results.of(_evolution_cell(scale)))
    samples = run.samples if run else []
    medians: list[str] = []
    slowest: list[str] = []
    figures: dict[str, float | None] = {}
    for name in COLUMNS:
        values = [sample[name] for sample in samples]
        if not values:
            medians.append(MISSING)
            slowest.append(MISSING)
            continue
        figures[f"{name}_median"] = statistics.median(values)
        figures[f"{name}_slowest"] = max(values)
        medians.append(seconds(statistics.median(values)))
        slowest.append(seconds(max(values)))
    # The bar is for the slowest of the ten versions.
    outcome = met(figures.get("delay_slowest"), BAR, at_least=False)
    return Table(
        ("of ten versions", *COLUMNS.values(), f"bar: under {BAR:g} s"),
        (("median", *medians, ""), ("slowest", *slowest, outcome)),
        figures,
        (f"Batches of {EVENTS:,} records of a stream that is not restarted; each version brings a column.",),
    )


EVOLUTION = Measurement(
    "evolution", "A new schema version in a running stream", 44, _evolution_cells, _evolution_table, short=False
)
