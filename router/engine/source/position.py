"""Note when a record arrived, and number the records of a source that has no offsets.

Every record has an arrival: the run that read it first, and the batch. Bronze, dead letters and tables that keep one
row per key store it, so that a record that is processed again keeps it. It orders the records of different partitions:
their offsets cannot be compared.

A source without offsets (files, Delta tables, any `format:`) gets them here: its records are numbered on from the last
one of the query in the ledger, and from the first arrival of its run at least. So a path that is read under another
name, or by a new checkpoint, has larger numbers than before. A batch that is read again gets the same numbers, however
many cores read it: the files of a batch are counted in a fixed order, and the rows of each file. Runs on the driver,
before anything reads the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from router.delta.dataset import dataset_of
from router.delta.table_cache import SparkTables
from router.record import RAW_COLUMNS, RECORD_ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row, SparkSession

    from router.delta.lake import Lake

    CommitVersions = Callable[[set[Any]], dict[str, int]]

BATCH_BITS = 40
FILE = "_file"
MODIFIED = "_file_modified"
BLOCK = "_file_block"
VERSION = "_version"
CHANGE = "_change"
PLACE_COLUMNS = (VERSION, CHANGE, MODIFIED, FILE, BLOCK)
"""Columns of a stream without offsets, if it has them, the most important one first: commit and kind of change of a
Delta table, time (in microseconds) and path of the file, begin of the part of it that a task reads. A stream with FILE
has no offsets."""


def arrival_of(ordinal: int, batch: int) -> int:
    """Return the arrival of a batch's records; later ones are larger."""
    return (ordinal << BATCH_BITS) + batch


def stored_records(frame: DataFrame, *others: str) -> DataFrame:
    """Return the raw records that bronze or dead letters keep, each with its arrival if that is known."""
    if RECORD_ARRIVAL not in frame.columns:
        frame = frame.withColumn(RECORD_ARRIVAL, F.lit(None).cast("long"))
    # Records from before there were arrivals are of a first run, whose arrivals are its batch numbers.
    if "batch_id" in frame.columns:
        frame = frame.withColumn(RECORD_ARRIVAL, F.coalesce(RECORD_ARRIVAL, "batch_id"))
    return frame.select(*RAW_COLUMNS, *others)


@dataclass
class RecordNumbers:
    """The numbers that records of a source without offsets get, for one run of a query.

    `ordinal` is how many runs of the lake began before this one. `next_number` has the first number of the newest batch
    that this process has seen, and of the one after it. With `by_spark` Spark reads the ledger, else delta-rs does.
    """

    lake: Lake
    ledger: str
    query: str
    run: str
    ordinal: int
    by_spark: SparkSession | None = None
    next_number: dict[int, int] = field(default_factory=dict)

    def number_records(self, raw: DataFrame, batch: int, commit_versions: CommitVersions | None = None) -> DataFrame:
        """Return records with their numbers as `offset`, and without PLACE_COLUMNS.

        `commit_versions` returns the commits of a Delta table that added files. Runs a job that counts the records of
        each file.
        """
        # The ledger has a batch only when it is finished: the numbers of this process' last batch are newer.
        begin = self.next_number.get(batch)
        if begin is None:
            last = self._read_last_number(batch) if self.by_spark is None else self._last_by_spark(self.by_spark, batch)
            begin = max(last + 1, arrival_of(self.ordinal, 0))
        rows = raw.withColumns({"_task": F.spark_partition_id(), "_row": F.monotonically_increasing_id()})
        key_names = [*(name for name in PLACE_COLUMNS if name in raw.columns), "_task"]
        bases: dict[str, list[Any]] = {name: [] for name in (*key_names, "base")}
        number = begin
        for part in _sort_parts(rows, key_names, commit_versions):
            for name in key_names:
                bases[name].append(part[name])
            # The rows of a part follow each other in its task, so a row's place in the task plus this is its number.
            bases["base"].append(number - part["first_row"])
            number += part["last_row"] - part["first_row"] + 1
        self.next_number = {batch: begin, batch + 1: number}
        other_columns = [name for name in raw.columns if name not in PLACE_COLUMNS]
        if number == begin:
            return raw.select(*other_columns)

        # Each row finds the base of its part by a join with one small row per part; parts may have null keys. As Arrow
        # they reach Spark at once; from rows of Python a job has to read them, which took 1.4 s of a cold run.
        columns: dict[str, pa.Array] = {}
        is_same_part = F.lit(True)
        for name, keys in bases.items():
            columns[f"_of_{name}"] = pa.array(keys, pa.string() if name == FILE else pa.int64())
        for name in key_names:
            is_same_part = is_same_part & F.col(name).eqNullSafe(F.col(f"_of_{name}"))
        bases_by_key = rows.sparkSession.createDataFrame(pa.table(columns))
        numbers = rows.join(F.broadcast(bases_by_key), is_same_part, "left")
        return numbers.withColumn("offset", F.col("_row") + F.col("_of_base")).select(*other_columns)

    def _read_last_number(self, batch: int) -> int:
        """Return the last number that a record of an earlier batch, or run, has; -1 if there is none."""
        table = self.lake.open(self.ledger)
        if table is None:
            return -1
        rows = dataset_of(table)
        has_offsets = (pc.field("query") == self.query) & pc.field("to_offset").is_valid()
        last = -1
        for part in rows.to_batches(columns=["run", "batch_id", "to_offset"], filter=has_offsets):
            # This batch and later ones of the run may be in the ledger if the checkpoint was put back.
            same_run = pc.equal(part.column("run"), self.run)
            is_later = pc.and_(same_run, pc.greater_equal(part.column("batch_id"), batch))
            earlier = part.column("to_offset").filter(pc.invert(pc.fill_null(is_later, False)))
            if len(earlier):
                last = max(last, pc.max(earlier).as_py())
        return last

    def _last_by_spark(self, spark: SparkSession, batch: int) -> int:
        rows = SparkTables(spark, self.lake).read_rows(self.ledger)
        if rows is None:
            return -1
        is_later = (F.col("run") == self.run) & (F.col("batch_id") >= batch)
        earlier = rows.filter((F.col("query") == self.query) & ~F.coalesce(is_later, F.lit(False)))
        last = earlier.agg(F.max("to_offset")).collect()[0][0]
        return -1 if last is None else int(last)


def _sort_parts(rows: DataFrame, key_names: list[str], commit_versions: CommitVersions | None) -> list[Row]:
    """Return the parts of a batch in the order of their records.

    A part is the records that a task reads of one file; without files, all that it reads. Each has its keys, its
    `first_row` and its `last_row` in the task.
    """
    # `value` is counted so that the source parses its rows: one that only counts them may count others.
    counted = rows.groupBy(*key_names).agg(
        F.min("_row").alias("first_row"), F.max("_row").alias("last_row"), F.count("value")
    )
    parts = counted.collect()  # as many rows as files, or parts of large files
    versions: dict[str, int] = {}
    if commit_versions:
        versions = commit_versions({part[FILE] for part in parts})
    return sorted(parts, key=lambda part: _part_sort_key(part.asDict(), versions))


def _part_sort_key(key: dict[str, Any], versions: dict[str, int]) -> tuple[Any, ...]:
    """Return the sort key of a part: commit, kind of change, time and path of the file, place in it, and the task."""
    path = key.get(FILE) or ""
    version = key.get(VERSION, versions.get(path, -1))
    return (version, key.get(CHANGE, 0), key.get(MODIFIED) or 0, path, key.get(BLOCK) or 0, key["_task"])
