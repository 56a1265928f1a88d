"""Put rebuilt rows in place of the content of a table that keeps one row per key.

The rows are merged from nothing below the staging folder (`UpsertRebuild`), then one commit puts them into the table.
If the stream has merged a later batch meanwhile, its records are merged as well, and the commit is tried again.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError

from router.delta.commit import row_count, to_arrow, to_delta
from router.delta.keyed.key_property import own_properties
from router.delta.keyed.row_versions import deletions_table
from router.delta.replace import add_columns, made_by_spark
from router.delta.replace_by_spark import create_by_spark, finish_new_table, set_property_by_spark
from router.delta.schema_diff import compare_schemas, delta_schema
from router.engine.reprocess.rebuild import TableSource
from router.engine.reprocess.repair_content import SparkOverwrite
from router.engine.reprocess.repair_target import REPAIR_TRIES, Repaired
from router.engine.reprocess.upsert_rebuild import UpsertRebuild
from router.engine.start.killed_repairs import staged_as
from router.errors import TableError
from router.own_names import DELETIONS, STAGING

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.api.sinks import KeyedTable, Widening
    from router.engine.reprocess.repair_target import RepairTarget

log = logging.getLogger("router")


@dataclass
class UpsertReplacement:
    """The replacement of the content of a table that a merging sink writes; `key` is the sink's."""

    target: RepairTarget
    key: str
    keyed: KeyedTable

    def __post_init__(self) -> None:
        self.lake = self.target.lake
        self.table = self.target.table

    def commit(self) -> Repaired:
        """Merge the records from nothing, and replace the content, again while the stream is faster."""
        target = self.target
        self._refuse_remembered_deletions()
        rebuild = UpsertRebuild(
            target.spark,
            self.lake,
            self.keyed,
            self.table,
            None if target.full else target.handle,
            staged_as(target.config.name, self.table),
        )
        until = target.last
        try:
            self._merge_batches(rebuild, -1, until)
            rebuild.open()  # raises if nothing was merged, before anything of the table changes
            moved = target.move_damaged_files() if target.handle is None else None
            for attempt in range(REPAIR_TRIES):
                try:
                    merged_until = self._replace_unless_behind(rebuild, until)
                except (DeltaError, OSError) as error:
                    if attempt == REPAIR_TRIES - 1:
                        raise TableError(self.table, f"the repair could not be committed: {error}") from error
                    log.info("%s: another writer was faster, trying again", self.table)
                    continue
                if merged_until is None:
                    break
                until = merged_until
            else:
                raise TableError(
                    self.table, f"the stream was faster {REPAIR_TRIES} times; try again when it has less to do"
                )
            rows = row_count(rebuild.open())
        finally:
            rebuild.drop()
        committed = self.lake.open(self.table)
        assert committed is not None  # it was committed
        log.info("%s: repaired, %d rows up to batch %d", self.table, rows, until)
        return Repaired(
            table=self.table,
            version=committed.version(),
            rows=rows,
            later=0,
            refused=rebuild.refused,
            until=until,
            moved=moved,
        )

    def _refuse_remembered_deletions(self) -> None:
        """Raise TableError if Spark would have to make a table in the folder of what remains of the former one."""
        if self.target.handle is not None or not self.target.only_spark_replaces(None):
            return
        if deletions_table(self.lake, self.table) is not None:
            problem = "Delta on Spark makes no table in a folder that holds its remembered deletions"
            todo = f"rebuild it with `commit: auto`, or move {self.lake.address(self.table)}/{DELETIONS} away first"
            raise TableError(self.table, f"{problem}; {todo}")

    def _merge_batches(self, rebuild: UpsertRebuild, after: int, until: int) -> None:
        """Merge the records of some batches into what takes the place of the table's content."""
        target = self.target
        records = target.records_until(until)
        batches = records.arrived_batches(target.spark, self.lake, after)
        staging = target.rebuild(
            frozenset({self.table}), TableSource(lambda _: None), staging=f"{STAGING}/{target.config.name}"
        )
        raw = records.raw_records(target.spark, self.lake, after)
        rebuilt = staging.stage(raw, sum(batch.records for batch in batches), until)
        rebuild.refused += rebuilt.refused
        try:
            rebuild.merge(rebuilt.commits, batches)
        finally:
            self.lake.delete(*(file.path for file in rebuilt.files))

    def _replace_unless_behind(self, rebuild: UpsertRebuild, until: int) -> int | None:
        """Put merged rows in place of the content; return None.

        If the stream has merged a later batch, or the table needs another way now, nothing is put there: return up to
        which batch the rows are merged.
        """
        by_spark = self.target.only_spark_replaces(self.lake.open(self.table))
        with self.target.without_stream() if by_spark else nullcontext():
            handle = self._grow(rebuild)
            if self.target.only_spark_replaces(handle) != by_spark:
                return until  # another writer changed its features just now
            newest = self.target.committed_batch(self.key, handle) or 0
            if newest > until:
                self._merge_batches(rebuild, until, newest)
                return newest
            if by_spark:
                self._replace_by_spark(rebuild, until, handle)
            else:
                self._replace(rebuild, until, handle)
            return None

    def _grow(self, rebuild: UpsertRebuild) -> DeltaTable | None:
        """Return the table as it is now, with the columns that the merged rows have besides."""
        handle = self.lake.open(self.table)
        if handle is None:
            return None
        self.target.refuse_changes_of_others()
        if self.target.full:
            return handle
        change = compare_schemas(delta_schema(to_arrow(handle)), delta_schema(to_arrow(rebuild.open())))
        if change.cast or change.conflicts:
            raise TableError(self.table, "its columns have changed while it was rebuilt; rebuild it again")
        if change.added and not self.target.only_spark_replaces(handle):
            add_columns(handle, to_delta(pa.schema(list(change.added))))
        return handle

    def _replace(self, rebuild: UpsertRebuild, until: int, handle: DeltaTable | None) -> None:
        """Put merged rows in place of the content of a table as it is at this version, or make the table of them."""
        now = int(time.time())
        rebuild.remember_deletions(self.target.repair_id.to_transaction(now))
        ids = {str(self.target.repair_id): now, self.target.app_id(self.key): until}
        rebuild.replace(handle, ids, self.target.notes({self.key: until}), full=self.target.full)
        if handle is None and made_by_spark(self.keyed.new_table):
            finish_new_table(self.target.spark.newSession(), self.lake.spark_address(self.table), self.keyed.new_table)

    def _replace_by_spark(self, rebuild: UpsertRebuild, until: int, handle: DeltaTable | None) -> None:
        """Overwrite the table through Delta on Spark while no stream runs."""
        target = self.target
        session = target.spark.newSession()
        address = self.lake.spark_address(self.table)
        merged_columns = to_arrow(rebuild.open())
        properties = own_properties(self.keyed)
        if handle is None:
            create_by_spark(
                session, self.table, address, merged_columns, options=self.keyed.new_table, properties=properties
            )
        # Only now: deletions lie below the table's folder, and Spark makes no table in a folder with files.
        rebuild.remember_deletions(target.repair_id.to_transaction(int(time.time())))
        widened: list[tuple[str, Widening]] = []
        if handle is not None:
            change = compare_schemas(delta_schema(to_arrow(handle)), delta_schema(merged_columns))
            if change.widened:
                widened.append((to_delta(pa.schema(list(change.widened))), self.keyed.widening))
        is_behind = target.is_behind(self.key, until, handle)
        overwrite = SparkOverwrite(target, self.key if is_behind else None, until, {self.key: until})
        rows = session.read.format("delta").load(self.lake.spark_address(rebuild.name))
        overwrite.run(rows, schema=overwrite.rewritten_schema(session, handle, widened))
        for name, value in properties.items():
            set_property_by_spark(session, address, name, value)
