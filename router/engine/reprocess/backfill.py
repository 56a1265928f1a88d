"""Take a range of records once more, through today's configuration: `router backfill`, while the stream does not run.

The records are one batch of `Batches`, of a run of its own, as dead letters that are sent again are (`replay`): its
manifest, transaction ids and marks carry the backfill's name, and one that was killed goes on where it ended. They go
to tables only, not to sinks that send, and not to bronze. A record that has a row in a table already gets none there
where rows know their record (columns of topic, partition and offset); tables whose rows do not are refused where a
batch, or a backfill, has brought some of the range before. Tables with one row per key need neither: a row that came
later stays. Runs on the driver.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.delta.commit import to_arrow
from router.delta.file_statistics import statistics
from router.delta.lake import native_files
from router.delta.log_tail import newest
from router.delta.schema_diff import delta_type
from router.delta.table_cache import SparkTable
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.batch import Batches, Steps
from router.engine.checkpoint_store import CheckpointStore
from router.engine.label.layout import RAW_COLUMNS, RECORD_SCHEMA
from router.engine.outbox.apply import opened
from router.engine.position import ARRIVAL, stored_records, with_arrival
from router.engine.reprocess.resend import new_name
from router.engine.source import Offsets, between, completed, kept
from router.engine.spark.executors import Executors
from router.errors import StartError
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt
    from deltalake import DeltaTable
    from pyspark.sql import Column, SparkSession

    from router.config.models import Config
    from router.delta.commit import StagedFile, TableCommit
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import Manifest
    from router.engine.land.job import Landed

NOTE = "replays/backfill.json"
PLACES = (("_topic", "_partition", "_offset"), ("topic", "partition", "offset"))
"""The columns by which rows may know their record."""
LETTER = ("stage", "route", "sink")
"""What tells dead letters of one record apart."""
ROWS_AT_ONCE = 65_536
"""Rows of a table that are held while it is searched for records."""


@dataclass(frozen=True)
class RecordRange:
    """Records by time, in seconds since 1970, or by offset: from the first on, up to those before the last."""

    since: float | None = None
    until: float | None = None
    begins: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)

    @classmethod
    def of(cls, said: dict[str, Any]) -> RecordRange:
        """Return a range from what `asdict` made of one, by way of JSON."""
        offsets = {name: {t: {int(p): at for p, at in by.items()} for t, by in said[name].items()} for name in ENDS}
        return cls(said["since"], said["until"], **offsets)

    def holds(self) -> Column:
        """Return a boolean column over raw records: the range has the record."""
        found = F.lit(True)
        # Bare comparisons with a literal: files are pruned by the statistics of these columns.
        if self.since is not None:
            found &= F.col("timestamp") >= _moment(self.since)
        if self.until is not None:
            found &= F.col("timestamp") < _moment(self.until)
        if self.begins or self.ends:
            found &= reduce(lambda one, other: one | other, map(self._of_partition, sorted(self.partitions())))
        return found

    def bounded(self, first: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """Return those offsets of a topic, from the first to those before the last, that may be in the range."""
        if not self.begins and not self.ends:
            return first, end
        begins: Offsets = {}
        ends: Offsets = {}
        for topic, number in self.partitions():
            if number not in first.get(topic, {}):
                continue
            begin = max(first[topic][number], self.begins.get(topic, {}).get(number, 0))
            last = end[topic][number]
            last = min(last, self.ends.get(topic, {}).get(number, last))
            if begin < last:
                begins.setdefault(topic, {})[number] = begin
                ends.setdefault(topic, {})[number] = last
        return begins, ends

    def partitions(self) -> set[tuple[str, int]]:
        """Return the partitions of which the range names offsets."""
        return {(topic, number) for by in (self.begins, self.ends) for topic, of in by.items() for number in of}

    def _of_partition(self, place: tuple[str, int]) -> Column:
        topic, number = place
        begin, end = self.begins.get(topic, {}).get(number, 0), self.ends.get(topic, {}).get(number)
        found = (F.col("topic") == topic) & (F.col("partition") == number) & (F.col("offset") >= begin)
        return found if end is None else found & (F.col("offset") < end)


def _moment(seconds: float) -> Column:
    """Return a time, given in seconds since 1970, as a literal."""
    return F.timestamp_micros(F.lit(round(seconds * 1_000_000)))


ENDS = ("begins", "ends")


@dataclass(frozen=True)
class Backfilling:
    """A backfill that has begun: its range, and the versions of bronze that it reads; without any it reads Kafka."""

    name: str
    asked: RecordRange
    versions: dict[str, int]

    def dump(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, said: dict[str, Any]) -> Backfilling:
        """Return one from what `dump` made of it."""
        return cls(said["name"], RecordRange.of(said["asked"]), said["versions"])


@dataclass(frozen=True)
class Backfilled:
    """What a backfill did: records read, and rows by the table or outbox that got them."""

    name: str
    read: int
    rows: dict[str, int]


@dataclass
class BackfillBatches(Batches):
    """The batch of a backfill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outboxes.resending = self.store.run

    def _write_down(self, manifest: Manifest, landed: Landed, *, new: bool) -> Manifest:
        try:
            places = [self._places(work, manifest) for work in manifest.commits]
        except StartError:
            self.landing.discard(landed)
            raise
        spans = {(part.topic, part.partition): (part.first, part.last) for part in manifest.partitions}
        works = [self._new_only(work, names, spans) for work, names in zip(manifest.commits, places, strict=True)]
        manifest = replace(manifest, commits=tuple(work for work in works if work.files))
        return super()._write_down(manifest, landed, new=new)

    def _places(self, work: TableCommit, manifest: Manifest) -> tuple[str, ...] | None:
        """Return the columns by which a table's rows know their record; None where nothing can be there already.

        Raises StartError where that cannot be told.
        """
        table = self.tables.readable([work.table])[work.table]
        if table is None or work.table.startswith("outbox."):
            return None
        names = None if isinstance(table, SparkTable) else _places(to_arrow(table), work)
        if names is None:
            self._refuse_again(work, manifest)
        return names

    def _new_only(self, work: TableCommit, names: tuple[str, ...] | None, spans: Spans) -> TableCommit:
        """Return a commit without the rows that are there."""
        if names is None:
            return work
        table = newest(self.tables.readable([work.table])[work.table])
        more = LETTER if work.target == "/dead_letters" else ()
        stored = stored_records_of(table, names, more, spans)
        files: list[StagedFile] = []
        for file in work.files:
            rest = self._rest(file, names, more, stored)
            if rest is not None:
                files.append(rest)
        return replace(work, files=tuple(files))

    def _rest(
        self, file: StagedFile, names: tuple[str, ...], more: tuple[str, ...], stored: StoredRecords
    ) -> StagedFile | None:
        """Return a staged file without the rows of stored records; None if no row is left."""
        with self.lake.files.open_input_file(file.path) as source:
            rows = pq.read_table(source)
        there = _are_stored(rows, names, more, stored)
        if not there.any():
            return file
        self.lake.delete(file.path)
        rows = rows.filter(pa.array(~there))
        if not len(rows):
            return None
        path, footers = f"{file.path.rpartition('/')[0]}/part-backfill-{uuid.uuid4()}.parquet", list[Any]()
        with self.lake.files.open_output_stream(path) as stream:
            pq.write_table(rows, stream, compression="zstd", metadata_collector=footers)
            size = stream.tell()
        self.lake.sync(path)
        return replace(file, path=path, bytes=size, rows=len(rows), statistics=statistics(footers[0]))

    def _refuse_again(self, work: TableCommit, manifest: Manifest) -> None:
        """Raise StartError where rows of these records were brought to the target before."""
        table = self.lake.open(self.config.ledger)
        if table is None:
            return
        route, _, sink = work.target.partition("/")
        spans = {(part.topic, part.partition): (part.first, part.last) for part in manifest.partitions}
        if not spans:
            return
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

    def _write_ledger(self, manifest: Manifest, applied: dict[str, Any]) -> None:
        """Write how many rows more each sink has, and of which records."""
        base = {"query": self.config.name, "run": self.store.run, "batch_id": None}
        spans = manifest.partitions or ()
        found = []
        for key in manifest.targets:
            route, sink = key.split("/", 1)
            rows = sum(work.rows for work in manifest.commits if work.target == key)
            for at, span in enumerate(spans):  # how many of the rows each partition brought is not known any more
                where = {"topic": span.topic, "partition": span.partition, "from_offset": span.first}
                counts = {"matched": rows, "landed": rows} if at == 0 else {"matched": 0, "landed": 0}
                found.append({**base, **where, "to_offset": span.last, "route": route, "sink": sink, **counts})
        entry = ledger.LedgerEntry(self.config.ledger, str(TransactionId("ledger", self.query)), manifest.batch)
        ledger.append(self.committers, entry, found, tables=self.tables)

    def _after(self, plan: Any, tables: set[str], steps: Steps) -> None:
        """Leave releases, maintenance and the catalog to the stream."""


def _once(records: DataFrame) -> DataFrame:
    """Return each record once, with its first arrival: a new checkpoint may have read the topic from its beginning."""
    same_record = ("topic", "partition", "offset", "value", "key")
    first = F.min_by(F.struct(*RAW_COLUMNS), F.coalesce(ARRIVAL, F.lit(-1))).alias("first")
    return records.groupBy(*same_record).agg(first).select("first.*")


def _places(there: pa.Schema, work: TableCommit) -> tuple[str, ...] | None:
    """Return the columns of topic, partition and offset that a table and all its new files have; None for none."""
    for names in PLACES:
        if set(names) <= set(there.names) and all(set(names) <= set(file.columns) for file in work.files):
            topic, *numbers = (delta_type(there.field(name).type) for name in names)
            coordinates = pa.types.is_string(topic) and all(map(pa.types.is_integer, numbers))
            inside = all(not set(names) & file.partition.keys() for file in work.files)
            return names if coordinates and inside else None
    return None


Spans = dict[tuple[str, int], tuple[int, int]]
"""(topic, partition) -> the first and the last offset."""


@dataclass
class OffsetSet:
    """Offsets of one partition, a bit for each, in pages of 65,536: 12.5 MB for 100M records."""

    pages: dict[int, npt.NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Add offsets; more than once does no harm."""
        for page, row_numbers in _by_page(offsets):
            bits = self.pages.setdefault(page, np.zeros(PAGE // 8, np.uint8))
            places = offsets[row_numbers] % PAGE
            np.bitwise_or.at(bits, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))

    def contains(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each offset whether it was added."""
        found = np.zeros(len(offsets), np.bool_)
        for page, row_numbers in _by_page(offsets):
            bits = self.pages.get(page)
            if bits is not None:
                places = offsets[row_numbers] % PAGE
                found[row_numbers] = (bits[places >> 3] >> (places & 7)) & 1
        return found


PAGE = 1 << 16


def _by_page(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each page that offsets are in, with their places among the offsets."""
    numbers = offsets // PAGE
    order = np.argsort(numbers, kind="stable")
    pages, starts = np.unique(numbers[order], return_index=True)
    for page, row_numbers in zip(pages, np.split(order, starts[1:]), strict=True) if len(pages) else ():
        yield int(page), row_numbers


StoredRecords = dict[tuple[Any, ...], OffsetSet]
"""(topic, partition, and what else tells rows apart) -> the offsets of records that a table has rows of."""


def stored_records_of(table: DeltaTable, names: tuple[str, ...], more: tuple[str, ...], spans: Spans) -> StoredRecords:
    """Return of which records within some spans a table has rows.

    Reads the files whose statistics overlap a span, of these a part of the rows at a time, and keeps a bit per record.
    """
    if not spans:
        return {}
    topic, partition, offset = (pc.field(name) for name in names)
    first_of_all = min(first for first, _ in spans.values())
    last_of_all = max(last for _, last in spans.values())
    # Files are chosen by each partition's span. Their rows are filtered by one span that holds all of these, which
    # does not get slower with the number of partitions; what is outside of a row's own span is left out below.
    overlaps = None
    for (of_topic, of_partition), (first, last) in spans.items():
        of_span = (topic == of_topic) & (partition == of_partition) & (offset >= first) & (offset <= last)
        overlaps = of_span if overlaps is None else overlaps | of_span
    within = (offset >= first_of_all) & (offset <= last_of_all)
    rows = table.to_pyarrow_dataset(filesystem=native_files(table))
    stored: StoredRecords = {}
    for fragment in rows.get_fragments(filter=overlaps):
        scanner = fragment.scanner(
            schema=rows.schema,
            columns=[*names, *more],
            filter=within,
            batch_size=ROWS_AT_ONCE,
            batch_readahead=1,
            fragment_readahead=1,
        )
        for part in scanner.to_batches():
            _add_stored(stored, pa.Table.from_batches([part]), names, more, spans)
    return stored


def _add_stored(
    stored: StoredRecords, rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...], spans: Spans
) -> None:
    """Add the records of rows that are within their partition's span."""
    offsets = _offsets(rows, names)
    for key, row_numbers in _groups(rows, names, more):
        first, last = spans.get((key[0], key[1]), (0, -1))
        of_key = offsets[row_numbers]
        of_key = of_key[(of_key >= first) & (of_key <= last)]
        if len(of_key):
            stored.setdefault(key, OffsetSet()).add(of_key)


def _are_stored(
    rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...], stored: StoredRecords
) -> npt.NDArray[np.bool_]:
    """Return of which rows the record is stored."""
    found = np.zeros(len(rows), np.bool_)
    offsets = _offsets(rows, names)
    for key, row_numbers in _groups(rows, names, more):
        if key in stored:
            found[row_numbers] = stored[key].contains(offsets[row_numbers])
    return found


def _offsets(rows: pa.Table, names: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the offsets of rows, -1 for none."""
    offsets = pc.fill_null(rows.column(names[2]).cast(pa.int64()), -1)
    return np.asarray(offsets.to_numpy(), np.int64)


def _groups(
    rows: pa.Table, names: tuple[str, ...], more: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], npt.NDArray[np.int64]]]:
    """Yield (key, row numbers) of rows of one topic and partition, and of what else tells rows apart."""
    by = [*names[:2], *more]
    numbered = rows.select(by).append_column("_row", pa.array(np.arange(len(rows))))
    grouped = numbered.group_by(by).aggregate([("_row", "list")])
    row_numbers = grouped.column("_row_list")
    for number, key in enumerate(grouped.select(by).to_pylist()):
        yield tuple(key[name] for name in by), np.asarray(row_numbers[number].values, np.int64)


@dataclass
class Backfill:
    """The backfills of a configuration. Its decoder must be prepared already; the stream must not run.

    `folder` is the folder of the configuration, `fingerprint` names what stands in it.
    """

    config: Config
    fingerprint: str
    folder: Path
    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    stop: threading.Event = field(default_factory=threading.Event)
    executors: Executors = field(default_factory=Executors)

    def cut_off(self) -> Backfilling | None:
        """Return the backfill that was killed before its end; None where there is none."""
        said = self._store().load(NOTE)
        return None if said is None else Backfilling.of(said)

    def begin(self, asked: RecordRange) -> Backfilling:
        """Return a new backfill. Raises StartError where its records are not to be had."""
        bronze, versions = self.config.bronze_tables(), dict[str, int]()
        for table in self.lake.tables(bronze.layer) if bronze else ():
            if bronze and table in bronze and (handle := self.lake.open(table)) is not None:
                versions[table] = handle.version()
        found = Backfilling(new_name(), asked, versions)
        if not versions and self.config.source.kafka is None:
            raise StartError(f"{self.config.name} has neither bronze nor a topic that records could come from")
        return found

    def run(self, begun: Backfilling) -> Backfilled:
        """Take the records of the range. Can be repeated from any point. Raises StartError, TableError, BatchError."""
        store = self._store()
        config = self._tables_only()
        config = opened(config, self.spark, self.folder)
        about = config, self.fingerprint, self.spark, self.lake, CheckpointStore(self.checkpoint, begun.name)
        batches = BackfillBatches(*about, stop=self.stop, executors=self.executors)
        records = self._records(begun)
        store.write(NOTE, begun.dump())
        try:
            batches.process(records, 0)
        except StartError:  # before the manifest: nothing was committed
            store.delete(NOTE)
            raise
        manifest = batches.store.manifest(0)
        assert manifest is not None  # it was processed
        rows: dict[str, int] = {}
        for work in manifest.commits:
            place = work.target if work.table.startswith("outbox.") else work.table
            rows[place] = rows.get(place, 0) + work.rows
        store.delete(NOTE)
        for folder in ("manifests", "applied"):
            for path in store.paths(f"{folder}/{begun.name}"):
                store.delete(path)
        return Backfilled(begun.name, sum(part.read for part in manifest.partitions), rows)

    def _records(self, begun: Backfilling) -> DataFrame:
        """Return the raw records of the range, each once."""
        if begun.versions:
            parts = []
            for table, version in begun.versions.items():
                reader = self.spark.read.format("delta").option("versionAsOf", version)
                parts.append(stored_records(reader.load(self.lake.spark_address(table))))
            found = reduce(DataFrame.unionByName, parts, self.spark.createDataFrame([], RECORD_SCHEMA))
        else:
            found = with_arrival(self._from_topic(begun.asked), -1, 0)
        return _once(found.filter(begun.asked.holds()))

    def _from_topic(self, asked: RecordRange) -> DataFrame:
        kafka = self.config.source.kafka
        assert kafka is not None  # see `begin`
        there = kept(self.spark, kafka, completed(self.spark, kafka, {}))
        begins = {topic: {number: ends[0] for number, ends in by.items()} for topic, by in there.items()}
        ends = {topic: {number: ends[1] for number, ends in by.items()} for topic, by in there.items()}
        for topic, by in asked.begins.items():
            for number, first in by.items():
                have = begins.get(topic, {}).get(number)
                if have is None or first < have:
                    what = "is not there" if have is None else f"begins with offset {have:,} by now"
                    raise StartError(f"{topic}/{number} {what}, and there is no bronze with offset {first:,}")
        begins, ends = asked.bounded(begins, ends)
        if not begins:
            return self.spark.createDataFrame([], RECORD_SCHEMA)
        return between(self.spark, kafka, begins, ends)

    def _tables_only(self) -> Config:
        """Return the configuration with the sinks that write tables, and without bronze. Sinks keep their names."""
        routes = []
        for route in self.config.routes:
            kept_sinks = []
            for name, sink in route.named_sinks.items():
                if isinstance(sink, (TableSink, MergingSink)):
                    one = sink.model_copy()
                    one._named = name
                    kept_sinks.append(one)
            if kept_sinks:
                routes.append(route.model_copy(update={"sinks": tuple(kept_sinks)}))
        if not routes:
            raise StartError(f"no sink of {self.config.name} writes a table")
        return self.config.model_copy(update={"bronze": None, "routes": tuple(routes), "unmatched": "drop"})

    def _store(self) -> CheckpointStore:
        return CheckpointStore(self.checkpoint)
