"""How often expectations do not hold, by ledger, dead letters and notes of views: `router expectations`. No Spark."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.lake import native_files
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import UNMET
from router.engine.views.note import REFRESHES, Note, note_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import BronzeExpectation, Config, Expectation, ViewExpectation
    from router.delta.lake import Lake

PERIODS = REFRESHES
"""The parts of equal length that the time of a ledger is divided into, for a trend."""
COLUMNS = ("route", "sink", "read", "dropped", "matched", "violated", "finished")
SAMPLE = ("topic", "partition", "offset", "timestamp")


@dataclass
class ExpectationCounts:
    """One expectation of a route, or of bronze: the events that it was asked of, and those on which it does not hold.

    `trend` are the same two numbers of each period, the oldest first. `samples` are the places of the newest records
    that it made dead letters, without their content; the other kinds of expectations keep none. Of a view it is about
    the rows of its tables as they are, and each period is a refresh; `of` is `view NAME` then.
    """

    of: str
    expectation: Expectation | BronzeExpectation | ViewExpectation
    events: int = 0
    violated: int = 0
    last: datetime | None = None
    trend: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * PERIODS)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, period: int, events: int = 0, violated: int = 0) -> None:
        """Add counts of a period."""
        self.events, self.violated = self.events + events, self.violated + violated
        before = self.trend[period]
        self.trend[period] = before[0] + events, before[1] + violated


def expectation_counts(config: Config, samples: int = 0) -> list[ExpectationCounts]:
    """Return the counts of every expectation, in the order of the configuration."""
    lake, checkpoint = lake_and_checkpoint(config)
    of_bronze = config.bronze.expect if config.bronze else ()
    found: dict[tuple[str | None, str], ExpectationCounts] = {
        (None, one.name): ExpectationCounts("bronze", one) for one in of_bronze
    }
    found |= {
        (route.identity, one.name): ExpectationCounts(route.name, one)
        for route in config.routes
        for one in route.expect
    }
    counted = _counted(lake, config) if found else None
    if counted is not None and len(counted):
        _add_up(found, counted.append_column("period", pa.array(_periods(counted.column("finished")))))
    for place, rows in _samples(lake, config, samples).items() if samples else ():
        if place in found:
            found[place].samples = rows
    return [*found.values(), *_of_views(config, CheckpointStore(checkpoint))]


def _of_views(config: Config, store: CheckpointStore) -> Iterator[ExpectationCounts]:
    for view in config.views:
        note = Note.of(store.load(note_path(view.name)) if view.expect else None)
        for one in view.expect:
            trend = [(rows, violated.get(one.name, 0)) for rows, violated in note.trend]
            trend = [*[(0, 0)] * (PERIODS - len(trend)), *trend]
            last = datetime.fromisoformat(note.at) if note.violated.get(one.name) else None
            counts = note.judged, note.violated.get(one.name, 0), last, trend
            yield ExpectationCounts(f"view {view.name}", one, *counts)


def _periods(finished: pa.ChunkedArray) -> Any:
    """Return the number of the period of each time."""
    times = finished.cast(pa.int64()).to_numpy()
    length = max(1, times.max() - times.min())
    return np.minimum((times - times.min()) * PERIODS // length, PERIODS - 1)


def _add_up(found: dict[tuple[str | None, str], ExpectationCounts], counted: pa.Table) -> None:
    sums = [(column, "sum") for column in ("matched", "read", "dropped")]
    events = counted.group_by(["route", "period"]).aggregate(sums).to_pylist()
    for (route, _), counts in found.items():
        for row in (row for row in events if row["route"] == route):
            if route is None:  # bronze has no records that `drop: nulls` lets vanish, and nothing is expected of them
                counts.add(row["period"], events=row["read_sum"] - (row["dropped_sum"] or 0))
            else:
                counts.add(row["period"], events=row["matched_sum"])
    for row in counted.filter(pc.field("violated").is_valid()).to_pylist():
        for name, violated in row["violated"]:
            if of := found.get((row["route"], name)):
                of.add(row["period"], violated=violated)
                of.last = max(row["finished"], of.last or row["finished"])


def _counted(lake: Lake, config: Config) -> pa.Table | None:
    """Return the ledger's rows of the source, and of routes with expectations: of one sink, all have the same."""
    table = lake.open(config.ledger)
    if table is None or "violated" not in {column.name for column in table.schema().fields}:
        return None
    one = {route.identity: next(iter(route.named_sinks)) for route in config.routes if route.expect}
    of_one = pc.field("route").is_null() & pc.field("read").is_valid()
    for route, sink in one.items():
        of_one |= (pc.field("route") == route) & (pc.field("sink") == sink) & pc.field("matched").is_valid()
    mine = (pc.field("query") == config.name) & of_one
    return table.to_pyarrow_dataset(filesystem=native_files(table)).to_table(columns=list(COLUMNS), filter=mine)


def _samples(lake: Lake, config: Config, most: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the places of the newest records that each expectation has refused, as many as asked for."""
    table = lake.open(config.dead_letters)
    if table is None:
        return {}
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    names = {UNMET.format(one.name): one.name for route in config.routes for one in route.expect}
    refused = (pc.field("stage") == "expect") & pc.field("reason").isin([*names])
    columns = ["route", "reason", *SAMPLE]
    for part in table.to_pyarrow_dataset(filesystem=native_files(table)).to_batches(columns=columns, filter=refused):
        for row in part.to_pylist():
            rows = found[row.pop("route"), names[row.pop("reason")]]
            rows.append(row)
            rows.sort(key=lambda one: one["timestamp"], reverse=True)
            del rows[most:]
    return dict(found)
