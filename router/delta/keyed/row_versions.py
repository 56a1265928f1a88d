"""What a table holds of given keys: how new the row of each is, and which keys were deleted when."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyarrow import fs

from router.delta.casting import cast_to
from router.delta.commit import HOOKS, has_transaction
from router.delta.keyed.row_order import HELD, SINCE, keys_and_order
from router.delta.keyed.scd import HISTORY_COLUMNS, TIMESTAMP
from router.delta.lake import native_files

if TYPE_CHECKING:
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
    return pa.schema([*keys, *((name, pa.bool_()) for name in HELD), (SINCE, TIMESTAMP)])


def held_versions(table: DeltaTable, rows: pa.Table, keyed: KeyedTable, *, past: bool = False) -> pa.Table:
    """Return the keys, order columns, `_there`, `_live` and `_since` of the table's rows that have a key of `rows`.

    Only files that may hold one of the keys are read. Of a history what is current, and what is past if asked for.
    """
    schema = keys_and_order(rows, keyed).schema
    extra = (keyed.soft_delete,) if keyed.soft_delete else HISTORY_COLUMNS.names if keyed.history else ()
    found = _scan(table, rows, keyed, [*schema.names, *extra])
    keys = cast_to(found, schema)
    if keyed.history and set(extra) <= set(found.column_names):
        current = found.column("is_current")
        since = pc.coalesce(found.column("valid_to"), found.column("valid_from"))
        held = _held(keys, current, current, since.cast(TIMESTAMP))
        return held if past else held.filter(current)
    flagged = keyed.soft_delete in found.column_names
    return _held(keys, True, pc.invert(found.column(keyed.soft_delete).fill_null(False)) if flagged else None)


def deletions_table(lake: Lake, table: str) -> DeltaTable | None:
    """Return the memory of a table's deletions; most tables have none, and looking costs less than opening."""
    log = f"{_name(table).replace('.', '/')}/_delta_log"
    there = lake.files.get_file_info(log).type is not fs.FileType.NotFound
    return lake.open(_name(table)) if there else None


def remembered_deletions(lake: Lake, table: str, rows: pa.Table, keyed: KeyedTable) -> pa.Table:
    """Return what is remembered of the deletion of the keys of `rows`, as a state."""
    schema, have = keys_and_order(rows, keyed).schema, deletions_table(lake, table)
    if have is None:
        return _held(schema.empty_table(), False)
    found = _scan(have, rows, keyed, [*schema.names, SINCE])
    since = found.column(SINCE) if SINCE in found.column_names else None
    return _held(cast_to(found, schema), False, since=since)


def remember_deletions(lake: Lake, table: str, gone: pa.Table, keyed: KeyedTable, once: Transaction) -> None:
    """Remember deletions under a transaction id, and forget, now and then, those that were kept long enough."""
    have, now = deletions_table(lake, table), datetime.now(timezone.utc)
    if have is not None and has_transaction(have, once):
        return
    for index, field in enumerate(gone.schema):
        if pa.types.is_integer(field.type):  # the table's own column may be widened one day
            gone = gone.set_column(index, field.name, gone.column(index).cast(pa.int64()))
    write_deltalake(
        have or lake.address(_name(table)),
        gone.append_column(DELETED_AT, pa.array([now] * len(gone), TIMESTAMP)),
        mode="append",
        schema_mode="merge",
        storage_options=lake.delta_options(table),
        commit_properties=CommitProperties(app_transactions=[once]),
        post_commithook_properties=HOOKS,
    )
    if have is not None and have.version() % SWEPT == 0:
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


def _held(found: pa.Table, there: Any, live: Any = None, since: Any = None) -> pa.Table:
    """Return keys and order columns with what else a state has."""
    there = pa.array([there] * len(found), pa.bool_()) if isinstance(there, bool) else there
    columns = (there, there if live is None else live, pa.nulls(len(found), TIMESTAMP) if since is None else since)
    for name, column in zip((*HELD, SINCE), columns, strict=True):
        found = found.append_column(name, column)
    return found
