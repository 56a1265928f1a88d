"""Merge the rows of one batch into one keyed table, once per transaction id. Runs on executors.

`upsert_rows` reads the table's rows of the same keys, decides what changes, and writes the changes with delta-rs in one
Delta commit: an append if all rows are new, else a MERGE. `merge_engine` chooses between delta-rs, which is quick, and
Delta on Spark, which decides by the same functions.
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
from router.delta.change_feed import has_feed
from router.delta.commit import (
    conflict_error,
    has_transaction,
    retry_on_conflict,
    stored_bytes,
    to_arrow,
    to_delta,
    without_lost_batches,
)
from router.delta.constraints import NARROWER_MAP, WHY_NARROWER_MAP, features_against_merges
from router.delta.file_statistics import without_bounds_of_floats
from router.delta.history import log_damage
from router.delta.keyed import row_versions
from router.delta.keyed.key_property import own_properties, refuse_other_keys, take_over
from router.delta.keyed.row_checks import check_rows
from router.delta.keyed.row_order import DELETED, OUTBOX_ONLY, newer_rows, order_names, with_comparable_order
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
from router.delta.partition_folders import has_long_folder, long_folder
from router.delta.replace import HOOKS, add_columns, create_table, made_by_spark, write_rows
from router.delta.transaction_id import GUARD, deletions_id, merge_refusals_id, to_transactions
from router.delta.widening import choose_widening_way
from router.errors import TableError, first_line
from router.own_names import OFFSET, PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.api.sinks import KeyedTable
    from router.delta.lake import Lake

    Quote = Callable[[str], str]


MERGE_TRIES = 8
MERGE_WAIT_SECONDS = 0.4
EXPIRES = "delta.setTransactionRetentionDuration"
"""The property of a table that forgets transaction ids: a missing id then does not mean a missing batch."""


@dataclass(frozen=True)
class TableUpsert:
    """The upsert of one batch into one table.

    `app_id` and `version` are the transaction id. `known`: the sink has merged into the table before. `merged`: the
    last batch that this process knows to be in the table.
    """

    table: str
    app_id: str
    version: int
    keyed: KeyedTable
    notes: dict[str, str]
    known: bool = False
    merged: int | None = None

    @property
    def transaction_ids(self) -> tuple[Transaction, Transaction]:
        """Return the transaction ids of the table and of its deletions."""
        return Transaction(self.app_id, self.version), Transaction(deletions_id(self.app_id), self.version)

    @property
    def refusal_transaction(self) -> Transaction:
        """Return the transaction id of the dead letters of rows that the table refuses."""
        return Transaction(merge_refusals_id(self.app_id), self.version)


@dataclass(frozen=True)
class UpsertResult:
    """The result of an upsert.

    Each row is either `applied` or in `refused`, with a `reason`. Of the applied rows `late` changed nothing; the
    others went into rows of the table that were `inserted`, `updated` or `deleted`. `again`: the table had the batch
    already. `committed`: the table has the batch's transaction id; if nothing changes there is no commit.
    """

    applied: int
    refused: pa.Table
    late: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    again: bool = False
    committed: bool = False


def upsert_rows(lake: Lake, work: TableUpsert, rows: pa.Table, tries: int = MERGE_TRIES) -> UpsertResult:
    """Merge rows into a table; try again if another writer is faster.

    `rows` have the columns of the route, those of `row_order.POSITION`, `_deleted`, and `_newest_1` onwards if the sink
    orders by columns. A second upsert with the same transaction id changes nothing, and returns the same counts of
    applied and refused rows. Raises NeedsSpark if only Delta on Spark can write the table, TableError if nothing can.
    """
    rows = with_comparable_order(rows, work.keyed)
    try:
        return retry_on_conflict(lambda: _try_upsert(lake, work, rows), CommitFailedError, tries, MERGE_WAIT_SECONDS)
    except CommitFailedError as error:
        raise conflict_error(work.table, tries, error) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        if NARROWER_MAP in str(error):
            raise NeedsSpark(f"it has {WHY_NARROWER_MAP}") from error
        why = log_damage(lake, work.table) or first_line(error)
        raise TableError(work.table, f"the merge failed: {why}; it is tried again with the batch") from error


def _try_upsert(lake: Lake, work: TableUpsert, rows: pa.Table) -> UpsertResult:
    table = lake.open(work.table)
    if table is None:
        refuse_absent(lake, work)
    else:
        refuse_older(table, work)
        refuse_other_keys(work.table, table.metadata().configuration, work.keyed)
    _leave_to_spark(table, work.keyed)

    widening_way = None
    have = None
    if table is not None:
        widening_way = choose_widening_way(table, work.table, work.keyed.widening)
        have = to_arrow(table)
    feed = has_feed(table, work.keyed.new_table)
    checked = check_rows(rows, have, work.table, work.keyed, widens=widening_way is not None, feed=feed)
    if checked.widened:
        why = f"wider types are needed for {', '.join(checked.widened.names)}"
        if widening_way == "rewrite":
            raise NeedsRewrite(why, to_delta(checked.widened))
        raise NeedsSpark(why)
    if not len(checked.rows):
        return UpsertResult(0, checked.refused)

    table = _with_columns(lake, work, table, checked.added)
    once, deletions_once = work.transaction_ids
    again = has_transaction(table, once)
    if again and not _must_remember_deletions(lake, work, checked.rows):
        return UpsertResult(len(checked.rows), checked.refused, again=True, committed=True)
    changes = _decide_changes(lake, work, table, checked.rows)
    too_long = long_folder(table.table_uri, changes.rows, table.metadata().partition_columns)
    if too_long and not again:
        raise NeedsSpark(too_long)
    if not again:
        _commit_changes(work, table, changes)
    # After the commit, in a table of its own. A process that is killed in between remembers them at the next attempt.
    if len(changes.deletions):
        row_versions.remember_deletions(lake, work.table, changes.deletions, work.keyed, deletions_once)
    committed = again or has_transaction(table, once)
    return UpsertResult(len(checked.rows), checked.refused, **changes.row_counts, again=again, committed=committed)


def _must_remember_deletions(lake: Lake, work: TableUpsert, rows: pa.Table) -> bool:
    """Return whether rows of a committed batch delete keys, and this is not remembered yet."""
    if work.keyed.soft_delete or not pc.any(rows.column(DELETED)).as_py():
        return False
    _, deletions_once = work.transaction_ids
    return not row_versions.deletions_remembered(lake, work.table, deletions_once)


def _with_columns(lake: Lake, work: TableUpsert, table: DeltaTable | None, added: pa.Schema) -> DeltaTable:
    """Add columns to the table, or create it with them; return it."""
    if table is not None:
        take_over(table, work.table, work.keyed)
        if added:
            add_columns(table, to_delta(added))
        return table
    # Create it before its first files are written: a process that dies then leaves a table, not a folder of files.
    own = own_properties(work.keyed)
    table = create_table(lake, work.table, added, options=work.keyed.new_table, properties=own)
    _leave_to_spark(table, work.keyed)
    return table


def _leave_to_spark(table: DeltaTable | None, keyed: KeyedTable) -> None:
    chosen = merge_engine(table, keyed)
    if chosen.engine == "spark":
        raise NeedsSpark(chosen.why)


def _decide_changes(lake: Lake, work: TableUpsert, table: DeltaTable, rows: pa.Table) -> TableChanges:
    """Return the changes that the rows make to the table as it is now."""
    rows = as_stored(rows, to_arrow(table))
    deletions = row_versions.remembered_deletions(lake, work.table, rows, work.keyed)
    versions = row_versions.held_versions(table, rows, work.keyed)
    return changes_of(rows, pa.concat_tables([deletions, versions]), work.keyed)


def as_stored(rows: pa.Table, have: pa.Schema) -> pa.Table:
    """Return rows with the columns that a table has, in its types, and those of `OUTBOX_ONLY`."""
    in_table = {field.name: field for field in have}
    fields = []
    for field in rows.schema:
        if field.name in in_table:
            fields.append(in_table[field.name])
        elif field.name in OUTBOX_ONLY:
            fields.append(field)
    return cast_to(rows, pa.schema(fields))


def changes_of(rows: pa.Table, held: pa.Table, keyed: KeyedTable) -> TableChanges:
    """Return the changes that rows make to a table; `held` is its state of their keys."""
    if keyed.history:
        return history_changes(rows, held, keyed)
    return latest_changes(newer_rows(rows, held, keyed), keyed)


def _commit_changes(work: TableUpsert, table: DeltaTable, changes: TableChanges) -> None:
    """Write changes in one commit: a MERGE if they touch rows of the table, an append if all are new."""
    ids = {work.app_id: work.version, GUARD: table.version() + 1}
    if changes.count_changes(UPDATE, PATCH, FLAG, DELETE, CLOSE):
        write_merge(table, changes, work.keyed, ids, work.notes)
    elif len(changes.rows):
        rows = cast_to(changes.rows, to_arrow(table))
        write_rows(table, rows, ids=ids, notes=work.notes, writer_properties=_writer_properties(to_arrow(table)))


def refuse_absent(lake: Lake, work: TableUpsert) -> None:
    """Raise TableError if a table that is gone must not be created again, or its folder contains other files."""
    if work.known and work.keyed.dropped == "wait":
        problem = f"{lake.address(work.table)} was dropped; bring it back, or say `dropped: remake`"
        raise TableError(work.table, problem)
    entries = lake.files.get_file_info(fs.FileSelector(work.table.replace(".", "/"), allow_not_found=True))
    if any(not entry.base_name.startswith(("_", ".")) for entry in entries):
        raise TableError(work.table, f"{lake.address(work.table)} holds files and no Delta table; move them away")
    lake.note_location(work.table)


def refuse_older(table: DeltaTable, work: TableUpsert) -> None:
    """Raise TableError for a table without a batch that was merged into it: an older copy was put back.

    With `dropped: remake` the table may be another one than before.
    """
    if work.merged is None or work.keyed.dropped != "wait" or EXPIRES in table.metadata().configuration:
        return
    if not has_transaction(table, Transaction(work.app_id, work.merged)):
        problem = "which was merged into it: an older copy was put back, or another table stands in its place"
        way_on = f"Restore it; or {without_lost_batches([work.table])}"
        raise TableError(work.table, f"it lacks batch {work.merged}, {problem}. {way_on}")


LARGE = 4 << 30
"""Bytes of the largest table that delta-rs merges into: one task may have to rewrite all of it, where Spark uses many.
delta-rs took 25 s for 0.9 GB of which every file was touched, on two cores that were busy otherwise."""


class NeedsSpark(Exception):  # noqa: N818 - an answer, no error
    """The answer that delta-rs cannot merge into a table, with the reason."""


class NeedsRewrite(NeedsSpark):
    """The answer that a table has to be rewritten first; `columns` (Delta's JSON) are those that become wider."""

    def __init__(self, why: str, columns: str) -> None:
        super().__init__(why)
        self.columns = columns


@dataclass(frozen=True)
class MergeEngine:
    """The engine that merges into a table, and why."""

    engine: Literal["arrow", "spark"]
    why: str


def merge_engine(table: DeltaTable | None, keyed: KeyedTable) -> MergeEngine:
    """Return the engine for a table, or for creating it. A table that needs Spark gets it, whatever the option says."""
    if keyed.engine == "spark":
        return MergeEngine("spark", "the engine is given")
    why_spark = ""
    if table is None:
        why_spark = made_by_spark(keyed.new_table)
    else:
        features = features_against_merges(table)
        why_spark = f"it has {', '.join(sorted(features))}" if features else has_long_folder(table)
    if why_spark:
        return MergeEngine("spark", why_spark)
    if keyed.engine == "arrow":
        return MergeEngine("arrow", "the engine is given")
    size = stored_bytes(table) if table else 0
    if size > LARGE:
        return MergeEngine("spark", f"it has more than {LARGE >> 30} GiB")
    return MergeEngine("arrow", f"it has no feature that delta-rs lacks, and at most {LARGE >> 30} GiB")


ROWS_PER_CORE = 12 * 8192
"""Rows for each core that a merge must have memory for. With rows of 640 bytes, on two cores, it failed with 10 MB, had
not ended after minutes with 30 and 64 MB, and took 25 s with 100 MB."""
FEWEST_ROWS = 1000
"""The fewest rows of a row group: less cost more in a file's footer than they save."""
SAFE_CHARACTERS = frozenset(string.ascii_letters + string.digits + " -_.:@/#+=,")
"""Characters that mean the same in a quoted text in every SQL."""


def write_merge(
    table: DeltaTable, changes: TableChanges, keyed: KeyedTable, ids: Mapping[str, int], notes: Mapping[str, str]
) -> None:
    """Write changes in one MERGE. Columns that a change does not set keep their values: see `columns_set`."""
    have = to_arrow(table)
    names = [field.name for field in have if field.name in changes.rows.column_names]
    rows = cast_to(changes.rows, pa.schema([have.field(name) for name in names]))
    rows = rows.append_column(OP, changes.rows.column(OP))
    max_spill_size = None
    row_groups = {}
    if keyed.memory:
        max_spill_size = _memory_before_spill(rows, keyed.memory)
        row_groups = _row_groups(rows, keyed.memory)
    merger = table.merge(
        rows,
        merge_condition(rows, keyed, _quote_name),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,  # delta-rs then reads the bounds of the rows, and skips files by their statistics
        max_spill_size=max_spill_size,
        writer_properties=_writer_properties(have, **row_groups),
        commit_properties=CommitProperties(custom_metadata=dict(notes), app_transactions=to_transactions(ids)),
        post_commithook_properties=HOOKS,
    )
    for op in (UPDATE, PATCH, FLAG, CLOSE):
        if changes.count_changes(op):
            merger = merger.when_matched_update(
                sql_assignments(columns_set(op, names, keyed), _quote_name), f"s.{OP} = {op}"
            )
    if changes.count_changes(DELETE):
        merger = merger.when_matched_delete(f"s.{OP} = {DELETE}")
    if changes.count_changes(INSERT):
        merger = merger.when_not_matched_insert(sql_assignments(names, _quote_name), f"s.{OP} = {INSERT}")
    merger.execute()


def _memory_before_spill(rows: pa.Table, memory: int) -> int:
    """Return the bytes that a merge may hold before it spills to disk. Raises NeedsSpark if that is too little.

    The rows of the batch cannot be spilled. And DataFusion needs memory for some of its batches on each core: with less
    it fails or, with a little more, never ends.
    """
    spill_at = memory // 2
    if spill_at < rows.nbytes + ROWS_PER_CORE * (os.cpu_count() or 1) * _bytes_per_row(rows):
        raise NeedsSpark("a merge of its rows does not fit into `memory`")
    return spill_at


def _writer_properties(schema: pa.Schema, **more: int) -> WriterProperties:
    """Return delta-rs's writer properties for a table; the compression is its default."""
    return without_bounds_of_floats(schema, compression="SNAPPY", **more)


def _row_groups(rows: pa.Table, memory: int) -> dict[str, int]:
    """Return writer properties that keep row groups within `memory`.

    A row group is held until it is complete, for each of a few files at once, and is not counted when DataFusion
    decides to spill.
    """
    return {"max_row_group_size": min(1 << 20, max(FEWEST_ROWS, memory // 64 // _bytes_per_row(rows)))}


def _bytes_per_row(rows: pa.Table) -> int:
    return max(1, int(rows.nbytes) // max(1, len(rows)))


def columns_set(op: int, names: list[str], keyed: KeyedTable) -> list[str]:
    """Return the columns that a change sets."""
    if op == UPDATE:
        return names
    if op == CLOSE:
        return list(HISTORY_COLUMNS.names)
    # FLAG and PATCH: the order of the newer record and the flag, and for a PATCH the columns that may change.
    columns = set(order_names(keyed))
    if keyed.soft_delete:
        columns.add(keyed.soft_delete)
    if op == PATCH:
        columns.update(keyed.columns or ())
    return [name for name in names if name in columns]


def sql_assignments(names: list[str], quote: Quote) -> dict[str, str]:
    """Return column -> the value that it gets from the source, in SQL."""
    return {quote(name): f"s.{quote(name)}" for name in names}


def merge_condition(rows: pa.Table, keyed: KeyedTable, quote: Quote) -> str:
    """Return the SQL condition under which a change (`s`, a row with its `__op`) concerns a row of the table (`t`)."""
    conditions = [f"t.{quote(key)} = s.{quote(key)}" for key in keyed.keys]
    # The bounds of the keys that match, as literals: by them engines skip the files of all other keys.
    touching = rows.filter(pa.array(np.asarray(rows.column(OP)) != INSERT))
    for key in keyed.keys:
        conditions += _key_bounds(quote(key), touching.column(key))
    # A state of a history is found by its record; in rows of other writers these columns are null.
    if keyed.history:
        conditions += [_same_or_null(quote(name)) for name in (TOPIC, PARTITION, OFFSET)]
        conditions.append(f"s.{OP} = {CLOSE}")
    return " AND ".join(conditions)


def _same_or_null(name: str) -> str:
    return f"(t.{name} = s.{name} OR (t.{name} IS NULL AND s.{name} IS NULL))"


def _key_bounds(key: str, values: pa.ChunkedArray) -> list[str]:
    if pa.types.is_boolean(values.type):
        return []
    bounds = pc.min_max(values)
    low = _key_literal(bounds["min"])
    high = _key_literal(bounds["max"])
    if low is None or high is None:
        return []
    return [f"t.{key} >= {low}", f"t.{key} <= {high}"]


def _key_literal(value: pa.Scalar) -> str | None:
    """Return a key as a literal that means the same in every engine, None if there is no such literal."""
    if not value.is_valid:
        return None
    if pa.types.is_integer(value.type):
        return str(value.as_py())
    if pa.types.is_string(value.type) and SAFE_CHARACTERS.issuperset(value.as_py()):
        return f"'{value.as_py()}'"
    return None


def _quote_name(name: str) -> str:
    """Return a column's name quoted for delta-rs, which otherwise folds its case."""
    return '"' + name.replace('"', '""') + '"'
