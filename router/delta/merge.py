"""Write the changes of one table in one Delta commit: an append where everything is new, else a MERGE."""

from __future__ import annotations

import os
import string
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, WriterProperties, write_deltalake

from router.delta.choice import NeedsSpark
from router.delta.commit import PROPERTIES, to_arrow
from router.delta.conform import conformed
from router.delta.latest import CLOSE, DELETE, FLAG, INSERT, OP, PATCH, UPDATE, Changes
from router.delta.order import order_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.delta.lake import Lake
    from router.keyed import Keyed

    Quote = Callable[[str], str]

ROOM = 12 * 8192
"""Rows for each core that a merge has to have room for. With rows of 640 bytes, on two cores, it failed with 10 MB,
had not ended after minutes with 30 and with 64, and took 25 s with 100."""
FEW = 1000
"""Rows of a row group at least: fewer cost more in a file's footer than they save."""
PLAIN = frozenset(string.ascii_letters + string.digits + " -_.:@/#+=,")
"""The characters of a text that reads the same between quotes in every SQL."""


def create(lake: Lake, table: str, schema: pa.Schema, keyed: Keyed) -> DeltaTable:
    """Make a table without rows, or return the one that somebody has made meanwhile."""
    return DeltaTable.create(
        lake.address(table),
        Schema.from_arrow(schema),
        mode="ignore",
        description=keyed.comment,
        partition_by=list(keyed.partition_by) or None,
        configuration={**PROPERTIES, **keyed.properties},
        storage_options=lake.options or None,
    )


def append(table: DeltaTable, changes: Changes, once: CommitProperties) -> None:
    """Append rows that are all new."""
    write_deltalake(table, conformed(changes.rows, to_arrow(table)), mode="append", commit_properties=once)


def merge(table: DeltaTable, changes: Changes, keyed: Keyed, once: CommitProperties) -> None:
    """Write changes, some of which touch rows of the table. What they do not name of a row stays as it is."""
    have = to_arrow(table)
    names = [field.name for field in have if field.name in changes.rows.column_names]
    rows = conformed(changes.rows, pa.schema([have.field(name) for name in names]))
    rows = rows.append_column(OP, changes.rows.column(OP))
    merger = table.merge(
        rows,
        condition(rows, keyed, quoted),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,  # delta-rs then takes bounds from the rows, and leaves out files by their statistics
        max_spill_size=_pool(rows, keyed.memory) if keyed.memory else None,
        writer_properties=_row_groups(rows, keyed.memory) if keyed.memory else None,
        commit_properties=once,
    )
    for op in (UPDATE, PATCH, FLAG, CLOSE):
        if changes.count(op):
            merger = merger.when_matched_update(assigned(touched(op, names, keyed), quoted), f"s.{OP} = {op}")
    if changes.count(DELETE):
        merger = merger.when_matched_delete(f"s.{OP} = {DELETE}")
    if changes.count(INSERT):
        merger = merger.when_not_matched_insert(assigned(names, quoted), f"s.{OP} = {INSERT}")
    merger.execute()


def _pool(rows: pa.Table, memory: int) -> int:
    """Return the bytes that a merge may hold before it spills; raise NeedsSpark where it would not get far with them.

    What cannot be spilled are the rows of the batch. And DataFusion needs room for some of its batches for each core:
    with less it fails, or, with a little more, stands still for ever.
    """
    pool, each = memory // 2, max(1, rows.nbytes // max(1, len(rows)))
    if pool < rows.nbytes + ROOM * (os.cpu_count() or 1) * each:
        raise NeedsSpark("a merge of its rows does not fit into `memory`")
    return pool


def _row_groups(rows: pa.Table, memory: int) -> WriterProperties:
    """Return how files are written within some memory: a row group is held until it is whole, for each of a few files,
    and does not count as memory that could be spilled."""
    each = max(1, rows.nbytes // max(1, len(rows)))
    return WriterProperties(max_row_group_size=min(1 << 20, max(FEW, memory // 64 // each)))


def touched(op: int, names: list[str], keyed: Keyed) -> list[str]:
    """Return the columns that a change sets."""
    if op == UPDATE:
        return names
    if op == CLOSE:
        return ["valid_to", "is_current"]
    own = [*order_names(keyed), *([keyed.soft_delete] if keyed.soft_delete else [])]
    return [name for name in names if name in own or (op == PATCH and name in (keyed.columns or ()))]


def assigned(names: list[str], quote: Quote) -> dict[str, str]:
    """Return columns with the values that they get."""
    return {quote(name): f"s.{quote(name)}" for name in names}


def condition(rows: pa.Table, keyed: Keyed, quote: Quote) -> str:
    """Return the condition under which a change (a row with its `__op`) is for a row of the table.

    Literal bounds of the rows that are there leave out the files of all others.
    """
    parts = [f"t.{quote(key)} = s.{quote(key)}" for key in keyed.keys]
    touching = rows.filter(pa.array(np.asarray(rows.column(OP)) != INSERT))
    parts += [part for key in keyed.keys for part in _bounds(quote(key), touching.column(key))]
    if keyed.history:
        parts += ["t.is_current = true", f"s.{OP} = {CLOSE}"]
    return " AND ".join(parts)


def _bounds(key: str, values: pa.ChunkedArray) -> list[str]:
    if pa.types.is_boolean(values.type):
        return []
    bounds = pc.min_max(values)
    low, high = _literal(bounds["min"]), _literal(bounds["max"])
    return [f"t.{key} >= {low}", f"t.{key} <= {high}"] if low and high else []


def _literal(value: pa.Scalar) -> str | None:
    """Return a key as SQL that reads the same in every engine, None where there is no such text."""
    if pa.types.is_integer(value.type):
        return str(value.as_py()) if value.is_valid else None
    if pa.types.is_string(value.type):
        text = value.as_py()
        return f"'{text}'" if text is not None and PLAIN.issuperset(text) else None
    return None


def quoted(name: str) -> str:
    """Return a name as delta-rs takes it: with its case, and whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
