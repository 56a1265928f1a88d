"""Count dead letters by stage, route, sink and reason: `router dead-letters`. Without Spark.

The files of the table are read part by part, and only the columns that are needed. Reasons that contain data differ
from record to record: the most frequent `REASONS` have groups of their own, and the dead letters with all other
reasons are one group for each stage, route and sink.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError
from typing_extensions import override

from router.delta.dataset import dataset_of
from router.delta.unreadable_values import as_rows
from router.engine.checkpoint_store import lake_and_checkpoint
from router.errors import TableError, first_line
from router.record import PLACE, RECORD_ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from router.config.models import Config

_GROUP_COLUMNS = ["stage", "route", "sink", "reason"]
REASONS = 300
"""Reasons that are listed; dead letters with others are counted together, by stage, route and sink."""
SINGLE_REASONS = 10
"""Reasons that are listed if there are too many and each has one dead letter: examples of the others."""
CANDIDATES = 5_000
"""Groups that are kept in memory during the search for the most frequent reasons."""
_PLACE_AND_TIME = [*PLACE, "timestamp"]
_WHOLE_RECORD = [*_PLACE_AND_TIME, "value", "key", "headers"]
VALUE_BYTES = 1_000
"""Bytes of a sample's value that are kept."""
_ROWS_AT_ONCE = 65_536
SAMPLED_ROWS_AT_ONCE = 4_096
"""Rows that are read at once with their values, each of which may have a megabyte."""
_REPLAYED = "replayed"


@dataclass(frozen=True)
class DeadLetterFilter:
    """The choice of dead letters: by stage, route and sink, by a text in their reason, by their record's time.

    `since` is in seconds since 1970. An empty value, or None, chooses all.
    """

    stages: tuple[str, ...] = ()
    route: str | None = None
    sink: str | None = None
    reason: str | None = None
    since: float | None = None

    def as_filter(self) -> pc.Expression:
        """Return the choice as a filter of Arrow's."""
        chosen = pc.scalar(True)
        if self.stages:
            chosen &= pc.field("stage").isin(list(self.stages))
        if self.route is not None:
            chosen &= pc.field("route") == self.route
        if self.sink is not None:
            chosen &= pc.field("sink") == self.sink
        if self.reason is not None:
            chosen &= pc.match_substring(pc.field("reason"), self.reason)
        if self.since is not None:
            since = pa.scalar(round(self.since * 1_000_000), pa.timestamp("us", "UTC"))
            chosen &= pc.field("timestamp") >= since
        return chosen


@dataclass(frozen=True)
class DeadLetterSelection(DeadLetterFilter):
    """The dead letters that are counted.

    `arrivals`: of records that arrived from the first on and before the second. Without `replayed` those that a replay
    has processed are left out.
    """

    replayed: bool = False
    arrivals: tuple[int, int] | None = None

    @override
    def as_filter(self) -> pc.Expression:
        chosen = super().as_filter()
        if self.arrivals is not None:
            chosen &= (pc.field(RECORD_ARRIVAL) >= self.arrivals[0]) & (pc.field(RECORD_ARRIVAL) < self.arrivals[1])
        return chosen


@dataclass
class DeadLetterGroup:
    """Dead letters of one stage, route, sink and reason; if the reason is None, those with all other reasons.

    `first` and `last` are the times of the records, texts beyond the years 1 to 9999. `samples` are the newest records,
    with place, time and value; a whole one has `_WHOLE_RECORD` and its own `letter_reason`.
    """

    stage: str
    route: str | None
    sink: str | None
    reason: str | None
    count: int
    first: datetime | str | None
    last: datetime | str | None
    samples: list[dict[str, Any]] = field(default_factory=list)


def dead_letter_groups(
    config: Config,
    selection: DeadLetterSelection,
    samples: int = 0,
    whole: int | None = None,
    value_bytes: int | None = VALUE_BYTES,
) -> list[DeadLetterGroup]:
    """Return the groups of dead letters, the largest first, and the newest records of each.

    With `whole`, the place of a group counted from 0, that group alone gets its newest record, and the whole of it.
    Values of samples are cut to `value_bytes`; 0: samples have none, None: they are whole. Raises TableError if the
    table cannot be read.
    """
    lake, _ = lake_and_checkpoint(config)
    try:
        table = lake.open(config.dead_letters)
        if table is None:
            return []
        letters = dataset_of(table, "stage", "route", "sink", "reason", "timestamp", "replayed")
        return groups_in(letters, selection, samples, whole, value_bytes)
    except (DeltaError, OSError, pa.ArrowInvalid) as error:
        raise TableError(config.dead_letters, f"it cannot be read: {first_line(error)}") from error


def groups_in(
    letters: ds.Dataset,
    selection: DeadLetterSelection,
    samples: int = 0,
    whole: int | None = None,
    value_bytes: int | None = VALUE_BYTES,
    sampled_rows: int | None = None,
) -> list[DeadLetterGroup]:
    """Return the groups of dead letters in a table, or in files: see `dead_letter_groups`.

    With `sampled_rows` only so many of the first dead letters are looked at for samples.
    """
    counted, reasons = _count_groups(letters, selection)
    rows = as_rows(counted)
    rows.sort(key=lambda row: (-row["count"], row["stage"], row["route"] or "", row["sink"] or "", row["reason"] or ""))
    groups = [DeadLetterGroup(**row) for row in rows]
    if whole is not None:
        _add_samples(groups[whole : whole + 1], letters, selection, reasons, 1, whole=True, value_bytes=None)
    elif samples:
        _add_samples(groups, letters, selection, reasons, samples, value_bytes=value_bytes, sampled_rows=sampled_rows)
    return groups


def _count_groups(letters: ds.Dataset, selection: DeadLetterSelection) -> tuple[pa.Table, pa.Array | None]:
    """Return the groups, and the reasons that have groups of their own; None if all have."""
    candidates = _empty_groups(letters)
    left_out = False
    for part in _read_parts(letters, selection, [*_GROUP_COLUMNS, "timestamp"], _ROWS_AT_ONCE):
        counted = _count_part(part, candidates)
        if len(counted) > CANDIDATES:
            counted = _most_frequent(counted)
            left_out = True
        candidates = _merge_rows(pa.concat_tables([candidates, counted]))
        if len(candidates) > CANDIDATES:
            # A reason that is frequent is so in most parts: it is never among the rarest.
            candidates = _most_frequent(candidates)
            left_out = True
    if not left_out and len(candidates) <= REASONS:
        return candidates, None

    frequent = candidates.group_by("reason").aggregate([("count", "sum")])
    frequent = frequent.sort_by([("count_sum", "descending"), ("reason", "ascending")])
    repeated = pc.sum(pc.greater(frequent["count_sum"], 1)).as_py() or 0
    reasons = frequent["reason"].slice(0, min(REASONS, max(repeated, SINGLE_REASONS))).combine_chunks()
    if not left_out:
        return _merge_rows(_without_rare_reasons(candidates, reasons)), reasons

    # Groups that were left out may have been counted in part: count again, now with few groups.
    groups = _empty_groups(letters)
    for part in _read_parts(letters, selection, [*_GROUP_COLUMNS, "timestamp"], _ROWS_AT_ONCE):
        counted = _count_part(_without_rare_reasons(part, reasons), groups)
        groups = _merge_rows(pa.concat_tables([groups, counted]))
    return groups, reasons


def _read_parts(
    letters: ds.Dataset, selection: DeadLetterSelection, columns: list[str], rows: int
) -> Iterator[pa.Table]:
    """Yield the chosen rows part by part. No column chunk is read ahead as a whole: values may be large."""
    marked = not selection.replayed and _REPLAYED in letters.schema.names  # the first replay adds the column
    reading = letters.to_batches(
        columns=[*columns, _REPLAYED] if marked else columns,
        filter=selection.as_filter(),
        batch_size=rows,
        batch_readahead=2,
        fragment_readahead=1,
        fragment_scan_options=ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False),
    )
    for batch in reading:
        part = pa.Table.from_batches([batch])
        if marked:
            # Not in the filter above: for a file without the column delta-rs 1.6 reports that it has no null there, and
            # Arrow then leaves out all rows of the file.
            part = part.filter(part[_REPLAYED].is_null()).select(columns)
        if len(part):
            yield part


def _empty_groups(letters: ds.Dataset) -> pa.Table:
    schema = letters.schema
    time = schema.field("timestamp").type
    columns = [*(schema.field(name) for name in _GROUP_COLUMNS), ("count", pa.int64()), ("first", time), ("last", time)]
    return pa.schema(columns).empty_table()


def _count_part(part: pa.Table, groups: pa.Table) -> pa.Table:
    """Return the groups of a part, with the columns of `groups`."""
    counted = part.group_by(_GROUP_COLUMNS).aggregate([([], "count_all"), ("timestamp", "min"), ("timestamp", "max")])
    return counted.rename_columns(groups.column_names).cast(groups.schema)


def _most_frequent(groups: pa.Table) -> pa.Table:
    """Return the most frequent groups, half as many as are kept."""
    return groups.take(pc.select_k_unstable(groups, CANDIDATES // 2, [("count", "descending")]))


def _merge_rows(groups: pa.Table) -> pa.Table:
    """Return one row for each group."""
    merged = groups.group_by(_GROUP_COLUMNS).aggregate([("count", "sum"), ("first", "min"), ("last", "max")])
    return merged.rename_columns(groups.column_names)


def _without_rare_reasons(rows: pa.Table, reasons: pa.Array | None) -> pa.Table:
    """Return rows whose reason is null unless it is listed."""
    if reasons is None:
        return rows
    listed = pc.is_in(rows["reason"], reasons)
    number = rows.schema.get_field_index("reason")
    reason = pc.if_else(listed, rows["reason"], pa.scalar(None, rows["reason"].type))
    return rows.set_column(number, rows.schema.field(number), reason)


def _add_samples(
    groups: list[DeadLetterGroup],
    letters: ds.Dataset,
    selection: DeadLetterSelection,
    reasons: pa.Array | None,
    most: int,
    *,
    whole: bool = False,
    value_bytes: int | None,
    sampled_rows: int | None = None,
) -> None:
    """Add the newest records of each group, at most so many."""
    by_group = {(group.stage, group.route, group.sink, group.reason): group.samples for group in groups}
    columns = [*_PLACE_AND_TIME]
    if whole:
        columns = _WHOLE_RECORD
    elif value_bytes != 0:
        columns.append("value")
    parts = _read_parts(letters, selection, [*_GROUP_COLUMNS, *columns], sampled_rows or SAMPLED_ROWS_AT_ONCE)
    for part in islice(parts, 1) if sampled_rows else parts:
        with_reason = part.append_column("letter_reason", part["reason"]) if whole else part
        rows = _newest_of_groups(_without_rare_reasons(with_reason, reasons), most)
        if value_bytes:
            number = rows.schema.get_field_index("value")
            rows = rows.set_column(number, "value", pc.binary_slice(rows["value"], 0, value_bytes))
        for row in as_rows(rows):
            key = tuple(row.pop(name) for name in _GROUP_COLUMNS)
            if key in by_group:
                by_group[key].append(row)
        for samples in by_group.values():
            samples.sort(key=_sample_age, reverse=True)
            del samples[most:]


def _sample_age(sample: dict[str, Any]) -> tuple[float, int]:
    time = sample["timestamp"]
    if isinstance(time, str):  # after the year 9999, or before the year 1
        seconds = -math.inf if time.startswith("-") else math.inf
    else:
        seconds = time.timestamp() if time else 0.0
    return (seconds, sample["offset"] or 0)


def _newest_of_groups(rows: pa.Table, most: int) -> pa.Table:
    """Return the newest rows of each group, at most so many."""
    rows = rows.sort_by([("timestamp", "descending"), ("offset", "descending")])
    separated = pc.binary_join_element_wise(
        *(rows[name] for name in _GROUP_COLUMNS), "\x1f", null_handling="replace", null_replacement="\x1e"
    )
    groups = separated.combine_chunks().dictionary_encode().indices.to_numpy()

    # Rows of one group come one after the other, the newest first; those after the first few are dropped.
    order = np.argsort(groups, kind="stable")
    numbers = np.arange(len(order))
    begins = np.concatenate([[True], groups[order][1:] != groups[order][:-1]])
    ranks = numbers - np.maximum.accumulate(np.where(begins, numbers, 0))
    return rows.take(pa.array(order[ranks < most]))
