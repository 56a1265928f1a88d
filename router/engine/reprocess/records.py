"""Land records that bronze keeps once more, through the path of every batch, into named tables only.

Planner, landing job and schema evolution are those of `Batches`; the records come from bronze in place of the source.
Nothing but the named tables gets rows: no sink that applies, no bronze, dead letters or quarantine (a row that was
refused, or waits, is there since its batch). Rows for a merging sink are staged as its outbox has them. What is landed
is staged; the caller commits or merges it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.delta.history import log_commits, log_versions
from router.delta.lake import native_files
from router.delta.transaction_id import TransactionId
from router.engine.balance import keyed, partitions, total
from router.engine.commit.schema_evolution import SchemaEvolution
from router.engine.label.layout import RAW_COLUMNS, RECORD_SCHEMA, Demands
from router.engine.label.planner import Planner
from router.engine.land.job import LandingJob, UndecodedError
from router.engine.position import ARRIVAL, stored_records
from router.engine.preflight.explain import fixed_table
from router.engine.source import Offsets, between, kept
from router.engine.spark.executors import Executors
from router.errors import StartError, TableError
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from router.config.models import Config, Route
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.engine.label.planner import Plan
    from router.engine.land.job import Landed

log = logging.getLogger("router")
TRIES = 5


class BronzeRecords(NamedTuple):
    """The records of bronze up to a batch: a version of each of its tables, and how many there are."""

    table: str
    versions: dict[str, int]
    rows: int

    @classmethod
    def until(cls, lake: Lake, config: Config, query: str, last: int) -> BronzeRecords:
        """Return the records of all batches up to the last. Raises StartError where there is no bronze."""
        bronze, versions, rows = config.bronze_tables(), dict[str, int](), 0
        there = [table for table in lake.tables(bronze.layer) if table in bronze] if bronze else []
        if bronze is None or not there:
            raise StartError(f"{config.name} has no bronze to read records from; without it nothing can be made anew")
        for table in there:
            handle = _until(lake, table, str(TransactionId("bronze", query, table=table)), last)
            if handle is None:
                continue
            actions: Any = pa.table(handle.get_add_actions())
            counts = actions.column("num_records").to_pylist()
            if None in counts:
                raise StartError(f"{table} has files without statistics: run `router maintain` first")
            versions[table], rows = handle.version(), rows + sum(counts)
        return cls(bronze.template, versions, rows)

    def frame(self, spark: SparkSession, lake: Lake) -> DataFrame:
        """Return the records as they were received, with `batch_id`. Lazy."""
        parts = []
        for table, version in self.versions.items():
            reader = spark.read.format("delta").option("versionAsOf", version)
            parts.append(stored_records(reader.load(lake.spark_address(table)), "batch_id"))
        none = spark.createDataFrame([], RECORD_SCHEMA).withColumn("batch_id", F.lit(0).cast("long"))
        return reduce(DataFrame.unionByName, parts, none)


class TopicRecords(NamedTuple):
    """The records of Kafka up to a batch, each in the batch that the ledger says read it, and how many there are.

    `spans` has the columns of `SPANS`: a row for each batch and partition.
    """

    config: Config
    spans: pa.Table
    rows: int

    @classmethod
    def until(cls, spark: SparkSession, lake: Lake, config: Config, run: str, last: int) -> TopicRecords:
        """Return the records of all batches of a run up to the last. Raises StartError where Kafka has not all."""
        kafka, table = config.source.kafka, lake.open(config.ledger)
        if kafka is None or table is None:
            raise StartError(f"{config.name} reads no topic, or nothing yet: there is no earliest record to begin with")
        spans, rows = _booked_spans(table, config.name, run, last)
        found = cls(config, spans, rows)
        begins, _ = found._ends()
        there = kept(spark, kafka, begins)
        for topic, by in begins.items():
            for partition, first in by.items():
                have = there.get(topic, {}).get(partition)
                if have is None or have[0] > first:
                    what = "is gone" if have is None else f"begins with offset {have[0]:,} by now"
                    raise StartError(f"{topic}/{partition} {what}, and the first record was at {first:,}: use bronze")
        return found

    def _ends(self) -> tuple[Offsets, Offsets]:
        """Return the first offsets, and those behind the last ones."""
        begins: Offsets = {}
        ends: Offsets = {}
        grouped = self.spans.group_by(["topic", "partition"]).aggregate([("first", "min"), ("last", "max")])
        for row in grouped.to_pylist():
            begins.setdefault(row["topic"], {})[row["partition"]] = row["first_min"]
            ends.setdefault(row["topic"], {})[row["partition"]] = row["last_max"] + 1
        return begins, ends

    def frame(self, spark: SparkSession, lake: Lake) -> DataFrame:
        """Return the records as they were received, with `batch_id`. Lazy."""
        assert self.config.source.kafka
        read = between(spark, self.config.source.kafka, *self._ends())
        # The batch is the arrival in the first run, and there is no other one: see `_booked_spans`.
        arrived = with_batches(read, self.spans).withColumn(ARRIVAL, F.col("batch_id"))
        return arrived.select(*RAW_COLUMNS, "batch_id")


SPANS = pa.schema([
    ("batch_id", pa.int64()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("first", pa.int64()),
    ("last", pa.int64()),
])  # fmt: skip
"""The first and the last offset that a batch read of a partition."""


def _booked_spans(table: DeltaTable, query: str, run: str, last: int) -> tuple[pa.Table, int]:
    """Return the offsets that the ledger says batches up to the last read, and how many records these are.

    Raises StartError if another run read some, too.
    """
    booked = (pc.field("query") == query) & pc.field("batch_id").is_valid() & pc.field("topic").is_valid()
    booked &= pc.field("read") > 0
    columns = ["run", "batch_id", "topic", "partition", "from_offset", "to_offset", "read"]
    rows = table.to_pyarrow_dataset(filesystem=native_files(table))
    parts: list[pa.Table] = []
    read = 0
    for part in rows.to_batches(columns=columns, filter=booked):
        if pc.any(pc.fill_null(pc.not_equal(part.column("run"), run), True)).as_py():
            raise StartError(f"{query} began anew once, and read some records twice: make it of bronze")
        of_batches = part.filter(pc.less_equal(part.column("batch_id"), last))
        read += pc.sum(of_batches.column("read")).as_py() or 0
        spans = pa.Table.from_batches([of_batches]).select(columns[1:6]).rename_columns(SPANS.names)
        parts.append(spans.cast(SPANS))
    return pa.concat_tables(parts) if parts else SPANS.empty_table(), read


def with_batches(records: DataFrame, spans: pa.Table) -> DataFrame:
    """Return records with the `batch_id` of the span that holds their offset; without those that no span holds.

    A record is compared with the spans of its own bucket of offsets only, not with all of its partition. Buckets are as
    wide as a span on average, so that a record meets two spans on average, however uneven batches are.
    """
    width = bucket_width(spans)
    renamed = spans.rename_columns(["batch_id", "of_topic", "of_partition", "first", "last"])
    bucketed = buckets(records.sparkSession.createDataFrame(renamed), width)
    same = (F.col("topic") == F.col("of_topic")) & (F.col("partition") == F.col("of_partition"))
    same &= F.expr(f"offset div {width}") == F.col("bucket")
    within = F.col("offset").between(F.col("first"), F.col("last"))
    joined = records.join(F.broadcast(bucketed), same & within)
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


def _until(lake: Lake, table: str, app_id: str, last: int) -> DeltaTable | None:
    """Return a table of bronze before the first batch after the last; None where that one has made it."""
    version = _version(lake, table, app_id, last)
    if version is None:
        return lake.open(table)
    if version < 0:
        return None
    return DeltaTable(lake.address(table), version=version, storage_options=lake.delta_options(table))


def _version(lake: Lake, table: str, app_id: str, last: int) -> int | None:
    """Return the version of bronze before the first batch after the last; None where that is the newest version."""
    found = None
    for version in reversed(log_versions(lake, table)):
        (commit,) = log_commits(lake, table, [version])
        batch = commit.transactions.get(app_id)
        if batch is not None and batch <= last:
            break
        found = version if batch is not None else found
    return None if found is None else found - 1


@dataclass(frozen=True)
class LandedAgain:
    """What was landed again, staged: a commit for each sink and table, and how many rows had no place there."""

    commits: tuple[TableCommit, ...]
    read: int
    refused: int

    @property
    def rows(self) -> int:
        """Return the rows of all commits."""
        return sum(work.rows for work in self.commits)


@dataclass
class FromBronze:
    """The landing of records of bronze in some tables; `tables` opens these as the records shall find them.

    The decoder must be prepared already. `query` is the query with its run: transaction ids begin with it.
    """

    config: Config
    spark: SparkSession
    lake: Lake
    query: str
    only: frozenset[str]
    tables: Any
    folder: str | None = None
    executors: Executors = field(default_factory=Executors)

    def __post_init__(self) -> None:
        self.planner = Planner(self._config(), self.config.decode, quiet=True)
        options = self.config.landing
        self.landing = LandingJob(
            self.spark, self.lake, options, self.query, self.folder, only=self.only, executors=self.executors
        )
        self.evolution = SchemaEvolution(self.lake, self.tables, self.query, self.spark, self.config.table_options())

    def land(self, records: DataFrame, expected: int, batch: int) -> LandedAgain:
        """Stage the rows that so many records bring into the tables. Raises TableError where they cannot take them."""
        self.planner.refresh()
        plan, demands = self.planner.plan(records.select(*RAW_COLUMNS)), Demands()
        for _ in range(TRIES):
            plan, landed = self._land(plan, demands, batch)
            self._check(landed, expected)
            decision = self.evolution.decide(plan.layout, landed.files, demands, batch)
            if decision.refused:
                self.landing.discard(landed)
                raise TableError(self._names, "; ".join(decision.refused))
            places = {f"{file.target}/{file.table}" for file in landed.files}
            before, demands = demands, replace(decision.demands, allowed={})  # a table that was there needs no place
            if not before.differ(demands, places):
                counted = partitions(landed.counts)
                refused = sum(keyed(counted, "rejected").values()) + sum(keyed(counted, "quarantined").values())
                return LandedAgain(decision.commits, total(counted, "read"), refused)
            self.landing.discard(landed)
        raise TableError(self._names, f"it changed {TRIES} times while rows were landed; who else writes it?")

    @property
    def _names(self) -> str:
        return min(self.only, default="new tables") if len(self.only) < 2 else f"{min(self.only)} and others"

    def _land(self, plan: Plan, demands: Demands, batch: int) -> tuple[Plan, Landed]:
        try:
            return self.landing.run_decoded(self.planner, plan, demands, batch)
        except UndecodedError as error:
            raise TableError(self._names, f"{error}; nothing was committed") from error

    def _check(self, landed: Landed, expected: int) -> None:
        """Refuse what does not balance: records that were not read, rows that are in no file."""
        if landed.failed:
            self.landing.discard(landed)
            raise TableError(self._names, next(iter(landed.failed.values())))
        counted = partitions(landed.counts)
        files, rows = sum(file.rows for file in landed.files), sum(keyed(counted, "landed").values())
        if (read := total(counted, "read")) != expected or files != rows:
            self.landing.discard(landed)
            what = f"of {expected:,} records {read:,} were read, and {files:,} of {rows:,} rows are in files"
            raise TableError(self._names, f"what was landed does not balance: {what}; nothing was committed")

    def _config(self) -> Config:
        """Return the configuration with those routes only that may have rows for the tables."""
        routes = tuple(route for route in self.config.routes if self._brings(route))
        return self.config.model_copy(update={"bronze": None, "routes": routes, "unmatched": "drop"})

    def _brings(self, route: Route) -> bool:
        sinks = (sink for sink in route.sinks if isinstance(sink, (TableSink, MergingSink)))
        return any((name := fixed_table(sink)) == "" or name in self.only for sink in sinks)


@dataclass(frozen=True)
class GivenTables:
    """Tables that are opened by a function, in place of a cache."""

    find: Callable[[str], Any]

    def readable(self, tables: Iterable[str]) -> dict[str, Any]:
        """Return tables by name; None where there is none."""
        return {name: self.find(name) for name in sorted(tables)}
