"""The records that are processed again: of bronze, or of the topic, in a range or up to a batch.

A range is bounded before anything is read: by offsets of partitions, or by a predicate that prunes files.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from heapq import nlargest
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from router.delta.dataset import dataset_of
from router.delta.history import first_commit_after
from router.delta.transaction_id import TransactionId
from router.engine.source.position import stored_records
from router.engine.source.source import Offsets, newest_offsets, retained_offsets
from router.engine.source.unreadable import RawRecords
from router.errors import StartError
from router.record import RAW_COLUMNS, RECORD_ARRIVAL, RECORD_SCHEMA, raw_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

    from router.config.models import Config, KafkaSource
    from router.delta.history import LogCommit
    from router.delta.lake import Lake


@dataclass(frozen=True)
class RecordRange:
    """Records by time, in seconds since 1970, or by offset: from `since` or `begins` on, before `until` or `ends`."""

    since: float | None = None
    until: float | None = None
    begins: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)

    def holds(self) -> Column:
        """Return a boolean column over raw records: the range has the record."""
        # Bare comparisons with a literal: files are pruned by the statistics of these columns.
        condition = F.lit(True)
        if self.since is not None:
            condition &= F.col("timestamp") >= _moment(self.since)
        if self.until is not None:
            condition &= F.col("timestamp") < _moment(self.until)
        if self.begins or self.ends:
            condition &= reduce(or_, [self._holds_offset(*partition) for partition in sorted(self.partitions())])
        return condition

    def _holds_offset(self, topic: str, number: int) -> Column:
        begin = self.begins.get(topic, {}).get(number, 0)
        end = self.ends.get(topic, {}).get(number, sys.maxsize)
        is_of_partition = (F.col("topic") == topic) & (F.col("partition") == number)
        return is_of_partition & (F.col("offset") >= begin) & (F.col("offset") < end)

    def bounded(self, first: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Return the offsets of a topic, which has those from `first` up to those before `end`, that may be in it."""
        if not self.begins and not self.ends:
            return first, end
        begins: Offsets = {}
        ends: Offsets = {}
        for topic, number in self.partitions():
            if number not in first.get(topic, {}):
                continue
            range_begin = max(first[topic][number], self.begins.get(topic, {}).get(number, 0))
            range_end = end[topic][number]
            range_end = min(range_end, self.ends.get(topic, {}).get(number, range_end))
            if range_begin < range_end:
                begins.setdefault(topic, {})[number] = range_begin
                ends.setdefault(topic, {})[number] = range_end
        return begins, ends

    def partitions(self) -> set[tuple[str, int]]:
        """Return the partitions of which the range names offsets."""
        partitions: set[tuple[str, int]] = set()
        for offsets in (self.begins, self.ends):
            for topic, numbers in offsets.items():
                partitions.update((topic, number) for number in numbers)
        return partitions


_CLUSTERS = 64
"""Ranges of offsets by which files of bronze are chosen: each is compared with the statistics of each file."""
_CLUSTER_OFFSETS = 10_000
"""Places of a partition that are nearer than this are in one range from the beginning."""
_MOST_SPANS = 100_000
"""Rows that the driver takes to find the ranges; for more places all files are read."""


def are_near(places: DataFrame) -> Column:
    """Return a boolean column over raw records: true for all at some places, and for few others. Runs a job.

    `places` has the columns of `PLACE`. The column names at most 64 ranges of offsets, with the widest gaps between
    them: places at both ends of a topic do not let all of it be read. It is true for all records if a place has a null,
    or if the places are of more partitions than that.
    """
    bucket = F.expr(f"offset div {_CLUSTER_OFFSETS}").alias("bucket")
    spans = places.groupBy("topic", "partition", bucket).agg(F.min("offset"), F.max("offset")).drop("bucket")
    rows = [tuple(row) for row in spans.limit(_MOST_SPANS + 1).collect()]
    partitions = {row[:2] for row in rows}
    if len(rows) > _MOST_SPANS or len(partitions) > _CLUSTERS or any(None in row for row in rows):
        return F.lit(True)
    rows.sort()
    gaps = [(after[2] - row[3], after) for row, after in pairwise(rows) if row[:2] == after[:2]]
    begins = {after for _, after in nlargest(_CLUSTERS - len(partitions), gaps)}
    ranges: dict[tuple[str, int, int], int] = {}
    for before, row in pairwise([(), *rows]):
        if row[:2] != before[:2] or row in begins:
            begin = row[:3]
        ranges[begin] = row[3]
    condition = F.lit(False)
    for (topic, partition, first), last in ranges.items():
        is_of_partition = (F.col("topic") == topic) & (F.col("partition") == partition)
        condition |= is_of_partition & F.col("offset").between(first, last)
    return condition


def _moment(seconds: float) -> Column:
    """Return a time, given in seconds since 1970, as a literal."""
    return F.timestamp_micros(F.lit(round(seconds * 1_000_000)))


class ArrivedBatch(NamedTuple):
    """A batch that read records: the arrival of these, and how many they are."""

    arrival: int
    records: int


@dataclass(frozen=True)
class BronzeRecords:
    """The records of bronze, each of its tables at a version: a resumed run reads the same records.

    `rows` is how many there are, if they were counted.
    """

    versions: dict[str, int]
    rows: int = 0

    @classmethod
    def newest(cls, lake: Lake, config: Config) -> BronzeRecords:
        """Return the records that bronze has now; none if the configuration has no bronze."""
        versions: dict[str, int] = {}
        for table in bronze_tables(lake, config):
            handle = lake.open(table)
            if handle is not None:
                versions[table] = handle.version()
        return cls(versions)

    @classmethod
    def until(cls, lake: Lake, config: Config, query: str, last: int) -> BronzeRecords:
        """Return the records of all batches up to the last. Raises StartError if there is no bronze."""
        tables = bronze_tables(lake, config)
        if not tables:
            raise StartError(f"{config.name} has no bronze to read records from; without it no table can be rebuilt")
        versions: dict[str, int] = {}
        rows = 0
        for table in tables:
            handle = open_until(lake, table, re.escape(str(TransactionId("bronze", query, table=table))), last)
            if handle is None:
                continue
            # The log counts the rows of each file: nothing is read for the number of records.
            actions: Any = pa.table(handle.get_add_actions())
            counts = actions.column("num_records").to_pylist()
            if None in counts:
                todo = f"run `router maintain FILE {table}` first"
                raise StartError(f"{table} has files without statistics: {todo}")
            versions[table] = handle.version()
            rows += sum(counts)
        return cls(versions, rows)

    def batch_of_newest(self, lake: Lake, rows: int) -> int:
        """Return the first batch of those that have at least the newest so many records; 0 if logs do not tell."""
        first_batches: list[tuple[int, int]] = []
        for table, version in self.versions.items():
            handle = lake.open_version(table, version)
            files = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
            # A file without statistics may be of any batch.
            first_batches += [(file.get("min.batch_id") or 0, file.get("num_records") or 0) for file in files]
        for first_batch, count in sorted(first_batches, reverse=True):
            rows -= count
            if rows <= 0:
                return first_batch
        return 0

    def frame(self, spark: SparkSession, lake: Lake) -> DataFrame:
        """Return the records as they were received, with `batch_id`. Lazy."""
        records = spark.createDataFrame([], RECORD_SCHEMA).withColumn("batch_id", F.lit(0).cast("long"))
        for table, version in self.versions.items():
            rows = delta_rows(spark, lake, table, version)
            records = records.unionByName(stored_records(rows, "batch_id"))
        return records

    def raw_records(self, spark: SparkSession, lake: Lake, after: int = -1) -> RawRecords:
        """Return the records of batches after one."""
        return RawRecords(self.frame(spark, lake).filter(F.col("batch_id") > after).select(*RAW_COLUMNS))

    def arrived_batches(self, spark: SparkSession, lake: Lake, after: int) -> list[ArrivedBatch]:
        """Return the batches after one that brought records, the first one first. Runs a job."""
        counts = self.raw_records(spark, lake, after).frame.groupBy(RECORD_ARRIVAL).agg(F.count(F.lit(1)))
        return [ArrivedBatch(*row) for row in sorted(counts.collect())]


def bronze_tables(lake: Lake, config: Config) -> list[str]:
    """Return the tables of bronze that exist."""
    bronze = config.bronze_tables()
    if not bronze:
        return []
    return [table for table in lake.table_names(bronze.layer) if table in bronze]


def delta_rows(spark: SparkSession, lake: Lake, table: str, version: int) -> DataFrame:
    """Return the rows of a version of a table. Lazy."""
    reader = spark.read.format("delta").option("versionAsOf", version)
    return reader.load(lake.spark_address(table))


def offsets_of_range(spark: SparkSession, kafka: KafkaSource, chosen: RecordRange) -> tuple[Offsets, Offsets]:
    """Return the first offsets of a topic that may be in a range, and those behind the last ones.

    Raises StartError if the topic does not have the first of them any more.
    """
    # All that it has: no partition has as many records.
    begins, ends = newest_offsets(spark, kafka, sys.maxsize)
    for topic, offsets in chosen.begins.items():
        for number, offset in offsets.items():
            problem = _gap(begins.get(topic, {}).get(number), offset)
            if problem:
                raise StartError(f"{topic}/{number} {problem}, and there is no bronze with offset {offset:,}")
    return chosen.bounded(begins, ends)


def _gap(begin: int | None, offset: int) -> str:
    """Return why a partition that begins with an offset (None: it does not exist) does not have another one."""
    if begin is None:
        return "does not exist"
    if begin > offset:
        return f"begins with offset {begin:,} now"
    return ""


class TopicRecords(NamedTuple):
    """The records of Kafka up to a batch, each in the batch that the ledger says read it, and how many there are.

    `spans` has the columns of `SPANS`: a row for each batch and partition. `read`: batch -> its records.
    """

    config: Config
    spans: pa.Table
    read: Counter[int]

    @property
    def rows(self) -> int:
        """Return how many records there are."""
        return self.read.total()

    @classmethod
    def until(cls, spark: SparkSession, lake: Lake, config: Config, run: str, last: int) -> TopicRecords:
        """Return the records of all batches of a run up to the last. Raises StartError if Kafka lacks one."""
        kafka = config.source.kafka
        table = lake.open(config.ledger)
        if kafka is None or table is None:
            raise StartError(f"{config.name} reads no topic, or nothing yet: there is no earliest record to begin with")
        records = cls(config, *_booked_spans(table, config.name, run, last))
        begins, _ = records._offsets()
        offsets_in_kafka = retained_offsets(spark, kafka, begins)
        for topic, offsets in begins.items():
            for number, offset in offsets.items():
                begin, _ = offsets_in_kafka.get(topic, {}).get(number, (None, None))
                problem = _gap(begin, offset)
                if problem:
                    raise StartError(f"{topic}/{number} {problem}, and the first record was at {offset:,}: use bronze")
        return records

    def _offsets(self) -> tuple[Offsets, Offsets]:
        """Return the first offsets, and those behind the last ones."""
        begins: Offsets = {}
        ends: Offsets = {}
        grouped = self.spans.group_by(["topic", "partition"]).aggregate([("first", "min"), ("last", "max")])
        for row in grouped.to_pylist():
            begins.setdefault(row["topic"], {})[row["partition"]] = row["first_min"]
            ends.setdefault(row["topic"], {})[row["partition"]] = row["last_max"] + 1
        return begins, ends

    def raw_records(self, spark: SparkSession, lake: Lake, after: int = -1) -> RawRecords:
        """Return the records of batches after one."""

        def arrived(records: DataFrame) -> DataFrame:
            # The batch is the arrival in the first run, and there is no other one: see `_booked_spans`.
            of_batches = with_batches(records, self.spans).withColumn(RECORD_ARRIVAL, F.col("batch_id"))
            return of_batches.filter(F.col("batch_id") > after).select(*raw_columns(of_batches.columns))

        assert self.config.source.kafka
        return RawRecords.of_topic(spark, self.config.source.kafka, self._offsets(), arrived)

    def arrived_batches(self, spark: SparkSession, lake: Lake, after: int) -> list[ArrivedBatch]:
        """Return the batches after one that brought records, the first one first."""
        return [ArrivedBatch(batch, read) for batch, read in sorted(self.read.items()) if batch > after]


SPANS = pa.schema([
    ("batch_id", pa.int64()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("first", pa.int64()),
    ("last", pa.int64()),
])  # fmt: skip
"""The first and the last offset that a batch read of a partition."""


def _booked_spans(table: DeltaTable, query: str, run: str, last: int) -> tuple[pa.Table, Counter[int]]:
    """Return the offsets that batches up to the last read, by the ledger, and how many records each has read.

    Raises StartError if another run also read some.
    """
    booked = (pc.field("query") == query) & pc.field("batch_id").is_valid() & pc.field("topic").is_valid()
    booked &= pc.field("read") > 0
    columns = ["run", "batch_id", "topic", "partition", "from_offset", "to_offset", "read"]
    rows = dataset_of(table)
    parts: list[pa.Table] = []
    read: Counter[int] = Counter()
    for part in rows.to_batches(columns=columns, filter=booked):
        if pc.any(pc.fill_null(pc.not_equal(part.column("run"), run), True)).as_py():
            raise StartError(f"{query} began with a new checkpoint once, and read some records twice: use bronze")
        of_batches = part.filter(pc.less_equal(part.column("batch_id"), last))
        for row in of_batches.select(["batch_id", "read"]).to_pylist():
            read[row["batch_id"]] += row["read"]
        spans = pa.Table.from_batches([of_batches]).select(columns[1:6]).rename_columns(SPANS.names)
        parts.append(spans.cast(SPANS))
    return pa.concat_tables([SPANS.empty_table(), *parts]), read


def with_batches(records: DataFrame, spans: pa.Table) -> DataFrame:
    """Return records with the `batch_id` of the span that holds their offset; without those that no span holds.

    A record is compared with the spans of its own bucket of offsets only, not with all of its partition. Buckets are as
    wide as a span on average, so that a record meets two spans on average, however uneven batches are.
    """
    width = bucket_width(spans)
    renamed = spans.rename_columns(["batch_id", "of_topic", "of_partition", "first", "last"])
    bucketed = buckets(records.sparkSession.createDataFrame(renamed), width)
    is_held = (F.col("topic") == F.col("of_topic")) & (F.col("partition") == F.col("of_partition"))
    is_held &= F.expr(f"offset div {width}") == F.col("bucket")
    is_held &= F.col("offset").between(F.col("first"), F.col("last"))
    joined = records.join(F.broadcast(bucketed), is_held)
    return joined.select(*records.columns, "batch_id")


def bucket_width(spans: pa.Table) -> int:
    """Return how many offsets a bucket has: as many as a span on average."""
    if not len(spans):
        return 1
    offsets = pc.sum(pc.subtract(spans.column("last"), spans.column("first"))).as_py() + len(spans)
    return max(1, -(-int(offsets) // len(spans)))


def buckets(spans: DataFrame, width: int) -> DataFrame:
    """Return a row for each bucket of offsets that a span is in: at most three for a span, on average."""
    numbers = F.sequence(F.expr(f"first div {width}"), F.expr(f"last div {width}"))
    return spans.withColumn("bucket", F.explode(numbers))


Records = BronzeRecords | TopicRecords


def open_until(lake: Lake, table: str, app_ids: str, last: int) -> DeltaTable | None:
    """Return a table before the first batch after the last; None if that batch has made it.

    `app_ids` is a pattern of the transaction ids under which batches write it.
    """

    def is_later(commit: LogCommit) -> bool | None:
        # Other commits, such as compactions, have no batch.
        batches = [number for app_id, number in commit.transactions.items() if re.fullmatch(app_ids, app_id)]
        return max(batches) > last if batches else None

    first = first_commit_after(lake, table, is_later)
    if first is None:
        return lake.open(table)
    if first.version == 0:
        return None
    return lake.open_version(table, first.version - 1)
