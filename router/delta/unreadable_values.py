"""Find values that readers of a Delta table refuse: texts that are not UTF-8, dates and times beyond years 1 to 9999.

One such value makes its whole file unreadable to delta-rs and pyarrow, or stops a merge. Spark writes them without an
error: its strings may hold any bytes (`CAST(key AS string)`), and its dates reach further than the year 9999.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.casting import Mask

NOT_UTF8 = "the text is not UTF-8"
FAR_DATE = "the date is not within the years 1 to 9999"
FAR_TIME = "the time is not within the years 1 to 9999"
FIRST_DAY = -719_162
"""0001-01-01, in days since 1970."""
LAST_DAY = 2_932_896
"""9999-12-31, in days since 1970."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The name of a partition without a value. Spark and pyarrow read null where a text of this name was written."""
TAKEN_BY_NULL = f"the text {NULL_PARTITION} would be read as null there: a table is partitioned by it"
_UNITS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


@dataclass(frozen=True)
class UnreadableValues:
    """The rows with an unreadable value in one column, or in one nested field. `path`: its names, joined by dots."""

    path: str
    fault: str
    rows: Mask

    @property
    def reason(self) -> str:
        """Return the fault of the values, with their path, as text for a dead letter."""
        return f"{self.path}: {self.fault}"


def unreadable_values(path: str, array: pa.Array) -> Iterator[UnreadableValues]:
    """Yield the unreadable values of a column, by nested field; nothing if all is well.

    That takes 6 ms for a million texts, and less than 1 ms for as many dates.
    """
    kind = array.type
    # An empty array may come from Spark without its buffers: it must not be looked into.
    if not may_be_unreadable(kind) or array.null_count == len(array):
        return
    if pa.types.is_struct(kind):
        for number, child in enumerate(kind):
            yield from unreadable_values(f"{path}.{child.name}", pc.struct_field(array, [number]))
    elif pa.types.is_map(kind):
        # As a list of entries, since Arrow flattens lists, but not maps.
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        for field_of_entry in unreadable_values("", entries.flatten()):
            rows = _rows_of_elements(entries, field_of_entry.rows)
            yield UnreadableValues(path + field_of_entry.path, field_of_entry.fault, rows)
    elif pa.types.is_nested(kind):
        for element in unreadable_values(f"{path}.element", array.flatten()):
            yield UnreadableValues(element.path, element.fault, _rows_of_elements(array, element.rows))
    elif is_text(kind):
        rows = not_utf8(array)
        if rows.any():
            yield UnreadableValues(path, NOT_UTF8, rows)
    else:
        rows = far_rows(array)
        if rows.any():
            yield UnreadableValues(path, FAR_DATE if pa.types.is_date32(kind) else FAR_TIME, rows)


def unreadable_in(part: pa.RecordBatch) -> Iterator[UnreadableValues]:
    """Yield the unreadable values of all columns."""
    for name, column in zip(part.schema.names, part.columns, strict=True):
        yield from unreadable_values(name, column)


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows as `to_pylist` does; dates and times of columns for which Python has none are texts.

    A record of Kafka may have any time: a producer that sends microseconds as milliseconds is in the year 55,840.
    """
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        is_time = pa.types.is_date32(values.type) or pa.types.is_timestamp(values.type)
        far = far_rows(values) if is_time else None
        if far is None or not far.any():
            columns[name] = values.to_pylist()
            continue
        near = pc.if_else(pa.array(far), pa.scalar(None, values.type), values).to_pylist()
        for row in np.flatnonzero(far):
            near[row] = str(values[int(row) : int(row) + 1].to_numpy(zero_copy_only=False)[0])
        columns[name] = near
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_as_null(array: pa.Array) -> Mask:
    """Return which values of a column, by which a table is partitioned, would be read as null."""
    if not is_text(array.type):
        return np.zeros(len(array), dtype=bool)
    is_name = pc.fill_null(pc.equal(array, pa.scalar(NULL_PARTITION, array.type)), False)
    return np.asarray(is_name, dtype=bool)


def may_be_unreadable(kind: pa.DataType) -> bool:
    """Return whether a type has values, perhaps nested ones, that can be unreadable."""
    if pa.types.is_nested(kind):
        return any(may_be_unreadable(kind.field(number).type) for number in range(kind.num_fields))
    # Nanoseconds of 64 bits reach from 1677 to 2262.
    if pa.types.is_timestamp(kind):
        return bool(kind.unit != "ns")
    return is_text(kind) or bool(pa.types.is_date32(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is that of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def not_utf8(texts: pa.Array) -> Mask:
    """Return the texts that are not UTF-8."""
    rows = np.zeros(len(texts), bool)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        # Arrow does not report which text it is: decode one by one.
        binary = pa.large_binary() if pa.types.is_large_string(texts.type) else pa.binary()
        for row, value in enumerate(texts.cast(binary).to_pylist()):
            rows[row] = value is not None and not _is_utf8(value)
    return rows


def replace_bad_bytes(texts: pa.Array) -> pa.Array:
    """Return texts with the replacement character in place of bytes that are not UTF-8, to show them to a person."""
    if not not_utf8(texts).any():
        return texts
    values = []
    for value in texts.cast(pa.binary()).to_pylist():
        values.append(None if value is None else value.decode(errors="replace"))
    return pa.array(values, pa.string())


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def far_rows(values: pa.Array) -> Mask:
    """Return which dates or times are beyond the years 1 to 9999; no null is."""
    if values.null_count == len(values):
        return np.zeros(len(values), bool)
    if pa.types.is_date32(values.type):
        numbers = values.view(pa.int32())
        first = FIRST_DAY
        last = LAST_DAY
    else:
        numbers = values.view(pa.int64())
        units = _UNITS_PER_DAY[values.type.unit]
        first = FIRST_DAY * units
        last = (LAST_DAY + 1) * units - 1
    bounds = pc.min_max(numbers)
    # The usual case needs no mask.
    if bounds["min"].as_py() >= first and bounds["max"].as_py() <= last:
        return np.zeros(len(values), bool)
    is_far = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    rows: Mask = pc.fill_null(is_far, False).to_numpy(zero_copy_only=False)
    return rows


def _rows_of_elements(lists: pa.Array, elements: Mask) -> Mask:
    """Return the rows of lists that have a marked element; `elements` marks those that `flatten` returns."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    row_of_element = np.repeat(np.arange(len(lists)), lengths)
    rows = np.zeros(len(lists), bool)
    rows[row_of_element[elements]] = True
    return rows
