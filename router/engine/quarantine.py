"""The quarantine: a table of the router's own for rows that their table may not take yet (`evolution: quarantine`).

The Delta logs alone say which rows are quarantined. The table has a transaction id `QUERY/release/ROUTE/SINK/TABLE`;
its version is the last batch whose rows were released. Rows of later batches are quarantined. So a release and its
rows are one commit. `router approve` writes an approval into the checkpoint's store; the release
carries it out between two batches: it stages the rows again, in the types the table may have now, and commits them.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset
from pyspark.sql import functions as F

from router.columns import quoted
from router.decoding import keep_archives
from router.delta.casting import cast_down, cast_to, has_value, type_within
from router.delta.commit import StagedFile, TableCommit, to_arrow, to_arrow_schema, to_delta
from router.delta.parquet_writer import Staging, attempt
from router.delta.schema_diff import SchemaDiff, common_type, compare, delta_schema, limited_to
from router.engine import ledger
from router.engine.label.layout import COORDINATES, QUARANTINE_COLUMNS, SCHEMA_COLUMNS, quarantine_of
from router.engine.start_checks import Checkpoint
from router.sinks import TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.commit.committers import Committers

log = logging.getLogger("router")
OWN = {*QUARANTINE_COLUMNS, *COORDINATES, *SCHEMA_COLUMNS}
"""Columns of a quarantine that are not those of its rows."""
Kinds = dict[str, "pa.DataType | None"]
"""The type in which each column goes into a table; None for what does not."""


@dataclass(frozen=True)
class Place:
    """The table of a sink that quarantined rows are for."""

    route: str
    sink: str
    table: str

    def app_id(self, query: str) -> str:
        """Return the transaction id of releases into the table; its version is a batch of the query."""
        return f"{query}/release/{self.route}/{self.sink}/{self.table}"


@dataclass(frozen=True)
class Quarantined:
    """The quarantined rows of a table, and how they would change it.

    `upto`: query (with its run) -> the last batch with a quarantined row; `columns`: the schema of what the rows hold;
    `versions`: message and number of the schemas that wrote them, where known; `since`: the time of the oldest record.
    """

    place: Place
    quarantine: str
    rows: int
    upto: dict[str, int]
    columns: pa.Schema
    versions: tuple[str, ...]
    since: datetime | None
    change: SchemaDiff


@dataclass(frozen=True)
class Approval:
    """The permission for a table to take the rows of batches up to `upto`; `columns` is their schema as Delta's JSON.

    `decided`: query -> (last batch, rows), once that is decided. `number` makes the file's name unique: a second
    approval for the same table, written while this one is carried out, must not be deleted with it.
    """

    place: Place
    upto: dict[str, int]
    columns: str
    number: int
    decided: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"approvals/{self.place.route}/{self.place.sink}/{self.place.table}.{self.number}.json"


def approve(store: CheckpointStore, found: Quarantined) -> None:
    """Write an approval; the running or the next stream carries it out."""
    write(store, Approval(found.place, found.upto, to_delta(found.columns), time.time_ns()))


def write(store: CheckpointStore, approval: Approval) -> None:
    """Write an approval whole or not at all."""
    store.write(approval.path, json.dumps(asdict(approval)).encode())


def approvals(store: CheckpointStore) -> list[Approval]:
    """Return the approvals that are not carried out yet, oldest first."""
    read = [json.loads(text) for path in store.paths("approvals") if (text := store.read(path))]
    made = (Approval(**{**approval, "place": Place(**approval["place"])}) for approval in read)
    return sorted(made, key=lambda approval: approval.number)


def quarantined(config: Config, lake: Lake) -> list[Quarantined]:
    """Return the quarantined rows by table, whatever the sinks say now. Runs on the driver, without Spark."""
    found: list[Quarantined] = []
    for route, name, sink in config.all_sinks():
        table = quarantine_of(config.name, route, name)
        if isinstance(sink, TableSink) and (handle := lake.open(table)):
            found += _quarantined_in(lake, handle, (route, name, table))
    return found


def _quarantined_in(lake: Lake, handle: DeltaTable, where: tuple[str, str, str]) -> Iterator[Quarantined]:
    route, sink, quarantine = where
    if not handle.file_uris():
        return
    schema = delta_schema(to_arrow(handle))
    rows = _files(lake, handle, quarantine, schema)
    there = dataset.Scanner.from_dataset(rows, columns=list(QUARANTINE_COLUMNS)).to_table()
    for table in sorted(pc.unique(there.column("_table")).to_pylist()):
        place = Place(route, sink, table)
        target = lake.open(table)
        mine = (
            there.filter(pc.equal(there.column("_table"), table)).group_by("_query").aggregate([("_batch_id", "max")])
        )
        upto = {row["_query"]: row["_batch_id_max"] for row in mine.to_pylist()}
        left = {query: last for query, last in upto.items() if released(target, place, query) < last}
        if left:
            parts = rows.scanner(filter=_left(target, place, left)).to_batches()
            yield _described((place, quarantine), schema, left, parts, target)


def released(table: DeltaTable | None, place: Place, query: str) -> int:
    """Return the last batch whose quarantined rows were released into the table, -1 for none."""
    version = table.transaction_version(place.app_id(query)) if table else None
    return -1 if version is None else version


def _left(target: DeltaTable | None, place: Place, upto: dict[str, int]) -> pc.Expression:
    after = [(pc.field("_query") == query) & (pc.field("_batch_id") > released(target, place, query)) for query in upto]
    either = after[0]
    for one in after[1:]:
        either |= one
    return (pc.field("_table") == place.table) & either


def _files(lake: Lake, handle: DeltaTable, table: str, schema: pa.Schema) -> dataset.Dataset:
    """Return the rows of a quarantine: delta-rs does not read a table that was widened, but its files can be."""
    folder = table.replace(".", "/")
    actions: Any = pa.table(handle.get_add_actions())
    paths = [f"{folder}/{path}" for path in actions.column("path").to_pylist()]
    return dataset.dataset(paths, schema=schema, format="parquet", filesystem=lake.files)


def _described(
    where: tuple[Place, str],
    schema: pa.Schema,
    upto: dict[str, int],
    parts: Iterable[pa.RecordBatch],
    target: DeltaTable | None,
) -> Quarantined:
    place, quarantine = where
    rows, since = 0, None
    valued: set[str] = set()
    versions: set[str] = set()
    for part in parts:
        rows += part.num_rows
        for name in set(schema.names) - OWN - valued:
            if part.column(name).null_count < part.num_rows:  # a zero is a value: a quarantined row loses nothing
                valued.add(name)
        versions |= _versions(part)
        times = pc.min(part.column("_timestamp")).as_py() if "_timestamp" in schema.names else None
        since = min(filter(None, (since, times)), default=None)
    columns = pa.schema([field for field in schema if field.name in valued])
    change = compare(delta_schema(to_arrow(target)), columns) if target else SchemaDiff(added=tuple(columns))
    return Quarantined(place, quarantine, rows, upto, columns, tuple(sorted(versions)), since, change)


def _versions(part: pa.RecordBatch) -> set[str]:
    """Return the schemas of records as text: message and version, or its id where there is no version."""
    names = [name for name in SCHEMA_COLUMNS if name in part.schema.names]
    if not names:
        return set()
    known = pa.Table.from_batches([part.select(names)]).group_by(names).aggregate([]).to_pylist()
    return {_version(row) for row in known} - {""}


def _version(row: dict[str, Any]) -> str:
    version, of = row.get("_schema_version"), row.get("_schema_id")
    number = f"version {version}" if version is not None else f"schema {of}" if of is not None else ""
    return " ".join(filter(None, (row.get("_message"), number)))


def allowed(table: pa.Schema | None, approval: Approval) -> dict[str, pa.DataType]:
    """Return the columns and types that a table may have after an approval."""
    come = delta_schema(to_arrow_schema(approval.columns))
    if table is None:
        return {column.name: column.type for column in come}
    change = compare(table, come)
    return {column.name: column.type for column in (*table, *change.added, *change.widened)}


@dataclass(frozen=True)
class Release:
    """The approvals of a query, carried out. Only between its batches: a batch that was cut off must end first.

    Each step can be repeated from any point: the release writes batch and number of rows into the approval, commits the
    rows under a transaction id, appends to the ledger under another one, and deletes the approval last. Rows that come
    into the quarantine before that are released too, as long as they need no change that nobody approved.
    """

    config: Config
    spark: SparkSession
    lake: Lake
    store: CheckpointStore
    committers: Committers

    def idle(self) -> set[str]:
        """Carry out approvals before or between batches, unless one was cut off; return the tables that changed."""
        if not (found := approvals(self.store)):
            return set()
        run = Checkpoint.read(self.store.checkpoint).run
        table = self.lake.open(self.config.ledger)
        booked = table.transaction_version(f"{self.config.name}:{run}/ledger") if table else None
        cut_off = f"manifests/{run}/{-1 if booked is None else booked + 1:010d}.json"
        return set() if self.store.read(cut_off) else self.carry_out(found)

    def carry_out(self, found: list[Approval]) -> set[str]:
        """Carry out approvals while no batch is under way; return the tables that changed."""
        for approval in found:
            try:
                for query in approval.upto:
                    self._release(approval, query)
            except Exception as error:  # the stream must not stop for quarantined rows
                text = "the quarantined rows of %s cannot be released now, it is tried again after the next batch: %s"
                log.warning(f"%s: {text}", self.config.name, approval.place.table, error)
            else:
                self.store.delete(approval.path)
        return {approval.place.table for approval in found}

    def _release(self, approval: Approval, query: str) -> None:
        rows_of_query = _ReleasedRows.read(self, approval, query)
        if query not in approval.decided:
            if not (decided := rows_of_query.decide(approval.upto[query])):
                return
            approval.decided[query] = decided
            write(self.store, approval)
        last, rows = approval.decided[query]
        rows_of_query.commit(last)
        place, (name, _, run) = approval.place, query.rpartition(":")
        row = {"query": name, "run": run, "batch_id": last, "route": place.route, "sink": place.sink, "released": rows}
        entry = ledger.LedgerEntry(
            self.config.ledger, f"{query}/ledger/release/{place.route}/{place.sink}/{place.table}", last
        )
        ledger.append(self.committers, entry, [row])
        log.info("%s: %d quarantined rows are in %s now", self.config.name, rows, place.table)


@dataclass(frozen=True)
class _ReleasedRows:
    """The quarantined rows of one query for one table, and their release.

    `after` is the batch up to which the table has them; `kinds` has the type in which each column of the quarantine
    goes into the table; `table` the types of the table as it may be.
    """

    of: Release
    approval: Approval
    query: str
    frame: DataFrame
    have: pa.Schema | None
    kinds: Kinds
    after: int
    table: dict[str, pa.DataType]

    @classmethod
    def read(cls, of: Release, approval: Approval, query: str) -> _ReleasedRows:
        place = approval.place
        quarantine = quarantine_of(of.config.name, place.route, place.sink)
        handle, rows = of.lake.open(place.table), of.lake.open(quarantine)
        assert rows is not None  # rows of it were approved
        after, have = released(handle, place, query), delta_schema(to_arrow(handle)) if handle else None
        mine = (F.col("_table") == place.table) & (F.col("_query") == query) & (F.col("_batch_id") > after)
        frame = of.spark.read.format("delta").load(of.lake.address(quarantine)).filter(mine)
        came = [column for column in delta_schema(to_arrow(rows)) if column.name not in OWN]
        table = allowed(have, approval)
        kinds = {column.name: _kind(table.get(column.name), column.type) for column in came}
        names = [column.name for column in came]
        return cls(of, approval, query, frame.select("_batch_id", *map(quoted, names)), have, kinds, after, table)

    def decide(self, upto: int) -> tuple[int, int] | None:
        """Return the last batch whose rows are released, and the number of rows; None where there are none."""
        found = self.frame.mapInArrow(_checking(self.kinds, self.of.config.decode.zero_is_absent), "report string")
        rows: dict[int, int] = {}
        bad: list[int] = []
        for report in (json.loads(row["report"]) for row in found.collect()):  # one for each task
            bad += report["bad"]
            for batch, count in report["rows"]:
                rows[batch] = rows.get(batch, 0) + count
        first_bad = min(bad, default=None)
        if first_bad is not None and first_bad <= upto:
            text = "rows from batch %d on stay quarantined for %s: the table has changed since they were approved"
            log.warning(f"%s: {text}", self.of.config.name, first_bad, self.approval.place.table)
        good = {batch: count for batch, count in rows.items() if first_bad is None or batch < first_bad}
        if not good:
            return None
        return (first_bad - 1 if first_bad is not None else max(good)), sum(good.values())

    def commit(self, last: int) -> None:
        """Stage the rows of batches up to the last, and commit them once."""
        if self.after >= last:
            return
        place, lake = self.approval.place, self.of.lake
        columns = {name: limited_to(self.table[name], kind) for name, kind in self.kinds.items() if kind is not None}
        options = self.of.config.landing
        staging = Staging(lake, options.file_bytes, options.buffer_bytes)
        where = f"{place.route}/{place.sink}", place.table, last
        task = _staging(self.kinds, pa.schema(list(columns.items())), staging, where)
        rows = self.frame.filter(F.col("_batch_id") <= last).mapInArrow(task, "report string")
        files = tuple(StagedFile.of(json.loads(row["report"])) for row in rows.collect())
        written = pa.schema([(name, kind) for name, kind in columns.items() if any(name in f.columns for f in files)])
        change = compare(self.have, written) if self.have is not None else SchemaDiff()
        work = TableCommit(
            target=f"{place.route}/{place.sink}",
            table=place.table,
            app_id=place.app_id(self.query),
            version=last,
            files=files,
            columns=to_delta(written),
            added=to_delta(pa.schema(list(change.added))) if change.added else None,
            widened=to_delta(pa.schema(list(change.widened))) if change.widened else None,
        )
        notes = {"router.released": self.query, "router.up_to_batch": str(last)}
        if not self.of.committers.commit((work,), {}, notes):
            for file in files:
                lake.files.delete_file(file.path)


def _kind(to: pa.DataType | None, come: pa.DataType) -> pa.DataType | None:
    return type_within(to, come) if to is not None and common_type(to, come) is not None else None


def _checking(kinds: Kinds, blank: bool) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that counts rows by batch and lists the batches with rows that nobody approved."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: dict[int, int] = {}
        bad: set[int] = set()
        for batch in batches:
            numbers = batch.column("_batch_id").to_numpy()
            for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
                rows[int(number)] = rows.get(int(number), 0) + int(count)
            unfit = np.zeros(len(numbers), bool)
            for name, kind in kinds.items():
                values = batch.column(name)
                if kind is None:
                    unfit |= has_value(values, blank=blank)
                elif values.type != kind:
                    found = cast_down(values, kind, blank=blank)
                    unfit |= found.lost | found.too_wide
            bad |= {int(number) for number in np.unique(numbers[unfit])}
        report = json.dumps({"rows": sorted(rows.items()), "bad": sorted(bad)})
        yield pa.RecordBatch.from_arrays([pa.array([report])], names=["report"])

    return check


def _staging(
    kinds: Kinds, schema: pa.Schema, staging: Staging, where: tuple[str, str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that stages rows for their table, in types that it may have."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        target, table, last = where
        writer = staging.writer(last, f"released-{attempt()}")
        for batch in batches:
            columns = {
                name: cast_down(batch.column(name), kind).array for name, kind in kinds.items() if kind is not None
            }
            rows = cast_to(pa.table(columns), schema).combine_chunks().to_batches()
            for part in rows:
                writer.hold(target, table, part, seen=True)
            writer.flush()
        reports = [json.dumps(asdict(file)) for file in writer.close()]
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

    return stage
