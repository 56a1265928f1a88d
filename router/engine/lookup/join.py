"""Join events with the rows of a table by key, on record batches. Runs on executors; `chosen` on the driver, too.

The rows travel as one broadcast of Arrow bytes, and a Python worker keeps them with an index of their keys until a
newer state of the table comes. A key that the table does not have, and a null one, gives a null struct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from router.engine.expressions.evaluator import Node, evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

Numbers = npt.NDArray[np.int64]
AS_NUMBERS = (pa.types.is_integer, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_boolean)
"""Types of keys that are compared as whole numbers; others are compared as Python's values."""


@dataclass(frozen=True)
class LookupTable:
    """One state of a table, as tasks get it: its rows by key, and the expressions that say which key an event has.

    `rows` is a broadcast of an Arrow stream, `keys` its columns to look in, `gives` the others. `state` names the
    content: the same name, the same rows.
    """

    name: str
    state: str
    on: tuple[Node, ...]
    keys: tuple[str, ...]
    gives: pa.StructType
    rows: Any


def joined(columns: dict[str, pa.Array], lookups: Sequence[LookupTable]) -> dict[str, pa.Array]:
    """Return the columns of a record batch and one struct for each table: null where it has no row for the event."""
    rows = len(columns["event"])
    for lookup in lookups:
        held = _held(lookup)
        keys = [evaluate(node, columns, rows)[0] for node in lookup.on]
        columns[lookup.name] = held.structs.take(held.index.find(keys))
    return columns


class KeyIndex:
    """An index of rows by the values of one or more columns. `codes` has a number for each different key of the rows.

    Rows with a null in their key have the code -1.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.values: list[pd.Index] = []
        self.pairs: list[pd.Index] = []
        codes: Numbers | None = None
        for column in columns:
            self.values.append(pd.Index(_plain(pc.unique(column.drop_null()))))
            code = _codes(column, self.values[-1])
            if codes is not None:
                pairs = _pairs(codes, code, len(self.values[-1]))
                self.pairs.append(pd.Index(np.unique(pairs[pairs >= 0])))
                code = _at(self.pairs[-1], pairs)
            codes = code
        self.codes: Numbers = codes if codes is not None else np.zeros(0, np.int64)
        self.place = np.full(int(self.codes.max(initial=-1)) + 2, -1, np.int64)
        self.place[self.codes] = np.arange(len(self.codes))
        self.place[-1] = -1  # of the code -1: no row

    def find(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the place of the row with each key, null where there is none."""
        codes: Numbers | None = None
        for k, column in enumerate(columns):
            code = _codes(column, self.values[k])
            codes = code if codes is None else _at(self.pairs[k - 1], _pairs(codes, code, len(self.values[k])))
        found = self.place[codes]
        return pa.array(found, mask=found < 0)


def chosen(table: pa.Table, keys: Sequence[str], newest_by: str | None) -> tuple[pa.Table, dict[str, Any] | None]:
    """Return one row for each key, the newest one, and a key that has several rows where nothing says which is newest.

    Rows with a null in their key are left out. Of rows that are equally new, null included, the first counts.
    """
    if newest_by:
        table = table.sort_by([(newest_by, "descending")])
    codes = KeyIndex([_whole(table.column(name)) for name in keys]).codes
    different, first = np.unique(codes, return_index=True)
    first = np.sort(first[different >= 0])
    if newest_by or len(first) == int((codes >= 0).sum()):
        return table.take(pa.array(first)), None
    left = np.setdiff1d(np.flatnonzero(codes >= 0), first)
    return table, {name: table.column(name)[int(left[0])].as_py() for name in keys}


@dataclass(frozen=True)
class _Held:
    """The rows of a table in one worker."""

    state: str
    structs: pa.StructArray
    index: KeyIndex


_KEPT: dict[str, _Held] = {}


def _held(lookup: LookupTable) -> _Held:
    """Return the rows of a table as this worker has them, or make them of the broadcast."""
    held = _KEPT.get(lookup.name)
    if held is None or held.state != lookup.state:
        table = pa.ipc.open_stream(pa.py_buffer(lookup.rows.value)).read_all()
        values = [_whole(table.column(field.name)) for field in lookup.gives]
        structs = pa.StructArray.from_arrays(values, fields=list(lookup.gives))
        held = _KEPT[lookup.name] = _Held(lookup.state, structs, KeyIndex([_whole(table[key]) for key in lookup.keys]))
    return held


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _plain(values: pa.Array) -> npt.NDArray[Any]:
    """Return values without nulls as numbers or as objects that compare as the table's do."""
    if any(of(values.type) for of in AS_NUMBERS):
        if pa.types.is_date32(values.type):
            values = values.cast(pa.int32())
        return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
    return np.array([*values.to_pylist(), None], dtype=object)[:-1]  # without None an array of lists may be made


def _codes(column: pa.Array, values: pd.Index) -> Numbers:
    """Return the place of each value in an index, -1 where it has none."""
    coded = column.dictionary_encode()
    places = _at(values, _plain(coded.dictionary))
    at = pc.fill_null(coded.indices, len(places)).to_numpy(zero_copy_only=False)
    return np.asarray(np.append(places, -1)[at])


def _pairs(first: Numbers, second: Numbers, size: int) -> Numbers:
    return np.where((first < 0) | (second < 0), -1, first * size + second)


def _at(index: pd.Index, values: npt.NDArray[Any]) -> Numbers:
    if not len(index) or not len(values):
        return np.full(len(values), -1, np.int64)
    return np.asarray(index.get_indexer(pd.Index(values)), np.int64)
