"""Which records a table has rows of: the offsets in its rows, a bit for each.

Memory is bounded by the range that is asked for, not by the table: files outside of it are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.lake import native_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from deltalake import DeltaTable

ROWS_AT_ONCE = 65_536
"""Rows of a table that are held while it is searched for records."""

Spans = dict[tuple[str, int], tuple[int, int]]
"""(topic, partition) -> the first and the last offset."""


@dataclass
class OffsetSet:
    """Offsets of one partition, a bit for each, in pages of 65,536: 12.5 MB for 100M records."""

    pages: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Add offsets; more than once does no harm."""
        for page, row_numbers in _by_page(offsets):
            bits = self.pages.setdefault(page, np.zeros(PAGE // 8, np.uint8))
            places = offsets[row_numbers] % PAGE
            np.bitwise_or.at(bits, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    def contains(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each offset whether it was added."""
        found = np.zeros(len(offsets), np.bool_)
        for page, row_numbers in _by_page(offsets):
            bits = self.pages.get(page)
            if bits is not None:
                places = offsets[row_numbers] % PAGE
                found[row_numbers] = (bits[places >> 3] >> (places & 7)) & 1
        return found


PAGE = 1 << 16


def _by_page(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each page that offsets are in, with their places among the offsets."""
    numbers = offsets // PAGE
    order = np.argsort(numbers, kind="stable")
    pages, starts = np.unique(numbers[order], return_index=True)
    for page, row_numbers in zip(pages, np.split(order, starts[1:]), strict=True) if len(pages) else ():
        yield int(page), row_numbers


StoredRecords = dict[tuple[Any, ...], OffsetSet]
"""(topic, partition, and what else tells rows apart) -> the offsets of records that a table has rows of."""


def stored_records_of(table: DeltaTable, names: tuple[str, ...], more: tuple[str, ...], spans: Spans) -> StoredRecords:
    """Return of which records within some spans a table has rows.

    Reads the files whose statistics overlap a span, of these a part of the rows at a time, and keeps a bit per record.
    """
    if not spans:
        return {}
    topic, partition, offset = (pc.field(name) for name in names)
    first_of_all = min(first for first, _ in spans.values())
    last_of_all = max(last for _, last in spans.values())
    # Files are chosen by each partition's span. Their rows are filtered by one span that holds all of these, which
    # does not get slower with the number of partitions; what is outside of a row's own span is left out below.
    overlaps = None
    for (of_topic, of_partition), (first, last) in spans.items():
        of_span = (topic == of_topic) & (partition == of_partition) & (offset >= first) & (offset <= last)
        overlaps = of_span if overlaps is None else overlaps | of_span
    within = (offset >= first_of_all) & (offset <= last_of_all)
    rows = table.to_pyarrow_dataset(filesystem=native_files(table))
    stored: StoredRecords = {}
    for fragment in rows.get_fragments(filter=overlaps):
        scanner = fragment.scanner(
            schema=rows.schema,
            columns=[*names, *more],
            filter=within,
            batch_size=ROWS_AT_ONCE,
            batch_readahead=1,
            fragment_readahead=1,
        )
        for part in scanner.to_batches():
            _add_stored(stored, pa.Table.from_batches([part]), names, more, spans)
    return stored


def _add_stored(
    stored: StoredRecords, rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...], spans: Spans
) -> None:
    """Add the records of rows that are within their partition's span."""
    offsets = _offsets(rows, names)
    for key, row_numbers in _groups(rows, names, more):
        first, last = spans.get((key[0], key[1]), (0, -1))
        of_key = offsets[row_numbers]
        of_key = of_key[(of_key >= first) & (of_key <= last)]
        if len(of_key):
            stored.setdefault(key, OffsetSet()).add(of_key)


def are_stored(
    rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...], stored: StoredRecords
) -> npt.NDArray[np.bool_]:
    """Return of which rows the record is stored."""
    found = np.zeros(len(rows), np.bool_)
    offsets = _offsets(rows, names)
    for key, row_numbers in _groups(rows, names, more):
        if key in stored:
            found[row_numbers] = stored[key].contains(offsets[row_numbers])
    return found


def _offsets(rows: pa.Table, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the offsets of rows, -1 for none."""
    offsets = pc.fill_null(rows.column(names[2]).cast(pa.int64()), -1)
    return np.asarray(offsets.to_numpy(), np.int64)


def _groups(
    rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], npt.NDArray[np.int64]]]:
    """Yield (key, row numbers) of rows of one topic and partition, and of what else tells rows apart."""
    by = [*names[:2], *more]
    numbered = rows.select(by).append_column("_row", pa.array(np.arange(len(rows))))
    grouped = numbered.group_by(by).aggregate([("_row", "list")])
    row_numbers = grouped.column("_row_list")
    for number, key in enumerate(grouped.select(by).to_pylist()):
        yield tuple(key[name] for name in by), np.asarray(row_numbers[number].values, np.int64)
