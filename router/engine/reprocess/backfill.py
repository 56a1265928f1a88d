"""Reprocess a range of records through today's configuration: `router backfill`, while the stream does not run.

The records are one batch of a run of its own, as dead letters that are replayed (`replay`): its manifest, transaction
ids and marks carry the backfill's name, and a backfill that was killed continues where it ended. The records go to
tables only, not to sinks that send, and not to bronze.

| table | a record that has a row there already |
|---|---|
| its rows have topic, partition and offset of their record | gets no second row |
| without these columns | the table is refused if a batch, or a backfill, has written some of the range before |
| keeps one row per key | is merged: a row that came later stays |

Runs on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from router.api.sinks import LakeSink, Sink
from router.delta.commit import to_arrow
from router.delta.dataset import dataset_of
from router.delta.log_tail import delta_rs_table
from router.delta.parquet_writer import staged_again
from router.delta.schema_diff import delta_type
from router.delta.table_cache import SparkTable
from router.engine.batch import Batches
from router.engine.decision import tables_of
from router.engine.destination import Destination
from router.engine.outbox.apply import open_sinks
from router.engine.reprocess.context import Reprocessing
from router.engine.reprocess.records import BronzeRecords, RecordRange, offsets_of_range
from router.engine.reprocess.run import NamedRun
from router.engine.reprocess.stored_offsets import Spans, are_stored, stored_records_of
from router.engine.source.position import arrival_of
from router.engine.source.unreadable import RawRecords
from router.errors import StartError
from router.own_names import OFFSET, OUTBOX, PARTITION, TOPIC
from router.record import PLACE, RECORD_ARRIVAL, raw_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.api.sinks import Applied
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile
    from router.engine.batch_decision import BatchDecision
    from router.engine.checkpoint_store import Manifest

NOTE = "replays/backfill.json"
COORDINATE_COLUMNS = ((TOPIC, PARTITION, OFFSET), PLACE)
"""The columns in which rows may have the topic, partition and offset of their record."""
DEAD_LETTER_COLUMNS = ("stage", "route", "sink")
"""The columns that identify one of the dead letters of a record."""


@dataclass(frozen=True)
class BackfillResult:
    """What a backfill did: records read, and rows by the table or outbox that got them."""

    name: str
    read: int
    rows: dict[str, int]


@dataclass
class BackfillDestination(Destination):
    """The destination of records that may have rows in some tables already: they get no second ones."""

    resends: ClassVar[bool] = True

    lake: Lake
    tables: Any

    def choose_commits(self, decision: BatchDecision, batch: int) -> tuple[TableCommit, ...]:
        """Return the commits without rows of records that have rows. Raises StartError if that is unknown."""
        spans = {(part.topic, part.partition): (part.first, part.last) for part in decision.partitions}
        # All tables are looked at before a file of one of them is rewritten.
        columns_by_place: dict[str, tuple[str, ...]] = {}
        for commit in decision.commits:
            table = self.tables.open_readable_tables([commit.table])[commit.table]
            if table is None or commit.table.startswith(OUTBOX):
                continue
            names = None if isinstance(table, SparkTable) else _coordinate_columns(to_arrow(table), commit)
            if names is None:
                self._refuse_written_range(commit, spans)
            else:
                columns_by_place[commit.note_key] = names
        commits = []
        for commit in decision.commits:
            if commit.note_key in columns_by_place:
                commits.append(self._without_stored(commit, columns_by_place[commit.note_key], spans))
            else:
                commits.append(commit)
        return tuple(commit for commit in commits if commit.files)

    def _without_stored(self, commit: TableCommit, names: tuple[str, ...], spans: Spans) -> TableCommit:
        """Return a commit without rows of records that have rows in the table."""
        table = delta_rs_table(self.tables.open_readable_tables([commit.table])[commit.table])
        more = DEAD_LETTER_COLUMNS if commit.target == "/dead_letters" else ()
        stored = stored_records_of(table, names, more, spans)
        files: list[StagedFile] = []
        for file in commit.files:
            with self.lake.files.open_input_file(file.path) as source:
                rows = pq.read_table(source)
            is_stored = are_stored(rows, names, more, stored)
            if not is_stored.any():
                files.append(file)
                continue
            files += staged_again(self.lake, file, rows.filter(pa.array(~is_stored)).to_batches(), "backfill")
            self.lake.delete(file.path)
        return replace(commit, files=tuple(files))

    def _refuse_written_range(self, commit: TableCommit, spans: Spans) -> None:
        """Raise StartError if rows of some of these records were written to the target before."""
        table = self.lake.open(self.config.ledger)
        if table is None or not spans:
            return
        # The predicate prunes files of the ledger by one span of all partitions; each row is compared with its own.
        route, _, sink = commit.target.partition("/")
        booked = (pc.field("query") == self.config.name) & (pc.field("route") == route) & (pc.field("sink") == sink)
        booked &= (pc.field("landed") > 0) & (pc.field("from_offset") <= max(last for _, last in spans.values()))
        booked &= pc.field("to_offset") >= min(first for first, _ in spans.values())
        columns = ["topic", "partition", "from_offset", "to_offset"]
        rows = dataset_of(table)
        for part in rows.to_batches(columns=columns, filter=booked):
            for row in part.to_pylist():
                first, last = spans.get((row["topic"], row["partition"]), (0, -1))
                if row["from_offset"] > last or row["to_offset"] < first:
                    continue
                where = f"{row['topic']}/{row['partition']}, offsets {row['from_offset']} to {row['to_offset']}"
                problem = f"{commit.table} has rows of {where} already, and none says which record it is of"
                todo = "take another range, let `select` keep topic, partition and offset, or run "
                todo += f"`router rebuild FILE {commit.table}`"
                raise StartError(f"{problem}: {todo}; nothing was committed")

    def ledger_rows(self, manifest: Manifest, applied: dict[str, Applied]) -> list[dict[str, Any]]:
        """Return how many rows more each sink has, and of which records."""
        ledger_rows = []
        for key in manifest.targets:
            route, sink = key.split("/", 1)
            rows = sum(commit.rows for commit in manifest.commits if commit.target == key)
            # How many of the rows are of each partition is not known any more: the first one gets all.
            for partition in manifest.partitions:
                ledger_rows.append(
                    {
                        "query": self.config.name,
                        "run": self.run,
                        "batch_id": None,
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "from_offset": partition.first,
                        "to_offset": partition.last,
                        "route": route,
                        "sink": sink,
                        "matched": rows,
                        "landed": rows,
                    }
                )
                rows = 0
        return ledger_rows


def _coordinate_columns(schema: pa.Schema, commit: TableCommit) -> tuple[str, ...] | None:
    """Return the columns of topic, partition and offset that a table and all its new files have; None for none."""
    for names in COORDINATE_COLUMNS:
        shared = set(schema.names).intersection(*(file.columns for file in commit.files))
        if not shared.issuperset(names):
            continue
        topic, partition, offset = (delta_type(schema.field(name).type) for name in names)
        if not (pa.types.is_string(topic) and pa.types.is_integer(partition) and pa.types.is_integer(offset)):
            return None
        # Files lack the columns that they are partitioned by.
        if any(set(names) & file.partition.keys() for file in commit.files):
            return None
        return names
    return None


@dataclass
class Backfill(Reprocessing):
    """The backfills of a configuration, whose decoder must be prepared already; the stream must not run."""

    def cut_off(self) -> NamedRun[RecordRange] | None:
        """Return the backfill that was killed before its end; None if there is none."""
        return NamedRun.resume(self.context.checkpoint, NOTE, RecordRange)

    def begin(self, chosen: RecordRange) -> NamedRun[RecordRange]:
        """Return a new backfill, of bronze or else of the topic. Raises StartError if there is neither."""
        versions = BronzeRecords.newest(self.lake, self.config).versions
        if not versions and self.config.source.kafka is None:
            raise StartError(f"{self.config.name} has neither bronze nor a topic that records could come from")
        return NamedRun.new(self.context.checkpoint, NOTE, chosen, versions)

    def run(self, run: NamedRun[RecordRange]) -> BackfillResult:
        """Process the records of the range, which can be repeated. Raises StartError, TableError, BatchError."""
        config = self.config.with_sinks(_writes_tables)
        if not config.routes:
            raise StartError(f"no sink of {self.config.name} writes a table")
        config = open_sinks(config, self.spark, self.context.folder, self.context.memory).config
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
        manifest = run.store.read_manifest(0)
        assert manifest is not None  # it was processed
        rows: dict[str, int] = {}
        for commit in manifest.commits:
            place = commit.target if commit.table.startswith(OUTBOX) else commit.table
            rows[place] = rows.get(place, 0) + commit.rows
        run.finish()
        return BackfillResult(run.name, sum(part.read for part in manifest.partitions), rows)

    def _records(self, run: NamedRun[RecordRange]) -> RawRecords:
        """Return the raw records of the range, each once."""

        def chosen(records: DataFrame) -> DataFrame:
            if RECORD_ARRIVAL not in records.columns:
                records = records.withColumn(RECORD_ARRIVAL, F.lit(arrival_of(-1, 0)).cast("long"))
            # A new checkpoint may have read the topic from its beginning: keep the first arrival of each record.
            whole = F.struct(*raw_columns(records.columns))
            first = F.min_by(whole, F.coalesce(RECORD_ARRIVAL, F.lit(-1))).alias("first")
            return records.filter(run.choice.holds()).groupBy(*PLACE, "value", "key").agg(first).select("first.*")

        if run.versions:
            return RawRecords(chosen(BronzeRecords(run.versions).frame(self.spark, self.lake)))
        kafka = self.config.source.kafka
        assert kafka is not None  # see `begin`
        return RawRecords.of_topic(self.spark, kafka, offsets_of_range(self.spark, kafka, run.choice), chosen)


def _writes_tables(route: str, name: str, sink: Sink) -> bool:
    return isinstance(sink, LakeSink)
