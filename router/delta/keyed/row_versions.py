"""Read how new a table's rows of given keys are, and remember which keys were deleted when.

Both are a state: a table with the keys, the order columns and `HELD`, and with HISTORY_COLUMNS for a history.
"""

from __future__ import annotations

from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from router.delta.casting import cast_to
from router.delta.commit import has_transaction
from router.delta.dataset import dataset_of, read_batches
from router.delta.keyed.row_order import HELD_COLUMNS, keys_and_order
from router.delta.keyed.scd import HISTORY_COLUMNS, MOMENT
from router.delta.replace import write_rows
from router.own_names import DELETIONS

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

    from router.api.sinks import KeyedTable
    from router.delta.lake import Lake


DELETED_AT = "_deleted_at"
_SEARCHED_ROWS = 1 << 18
"""Rows that are searched at once for the keys of the batch, which are hashed again each time."""
SWEPT = 64
"""Commits after which expired deletions are forgotten."""


def versions_schema(rows: pa.Schema, keyed: KeyedTable) -> pa.Schema:
    """Return the columns of a state, in the types of rows."""
    fields = list(keys_and_order(rows.empty_table(), keyed).schema)
    fields += [pa.field(name, pa.bool_()) for name in HELD_COLUMNS]
    if keyed.history:
        fields += HISTORY_COLUMNS
    return pa.schema(fields)


def held_versions(table: DeltaTable, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return a table's rows of the keys of `rows`, as a state; of a history all rows, not only the current ones.

    Reads only files that may contain one of the keys.
    """
    schema = versions_schema(rows.schema, keyed)
    names = list(schema.names)
    if keyed.soft_delete:
        names.append(keyed.soft_delete)
    found = rows_of_keys(table, rows, keyed, names)
    live = pa.array(np.ones(len(found), dtype=bool))
    if keyed.soft_delete in found.column_names:
        live = pc.invert(found.column(keyed.soft_delete).fill_null(False))
    return _as_state(found, schema, there=True, live=live)


def deletions_table(lake: Lake, table: str) -> DeltaTable | None:
    """Return the table of a table's remembered deletions, None if there is none."""
    name = _deletions_name(table)
    # Most tables have none, and to look for the log costs less than to try to open it.
    log = lake.files.get_file_info(f"{name.replace('.', '/')}/_delta_log")
    if log.type is fs.FileType.NotFound:
        return None
    return lake.open(name)


def remembered_deletions(lake: Lake, table: str, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return the remembered deletions of the keys of `rows`, as a state."""
    schema = versions_schema(rows.schema, keyed)
    deletions = deletions_table(lake, table)
    if deletions is None:
        return schema.empty_table()
    return _as_state(rows_of_keys(deletions, rows, keyed, schema.names), schema, there=False, live=None)


def remember_deletions(lake: Lake, table: str, gone: pa.Table, keyed: KeyedTable, once: Transaction) -> None:
    """Remember deletions under a transaction id, and from time to time forget those that were kept long enough."""
    deletions = deletions_table(lake, table)
    if deletions is not None and has_transaction(deletions, once):
        return
    now = datetime.now(timezone.utc)
    # Integers are stored as bigint: the column of the table itself may become wider one day.
    for index, field in enumerate(gone.schema):
        if pa.types.is_integer(field.type):
            gone = gone.set_column(index, field.name, gone.column(index).cast(pa.int64()))
    write_rows(
        deletions or lake.address(_deletions_name(table)),
        gone.append_column(DELETED_AT, pa.array([now] * len(gone), MOMENT)),
        ids={once.app_id: once.version},
        new_columns=True,
        storage_options=lake.delta_options(table),
    )
    # A history needs its deletions for as long as a row may come late, so it keeps them.
    if deletions is not None and not keyed.history and deletions.version() % SWEPT == 0:
        expired_before = (now - keyed.deletions_kept).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        deletions.delete(f"{DELETED_AT} < '{expired_before}'")


def deletions_remembered(lake: Lake, table: str, once: Transaction) -> bool:
    """Return whether the deletions of a transaction id are remembered already."""
    deletions = deletions_table(lake, table)
    return deletions is not None and has_transaction(deletions, once)


def rows_of_keys(table: DeltaTable, rows: pa.Table, keyed: KeyedTable, names: list[str]) -> pa.Table:
    """Return the rows of a table that have a key of `rows`, with those of the columns `names` that the table has."""
    content = dataset_of(table, *keyed.keys)
    schema = content.schema
    keys = cast_to(rows, pa.schema([schema.field(key) for key in keyed.keys]))
    columns = [name for name in names if name in schema.names]
    columns_schema = pa.schema([schema.field(name) for name in columns])
    if not len(rows):
        return columns_schema.empty_table()
    values = {key: pc.unique(keys.column(key)) for key in keyed.keys}
    # Files were skipped by the bounds of their keys. Rows are filtered here, not by the reader: a merge writes texts
    # that are read as views, which the reader cannot compare.
    parts: list[pa.RecordBatch] = []
    for batch in read_batches(content, _within_bounds(keys), columns=columns, batch_size=_SEARCHED_ROWS):
        part = batch.filter(_may_match(batch, values))
        if len(part):
            parts.append(part)
    return pa.Table.from_batches(parts, columns_schema)


def _within_bounds(keys: pa.Table) -> ds.Expression:
    """Return the condition that each key is between the smallest and the largest of `keys`."""
    condition = ds.scalar(True)
    for name, column in zip(keys.column_names, keys.columns, strict=True):
        if not pa.types.is_boolean(column.type):
            bounds = pc.min_max(column)
            condition &= (ds.field(name) >= bounds["min"]) & (ds.field(name) <= bounds["max"])
    return condition


def _may_match(batch: pa.RecordBatch, values: dict[str, pa.Array]) -> pa.Array:
    """Return the rows whose key columns all have one of the values, if not always those of one and the same key."""
    masks = [pc.is_in(batch.column(key), value_set=key_values) for key, key_values in values.items()]
    return reduce(pc.and_, masks)


def _deletions_name(table: str) -> str:
    return f"{table}.{DELETIONS}"


def _as_state(rows: pa.Table, schema: pa.Schema, *, there: bool, live: pa.Array | None) -> pa.Table:
    """Return rows with the columns of a state; columns that they lack are null. `there` and `live`: see `HELD`."""
    there_name, live_name = HELD_COLUMNS
    flags = {there_name: pa.array(np.full(len(rows), there)), live_name: live}
    columns = []
    for field in schema:
        column = flags.get(field.name)
        if column is None and field.name in rows.column_names:
            column = rows.column(field.name)
        if column is None:
            column = pa.nulls(len(rows), field.type)
        columns.append(column)
    return cast_to(pa.table(columns, names=schema.names), schema)
