"""Ask what a format costs: the same events as JSON, framed Protobuf and framed Avro, written with 1 and 10 schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.format import figure, rate, times, verdict
from benchmarks.measurements import Measurement, Table
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Cell, Scale
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


def _cells(scale: Scale) -> list[Cell]:
    return [cell(scale, feed) for feed in NAMES]


def _table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for feed, name in NAMES.items():
        found = results.of(cell(scale, feed))
        beside = ("", "", "", "")
        if feed in BARS:
            other, bar = BARS[feed]
            longer = ratio(median(found), median(results.of(cell(scale, other))))
            figures[f"{feed}_over_{other}"] = longer
            beside = (NAMES[other], times(longer), f"at most {bar:g} x", verdict(longer, bar, at_least=False))
        rows.append((name, figure(found), rate(found), *beside))
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


FORMATS = Measurement("formats", "Formats: bronze + 7 tables", 40, _cells, _table, short=False)
