"""Store in a table, as a property, by which keys and in which order its rows are merged.

A merge by other keys would make one row of two, or two of one, and that could not be noticed afterwards. So the
property names the keys, and a merge by others is refused. A table without the property, of an older version or another
writer, is searched once for several rows of one key, and then gets it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from router.api.sinks import KeyedTable
from router.delta.dataset import dataset_of
from router.delta.replace import set_properties
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import DeltaTable

KEYED_BY = "router.keyed"
"""The property: keys, order and history as JSON."""
SHOWN_KEYS = 3
"""The most keys that an error names."""
Hashes = npt.NDArray[np.uint64]


def keyed_by(keyed: KeyedTable) -> str:
    """Return the property's value for a sink."""
    order = list(keyed.newest_by) or [f"column {number}" for number in range(1, keyed.newest + 1)] or ["offset"]
    return json.dumps({"keys": list(keyed.keys), "order": order, "history": keyed.history})


def keyed_of(handle: DeltaTable) -> KeyedTable | None:
    """Return keys and history by which a table was merged; None for a table without the property."""
    stored = handle.metadata().configuration.get(KEYED_BY)
    if stored is None:
        return None
    value = json.loads(stored)
    return KeyedTable(keys=tuple(value["keys"]), history=value["history"])


def own_properties(keyed: KeyedTable) -> dict[str, str]:
    """Return the properties that the router itself gives a new table."""
    return {KEYED_BY: keyed_by(keyed)}


def refuse_other_keys(table: str, properties: Mapping[str, str | None], keyed: KeyedTable) -> None:
    """Raise TableError if a table was merged by other keys, in another order, or only one of both has a history."""
    stored = properties.get(KEYED_BY)
    if stored is None or stored == keyed_by(keyed):
        return
    before = json.loads(stored)
    now = json.loads(keyed_by(keyed))
    changed = []
    for name, value in now.items():
        if before.get(name) != value:
            changed.append(f"{name} {_property_text(before.get(name))} there, {_property_text(value)} in the sink")
    problem = f"it was merged in another way: {'; '.join(changed)}"
    rebuild = f"router rebuild FILE {table}"
    raise TableError(table, f"{problem}. Go back to that, let `{rebuild}` rebuild it, or give the sink another table")


def _property_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower()


def take_over(handle: DeltaTable, table: str, keyed: KeyedTable) -> None:
    """Give a table the property if it has none. Raises TableError if it has several rows of one key.

    Reads the keys of all rows, once in the life of a table.
    """
    if KEYED_BY in handle.metadata().configuration:
        return
    refuse_repeated_keys(handle, table, keyed)
    set_properties(handle, {KEYED_BY: keyed_by(keyed)})


def refuse_repeated_keys(handle: DeltaTable, table: str, keyed: KeyedTable) -> None:
    """Raise TableError if a table has several rows of one key; of a history, several current ones."""
    repeated = repeated_keys(handle, keyed)
    if repeated:
        raise TableError(table, several_rows(table, repeated))


def several_rows(table: str, repeated: Sequence[Mapping[str, object]]) -> str:
    """Return the sentence about keys of which a table has several rows."""
    shown: list[str] = []
    for key in repeated[:SHOWN_KEYS]:
        shown.append(", ".join(f"{name}={value}" for name, value in key.items()))
    keys = "; ".join(shown)
    if len(repeated) > SHOWN_KEYS:
        keys = f"{keys} and {len(repeated) - SHOWN_KEYS:,} more"
    problem = f"it has several rows for {keys}, and a merge would not tell them apart"
    return f"{problem}; let `router rebuild FILE {table}` rebuild it, or delete the rows that are too many"


def repeated_keys(handle: DeltaTable, keyed: KeyedTable) -> list[dict[str, object]]:
    """Return the keys that have more than one row, sorted.

    Memory: holds eight bytes for each row, and the rows whose keys may be repeated.
    """
    hashes = [_hash_keys(part, keyed.keys) for part in _read_keys(handle, keyed)]
    if not hashes:
        return []  # the table has no file
    values, counts = np.unique(np.concatenate(hashes), return_counts=True)
    suspects = values[counts > 1]
    if not len(suspects):
        return []
    # Two keys can share a hash: only equal values are one key.
    parts = []
    for part in _read_keys(handle, keyed):
        parts.append(part.filter(pa.array(np.isin(_hash_keys(part, keyed.keys), suspects))))
    rows = pa.Table.from_batches(parts).select(list(keyed.keys))
    # By number: Arrow takes a name with a leading dot for a path to a field.
    numbers = [str(number) for number in range(rows.num_columns)]
    counted = rows.rename_columns(numbers).group_by(numbers).aggregate([([], "count_all")])
    repeated = counted.filter(pc.greater(counted.column("count_all"), 1)).select(numbers)
    return sorted(repeated.rename_columns(rows.column_names).to_pylist(), key=repr)


def _read_keys(handle: DeltaTable, keyed: KeyedTable) -> Iterator[pa.RecordBatch]:
    """Yield the keys of a table's rows; of a history those of the current rows."""
    rows = dataset_of(handle, "is_current")
    condition = None
    if keyed.history and "is_current" in rows.schema.names:
        condition = pc.field("is_current")
    yield from rows.to_batches(columns=list(keyed.keys), filter=condition)


def _hash_keys(part: pa.RecordBatch, keys: tuple[str, ...]) -> Hashes:
    """Return a hash of the keys of each row."""
    combined = np.zeros(part.num_rows, np.uint64)
    for key in keys:
        column = pd.util.hash_array(part.column(key).to_numpy(zero_copy_only=False), categorize=False)
        combined = combined * np.uint64(31) + column
    return combined
