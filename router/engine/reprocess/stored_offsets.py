"""Find of which records a table has rows: the offsets in its rows, a bit for each.

Memory is bounded by the range of offsets, not by the table: files outside of the range are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.dataset import dataset_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from deltalake import DeltaTable

_ROWS_AT_ONCE = 65_536
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
        contained = np.zeros(len(offsets), np.bool_)
        for page, row_numbers in _by_page(offsets):
            bits = self.pages.get(page)
            if bits is not None:
                places = offsets[row_numbers] % PAGE
                contained[row_numbers] = (bits[places >> 3] >> (places & 7)) & 1
        return contained


PAGE = 1 << 16


def _by_page(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each page that offsets are in, with their places among the offsets."""
    if not len(offsets):
        return
    numbers = offsets // PAGE
    order = np.argsort(numbers, kind="stable")
    pages, starts = np.unique(numbers[order], return_index=True)
    for page, row_numbers in zip(pages, np.split(order, starts[1:]), strict=True):
        yield int(page), row_numbers


StoredRecords = dict[tuple[Any, ...], OffsetSet]
"""(topic, partition, and the values of more columns that identify a row) -> offsets of records with rows in a table."""


def stored_records_of(table: DeltaTable, names: tuple[str, ...], more: tuple[str, ...], spans: Spans) -> StoredRecords:
    """Return of which records within some spans a table has rows.

    `names` are its columns of topic, partition and offset, `more` other columns that identify a row. Reads the files
    whose statistics overlap a span, of these a part of the rows at a time, and keeps a bit per record.
    """
    if not spans:
        return {}
    topic, partition, offset = (pc.field(name) for name in names)
    first_of_all = min(first for first, _ in spans.values())
    last_of_all = max(last for _, last in spans.values())
    # Files are chosen by each partition's span. Their rows are filtered by one span that contains all of these, which
    # does not get slower with the number of partitions; `_add_stored` leaves out rows outside of their own span.
    of_spans = []
    for (span_topic, span_partition), (first, last) in spans.items():
        is_of_partition = (topic == span_topic) & (partition == span_partition)
        of_spans.append(is_of_partition & (offset >= first) & (offset <= last))
    overlaps = reduce(or_, of_spans)
    within = (offset >= first_of_all) & (offset <= last_of_all)
    rows = dataset_of(table, *names)
    stored: StoredRecords = {}
    for fragment in rows.get_fragments(filter=overlaps):
        scanner = fragment.scanner(
            schema=rows.schema,
            columns=[*names, *more],
            filter=within,
            batch_size=_ROWS_AT_ONCE,
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
        in_span = of_key[(of_key >= first) & (of_key <= last)]
        if len(in_span):
            stored.setdefault(key, OffsetSet()).add(in_span)


def are_stored(
    rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...], stored: StoredRecords
) -> npt.NDArray[np.bool_]:
    """Return of which rows the record is stored."""
    is_stored = np.zeros(len(rows), np.bool_)
    offsets = _offsets(rows, names)
    for key, row_numbers in _groups(rows, names, more):
        if key in stored:
            is_stored[row_numbers] = stored[key].contains(offsets[row_numbers])
    return is_stored


def _offsets(rows: pa.Table, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the offsets of rows, -1 for none."""
    offsets = pc.fill_null(rows.column(names[2]).cast(pa.int64()), -1)
    return np.asarray(offsets.to_numpy(), np.int64)


def _groups(
    rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], npt.NDArray[np.int64]]]:
    """Yield the keys of rows (see `StoredRecords`), each with its row numbers."""
    by = [*names[:2], *more]
    numbered = rows.select(by).append_column("_row", pa.array(np.arange(len(rows))))
    grouped = numbered.group_by(by).aggregate([("_row", "list")])
    row_numbers = grouped.column("_row_list")
    for number, key in enumerate(grouped.select(by).to_pylist()):
        yield tuple(key[name] for name in by), np.asarray(row_numbers[number].values, np.int64)
