"""Bring the rows of one batch into one keyed table with delta-rs, once per transaction id. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from router.delta import state
from router.delta.choice import NeedsSpark, choice
from router.delta.commit import add_columns, has, to_arrow, to_delta
from router.delta.conform import conformed
from router.delta.fitted import fit
from router.delta.history import history
from router.delta.latest import CLOSE, DELETE, FLAG, PATCH, UPDATE, Changes, latest
from router.delta.merge import append, create, merge
from router.delta.newer import DELETED, LANE_ONLY, newer
from router.delta.order import ordered
from router.delta.rivals import in_turn, outrun
from router.errors import TableError

if TYPE_CHECKING:
    from router.delta.lake import Lake
    from router.keyed import Keyed

TRIES = 8
WAIT_SECONDS = 0.4
GUARD = "router/keyed"
"""A second transaction id of every commit: two commits with one id that began from one version conflict. delta-rs lets
an append pass beside a merge otherwise, and the key they have in common would be there twice."""


@dataclass(frozen=True)
class Upsert:
    """Be the work of one table in one batch. `known`: the sink has merged into it before."""

    table: str
    app_id: str
    version: int
    keyed: Keyed
    notes: dict[str, str]
    known: bool = False

    @property
    def ids(self) -> tuple[Transaction, Transaction]:
        """Return the transaction ids of the table and of its deletions."""
        return Transaction(self.app_id, self.version), Transaction(f"{self.app_id}/deletions", self.version)


@dataclass(frozen=True)
class Merged:
    """Be what became of the rows: `applied` and `refused` (with a `reason`) are all of them.

    Of the applied ones `late` changed nothing, others went into rows that were inserted, updated or deleted. `again`:
    the table had the batch already.
    """

    applied: int
    refused: pa.Table
    late: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    again: bool = False


def upsert(lake: Lake, work: Upsert, rows: pa.Table, tries: int = TRIES) -> Merged:
    """Merge rows into a table: the columns of the route, `_topic`, `_partition`, `_offset`, `_timestamp`, `_deleted`,
    and `_newest_1` onwards where the sink orders by them.

    Doing it again with the same transaction id changes nothing and returns the same counts of applied and refused
    rows. When another writer is faster it begins anew. Raises NeedsSpark where only Delta on Spark can write the
    table, TableError where nobody can.
    """
    rows = ordered(rows, work.keyed)
    try:
        return in_turn(lambda: _upsert(lake, work, rows), CommitFailedError, tries, WAIT_SECONDS)
    except CommitFailedError as error:
        raise outrun(work.table, tries, error) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise TableError(work.table, f"the merge failed: {error}; it is tried again with the batch") from error


def _upsert(lake: Lake, work: Upsert, rows: pa.Table) -> Merged:
    table = lake.open(work.table)
    if table is None:
        refuse_absent(lake, work)
    _leave_to_spark(table, work.keyed)
    fitted = fit(rows, to_arrow(table) if table else None, work.table, work.keyed)
    if fitted.widened:
        raise NeedsSpark(f"wider types are needed for {', '.join(fitted.widened.names)}")
    if not len(fitted.rows):
        return Merged(0, fitted.refused)
    table = _grown(lake, work, table, fitted.added)
    once, deleting = work.ids
    again = has(table, once)
    deletes = not work.keyed.soft_delete and pc.any(fitted.rows.column(DELETED)).as_py()
    if again and not (deletes and not state.remembers(lake, work.table, deleting)):
        return Merged(len(fitted.rows), fitted.refused, again=True)
    changes = _changes(lake, work, table, fitted.rows, again=again)
    if not again:
        _commit(work, table, changes)
    if len(changes.deletions):
        state.remember(lake, work.table, changes.deletions, work.keyed, deleting)
    return Merged(len(fitted.rows), fitted.refused, **changes.counts, again=again)


def _grown(lake: Lake, work: Upsert, table: DeltaTable | None, added: pa.Schema) -> DeltaTable:
    """Return the table with columns that it lacks. One that is made is there before its first files: what a process
    that dies leaves behind is a table, not a folder of files."""
    if table is not None:
        if added:
            add_columns(table, to_delta(added))
        return table
    table = create(lake, work.table, added, work.keyed)
    _leave_to_spark(table, work.keyed)
    return table


def _leave_to_spark(table: DeltaTable | None, keyed: Keyed) -> None:
    chosen = choice(table, keyed)
    if chosen.engine == "spark":
        raise NeedsSpark(chosen.why)


def _changes(lake: Lake, work: Upsert, table: DeltaTable, rows: pa.Table, *, again: bool) -> Changes:
    """Return what the rows change, as the table is now; `again`: what they have changed is in the table already."""
    rows = as_kept(rows, to_arrow(table))
    held = [state.deletions(lake, work.table, rows, work.keyed), state.state(table, rows, work.keyed, past=again)]
    return changed(rows, pa.concat_tables(held), work.keyed)


def as_kept(rows: pa.Table, have: pa.Schema) -> pa.Table:
    """Return rows with the columns that a table has, in its types, and those that no table keeps."""
    known = {field.name: field for field in have}
    kept = [known.get(field.name, field) for field in rows.schema if field.name in {*known, *LANE_ONLY}]
    return conformed(rows, pa.schema(kept))


def changed(rows: pa.Table, held: pa.Table, keyed: Keyed) -> Changes:
    """Return what rows change in a table that holds a state of their keys."""
    found = newer(rows, held, keyed)
    return history(found, keyed) if keyed.history else latest(found, keyed)


def _commit(work: Upsert, table: DeltaTable, changes: Changes) -> None:
    guard = Transaction(GUARD, table.version() + 1)
    once = CommitProperties(app_transactions=[work.ids[0], guard], custom_metadata=work.notes)
    if changes.count(UPDATE, PATCH, FLAG, DELETE, CLOSE):
        merge(table, changes, work.keyed, once)
    elif len(changes.rows):
        append(table, changes, once)


def refuse_absent(lake: Lake, work: Upsert) -> None:
    """Refuse to make a table that was there before, or in a folder that holds something else. Raises TableError."""
    if work.known and work.keyed.dropped == "wait":
        what = f"{lake.address(work.table)} was dropped; bring it back, or say `dropped: remake`"
        raise TableError(work.table, what)
    found = lake.files.get_file_info(fs.FileSelector(work.table.replace(".", "/"), allow_not_found=True))
    if any(not entry.base_name.startswith(("_", ".")) for entry in found):
        raise TableError(work.table, f"{lake.address(work.table)} holds files and no Delta table; move them away")
