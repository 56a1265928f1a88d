"""Join events with the rows of a table by key, on record batches. Runs on executors; `choose_rows` on the driver.

The rows travel as one broadcast of Arrow bytes, and a Python worker keeps them with an index of their keys until a
newer state of the table comes. An event whose key is null or not in the table gets a null struct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from router.engine.expressions.evaluator import Node, evaluate_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

_Numbers = npt.NDArray[np.int64]
AS_NUMBERS = (pa.types.is_integer, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_boolean)
"""Types of keys that are compared as whole numbers; others are compared as Python's values."""


@dataclass(frozen=True)
class LookupTable:
    """One state of a table, as tasks get it: its rows by key, and the expressions of an event's key.

    `rows` is a broadcast of an Arrow stream, `keys` its columns to look in, `gives` the columns that events get.
    `state` names the content: the same name, the same rows.
    """

    name: str
    state: str
    on: tuple[Node, ...]
    keys: tuple[str, ...]
    gives: pa.StructType
    rows: Any


def join_lookups(columns: dict[str, pa.Array], lookups: Sequence[LookupTable]) -> dict[str, pa.Array]:
    """Return the columns of a record batch and one struct for each table: null if it has no row for the event."""
    rows = len(columns["event"])
    for lookup in lookups:
        table = _worker_table(lookup)
        keys = [evaluate_expression(node, columns, rows)[0] for node in lookup.on]
        columns[lookup.name] = table.structs.take(table.index.find_rows(keys))
    return columns


class KeyIndex:
    """An index of rows by the values of one or more columns. `codes` has a number for each different key of the rows.

    Rows with a null in their key have the code -1.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.values = [pd.Index(_comparable_values(pc.unique(column.drop_null()))) for column in columns]
        self.pairs: list[pd.Index] = []
        codes = _encode_values(columns[0], self.values[0])
        for column, values in zip(columns[1:], self.values[1:], strict=True):
            # Number the pairs that exist: products of all sizes could need more than 64 bits.
            pairs = _combine_codes(codes, _encode_values(column, values), len(values))
            self.pairs.append(pd.Index(np.unique(pairs[pairs >= 0])))
            codes = _find_places(self.pairs[-1], pairs)
        self.codes = codes
        self.rows = np.full(int(self.codes.max(initial=-1)) + 2, -1, np.int64)
        self.rows[self.codes] = np.arange(len(self.codes))
        self.rows[-1] = -1  # of the code -1: no row

    def find_rows(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the number of the row with each key, null if there is none."""
        codes = _encode_values(columns[0], self.values[0])
        for column, values, known_pairs in zip(columns[1:], self.values[1:], self.pairs, strict=True):
            codes = _find_places(known_pairs, _combine_codes(codes, _encode_values(column, values), len(values)))
        rows = self.rows[codes]
        return pa.array(rows, mask=rows < 0)


def choose_rows(table: pa.Table, keys: Sequence[str], newest_by: str | None) -> tuple[pa.Table, dict[str, Any] | None]:
    """Return the newest row of each key. Without `newest_by` also a key that has several rows, if there is one.

    Rows with a null in their key are left out. Of rows that are equally new, null included, the first counts.
    """
    if newest_by:
        table = _newest_first(table, newest_by)
    codes = KeyIndex([_one_array(table.column(name)) for name in keys]).codes
    different_codes, first_rows = np.unique(codes, return_index=True)
    first_rows = np.sort(first_rows[different_codes >= 0])
    if newest_by or len(first_rows) == int((codes >= 0).sum()):
        return table.take(pa.array(first_rows)), None
    further_rows = np.setdiff1d(np.flatnonzero(codes >= 0), first_rows)
    return table, {name: table.column(name)[int(further_rows[0])].as_py() for name in keys}


def _newest_first(table: pa.Table, newest_by: str) -> pa.Table:
    """Return a table with its largest values of a column first, and null last."""
    values = table.column(newest_by)
    is_nan = pa.repeat(False, len(values))
    # NaN is the largest number for Spark; Arrow sorts it behind all others.
    if pa.types.is_floating(values.type):
        is_nan = pc.fill_null(pc.is_nan(values), False)
    order = pa.table({"is_nan": is_nan, "value": values})
    return table.take(pc.sort_indices(order, [("is_nan", "descending"), ("value", "descending")]))


@dataclass(frozen=True)
class _WorkerTable:
    """The rows of a table in one worker."""

    state: str
    structs: pa.StructArray
    index: KeyIndex


_WORKER_TABLES: dict[str, _WorkerTable] = {}


def _worker_table(lookup: LookupTable) -> _WorkerTable:
    """Return the rows of a table as this worker has them, or make them of the broadcast."""
    kept_table = _WORKER_TABLES.get(lookup.name)
    if kept_table is not None and kept_table.state == lookup.state:
        return kept_table
    table = pa.ipc.open_stream(pa.py_buffer(lookup.rows.value)).read_all()
    values = [_one_array(table.column(field.name)) for field in lookup.gives]
    structs = pa.StructArray.from_arrays(values, fields=list(lookup.gives))
    index = KeyIndex([_one_array(table[key]) for key in lookup.keys])
    _WORKER_TABLES[lookup.name] = _WorkerTable(lookup.state, structs, index)
    return _WORKER_TABLES[lookup.name]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _comparable_values(values: pa.Array) -> npt.NDArray[Any]:
    """Return values without nulls as numbers or as objects that compare as the table's do."""
    if not any(is_type(values.type) for is_type in AS_NUMBERS):
        # Without the None numpy could make a two-dimensional array of lists.
        return np.array([*values.to_pylist(), None], dtype=object)[:-1]
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _encode_values(column: pa.Array, values: pd.Index) -> _Numbers:
    """Return the place of each value in an index, -1 if it has none."""
    coded = column.dictionary_encode()
    places = _find_places(values, _comparable_values(coded.dictionary))
    indices = pc.fill_null(coded.indices, len(places)).to_numpy(zero_copy_only=False)
    return np.asarray(np.append(places, -1)[indices])


def _combine_codes(first: _Numbers, second: _Numbers, size: int) -> _Numbers:
    return np.where((first < 0) | (second < 0), -1, first * size + second)


def _find_places(index: pd.Index, values: npt.NDArray[Any]) -> _Numbers:
    if not len(index) or not len(values):
        return np.full(len(values), -1, np.int64)
    return np.asarray(index.get_indexer(pd.Index(values)), np.int64)
