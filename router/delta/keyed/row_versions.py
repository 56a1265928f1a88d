"""What a table holds of given keys: how new the row of each is, and which keys were deleted when."""

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
from router.delta.keyed.row_order import HELD, keys_and_order
from router.delta.keyed.scd import HISTORY_COLUMNS, TIMESTAMP
from router.delta.lake import native_files
from router.delta.replace import write_rows

if TYPE_CHECKING:
    from deltalake import DeltaTable, Transaction

    from router.delta.lake import Lake
    from router.sinks import KeyedTable


DELETIONS = "_deletions"
"""The folder below a table's that remembers its deletions: a Delta table of keys and order columns, which the table's
readers do not see, and which goes when the table does."""
DELETED_AT = "_deleted_at"
ROWS = 1 << 18
"""Rows that are looked through at once: the keys of the batch are hashed anew for each."""
SWEPT = 64
"""Commits after which deletions that were kept long enough are forgotten."""


def versions_schema(rows: pa.Schema, keyed: KeyedTable) -> pa.Schema:
    """Return the columns of a state, in the types of rows."""
    keys = keys_and_order(rows.empty_table(), keyed).schema
    return pa.schema([*keys, *((name, pa.bool_()) for name in HELD), *(HISTORY_COLUMNS if keyed.history else [])])


def held_versions(table: DeltaTable, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return what a table holds of the keys of `rows`, as a state; of a history all rows, also those that are past.

    Only files that may hold one of the keys are read.
    """
    schema = versions_schema(rows.schema, keyed)
    extra = [keyed.soft_delete] if keyed.soft_delete else []
    rows_of_keys = _scan(table, rows, keyed, [*schema.names, *extra])
    live = pa.array(np.ones(len(rows_of_keys), dtype=bool))
    if keyed.soft_delete in rows_of_keys.column_names:
        live = pc.invert(rows_of_keys.column(keyed.soft_delete).fill_null(False))
    return _as_state(rows_of_keys, schema, there=True, live=live)


def deletions_table(lake: Lake, table: str) -> DeltaTable | None:
    """Return the memory of a table's deletions; most tables have none, and looking costs less than opening."""
    log = f"{_name(table).replace('.', '/')}/_delta_log"
    there = lake.files.get_file_info(log).type is not fs.FileType.NotFound
    return lake.open(_name(table)) if there else None


def remembered_deletions(lake: Lake, table: str, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return what is remembered of the deletion of the keys of `rows`, as a state."""
    schema = versions_schema(rows.schema, keyed)
    memory = deletions_table(lake, table)
    if memory is None:
        return schema.empty_table()
    return _as_state(_scan(memory, rows, keyed, schema.names), schema, there=False, live=None)


def remember_deletions(lake: Lake, table: str, gone: pa.Table, keyed: KeyedTable, once: Transaction) -> None:
    """Remember deletions under a transaction id, and forget, now and then, those that were kept long enough."""
    have, now = deletions_table(lake, table), datetime.now(timezone.utc)
    if have is not None and has_transaction(have, once):
        return
    for index, field in enumerate(gone.schema):
        if pa.types.is_integer(field.type):  # the table's own column may be widened one day
            gone = gone.set_column(index, field.name, gone.column(index).cast(pa.int64()))
    write_rows(
        have or lake.address(_name(table)),
        gone.append_column(DELETED_AT, pa.array([now] * len(gone), TIMESTAMP)),
        ids={once.app_id: once.version},
        new_columns=True,
        storage_options=lake.delta_options(table),
    )
    # A history needs its deletions for as long as a row may come late, so it keeps them.
    if have is not None and not keyed.history and have.version() % SWEPT == 0:
        have.delete(f"{DELETED_AT} < '{(now - keyed.deletions_kept).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'")


def deletions_remembered(lake: Lake, table: str, once: Transaction) -> bool:
    """Say whether the deletions of a transaction id are remembered already."""
    have = deletions_table(lake, table)
    return have is not None and has_transaction(have, once)


def _scan(table: DeltaTable, rows: pa.Table, keyed: KeyedTable, names: list[str]) -> pa.Table:
    """Return the rows of a table that have a key of `rows`, of those columns that there are.

    Files are left out by the bounds of their keys. Rows are not left out by the reader: it cannot compare the texts of
    a file that a merge has written, which come as views.
    """
    content = table.to_pyarrow_dataset(filesystem=native_files(table))
    schema = content.schema
    keys = cast_to(rows, pa.schema([schema.field(key) for key in keyed.keys]))
    files = list(content.get_fragments(_bounds(keys)))
    asked = [name for name in names if name in schema.names]
    found = pa.schema([schema.field(name) for name in asked]).empty_table()
    if not files or not len(rows):
        return found
    values = {key: pc.unique(keys.column(key)) for key in keyed.keys}
    some = ds.FileSystemDataset(files, schema, content.format, content.filesystem)
    parts = [part.filter(_among(part, values)) for part in some.to_batches(columns=asked, batch_size=ROWS)]
    return pa.Table.from_batches([part for part in parts if len(part)], found.schema)


def _bounds(keys: pa.Table) -> ds.Expression:
    condition = ds.scalar(True)
    for name, column in zip(keys.column_names, keys.columns, strict=True):
        if not pa.types.is_boolean(column.type):
            bounds = pc.min_max(column)
            condition &= (ds.field(name) >= bounds["min"]) & (ds.field(name) <= bounds["max"])
    return condition


def _among(part: pa.RecordBatch, values: dict[str, pa.Array]) -> pa.Array:
    """Return which rows may have one of the keys."""
    masks = [pc.is_in(part.column(key), value_set=known) for key, known in values.items()]
    return reduce(pc.and_, masks)


def _name(table: str) -> str:
    return f"{table}.{DELETIONS}"


def _as_state(found: pa.Table, schema: pa.Schema, *, there: bool, live: pa.Array | None) -> pa.Table:
    """Return rows with the columns of a state; those that they lack are null."""
    flags = dict(zip(HELD, (pa.array(np.full(len(found), there)), live), strict=True))
    columns = []
    for field in schema:
        column = flags.get(field.name)
        if column is None and field.name in found.column_names:
            column = found.column(field.name)
        columns.append(pa.nulls(len(found), field.type) if column is None else column)
    return cast_to(pa.table(columns, names=schema.names), schema)
