"""Merge a table that keeps one row per key from nothing: `router rebuild` puts the result in place of its content.

The rows of an outbox, staged again from bronze, are merged batch by batch into a table of their own below the staging
folder, by the functions that merge those of a stream. Only the repair reads that table, and deletes it at its end.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from router.delta.casting import cast_to
from router.delta.commit import to_arrow, to_arrow_schema
from router.delta.dataset import dataset_of
from router.delta.keyed.key_property import KEYED_BY, keyed_by, own_properties
from router.delta.keyed.row_order import POSITION
from router.delta.keyed.row_versions import deletions_table
from router.delta.parquet_writer import FILE_BYTES, HELD_BYTES, Staging
from router.delta.replace import (
    copy_constraints,
    create_table,
    create_with_files,
    made_as,
    replace_content,
    set_properties,
    write_rows,
)
from router.delta.replace_by_spark import staged_rows
from router.delta.schema_diff import delta_schema
from router.delta.transaction_id import GUARD, STAGED_MERGES
from router.delta.widening import choose_widening_way, copied_rows, in_partition, wider_schema
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, merge_table
from router.engine.merge.delta_spark import SparkMerger
from router.errors import TableError
from router.own_names import ARRIVAL, DELETIONS, STAGING, TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable, Transaction
    from pyspark.sql import DataFrame, SparkSession

    from router.api.sinks import KeyedTable
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.engine.reprocess.records import ArrivedBatch

PORTION = 500_000
"""The most records whose rows are merged at once; the driver holds them."""


def portions(batches: list[ArrivedBatch], most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last arrival of batches that follow each other, together as many as have so many records.

    Arrivals order batches, so that two numbers say which rows are meant, however many batches these came in.
    """
    arrivals: list[int] = []
    records = 0
    for batch in batches:
        if arrivals and records + batch.records > most:
            yield arrivals[0], arrivals[-1]
            arrivals = []
            records = 0
        arrivals.append(batch.arrival)
        records += batch.records
    if arrivals:
        yield arrivals[0], arrivals[-1]


@dataclass
class UpsertRebuild:
    """A table merged from nothing, to replace one that `handle` has open (None: it has the columns of its rows only).

    A table, also one with a history, is a function of its rows, so that those of many batches are merged together.
    `merged` and `refused` count rows, `merges` the merges.
    """

    spark: SparkSession
    lake: Lake
    keyed: KeyedTable
    table: str
    handle: DeltaTable | None
    name: str = field(default_factory=lambda: f"{STAGING}.repair-{uuid.uuid4().hex}")
    refused: int = 0
    merged: int = 0
    merges: int = 0

    def __post_init__(self) -> None:
        self.drop()  # what a repair that was killed has left
        partition_by = self.keyed.new_table.partition_by
        if self.handle is not None:
            partition_by = tuple(self.handle.metadata().partition_columns)
        self.merged_as = replace(self.keyed, new_table=self.keyed.new_table.for_replacement(partition_by))
        if self.handle is not None:
            self._create_like(self.handle)

    def _create_like(self, repaired: DeltaTable) -> None:
        """Create the table with the columns and constraints of the repaired one, so that rows meet the same."""
        columns = to_arrow(repaired)
        for name, kind in POSITION.items():
            if name not in columns.names:  # a table of an older version lacks some
                columns = columns.append(pa.field(name, kind))
        may_widen = choose_widening_way(repaired, self.table, self.keyed.widening) is not None
        created = create_table(
            self.lake,
            self.name,
            columns,
            options=self.merged_as.new_table,
            properties=own_properties(self.keyed),
            name=made_as(self.name) if may_widen else "",
            exclusive=True,
        )
        copy_constraints(repaired, created)

    def open(self) -> DeltaTable:
        """Return the table. Raises TableError if nothing was merged into it."""
        handle = self.lake.open(self.name)
        if handle is None:
            raise TableError(self.table, "bronze has no row for it")
        return handle

    def merge(self, works: tuple[TableCommit, ...], batches: list[ArrivedBatch]) -> None:
        """Merge the staged rows of batches, in the order of batches. Raises TableError."""
        for work in works:
            rows = staged_rows(self.spark, self.lake, work).withColumn(TABLE, F.lit(self.name))
            merged_before = self.merged
            for first, last in portions(batches, PORTION):
                self._merge(rows.filter(F.col(ARRIVAL).between(first, last)), work)
            merged = self.merged - merged_before
            if merged < work.rows:
                raise TableError(self.table, f"of {work.rows:,} rows {merged:,} were merged; nothing was committed")

    def _merge(self, rows: DataFrame, work: TableCommit) -> None:
        if self.keyed.engine == "spark":
            self._merge_with_spark(rows, work.target)
            return
        outbox_rows = cast_to(rows.toArrow(), delta_schema(to_arrow_schema(work.columns)))
        if len(outbox_rows) and self.merge_rows(outbox_rows, work.target).spark:
            self._merge_with_spark(rows, work.target)

    def merge_rows(self, rows: pa.Table, target: str) -> MergeOutcomes:
        """Merge rows with delta-rs, if it can; they are as an outbox has them. Raises TableError."""
        outcomes = MergeOutcomes()
        name, report, _ = merge_table(self._job(target), self.name, rows)
        outcomes.add_report({"table": name, **report})
        self._count(outcomes)
        return outcomes

    def _merge_with_spark(self, rows: DataFrame, target: str) -> None:
        outcomes = MergeOutcomes()
        SparkMerger(self.spark, self.lake, self._job(target)).merge_tables(rows, outcomes)
        self._count(outcomes)

    def _job(self, target: str) -> MergeJob:
        """Return a merge with a transaction id of its own; refused rows are dead letters since their batch."""
        route, _, sink = target.partition("/")
        self.merges += 1
        staging = Staging(self.lake, FILE_BYTES, HELD_BYTES)
        return MergeJob(staging, self.merged_as, STAGED_MERGES, self.merges, route, sink, f"{self.name}.refused", {})

    def _count(self, outcomes: MergeOutcomes) -> None:
        if outcomes.failed:
            raise TableError(self.table, f"its rows could not be merged: {outcomes.failed[self.name]}")
        refused = outcomes.counts.get("refused", 0)
        self.refused += refused
        self.merged += outcomes.counts.get("applied", 0) + refused

    def replace(
        self, handle: DeltaTable | None, ids: dict[str, int], notes: dict[str, str], *, full: bool = False
    ) -> None:
        """Put the rows in place of the content of an open table, or make it of them, in one commit of delta-rs.

        With `full` the table keeps none of its columns that the rows lack. Raises DeltaError if another writer was
        faster.
        """
        merged = self.open()
        # All merges of one table share this id: none of them can succeed at the same time as this commit.
        guard = 0 if handle is None else handle.version() + 1
        ids = {**ids, GUARD: guard}
        schema = merged.schema().to_json()
        if handle is not None and not full:
            schema = wider_schema(handle.schema().to_json(), schema)
        partition_by = merged.metadata().partition_columns
        columns = [column for column in delta_schema(to_arrow_schema(schema)) if column.name not in partition_by]
        copies = copied_rows(self.lake, (self.name, merged), self.table, pa.schema(columns))
        files = [in_partition(file) for file in copies]
        if handle is not None:
            replace_content(handle, files, ids=ids, notes=notes, schema=schema, partition_by=partition_by, alone=True)
        else:
            create_with_files(
                self.lake,
                self.table,
                schema,
                files,
                ids=ids,
                notes=notes,
                options=self.keyed.new_table,
                exclusive=True,
            )
        self._note_keys()

    def _note_keys(self) -> None:
        """Write into the table by which keys it is merged now. Until then no sink with these keys writes it."""
        table = self.lake.open(self.table)
        assert table is not None  # it was committed
        if table.metadata().configuration.get(KEYED_BY) != keyed_by(self.keyed):
            set_properties(table, own_properties(self.keyed))

    def remember_deletions(self, once: Transaction) -> None:
        """Remember with the repaired table which keys are deleted; more than once does no harm.

        Deletions of a table that was merged by other keys are replaced: they would delete other rows now.
        """
        deletions = deletions_table(self.lake, self.name)
        table = self.lake.open(self.table)
        has_other_keys = table is not None and table.metadata().configuration.get(KEYED_BY) != keyed_by(self.keyed)
        if deletions is None:
            # The rebuild has deleted no key: only deletions by other keys must not stay.
            former = deletions_table(self.lake, self.table) if has_other_keys else None
            if former is not None:
                former.delete()
            return
        write_rows(
            self.lake.address(f"{self.table}.{DELETIONS}"),
            dataset_of(deletions).scanner().to_reader(),
            ids={once.app_id: once.version},
            overwrite=has_other_keys,
            new_columns=True,
            storage_options=self.lake.delta_options(self.table),
        )

    def drop(self) -> None:
        """Delete the table."""
        with suppress(OSError):  # the next start, or the next repair of the table, deletes the rest
            self.lake.files.delete_dir(self.name.replace(".", "/"))
