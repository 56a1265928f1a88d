"""Take a range of records again, through today's configuration: `router backfill`, while the stream does not run.

The records are one batch of a run of its own, as dead letters that are sent again are (`replay`): its manifest,
transaction ids and marks carry the backfill's name, and one that was killed goes on where it ended. They go to tables
only, not to sinks that send, and not to bronze. A record that has a row in a table already gets none there if rows know
their record (columns of topic, partition and offset); other tables are refused if a batch, or a backfill, has brought
some of the range before. Tables with one row per key need neither: a row that came later stays. Runs on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from router.delta.commit import to_arrow
from router.delta.lake import native_files
from router.delta.log_tail import newest
from router.delta.parquet_writer import staged_again
from router.delta.schema_diff import delta_type
from router.delta.table_cache import SparkTable
from router.engine.batch import Batches
from router.engine.decision import tables_of
from router.engine.destination import Destination
from router.engine.label.layout import RAW_COLUMNS
from router.engine.outbox.apply import opened
from router.engine.position import ARRIVAL, with_arrival
from router.engine.reprocess.records import BronzeRecords, RecordRange, records_of_topic
from router.engine.reprocess.run import NamedRun
from router.engine.reprocess.stored_offsets import Spans, StoredRecords, are_stored, stored_records_of
from router.errors import StartError
from router.sinks import MergingSink, Sink, TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.delta.commit import StagedFile, TableCommit
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import Manifest
    from router.engine.decision import BatchDecision
    from router.engine.reprocess.context import ReprocessContext
    from router.sinks import Applied

NOTE = "replays/backfill.json"
PLACES = (("_topic", "_partition", "_offset"), ("topic", "partition", "offset"))
"""The columns by which rows may know their record."""
LETTER = ("stage", "route", "sink")
"""What tells dead letters of one record apart."""


@dataclass(frozen=True)
class Backfilled:
    """What a backfill did: records read, and rows by the table or outbox that got them."""

    name: str
    read: int
    rows: dict[str, int]


@dataclass
class BackfillDestination(Destination):
    """The destination of records that may have rows in some tables already: these get none there."""

    resends: ClassVar[bool] = True

    lake: Lake
    tables: Any

    def chosen(self, decision: BatchDecision, batch: int) -> tuple[TableCommit, ...]:
        """Return the commits without rows that are there. Raises StartError if a table does not tell which are."""
        spans = _spans(decision.partitions)
        # All tables are looked at before a file of one of them is rewritten.
        coordinates = [self._coordinates(work, spans) for work in decision.commits]
        works: list[TableCommit] = []
        for work, names in zip(decision.commits, coordinates, strict=True):
            rest = work if names is None else self._new_only(work, names, spans)
            if rest.files:
                works.append(rest)
        return tuple(works)

    def _coordinates(self, work: TableCommit, spans: Spans) -> tuple[str, ...] | None:
        """Return the columns by which a table's rows know their record; None if nothing can be there already.

        Raises StartError if that cannot be told.
        """
        table = self.tables.readable([work.table])[work.table]
        if table is None or work.table.startswith("outbox."):
            return None
        names = None if isinstance(table, SparkTable) else _coordinates(to_arrow(table), work)
        if names is None:
            self._refuse_again(work, spans)
        return names

    def _new_only(self, work: TableCommit, names: tuple[str, ...], spans: Spans) -> TableCommit:
        """Return a commit without the rows that are there."""
        table = newest(self.tables.readable([work.table])[work.table])
        more = LETTER if work.target == "/dead_letters" else ()
        stored = stored_records_of(table, names, more, spans)
        files: list[StagedFile] = []
        for file in work.files:
            files += self._rest(file, names, more, stored)
        return replace(work, files=tuple(files))

    def _rest(
        self, file: StagedFile, names: tuple[str, ...], more: tuple[str, ...], stored: StoredRecords
    ) -> list[StagedFile]:
        """Return the files of a staged file's rows without those of stored records; none if no row is left."""
        with self.lake.files.open_input_file(file.path) as source:
            rows = pq.read_table(source)
        there = are_stored(rows, names, more, stored)
        if not there.any():
            return [file]
        rest = staged_again(self.lake, file, rows.filter(pa.array(~there)).to_batches(), "backfill")
        self.lake.delete(file.path)
        return rest

    def _refuse_again(self, work: TableCommit, spans: Spans) -> None:
        """Raise StartError if rows of these records were brought to the target before."""
        table = self.lake.open(self.config.ledger)
        if table is None or not spans:
            return
        route, _, sink = work.target.partition("/")
        booked = (pc.field("query") == self.config.name) & (pc.field("route") == route) & (pc.field("sink") == sink)
        booked &= (pc.field("landed") > 0) & (pc.field("from_offset") <= max(last for _, last in spans.values()))
        booked &= pc.field("to_offset") >= min(first for first, _ in spans.values())
        columns = ["topic", "partition", "from_offset", "to_offset"]
        rows = table.to_pyarrow_dataset(filesystem=native_files(table))
        for part in rows.to_batches(columns=columns, filter=booked):
            for row in part.to_pylist():
                first, last = spans.get((row["topic"], row["partition"]), (0, -1))
                if row["from_offset"] > last or row["to_offset"] < first:
                    continue
                where = f"{row['topic']}/{row['partition']}, offsets {row['from_offset']} to {row['to_offset']}"
                what = f"{work.table} has rows of {where} already, and none says which record it is of"
                todo = (
                    "take a range that it has not, let `select` keep topic, partition and offset, or see router refresh"
                )
                raise StartError(f"{what}: {todo}; nothing was committed")

    def ledger_rows(self, manifest: Manifest, applied: dict[str, Applied]) -> list[dict[str, Any]]:
        """Return how many rows more each sink has, and of which records."""
        base = {"query": self.config.name, "run": self.run, "batch_id": None}
        found = []
        for key in manifest.targets:
            route, sink = key.split("/", 1)
            rows = sum(work.rows for work in manifest.commits if work.target == key)
            # How many of the rows each partition brought is not known any more: all stand with the first one.
            for span in manifest.partitions:
                where = {"topic": span.topic, "partition": span.partition, "from_offset": span.first}
                counts = {"matched": rows, "landed": rows}
                found.append({**base, **where, "to_offset": span.last, "route": route, "sink": sink, **counts})
                rows = 0
        return found


def _spans(partitions: tuple[Partition, ...]) -> Spans:
    return {(part.topic, part.partition): (part.first, part.last) for part in partitions}


def _coordinates(there: pa.Schema, work: TableCommit) -> tuple[str, ...] | None:
    """Return the columns of topic, partition and offset that a table and all its new files have; None for none."""
    for names in PLACES:
        if set(names) <= set(there.names) and all(set(names) <= set(file.columns) for file in work.files):
            topic, *numbers = (delta_type(there.field(name).type) for name in names)
            coordinates = pa.types.is_string(topic) and all(map(pa.types.is_integer, numbers))
            inside = all(not set(names) & file.partition.keys() for file in work.files)
            return names if coordinates and inside else None
    return None


def _once(records: DataFrame) -> DataFrame:
    """Return each record once, with its first arrival: a new checkpoint may have read the topic from its beginning."""
    same_record = ("topic", "partition", "offset", "value", "key")
    first = F.min_by(F.struct(*RAW_COLUMNS), F.coalesce(ARRIVAL, F.lit(-1))).alias("first")
    return records.groupBy(*same_record).agg(first).select("first.*")


@dataclass
class Backfill:
    """The backfills of a configuration, whose decoder must be prepared already; the stream must not run."""

    context: ReprocessContext

    def __post_init__(self) -> None:
        self.config = self.context.config
        self.spark = self.context.spark
        self.lake = self.context.lake

    def cut_off(self) -> NamedRun[RecordRange] | None:
        """Return the backfill that was killed before its end; None where there is none."""
        return NamedRun.resume(self.context.checkpoint, NOTE, RecordRange)

    def begin(self, chosen: RecordRange) -> NamedRun[RecordRange]:
        """Return a new backfill, of bronze or else of the topic. Raises StartError if there is neither."""
        versions = BronzeRecords.newest(self.lake, self.config).versions
        if not versions and self.config.source.kafka is None:
            raise StartError(f"{self.config.name} has neither bronze nor a topic that records could come from")
        return NamedRun.new(self.context.checkpoint, NOTE, chosen, versions)

    def run(self, run: NamedRun[RecordRange]) -> Backfilled:
        """Take the records of the range. Can be repeated from any point. Raises StartError, TableError, BatchError."""
        config = self.config.with_sinks(_writes_tables)
        if not config.routes:
            raise StartError(f"no sink of {self.config.name} writes a table")
        config = opened(config, self.spark, self.context.folder)
        tables = tables_of(config, self.spark, self.lake)
        destination = BackfillDestination(config, run.name, self.lake, tables)
        batches = Batches(
            config,
            self.context.fingerprint,
            self.spark,
            self.lake,
            run.store,
            destination,
            stop=self.context.stop,
            executors=self.context.executors,
            tables=tables,
        )
        records = self._records(run)
        run.begin()
        try:
            batches.process(records, 0)
        except StartError:  # before the manifest: nothing was committed
            run.finish()
            raise
        manifest = run.store.manifest(0)
        assert manifest is not None  # it was processed
        rows: dict[str, int] = {}
        for work in manifest.commits:
            place = work.target if work.table.startswith("outbox.") else work.table
            rows[place] = rows.get(place, 0) + work.rows
        run.finish()
        return Backfilled(run.name, sum(part.read for part in manifest.partitions), rows)

    def _records(self, run: NamedRun[RecordRange]) -> DataFrame:
        """Return the raw records of the range, each once."""
        if run.versions:
            found = BronzeRecords(run.versions).frame(self.spark, self.lake)
        else:
            assert self.config.source.kafka is not None  # see `begin`
            found = with_arrival(records_of_topic(self.spark, self.config.source.kafka, run.choice), -1, 0)
        return _once(found.filter(run.choice.holds()))


def _writes_tables(route: str, name: str, sink: Sink) -> bool:
    return isinstance(sink, (TableSink, MergingSink))
