"""Rebuild a table from bronze while the stream runs: one of `router rebuild`.

The records of all batches up to N, the last in the ledger, are landed again under the current configuration, and one
commit replaces the table's content. Batches after N are the stream's, and their rows are in the table once:

- A table that can be read: the files of such batches are copied, and the copies are part of the new content.
- A table that was dropped, or whose log is damaged, is made with the transaction ids of batch N.
- Rows of batches up to N that wait for the table in the quarantine are in it then; the stream releases those of later
  batches.
- A table that keeps one row per key is merged from nothing, and replaced like one that can be read. Batches that the
  stream merges meanwhile are read from bronze as well.

`repair_content` makes the commit of the first two, `repair_upsert` that of the third. A log that cannot be read, and
the files that it named, are moved below `_replaced/` in the lake, never deleted. A repair that is killed before its
commit leaves unreferenced files.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from router.api.sinks import MergingSink, TableSink
from router.delta.commit import ACCEPT_LOST, row_count
from router.delta.constraints import features_against_appends, features_against_merges
from router.delta.history import log_commits, log_versions
from router.engine.audit.verify import RecordedCounts
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import try_mended
from router.engine.reprocess.records import Records, TopicRecords
from router.engine.reprocess.repair_content import ContentReplacement
from router.engine.reprocess.repair_target import Repaired, RepairTarget
from router.engine.reprocess.repair_upsert import UpsertReplacement
from router.engine.start.killed_repairs import lock_of
from router.engine.start.run_lock import hold_file_lock, is_run_active
from router.errors import StartError, TableError, first_line
from router.own_names import OWN_LAYERS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from deltalake import DeltaTable

    from router.engine.reprocess.rebuild import RebuiltRows

log = logging.getLogger("router")
_WAIT_SECONDS = 120
"""How long a repair waits for an unfinished batch if its table is gone."""


@dataclass
class Repair(RepairTarget):
    """The rebuild of one table, in steps that one of many tables takes one by one.

    First `look` and `records`, which change nothing and raise if the table cannot be rebuilt; then `replace`, or
    `merge` for a table that a merging sink writes.
    """

    def lock(self) -> AbstractContextManager[object]:
        """Keep other repairs of the table away. Raises RunningError if one is at work."""
        return hold_file_lock(self.checkpoint, lock_of(self.table), f"another rebuild of {self.table} is at work")

    def look(self) -> None:
        """Open the table as it is. Raises StartError or TableError if it cannot be rebuilt."""
        self._refuse_other_kinds()
        self.handle, is_damaged = self._open_settled()
        if is_damaged:
            self.find_damaged_files()  # before anything is staged next to them
        if self.handle is not None:
            self.seen = self.handle.version()
        self.refuse_changes_of_others()
        self._refuse_waiting_rows()
        if self.handle is not None and self.full:
            self._refuse_full(self.handle)

    def replace(self, rebuilt: RebuiltRows) -> Repaired:
        """Put staged rows in place of the content. Raises TableError, and then has deleted their files."""
        try:
            if self.handle is not None:
                self._refuse_unknown_rows(self.handle, rebuilt)
            moved = self.move_damaged_files()
            version, later = ContentReplacement(self).commit(rebuilt)
        except BaseException:
            self.lake.delete(*(file.path for file in rebuilt.files))
            raise
        try_mended(self.store, self.table)
        log.info("%s: repaired, %d rows up to batch %d", self.table, rebuilt.rows, self.last)
        return Repaired(
            table=self.table,
            version=version,
            rows=rebuilt.rows,
            later=later,
            refused=rebuilt.refused,
            until=self.last,
            moved=moved,
        )

    def merge(self) -> Repaired:
        """Merge the rows of a table that keeps one row per key from nothing, and put them in place of the content."""
        merging = self.merging()
        assert merging is not None  # who calls it has asked
        key, keyed = merging
        return UpsertReplacement(self, key, keyed).commit()

    def records(self) -> Records:
        """Return the records of all batches up to N. Raises StartError if bronze does not have just these."""
        records = self.records_until(self.last)
        if isinstance(records, TopicRecords):
            return records
        # Bronze must have as many records as the ledger counts: of this run up to N, of former runs all.
        read = 0
        for (run, key), booked in self.written.ledger.items():
            if key == "/bronze":
                of_run = booked.rows[: self.last + 1] if run == self.written.run else booked.rows
                read += int(of_run.sum())
        bronze = self.config.bronze_tables()
        name = bronze.template if bronze else ""
        if records.rows < read:
            problem = f"{name} has {records.rows:,} of the {read:,} records that were read"
            raise StartError(f"{problem}: it does not reach back to the first batch of {self.table}")
        if records.rows > read:
            problem = f"{name} has {records.rows:,} records, and {self.config.ledger} has {read:,} that were read"
            raise StartError(f"{problem}: it is unknown which of them {self.table} must have; verify these two first")
        return records

    def _open_settled(self) -> tuple[DeltaTable | None, bool]:
        """Return the table, None if there is none or none that can be read, and whether its log is damaged.

        An unfinished batch may have its rows in what is gone, or be about to make the table: wait for its end.
        """
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            handle, is_damaged = self._open()
            if handle is not None or not (self.has_unfinished_batch() and is_run_active(self.checkpoint)):
                return handle, is_damaged
            if time.monotonic() > end or self.context.stop.wait(0.5):
                raise TableError(self.table, f"batch {self.last + 1} has not ended yet; try again after it")
            self.written = RecordedCounts.read(self.config, self.lake, self.checkpoint)

    def _open(self) -> tuple[DeltaTable | None, bool]:
        try:
            for _ in log_commits(self.lake, self.table, log_versions(self.lake, self.table)):
                pass
        except TableError:
            return None, True
        try:
            return self.lake.open(self.table), False
        except (DeltaError, OSError, ValueError) as error:
            if self.accept:
                return None, True
            problem = f"its log has all commits, but the table cannot be opened: {first_line(error)}"
            raise TableError(self.table, f"{problem}. With --accept foreign-changes it is rebuilt") from error

    def _refuse_other_kinds(self) -> None:
        """Raise StartError for a table that no sink of the configuration writes, or several that exclude each other."""
        config = self.config
        table = self.table
        if self.last < 0:
            raise StartError(f"{config.ledger} has no batch of {config.name}: there is nothing to make {table} of")
        is_own = table in (config.bronze_tables() or ()) or table in (config.ledger, config.dead_letters)
        if is_own or table.startswith(OWN_LAYERS):
            raise StartError(f"{table} is the router's own and cannot be made from bronze; put it back from a copy")
        merging: list[str] = []
        appending: list[str] = []
        names_by_data = False  # a sink whose table names come from data may write this one too
        for route, name, sink in config.all_sinks():
            if isinstance(sink, MergingSink) and self.merges(f"{route}/{name}", sink):
                merging.append(f"{route}/{name}")
            elif isinstance(sink, TableSink) and fixed_table(sink) == table:
                appending.append(f"{route}/{name}")
            elif isinstance(sink, TableSink) and fixed_table(sink) == "":
                names_by_data = True
        if len(merging) > 1 or (merging and appending):
            problem = f"{' and '.join((*merging, *appending))} write {table}, and one of them keeps one row per key"
            raise StartError(f"{problem}: it is unknown whose rows it must have; put it back from a copy")
        if not (merging or appending or names_by_data):
            raise StartError(f"no sink of {config.name} writes {table}")

    def _refuse_waiting_rows(self) -> None:
        waiting = self.waiting_rows()
        held_rows = sum(rows.rows for rows in waiting if rows.kind == "held")
        if held_rows:
            problem = f"{held_rows:,} rows wait because of an expectation, which may hold for them by now"
            raise TableError(self.table, f"{problem}; {self._decide_first('quarantine release')}")
        # Rows of a blocked table come by the repair, as all do that wait for one which is gone or cannot be read: see
        # `ContentReplacement`. What brings new columns to a table that can be read waits for a person.
        unapproved_rows = sum(rows.rows for rows in waiting if rows.kind != "unblock")
        if unapproved_rows and self.handle is not None:
            problem = f"{unapproved_rows:,} rows wait for it in the quarantine, and need columns that it lacks"
            raise TableError(self.table, f"{problem}; {self._decide_first('quarantine approve')}")

    def _decide_first(self, command: str) -> str:
        """Return the commands that decide about rows that wait, one of two, and carry it out."""
        return (
            f"`router {command} FILE {self.table}` lets them in, `router quarantine discard FILE {self.table}` does "
            f"not; a running stream carries it out, or {ACCEPT_LOST}; then rebuild it"
        )

    def _refuse_full(self, handle: DeltaTable) -> None:
        """Raise TableError if a rebuild with other columns would lose a constraint, or cannot be committed."""
        checks = [name for name in handle.metadata().configuration if name.startswith("delta.constraints.")]
        todo = "rebuild it without --full, or drop it first"
        if checks:
            raise TableError(self.table, f"it has constraints on its columns: {todo}")
        merged_by_spark = self.merging() is not None and (
            self.committers.only_spark or bool(features_against_merges(handle))
        )
        if features_against_appends(handle) - {"partitioning"} or merged_by_spark:
            raise TableError(self.table, f"Delta on Spark writes it: {todo}")

    def _refuse_unknown_rows(self, handle: DeltaTable, rebuilt: RebuiltRows) -> None:
        """Raise TableError if bronze has fewer rows than the table, and its log does not tell whose the others are."""
        if self.accept or log_versions(self.lake, self.table)[:1] in ([0], []):
            return
        rows = row_count(handle)
        if rows > rebuilt.rows + sum(commit.rows for commit in self.later_commits(handle)):
            problem = f"it has {rows:,} rows, and bronze gives {rebuilt.rows:,}; the writer of the others is unknown"
            raise TableError(self.table, f"{problem}. With --accept foreign-changes they are deleted")
