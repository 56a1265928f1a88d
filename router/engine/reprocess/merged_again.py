"""Merge a table that keeps one row per key anew, from nothing: what `router repair` puts in place of its content.

The rows of an outbox, staged once more from bronze, are merged batch by batch into a table of their own below the
staging folder, by the functions that merge those of a stream. Nobody reads that table but the repair; it goes after it.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from router.delta.casting import cast_to
from router.delta.commit import to_arrow, to_arrow_schema
from router.delta.constraints import CHECK
from router.delta.keyed.key_property import KEYED_BY, keyed_by, own_properties
from router.delta.keyed.row_order import ARRIVAL, POSITION
from router.delta.keyed.row_versions import DELETIONS, deletions_table
from router.delta.lake import native_files
from router.delta.parquet_writer import FILE_BYTES, HELD_BYTES, Staging
from router.delta.replace import (
    add_constraint,
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
from router.delta.widening import copied_rows, in_partition, way, wider_schema
from router.engine.label.layout import TABLE
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, merge_table
from router.engine.merge.delta_spark import SparkMerger
from router.engine.position import ARRIVAL as RECORD_ARRIVAL
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable, Transaction
    from pyspark.sql import DataFrame, SparkSession

    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.sinks import KeyedTable

PORTION = 500_000
"""Records whose rows are merged at once; the driver holds them."""


class ArrivedBatch(NamedTuple):
    """A batch that brought records into bronze: the arrival of these, and how many they are."""

    arrival: int
    records: int


def arrived_batches(bronze: DataFrame) -> list[ArrivedBatch]:
    """Return the batches that brought records into bronze, the first one first."""
    counts = bronze.groupBy(RECORD_ARRIVAL).agg(F.count(F.lit(1)).alias("records")).orderBy(RECORD_ARRIVAL)
    return [ArrivedBatch(row[RECORD_ARRIVAL], row["records"]) for row in counts.collect()]


def portions(batches: list[ArrivedBatch], most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last arrival of batches that follow each other, together as many as have so many records.

    Arrivals order batches, so that two numbers say which rows are meant, however many batches these came in.
    """
    held: list[int] = []
    records = 0
    for batch in batches:
        if held and records + batch.records > most:
            yield held[0], held[-1]
            held, records = [], 0
        held.append(batch.arrival)
        records += batch.records
    if held:
        yield held[0], held[-1]


@dataclass
class MergedAgain:
    """A table merged from nothing, for a table that `handle` has open (None: it is made anew).

    A table, also one with a history, is a function of its rows, so that those of many batches are merged together.
    """

    spark: SparkSession
    lake: Lake
    keyed: KeyedTable
    table: str
    handle: DeltaTable | None
    name: str = field(default_factory=lambda: f"_staged.repair-{uuid.uuid4().hex}")
    refused: int = 0
    merged: int = 0
    merges: int = 0

    def __post_init__(self) -> None:
        self.drop()  # what a repair that was killed has left
        divided = self.handle.metadata().partition_columns if self.handle else self.keyed.partition_by
        self.merged_as = replace(self.keyed, properties={}, cluster_by=(), comment=None, partition_by=tuple(divided))
        if self.handle is not None:
            self._make(self.handle)

    def _make(self, like: DeltaTable) -> None:
        """Make the table with the columns and constraints of the one that is repaired, for rows to meet the same."""
        may_widen = way(like, self.table, self.keyed.widening) is not None
        columns = to_arrow(like)
        for name, kind in POSITION.items():  # a table of an older version lacks some
            columns = columns if name in columns.names else columns.append(pa.field(name, kind))
        made = create_table(
            self.lake,
            self.name,
            columns,
            partition_by=self.merged_as.partition_by,
            properties=own_properties(self.keyed),
            name=made_as(self.name) if may_widen else "",
            exclusive=True,
        )
        for key, sql in like.metadata().configuration.items():
            if key.startswith(CHECK):
                add_constraint(made, key.removeprefix(CHECK), sql)

    def open(self) -> DeltaTable:
        """Return the table. Raises TableError where nothing was merged into it."""
        found = self.lake.open(self.name)
        if found is None:
            raise TableError(self.table, "bronze has no row for it")
        return found

    def merge(self, works: tuple[TableCommit, ...], batches: list[ArrivedBatch]) -> None:
        """Merge the staged rows of batches, in the order of batches. Raises TableError."""
        for work in works:
            rows, before = staged_rows(self.spark, self.lake, work).withColumn(TABLE, F.lit(self.name)), self.merged
            for first, last in portions(batches, PORTION):
                self._merge(rows.filter(F.col(ARRIVAL).between(first, last)), work)
            if (merged := self.merged - before) < work.rows:
                raise TableError(self.table, f"of {work.rows:,} rows {merged:,} were merged; nothing was committed")

    def _merge(self, rows: DataFrame, work: TableCommit) -> None:
        if self.keyed.engine == "spark":
            self._merge_with_spark(rows, work.target)
            return
        given = cast_to(rows.toArrow(), delta_schema(to_arrow_schema(work.columns)))
        if len(given) and self.merge_rows(given, work.target).spark:
            self._merge_with_spark(rows, work.target)

    def merge_rows(self, rows: pa.Table, target: str) -> MergeOutcomes:
        """Merge rows with delta-rs, where it can; they are as an outbox has them. Raises TableError."""
        found = MergeOutcomes()
        name, report, _ = merge_table(self._job(target), self.name, rows)
        found.add({"table": name, **report})
        return self._counted(found)

    def _merge_with_spark(self, rows: DataFrame, target: str) -> None:
        found = MergeOutcomes()
        SparkMerger(self.spark, self.lake, self._job(target)).merge(rows, found)
        self._counted(found)

    def _job(self, target: str) -> MergeJob:
        """Return a merge with a transaction id of its own; refused rows are dead letters since their batch."""
        route, _, sink = target.partition("/")
        self.merges += 1
        staging = Staging(self.lake, FILE_BYTES, HELD_BYTES)
        return MergeJob(staging, self.merged_as, STAGED_MERGES, self.merges, route, sink, f"{self.name}.refused", {})

    def _counted(self, found: MergeOutcomes) -> MergeOutcomes:
        if found.failed:
            raise TableError(self.table, f"its rows could not be merged: {found.failed[self.name]}")
        self.refused += found.counts.get("refused", 0)
        self.merged += found.counts.get("applied", 0) + found.counts.get("refused", 0)
        return found

    def replace(
        self, handle: DeltaTable | None, ids: dict[str, int], notes: dict[str, str], *, anew: bool = False
    ) -> None:
        """Put the rows in place of the content of an open table, or make it of them, in one commit of delta-rs.

        The id that all merges of one table share lets none of them pass beside this commit. Raises DeltaError where
        another writer was faster. The columns are those of the rows alone where they are made anew.
        """
        merged = self.open()
        guard = 0 if handle is None else handle.version() + 1
        ids = {**ids, GUARD: guard}
        schema = merged.schema().to_json()
        if handle is not None and not anew:
            schema = wider_schema(handle.schema().to_json(), schema)
        divided = merged.metadata().partition_columns
        kinds = [column for column in delta_schema(to_arrow_schema(schema)) if column.name not in divided]
        files = [
            in_partition(file) for file in copied_rows(self.lake, (self.name, merged), self.table, pa.schema(kinds))
        ]
        if handle is None:
            options = self.keyed
            create_with_files(
                self.lake, self.table, schema, files, ids=ids, notes=notes, options=options, exclusive=True
            )
        else:
            replace_content(handle, files, ids=ids, notes=notes, schema=schema, partition_by=divided, alone=True)
        self._note_keys()

    def _note_keys(self) -> None:
        """Let the table say by which keys it is merged now. Until then no sink with these keys writes it."""
        table = self.lake.open(self.table)
        assert table is not None  # it was committed
        if table.metadata().configuration.get(KEYED_BY) != keyed_by(self.keyed):
            set_properties(table, own_properties(self.keyed))

    def remember_deletions(self, once: Transaction) -> None:
        """Remember with the table that is repaired which keys are deleted; more than once does no harm.

        Those of a table that was merged by other keys are replaced: they would delete what they do not name.
        """
        remembered = deletions_table(self.lake, self.name)
        table = self.lake.open(self.table)
        other_keys = table is not None and table.metadata().configuration.get(KEYED_BY) != keyed_by(self.keyed)
        if remembered is None:
            if other_keys and (former := deletions_table(self.lake, self.table)) is not None:
                former.delete()
            return
        write_rows(
            self.lake.address(f"{self.table}.{DELETIONS}"),
            remembered.to_pyarrow_dataset(filesystem=native_files(remembered)).scanner().to_reader(),
            ids={once.app_id: once.version},
            overwrite=other_keys,
            new_columns=True,
            storage_options=self.lake.delta_options(self.table),
        )

    def drop(self) -> None:
        """Delete the table."""
        with suppress(OSError):  # the next start, or the next repair of the table, takes what is left
            self.lake.files.delete_dir(self.name.replace(".", "/"))
