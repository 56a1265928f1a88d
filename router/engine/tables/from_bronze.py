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
    """The records of Kafka up to a batch, each in the batch that the ledger says read it, and how many there are."""

    config: Config
    spans: tuple[tuple[int, str, int, int, int], ...]
    rows: int

    @classmethod
    def until(cls, spark: SparkSession, lake: Lake, config: Config, run: str, last: int) -> TopicRecords:
        """Return the records of all batches of a run up to the last. Raises StartError where Kafka has not all."""
        kafka, table = config.source.kafka, lake.open(config.ledger)
        if kafka is None or table is None:
            raise StartError(f"{config.name} reads no topic, or nothing yet: there is no earliest record to begin with")
        columns = ["query", "run", "batch_id", "topic", "partition", "from_offset", "to_offset", "read"]
        booked = [
            row
            for row in table.to_pyarrow_dataset(filesystem=native_files(table)).to_table(columns=columns).to_pylist()
            if row["query"] == config.name and row["batch_id"] is not None and row["topic"] is not None and row["read"]
        ]
        if {row["run"] for row in booked} - {run}:
            raise StartError(f"{config.name} began anew once, and read some records twice: make it of bronze")
        mine = [row for row in booked if row["batch_id"] <= last]
        spans = tuple(tuple(row[name] for name in columns[2:7]) for row in mine)
        found = cls(config, spans, sum(row["read"] for row in mine))
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
        for _, topic, number, first, last in self.spans:
            begin, end = begins.setdefault(topic, {}), ends.setdefault(topic, {})
            begin[number], end[number] = min(begin.get(number, first), first), max(end.get(number, 0), last + 1)
        return begins, ends

    def frame(self, spark: SparkSession, lake: Lake) -> DataFrame:
        """Return the records as they were received, with `batch_id`. Lazy."""
        assert self.config.source.kafka
        read = between(spark, self.config.source.kafka, *self._ends()).alias("read")
        names = "batch_id long, of_topic string, of_partition int, first long, last long"
        spans = F.broadcast(spark.createDataFrame([*self.spans], names))
        within = F.col("offset").between(F.col("first"), F.col("last"))
        same = (F.col("topic") == F.col("of_topic")) & (F.col("partition") == F.col("of_partition"))
        arrived = read.join(spans, same & within).withColumn(ARRIVAL, F.col("batch_id"))  # the first run: see `until`
        return arrived.select(*RAW_COLUMNS, "batch_id")


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
