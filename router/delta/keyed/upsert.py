"""Bring the rows of one batch into one keyed table, once per transaction id. Runs on executors.

`upsert` reads what the table holds of the rows' keys, decides what they change, and writes the changes with delta-rs in
one Delta commit: an append where everything is new, else a MERGE. `merge_engine` says which engine writes a table, and
why: delta-rs where it can, which is quick, else Delta on Spark, which decides by the same functions.
"""

from __future__ import annotations

import os
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from router.delta.casting import cast_to
from router.delta.commit import (
    conflict_error,
    has_transaction,
    retry_on_conflict,
    stored_bytes,
    to_arrow,
    to_delta,
)
from router.delta.constraints import unmergeable
from router.delta.file_statistics import without_bounds_of_floats
from router.delta.history import log_damage
from router.delta.keyed import row_versions
from router.delta.keyed.key_property import own_properties, refuse_other_keys, take_over
from router.delta.keyed.row_checks import check_rows
from router.delta.keyed.row_order import DELETED, OUTBOX_ONLY, comparable, newer_rows, order_names
from router.delta.keyed.scd import (
    CLOSE,
    DELETE,
    FLAG,
    HISTORY_COLUMNS,
    INSERT,
    OP,
    PATCH,
    UPDATE,
    TableChanges,
    history_changes,
    latest_changes,
)
from router.delta.replace import HOOKS, add_columns, create_table, made_by_spark, write_rows
from router.delta.transaction_id import GUARD, deletions_id, merge_refusals_id, transactions
from router.delta.widening import way
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.delta.lake import Lake
    from router.sinks import KeyedTable

    Quote = Callable[[str], str]


TRIES = 8
WAIT_SECONDS = 0.4
EXPIRES = "delta.setTransactionRetentionDuration"
"""The property of a table that forgets transaction ids: one that is not there says nothing then."""


@dataclass(frozen=True)
class TableUpsert:
    """The upsert of one batch into one table. `known`: the sink has merged into it before; `merged`: the last batch
    that this process knows to be in it."""

    table: str
    app_id: str
    version: int
    keyed: KeyedTable
    notes: dict[str, str]
    known: bool = False
    merged: int | None = None

    @property
    def ids(self) -> tuple[Transaction, Transaction]:
        """Return the transaction ids of the table and of its deletions."""
        return Transaction(self.app_id, self.version), Transaction(deletions_id(self.app_id), self.version)

    @property
    def refusals(self) -> Transaction:
        """Return the transaction id of the dead letters of rows that the table refuses."""
        return Transaction(merge_refusals_id(self.app_id), self.version)


@dataclass(frozen=True)
class UpsertResult:
    """What became of the rows: `applied` and `refused` (with a `reason`) are all of them.

    Of the applied ones `late` changed nothing, others went into rows that were inserted, updated or deleted. `again`:
    the table had the batch already. `committed`: it has its transaction id, which what changes nothing leaves out.
    """

    applied: int
    refused: pa.Table
    late: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    again: bool = False
    committed: bool = False


def upsert(lake: Lake, work: TableUpsert, rows: pa.Table, tries: int = TRIES) -> UpsertResult:
    """Merge rows into a table: the columns of the route, `_topic`, `_partition`, `_offset`, `_timestamp`, `_deleted`,
    and `_newest_1` onwards where the sink orders by them.

    Doing it again with the same transaction id changes nothing and returns the same counts of applied and refused
    rows. When another writer is faster it begins anew. Raises NeedsSpark where only Delta on Spark can write the
    table, TableError where nobody can.
    """
    rows = comparable(rows, work.keyed)
    try:
        return retry_on_conflict(lambda: _upsert(lake, work, rows), CommitFailedError, tries, WAIT_SECONDS)
    except CommitFailedError as error:
        raise conflict_error(work.table, tries, error) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        why = log_damage(lake, work.table) or first_line(error)
        raise TableError(work.table, f"the merge failed: {why}; it is tried again with the batch") from error


def _upsert(lake: Lake, work: TableUpsert, rows: pa.Table) -> UpsertResult:
    table = lake.open(work.table)
    if table is None:
        refuse_absent(lake, work)
    else:
        refuse_older(table, work)
        refuse_other_keys(work.table, table.metadata().configuration, work.keyed)
    _leave_to_spark(table, work.keyed)
    chosen = way(table, work.table, work.keyed.widening) if table else None
    have = to_arrow(table) if table else None
    checked = check_rows(rows, have, work.table, work.keyed, widens=chosen is not None)
    if checked.widened:
        wider = f"wider types are needed for {', '.join(checked.widened.names)}"
        raise NeedsRewrite(wider, to_delta(checked.widened)) if chosen == "rewrite" else NeedsSpark(wider)
    if not len(checked.rows):
        return UpsertResult(0, checked.refused)
    table = _grown(lake, work, table, checked.added)
    once, deleting = work.ids
    again = has_transaction(table, once)
    deletes = not work.keyed.soft_delete and pc.any(checked.rows.column(DELETED)).as_py()
    if again and not (deletes and not row_versions.deletions_remembered(lake, work.table, deleting)):
        return UpsertResult(len(checked.rows), checked.refused, again=True, committed=True)
    changes = _changes(lake, work, table, checked.rows)
    if not again:
        _commit(work, table, changes)
    if len(changes.deletions):
        row_versions.remember_deletions(lake, work.table, changes.deletions, work.keyed, deleting)
    committed = again or has_transaction(table, once)
    return UpsertResult(len(checked.rows), checked.refused, **changes.counts, again=again, committed=committed)


def _grown(lake: Lake, work: TableUpsert, table: DeltaTable | None, added: pa.Schema) -> DeltaTable:
    """Return the table with columns that it lacks. One that is made is there before its first files: what a process
    that dies leaves behind is a table, not a folder of files."""
    if table is not None:
        take_over(table, work.table, work.keyed)
        if added:
            add_columns(table, to_delta(added))
        return table
    keyed = work.keyed
    table = create_table(
        lake,
        work.table,
        added,
        partition_by=keyed.partition_by,
        comment=keyed.comment,
        properties={**keyed.properties, **own_properties(keyed)},
    )
    _leave_to_spark(table, work.keyed)
    return table


def _leave_to_spark(table: DeltaTable | None, keyed: KeyedTable) -> None:
    chosen = merge_engine(table, keyed)
    if chosen.engine == "spark":
        raise NeedsSpark(chosen.why)


def _changes(lake: Lake, work: TableUpsert, table: DeltaTable, rows: pa.Table) -> TableChanges:
    """Return what the rows change, as the table is now."""
    rows = as_stored(rows, to_arrow(table))
    held = [
        row_versions.remembered_deletions(lake, work.table, rows, work.keyed),
        row_versions.held_versions(table, rows, work.keyed),
    ]
    return changes_of(rows, pa.concat_tables(held), work.keyed)


def as_stored(rows: pa.Table, have: pa.Schema) -> pa.Table:
    """Return rows with the columns that a table has, in its types, and those that no table keeps."""
    known = {field.name: field for field in have}
    kept = [known.get(field.name, field) for field in rows.schema if field.name in {*known, *OUTBOX_ONLY}]
    return cast_to(rows, pa.schema(kept))


def changes_of(rows: pa.Table, held: pa.Table, keyed: KeyedTable) -> TableChanges:
    """Return what rows change in a table that holds a state of their keys."""
    if keyed.history:
        return history_changes(rows, held, keyed)
    return latest_changes(newer_rows(rows, held, keyed), keyed)


def _commit(work: TableUpsert, table: DeltaTable, changes: TableChanges) -> None:
    ids = {work.app_id: work.version, GUARD: table.version() + 1}
    if changes.count(UPDATE, PATCH, FLAG, DELETE, CLOSE):
        write_merge(table, changes, work.keyed, ids, work.notes)
    elif len(changes.rows):
        rows = cast_to(changes.rows, to_arrow(table))
        write_rows(table, rows, ids=ids, notes=work.notes, writer_properties=_written(to_arrow(table)))


def refuse_absent(lake: Lake, work: TableUpsert) -> None:
    """Refuse to make a table that was there before, or in a folder that holds something else. Raises TableError."""
    if work.known and work.keyed.dropped == "wait":
        what = f"{lake.address(work.table)} was dropped; bring it back, or say `dropped: remake`"
        raise TableError(work.table, what)
    found = lake.files.get_file_info(fs.FileSelector(work.table.replace(".", "/"), allow_not_found=True))
    if any(not entry.base_name.startswith(("_", ".")) for entry in found):
        raise TableError(work.table, f"{lake.address(work.table)} holds files and no Delta table; move them away")
    lake.note_location(work.table)


def refuse_older(table: DeltaTable, work: TableUpsert) -> None:
    """Refuse a table that lacks a batch which was merged into it: an older copy was put back. Raises TableError.

    One that is to be made anew when it is gone (`dropped: remake`) may be another one than before.
    """
    if work.merged is None or work.keyed.dropped != "wait" or EXPIRES in table.metadata().configuration:
        return
    if not has_transaction(table, Transaction(work.app_id, work.merged)):
        what = "which was merged into it: an older copy was put back, or another table stands in its place"
        choice = f"Restore it, let `router repair {work.table}` make it whole again from bronze, or start with --accept"
        raise TableError(
            work.table, f"it lacks batch {work.merged}, {what}. {choice} lost-tables to go on with it as it is"
        )


LARGE = 4 << 30
"""Bytes of a table that one task may have to rewrite in one merge: above, Spark does it in many. delta-rs took 25 s for
0.9 GB whose every file was touched, on two cores that were busy otherwise."""


class NeedsSpark(Exception):  # noqa: N818 - an answer, no error
    """The answer that delta-rs cannot merge into a table, and why."""


class NeedsRewrite(NeedsSpark):
    """The answer that a table has to be rewritten first, with columns (Delta's JSON) that are wider."""

    def __init__(self, why: str, columns: str) -> None:
        super().__init__(why)
        self.columns = columns


@dataclass(frozen=True)
class MergeEngine:
    """The engine that merges into a table, and why."""

    engine: Literal["arrow", "spark"]
    why: str


def merge_engine(table: DeltaTable | None, keyed: KeyedTable) -> MergeEngine:
    """Return who writes a table, or makes it where there is none. What a table needs counts more than a wish."""
    if keyed.engine == "spark":
        return MergeEngine("spark", "the engine is given")
    if table is None:
        needs = made_by_spark(keyed)
    else:
        needs = f"it has {', '.join(sorted(features))}" if (features := unmergeable(table)) else ""
    if needs:
        return MergeEngine("spark", needs)
    if keyed.engine == "arrow":
        return MergeEngine("arrow", "the engine is given")
    size = stored_bytes(table) if table else 0
    if size > LARGE:
        return MergeEngine("spark", f"it has more than {LARGE >> 30} GiB")
    return MergeEngine("arrow", f"it has no feature that delta-rs lacks, and at most {LARGE >> 30} GiB")


ROWS_PER_CORE = 12 * 8192
"""Rows for each core that a merge has to have room for. With rows of 640 bytes, on two cores, it failed with 10 MB,
had not ended after minutes with 30 and with 64, and took 25 s with 100."""
FEWEST_ROWS = 1000
"""Rows of a row group at least: fewer cost more in a file's footer than they save."""
SAFE_CHARACTERS = frozenset(string.ascii_letters + string.digits + " -_.:@/#+=,")
"""The characters of a text that reads the same between quotes in every SQL."""


def write_merge(
    table: DeltaTable, changes: TableChanges, keyed: KeyedTable, ids: Mapping[str, int], notes: Mapping[str, str]
) -> None:
    """Write changes, some of which touch rows of the table. What they do not name of a row stays as it is."""
    have = to_arrow(table)
    names = [field.name for field in have if field.name in changes.rows.column_names]
    rows = cast_to(changes.rows, pa.schema([have.field(name) for name in names]))
    rows = rows.append_column(OP, changes.rows.column(OP))
    merger = table.merge(
        rows,
        merge_condition(rows, keyed, quoted),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,  # delta-rs then takes bounds from the rows, and leaves out files by their statistics
        max_spill_size=_pool(rows, keyed.memory) if keyed.memory else None,
        writer_properties=_written(have, **(_row_groups(rows, keyed.memory) if keyed.memory else {})),
        commit_properties=CommitProperties(custom_metadata=dict(notes), app_transactions=transactions(ids)),
        post_commithook_properties=HOOKS,
    )
    for op in (UPDATE, PATCH, FLAG, CLOSE):
        if changes.count(op):
            merger = merger.when_matched_update(assignments(columns_set(op, names, keyed), quoted), f"s.{OP} = {op}")
    if changes.count(DELETE):
        merger = merger.when_matched_delete(f"s.{OP} = {DELETE}")
    if changes.count(INSERT):
        merger = merger.when_not_matched_insert(assignments(names, quoted), f"s.{OP} = {INSERT}")
    merger.execute()


def _pool(rows: pa.Table, memory: int) -> int:
    """Return the bytes that a merge may hold before it spills; raise NeedsSpark where it would not get far with them.

    What cannot be spilled are the rows of the batch. And DataFusion needs room for some of its batches for each core:
    with less it fails, or, with a little more, stands still for ever.
    """
    pool, each = memory // 2, max(1, rows.nbytes // max(1, len(rows)))
    if pool < rows.nbytes + ROWS_PER_CORE * (os.cpu_count() or 1) * each:
        raise NeedsSpark("a merge of its rows does not fit into `memory`")
    return pool


def _written(schema: pa.Schema, **more: int) -> WriterProperties:
    """Return how delta-rs writes files: compressed as it does where it is told nothing."""
    return without_bounds_of_floats(schema, compression="SNAPPY", **more)


def _row_groups(rows: pa.Table, memory: int) -> dict[str, int]:
    """Return how files are written within some memory: a row group is held until it is whole, for each of a few files,
    and does not count as memory that could be spilled."""
    each = max(1, rows.nbytes // max(1, len(rows)))
    return {"max_row_group_size": min(1 << 20, max(FEWEST_ROWS, memory // 64 // each))}


def columns_set(op: int, names: list[str], keyed: KeyedTable) -> list[str]:
    """Return the columns that a change sets."""
    if op == UPDATE:
        return names
    if op == CLOSE:
        return list(HISTORY_COLUMNS.names)
    own = [*order_names(keyed), *([keyed.soft_delete] if keyed.soft_delete else [])]
    return [name for name in names if name in own or (op == PATCH and name in (keyed.columns or ()))]


def assignments(names: list[str], quote: Quote) -> dict[str, str]:
    """Return columns with the values that they get."""
    return {quote(name): f"s.{quote(name)}" for name in names}


def merge_condition(rows: pa.Table, keyed: KeyedTable, quote: Quote) -> str:
    """Return the condition under which a change (a row with its `__op`) is for a row of the table.

    Literal bounds of the rows that are there leave out the files of all others.
    """
    parts = [f"t.{quote(key)} = s.{quote(key)}" for key in keyed.keys]
    touching = rows.filter(pa.array(np.asarray(rows.column(OP)) != INSERT))
    parts += [part for key in keyed.keys for part in _bounds(quote(key), touching.column(key))]
    if keyed.history:  # a state is found by its record; rows that others wrote have none
        parts += [_same_or_null(quote(name)) for name in ("_topic", "_partition", "_offset")]
        parts.append(f"s.{OP} = {CLOSE}")
    return " AND ".join(parts)


def _same_or_null(name: str) -> str:
    return f"(t.{name} = s.{name} OR (t.{name} IS NULL AND s.{name} IS NULL))"


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
        return f"'{text}'" if text is not None and SAFE_CHARACTERS.issuperset(text) else None
    return None


def quoted(name: str) -> str:
    """Return a name as delta-rs takes it: with its case, and whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
