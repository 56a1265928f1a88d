"""How often expectations are violated, by ledger, dead letters and notes of views: `router expectations`. No Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.dataset import dataset_of
from router.engine.audit.dead_letters import DeadLetterSelection, dead_letter_groups
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import UNMET
from router.engine.views.note import REFRESHES, Note, view_note_path
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import BronzeExpectation, Config, Expectation, ViewExpectation
    from router.delta.lake import Lake

PERIODS = REFRESHES
"""Into how many parts of equal length the time of a ledger is divided, for a trend."""
COLUMNS = ["route", "sink", "read", "dropped", "matched", "violated", "finished"]


@dataclass
class ExpectationCounts:
    """The counts of an expectation of a route, of bronze or of a view: checked events, and those that violate it.

    `trend`: the same two numbers of each period, the oldest first. `samples` are the places of the newest records that
    it made dead letters, without their content; other kinds of expectations have none. For a view, `of` is `view NAME`,
    events are the present rows of its tables, and each period is a refresh.
    """

    of: str
    expectation: Expectation | BronzeExpectation | ViewExpectation
    events: int = 0
    violated: int = 0
    last: datetime | None = None
    trend: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * PERIODS)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add_counts(self, period: int, events: int = 0, violated: int = 0) -> None:
        """Add counts of a period."""
        self.events += events
        self.violated += violated
        period_events, period_violated = self.trend[period]
        self.trend[period] = (period_events + events, period_violated + violated)


CountsByPlace = dict[tuple[str | None, str], ExpectationCounts]
"""Counts by the id of a route (None: bronze) and the name of the expectation."""


def expectation_counts(config: Config, samples: int = 0) -> list[ExpectationCounts]:
    """Return the counts of every expectation, in the order of the configuration, with so many samples at most."""
    lake, checkpoint = lake_and_checkpoint(config)
    counts: CountsByPlace = {}
    for rule in config.bronze.expect if config.bronze else ():
        counts[None, rule.name] = ExpectationCounts("bronze", rule)
    for route in config.routes:
        for expectation in route.expect:
            counts[route.identity, expectation.name] = ExpectationCounts(route.name, expectation)
    if counts:
        _add_ledger(counts, lake, config)
        if samples:
            _add_samples(counts, config, samples)
    return [*counts.values(), *_counts_of_views(config, CheckpointStore(checkpoint))]


def _counts_of_views(config: Config, store: CheckpointStore) -> Iterator[ExpectationCounts]:
    for view in config.views:
        if not view.expect:
            continue
        note = Note.from_json(store.load(view_note_path(view.name)))
        for expectation in view.expect:
            counts = ExpectationCounts(f"view {view.name}", expectation, events=note.checked_rows)
            counts.violated = note.violation_counts.get(expectation.name, 0)
            if counts.violated:
                counts.last = datetime.fromisoformat(note.at)
            trend = [(rows, violated.get(expectation.name, 0)) for rows, violated in note.trend]
            counts.trend = counts.trend[len(trend) :] + trend
            yield counts


def _add_ledger(counts: CountsByPlace, lake: Lake, config: Config) -> None:
    """Add the counts of the ledger, by period."""
    rows = _read_ledger(lake, config)
    if rows is None or not len(rows):
        return
    times = rows.column("finished").cast(pa.int64()).to_numpy()
    length = max(1, times.max() - times.min())
    periods = np.minimum((times - times.min()) * PERIODS // length, PERIODS - 1)
    rows = rows.append_column("period", pa.array(periods))
    sums = rows.group_by(["route", "period"]).aggregate([(name, "sum") for name in ("matched", "read", "dropped")])
    for row in sums.to_pylist():
        events = row["matched_sum"]
        # Bronze lacks the records of `drop: nulls`, and its expectations do not check them.
        if row["route"] is None:
            events = row["read_sum"] - (row["dropped_sum"] or 0)
        for (route, _), of_expectation in counts.items():
            if route == row["route"]:
                of_expectation.add_counts(row["period"], events=events)

    for row in rows.filter(pc.field("violated").is_valid()).to_pylist():
        for name, violated in row["violated"]:
            # The configuration may have lost the expectation meanwhile.
            if (row["route"], name) in counts:
                of_expectation = counts[row["route"], name]
                of_expectation.add_counts(row["period"], violated=violated)
                of_expectation.last = max(row["finished"], of_expectation.last or row["finished"])


def _read_ledger(lake: Lake, config: Config) -> pa.Table | None:
    """Return the rows of the source, and for each route with expectations those of its first sink.

    The counts of expectations are the same for all sinks of a route. None if the ledger has none.
    """
    table = lake.open(config.ledger)
    if table is None or "violated" not in {column.name for column in table.schema().fields}:
        return None
    chosen = pc.field("route").is_null() & pc.field("read").is_valid()
    for route in config.routes:
        if route.expect:
            first_sink = (pc.field("route") == route.identity) & (pc.field("sink") == next(iter(route.named_sinks)))
            chosen |= first_sink & pc.field("matched").is_valid()
    dataset = dataset_of(table)
    return dataset.to_table(columns=COLUMNS, filter=(pc.field("query") == config.name) & chosen)


def _add_samples(counts: CountsByPlace, config: Config, most: int) -> None:
    """Add the places of the newest records that each expectation of a route has made dead letters."""
    names = {UNMET.format(name): name for route, name in counts if route is not None}
    selection = DeadLetterSelection(stages=(Stage.EXPECT,), replayed=True)
    for group in dead_letter_groups(config, selection, most, value_bytes=0):
        of_expectation = counts.get((group.route, names.get(group.reason or "", "")))
        if of_expectation is not None:
            of_expectation.samples = group.samples
