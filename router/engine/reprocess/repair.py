"""Make a table whole again from bronze, beside a running stream: `router repair`.

The table is made anew: the records of all batches up to N, the last in the ledger, are landed once more under the
current configuration, and one commit replaces the table's content. Batches after N are the stream's, and their rows
are in the table once:

- A table that can be read: the files of such batches are copied, and the copies are part of the new content. A commit
  of the stream that comes between only adds to it: its files are not among those that are removed.
- A table that was dropped, or whose log is damaged, is made with the transaction ids of batch N. What waits for it in
  the quarantine from batches up to N is in it then; the stream releases what came later.

- A table that keeps one row per key is merged from nothing, below the staging folder, and replaced like one that can be
  read. Batches that the stream merges meanwhile are read from bronze as well; a merge that comes between begins anew.

A transaction id is moved only where the table was behind N. Then this commit and the stream's of a later batch cannot
both succeed, and whichever is slower begins anew. A log that cannot be read, and the files that it named, are moved
below `_replaced/` in the lake, never deleted. Killed before its commit, a repair leaves files that nothing refers to.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyarrow import fs
from pyspark.sql import functions as F

from router.delta.casting import cast_to
from router.delta.commit import StagedFile, row_count, staged_file, to_arrow, to_arrow_schema, to_delta
from router.delta.constraints import unmergeable, unsupported
from router.delta.history import REPAIRED, LogCommit, log_commits, log_folder, log_versions
from router.delta.keyed.key_property import own_properties
from router.delta.keyed.row_versions import DELETIONS, deletions_table
from router.delta.parquet_writer import staged_again
from router.delta.replace import add_columns, create_with_files, made_by_spark, replace_content
from router.delta.replace_by_spark import (
    create_by_spark,
    finish,
    replace_by_spark,
    set_property_by_spark,
    staged_rows,
    widen,
)
from router.delta.schema_diff import compare, delta_schema
from router.delta.transaction_id import TransactionId, batch_id, parse
from router.delta.widening import way, wider_schema
from router.engine import ledger
from router.engine.audit.verify import RecordedCounts, committed_rows, describe_commits, is_own_commit
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.committers import Committers, only_spark_appends
from router.engine.decision import STAGING
from router.engine.label.layout import merge_options, with_order_columns
from router.engine.merge.coordinator import MergedTables
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import Quarantined, quarantined
from router.engine.reprocess.merged_again import MergedAgain, arrived_batches
from router.engine.reprocess.rebuild import GivenTables, Rebuild, RebuiltRows
from router.engine.reprocess.records import BronzeRecords, Records, TopicRecords
from router.engine.start.killed_repairs import lock_of, staged_as
from router.engine.start.run_lock import alone, is_running, locked
from router.errors import RunningError, StartError, TableError, first_line
from router.sinks import MergingSink, TableSink
from router.table_options import TableOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from deltalake import DeltaTable, Transaction
    from pyspark.sql import DataFrame, SparkSession

    from router.engine.reprocess.context import ReprocessContext
    from router.sinks import KeyedTable, Widening

log = logging.getLogger("router")
TRIES = 20
WAIT_SECONDS = 120
"""How long a batch is waited for that is under way while its table is gone."""
REPLACED = "_replaced"
"""The folder of the lake for what was replaced: no layer, since its name begins with `_`."""


@dataclass(frozen=True)
class Repaired:
    """What a repair did: the table's new version, rows of bronze and of later batches, rows without a place."""

    table: str
    version: int
    rows: int
    later: int
    refused: int
    until: int
    moved: str | None = None


@dataclass(frozen=True)
class LaterBatch:
    """The files of a batch after N that belong into the new content: their target key, and how they are called now."""

    key: str
    batch: int
    files: tuple[StagedFile, ...]


@dataclass
class Repair:
    """The repair of one table. The decoder must be prepared already.

    `accept` lets it go on where others have changed the table: deleted rows are restored and added rows are deleted.
    With `full` the columns of the table are those of the records, too. `topic` takes them from Kafka, not from bronze.
    """

    context: ReprocessContext
    table: str
    accept: bool = False
    full: bool = False
    topic: bool = False

    def __post_init__(self) -> None:
        self.config = self.context.config
        self.spark = self.context.spark
        self.lake = self.context.lake
        self.checkpoint = self.context.checkpoint
        self.written = RecordedCounts.read(self.config, self.lake, self.checkpoint)
        self.query = f"{self.config.name}:{self.written.run}"
        self.store = CheckpointStore(self.checkpoint, self.written.run)
        self.committers = Committers.of(self.config, self.spark, self.lake)
        self.seen = -1
        self.handle: DeltaTable | None = None
        self.old: list[str] = []

    def run(self) -> Repaired:
        """Make the table whole again. Raises StartError or TableError where it cannot be, before anything changes."""
        with self.lock():
            self.look()
            records = self.records()
            return self.merged() if self.merging() is not None else self.replaced(self._landed(records))

    def lock(self) -> AbstractContextManager[object]:
        """Keep other repairs of the table away. Raises RunningError where one is at work."""
        return locked(self.checkpoint, lock_of(self.table), f"another repair of {self.table} is at work")

    def look(self) -> None:
        """Open the table as it is. Raises StartError or TableError where it cannot be made anew."""
        self._refuse_other_kinds()
        self.handle, damaged = self._settled()
        self.old = self._old_files() if damaged else []  # before anything is staged beside them
        self.seen = self.handle.version() if self.handle is not None else -1
        self._refuse_changes_of_others()
        self._refuse_waiting_rows()
        if self.handle is not None:
            self._refuse_full()

    def replaced(self, landed: RebuiltRows) -> Repaired:
        """Put staged rows in place of the content. Raises TableError, and then has deleted them."""
        try:
            self._refuse_unknown_rows(self.handle, landed)
            moved = self._move_aside(self.old) if self.old else None
            version, later = self._commit(landed)
        except BaseException:
            self._discard(landed)
            raise
        log.info("%s: repaired, %d rows up to batch %d", self.table, landed.rows, self.written.last)
        return Repaired(self.table, version, landed.rows, later, landed.refused, self.written.last, moved)

    @property
    def last(self) -> int:
        """Return N: the last batch whose rows come from bronze."""
        return self.written.last

    def _refuse_other_kinds(self) -> None:
        """Raise StartError for a table that no append sink of the configuration brings rows into."""
        config, table = self.config, self.table
        if self.last < 0:
            raise StartError(f"{config.ledger} has no batch of {config.name}: there is nothing to make {table} of")
        own = table in (config.bronze_tables() or ()) or table in (config.ledger, config.dead_letters)
        if own or table.startswith(("outbox.", "quarantine.")):
            raise StartError(f"{table} is the router's own and cannot be made from bronze; put it back from a copy")
        sinks = [(f"{route}/{name}", sink) for route, name, sink in config.all_sinks()]
        merging = [key for key, sink in sinks if isinstance(sink, MergingSink) and self._merges(key, sink)]
        others = [key for key, sink in sinks if isinstance(sink, TableSink) and fixed_table(sink) == table]
        if len(merging) > 1 or (merging and others):
            what = f"{' and '.join((*merging, *others))} write {table}, and one of them keeps one row per key"
            raise StartError(f"{what}: nobody knows whose rows it is to have; put it back from a copy")
        if merging:
            return
        if not any(isinstance(sink, TableSink) and fixed_table(sink) in ("", table) for _, sink in sinks):
            raise StartError(f"no sink of {config.name} brings rows into {table}")

    def _merges(self, key: str, sink: MergingSink) -> bool:
        return fixed_table(sink) == self.table or self.table in MergedTables(self.store, key).names

    def merging(self) -> tuple[str, KeyedTable] | None:
        """Return the merging sink that writes the table: its key, and how the rows of a key become one."""
        for route, name, sink in self.config.all_sinks():
            if isinstance(sink, MergingSink) and self._merges(f"{route}/{name}", sink):
                return f"{route}/{name}", merge_options(with_order_columns(sink), self.committers.only_spark)
        return None

    def _settled(self) -> tuple[DeltaTable | None, bool]:
        """Return the table, None where there is none or none that can be read, and whether its log is damaged.

        A batch under way may have its rows in what is gone, or just be about to make the table: its end is waited for.
        """
        end = time.monotonic() + WAIT_SECONDS
        while True:
            handle, damage = self._opened()
            if handle is not None or not (self._pending() and is_running(self.checkpoint)):
                return handle, damage
            if time.monotonic() > end or self.context.stop.wait(0.5):
                raise TableError(self.table, f"batch {self.last + 1} has not ended yet; try again after it")
            self.written = RecordedCounts.read(self.config, self.lake, self.checkpoint)

    def _opened(self) -> tuple[DeltaTable | None, bool]:
        try:
            for _ in log_commits(self.lake, self.table, log_versions(self.lake, self.table)):
                pass
        except TableError:
            return None, True
        try:
            return self.lake.open(self.table), False
        except (DeltaError, OSError, ValueError) as error:
            if self.accept:
                return None, True
            what = f"its log is whole and cannot be read all the same: {first_line(error)}"
            raise TableError(self.table, f"{what}. With --accept it is made anew") from error

    def _refuse_changes_of_others(self) -> None:
        """Raise TableError where the table has changes that would be undone, and nobody accepted that.

        These are what others did to it, as far as its log can be read, and rows that a person has released though an
        expectation does not hold for them.
        """
        if self.accept:
            return
        read, others, released = self._changes()
        if others:
            shown = "; ".join(describe_commits(self.lake, self.table, read, others)[:5])
            todo = "With --accept deleted rows are restored and added rows are deleted"
            raise TableError(self.table, f"others have changed it: {shown}. {todo}")
        if released:
            rows = sum(commit.rows for commit in released)
            what = f"`router quarantine release` let {rows:,} rows in though an expectation does not hold for them"
            raise TableError(self.table, f"{what}; a rebuild refuses them. With --accept they are deleted")

    def _changes(self) -> tuple[list[int], list[LogCommit], list[LogCommit]]:
        """Return the versions that can be read; since the last rebuild the commits of others, and of such releases."""
        read: list[int] = []
        others: list[LogCommit] = []
        released: list[LogCommit] = []
        try:
            for commit in log_commits(self.lake, self.table, log_versions(self.lake, self.table)):
                read.append(commit.version)
                if REPAIRED in commit.notes:
                    others.clear()
                    released.clear()
                elif commit.changes and not is_own_commit(self.config.name, commit):
                    others.append(commit)
                elif commit.changes and _let_in(commit):
                    released.append(commit)
        except TableError:
            pass  # what is behind a damaged commit is not known
        return read, others, released

    @contextmanager
    def _without_stream(self) -> Iterator[None]:
        """Keep the stream away while Delta on Spark replaces the table: it would take its commits for old.

        Raises TableError if the stream runs. One that starts meanwhile is refused with the name of this repair.
        """
        with ExitStack() as held:
            try:
                held.enter_context(
                    alone(
                        self.checkpoint,
                        self.config.name,
                        holder=f"the repair of {self.table} by Delta on Spark",
                    )
                )
            except RunningError as error:
                what = "it needs Delta on Spark, which cannot replace it beside the stream"
                raise TableError(
                    self.table, f"{what}; end the stream with a whole batch, then repair it ({error})"
                ) from error
            yield

    def _pending(self) -> bool:
        """Say whether a manifest after N brings the table rows."""
        for path in self.store.paths(f"manifests/{self.store.run}"):
            number = int(path.rpartition("/")[2].removesuffix(".json"))
            if number > self.last and (manifest := self.store.manifest(number)):
                works = (work for work in manifest.commits if work.table == self.table)
                if any(work.place not in manifest.quarantined for work in works):
                    return True
        return False

    def _refuse_waiting_rows(self) -> None:
        waiting = self._waited()
        if rows := sum(found.rows for found in waiting if found.kind == "held"):
            what = f"{rows:,} rows wait because of an expectation, which may hold for them by now"
            raise TableError(self.table, f"{what}; `router quarantine release` or `discard` them first")
        if rows := sum(found.rows for found in waiting if self.handle is not None):
            raise TableError(
                self.table,
                f"{rows:,} rows wait for it in the quarantine, and would be in it twice; see `router quarantine list`",
            )

    def records(self) -> Records:
        """Return the records of all batches up to N. Raises StartError where bronze does not have just these."""
        records = self._records_until(self.last)
        if isinstance(records, TopicRecords):
            return records
        read = 0
        for (run, key), booked in self.written.ledger.items():
            if key == "/bronze":
                read += int(booked.rows[: self.last + 1].sum() if run == self.written.run else booked.rows.sum())
        if records.rows < read:
            what = f"{self._bronze} has {records.rows:,} of the {read:,} records that were read"
            raise StartError(
                f"{what}: it does not reach back to the first batch, and {self.table} cannot be made of it"
            )
        if records.rows > read:
            what = f"{self._bronze} has {records.rows:,} records, and {self.config.ledger} says {read:,} were read"
            raise StartError(f"{what}: nobody knows which of them {self.table} is to have; verify these two first")
        return records

    @property
    def _bronze(self) -> str:
        bronze = self.config.bronze_tables()
        return bronze.template if bronze else ""

    def _records_until(self, last: int) -> Records:
        if self.topic:
            return TopicRecords.until(self.spark, self.lake, self.config, self.written.run, last)
        return BronzeRecords.until(self.lake, self.config, self.query, last)

    def _landed(self, records: Records) -> RebuiltRows:
        only, handle = frozenset({self.table}), None if self.full else self.handle
        given = GivenTables(lambda name: handle if name == self.table else None)
        return self.rebuild(only, given).stage(records.frame(self.spark, self.lake), records.rows, self.last)

    def rebuild(self, only: frozenset[str], tables: GivenTables, staging: str | None = None) -> Rebuild:
        """Return the staging of rows for some tables."""
        return Rebuild(self.context, self.query, only, tables, staging)

    def _refuse_full(self) -> None:
        """Raise TableError where other columns would leave a constraint alone, or be what the merge cannot bring."""
        if not self.full or self.handle is None:
            return
        checks = [name for name in self.handle.metadata().configuration if name.startswith("delta.constraints.")]
        by_spark = self.committers.only_spark or bool(unmergeable(self.handle))
        if checks or unsupported(self.handle) - {"partitioning"} or (by_spark and self.merging() is not None):
            why = "it has constraints on its columns" if checks else "Delta on Spark writes it"
            raise TableError(self.table, f"{why}: refresh it without --full, or drop it first")

    def _refuse_unknown_rows(self, handle: DeltaTable | None, landed: RebuiltRows) -> None:
        """Where a log does not reach back, rows that bronze does not give may be anybody's."""
        if handle is None or self.accept or log_versions(self.lake, self.table)[:1] in ([0], []):
            return
        if (rows := row_count(handle)) > landed.rows + sum(batch.rows for batch in self._since(handle)):
            what = f"it has {rows:,} rows, and bronze gives {landed.rows:,}; its log does not say who wrote the others"
            raise TableError(self.table, f"{what}. With --accept they go")

    def _since(self, handle: DeltaTable) -> list[LogCommit]:
        """Return the commits of batches after N, newest first. Raises TableError where rows came in another way."""
        found = []
        for version in reversed(log_versions(self.lake, self.table)):
            if version > handle.version():
                continue
            (commit,) = log_commits(self.lake, self.table, [version])
            batches = [batch for _, batch in self._batches(commit)]
            if REPAIRED in commit.notes and max(json.loads(commit.notes[REPAIRED]).values(), default=-1) > self.last:
                raise TableError(
                    self.table, f"it was repaired just now; try again when batch {self.last + 1} has ended"
                )
            if REPAIRED in commit.notes:
                continue  # a batch may have come while that repair was at work, and has stayed
            if batches and max(batches) <= self.last:
                break
            if batches and commit.rows:
                found.append(commit)
            elif commit.rows and version > self.seen and is_own_commit(self.config.name, commit):
                raise TableError(self.table, "rows left the quarantine for it meanwhile; repair it again")
        return found

    def _batches(self, commit: LogCommit) -> Iterator[tuple[str, int]]:
        """Yield target key and batch of the rows that a commit brought in batches of the current run."""
        for transaction_id, batch in committed_rows(self.config.name, self.table, commit):
            if transaction_id.run == self.written.run and transaction_id.target:
                yield transaction_id.target, batch

    def _old_files(self) -> list[str]:
        """Return the files in a damaged table's folder that no batch after N has staged."""
        folder = self.table.replace(".", "/")
        found = self.lake.files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        names = [entry.path for entry in found if entry.type is fs.FileType.File]
        return sorted(name for name in names if not self._later(name.removeprefix(f"{folder}/")))

    def _later(self, name: str) -> bool:
        number = name.removeprefix("part-")[:10]
        return name.startswith("part-") and number.isdecimal() and len(number) == 10 and int(number) > self.last

    def _move_aside(self, old: list[str]) -> str:
        """Move a damaged log, then the files that it may name, out of the layer; return where they are."""
        files, stamp = self.lake.files, f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S%fZ}"
        folder, place = self.table.replace(".", "/"), f"{REPLACED}/{self.table}-{stamp}"
        if self.lake.local and not self.lake.located(self.table):  # at once: a table with half a log is another table
            files.create_dir(place, recursive=True)
            files.move(log_folder(self.table), f"{place}/_delta_log")
        for path in old:
            if files.get_file_info(path).type is fs.FileType.File:
                moved = f"{place}/{path.removeprefix(f'{folder}/')}"
                files.create_dir(moved.rpartition("/")[0], recursive=True)
                files.move(path, moved)
        log.warning("%s: its log could not be read; it is in %s/%s now", self.table, self.lake.root, place)
        return f"{self.lake.root}/{place}"

    def _commit(self, landed: RebuiltRows) -> tuple[int, int]:
        """Replace the content of the table, again while other writers are faster; return version and later rows."""
        for attempt in range(TRIES):
            handle = self.lake.open(self.table)
            later: list[LaterBatch] = []
            try:
                if self._needs_spark(landed, handle):
                    with self._without_stream():
                        # What the stream committed before it ended is seen only in a table that is opened now.
                        return self._replace_by_spark(landed, self.lake.open(self.table)), 0
                waited = self._waited() if handle is None else []
                if handle is None:
                    self._create(landed, waited)
                else:
                    self._refuse_changes_of_others()
                    wide = None if self.full else self._grow(landed, handle)
                    later = [self._copied(commit) for commit in self._since(handle)]  # of just this version
                    if self.full:
                        wide = self._anew(landed, later, handle)
                    self._replace(landed, later, handle, wide)
            except (DeltaError, OSError) as error:
                for path in (file.path for one in later for file in one.files):
                    self.lake.delete(path)
                if attempt == TRIES - 1:
                    raise TableError(self.table, f"the repair could not be committed: {error}") from error
                log.info("%s: another writer was faster, trying again", self.table)
                continue
            self._book(waited)
            done = self.lake.open(self.table)
            assert done is not None  # it was committed
            return done.version(), sum(file.rows for one in later for file in one.files)
        raise AssertionError  # the last try raises

    def _needs_spark(self, landed: RebuiltRows, handle: DeltaTable | None) -> bool:
        if self.committers.only_spark:
            return True
        if handle is None:
            return False
        if self.full and landed.commits and [*self._asked_division(landed)] != handle.metadata().partition_columns:
            return True
        if any(work.widened and way(handle, self.table, work.widening) != "rewrite" for work in landed.commits):
            return True
        return bool(unsupported(handle)) or any(only_spark_appends(handle, work) for work in landed.commits)

    def _asked_division(self, landed: RebuiltRows) -> tuple[str, ...]:
        """Return the columns by which today's sinks divide the table. Raises TableError where they do not agree."""
        asked = {self.committers.options.get(work.target, TableOptions()).partition_by for work in landed.commits}
        if len(asked) > 1:
            raise TableError(self.table, "its sinks divide it in different ways (`partition_by`); let them agree")
        return asked.pop()

    def _create(self, landed: RebuiltRows, waited: list[Quarantined]) -> None:
        if not landed.commits:
            raise TableError(self.table, "bronze has no row for it")
        schemas = [to_arrow_schema(work.columns) for work in landed.commits]
        options = self.committers.options.get(landed.commits[0].target, TableOptions())
        self._asked_division(landed)
        ends = self._ends(landed, [], None)
        create_with_files(
            self.lake,
            self.table,
            to_delta(pa.unify_schemas(schemas, promote_options="permissive")),
            landed.files,
            ids={**self._ids(ends, None), **self._releases(waited)},
            notes=self._notes(ends),
            options=options,
            exclusive=True,
        )
        if made_by_spark(options):
            finish(self.spark.newSession(), self.lake.spark_address(self.table), options)

    def _grow(self, landed: RebuiltRows, handle: DeltaTable) -> str | None:
        """Give the table the columns that it lacks; return its schema with wider types, None where it needs none.

        Raises TableError where the staged files do not fit it any more.
        """
        widened: list[str] = []
        for work in landed.commits:
            change = compare(delta_schema(to_arrow(handle)), to_arrow_schema(work.columns))
            if change.cast or change.conflicts or (change.widened and not work.widened):
                raise TableError(self.table, "its columns have changed while it was repaired; repair it again")
            if change.added:
                add_columns(handle, to_delta(pa.schema(list(change.added))))
            if change.widened:
                widened.append(to_delta(pa.schema(list(change.widened))))
        return reduce(wider_schema, widened, handle.schema().to_json()) if widened else None

    def _anew(self, landed: RebuiltRows, later: list[LaterBatch], handle: DeltaTable) -> str:
        """Return the schema that today's configuration gives the table, with the columns that later batches have."""
        if not landed.commits:
            return str(handle.schema().to_json())
        schemas = [delta_schema(to_arrow_schema(work.columns)) for work in landed.commits]
        found = pa.unify_schemas(schemas, promote_options="permissive")
        former = delta_schema(to_arrow(handle))
        names = {name for one in later for file in one.files for name in file.columns} - {*found.names}
        return to_delta(pa.schema([*found, *(former.field(name) for name in former.names if name in names)]))

    def _replace(self, landed: RebuiltRows, later: list[LaterBatch], handle: DeltaTable, wide: str | None) -> None:
        """Replace the content of a table; its types too, where they become wider: then no other commit may pass."""
        files = [*landed.files, *(file for batch in later for file in batch.files)]
        if wide is not None:
            schema = delta_schema(to_arrow_schema(wide))
            files = [wide_file for file in files for wide_file in self._wide(file, schema)]
        ends = self._ends(landed, later, handle)
        replace_content(
            handle,
            files,
            ids=self._ids(ends, handle),
            notes=self._notes(ends),
            schema=wide,
            alone=wide is not None,
        )

    def _wide(self, file: StagedFile, schema: pa.Schema) -> list[StagedFile]:
        """Return a file's rows with the types of a schema: the file, or copies if its own are narrower."""
        with self.lake.files.open_input_file(file.path) as source:
            columns = pq.ParquetFile(source).schema_arrow
        kinds = pa.schema([schema.field(name) for name in columns.names])
        if delta_schema(columns).types == kinds.types:
            return [file]
        return staged_again(self.lake, file, self._cast(file, kinds), f"{self.last:010d}-wide")

    def _cast(self, file: StagedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self.lake.files.open_input_file(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches():
                yield from cast_to(pa.Table.from_batches([batch]), schema).to_batches()

    def _ids(self, ends: dict[str, int], handle: DeltaTable | None) -> dict[str, int]:
        """Return the transaction ids of the repair: its own, and those of the stream that were behind."""
        ids = {str(self._id): int(time.time())}
        for key, batch in ends.items():
            have = self._have(key, handle)
            if have is None or have < batch:
                ids[self._app_id(key)] = batch
        return ids

    def _ends(self, landed: RebuiltRows, later: list[LaterBatch], handle: DeltaTable | None) -> dict[str, int]:
        """Return the last batch that the new content has, by target key."""
        keys = {work.target for work in landed.commits} | {
            key for key in self._keys() if self._have(key, handle) is not None
        }
        ends = {key: max(self.last, self._have(key, handle) or 0) for key in keys}
        for one in later:
            ends[one.key] = max(one.batch, ends.get(one.key, -1))
        return ends

    def _keys(self) -> Iterator[str]:
        return (f"{route}/{name}" for route, name, sink in self.config.all_sinks() if isinstance(sink, TableSink))

    def _have(self, key: str, handle: DeltaTable | None) -> int | None:
        return handle.transaction_version(self._app_id(key)) if handle is not None else None

    def _app_id(self, key: str) -> str:
        return str(batch_id(self.query, key, self.table))

    @property
    def _id(self) -> TransactionId:
        """Return the transaction id of repairs of the table."""
        return TransactionId("repair", self.query, table=self.table)

    def _waited(self) -> list[Quarantined]:
        """Return what waits in the quarantine for a table that is made anew."""
        return [found for found in quarantined(self.config, self.lake) if found.place.table == self.table]

    def _releases(self, waited: list[Quarantined]) -> dict[str, int]:
        """Return the ids of releases that say which quarantined rows are in the table now: those of bronze."""
        return {
            found.place.app_id(query, found.kind): self._until(query, batch)
            for found in waited
            for query, batch in found.upto.items()
        }

    def _until(self, query: str, batch: int) -> int:
        return min(batch, self.last) if query == self.query else batch

    def _book(self, waited: list[Quarantined]) -> None:
        """Delete the quarantined rows that are in the table now, and note in the ledger that they were released."""
        try:
            self._release(waited)
        except (DeltaError, OSError, TableError) as error:  # the table says by its ids that it has them
            log.warning("%s: its rows are still in the quarantine, too: %s", self.table, first_line(error))

    def _release(self, waited: list[Quarantined]) -> None:
        for found in waited:
            cause = f"_cause IS {'NOT ' if found.cause is not None else ''}NULL"
            for query, batch in found.upto.items():
                last, handle = self._until(query, batch), self.lake.open(found.quarantine)
                assert handle is not None  # it has rows
                mine = f"_table = '{self.table}' AND _query = '{query}' AND _batch_id <= {last}"
                there = "_cause" in {column.name for column in handle.schema().fields}
                rows = handle.delete(f"{mine} AND {cause}" if there else mine)["num_deleted_rows"]
                name, _, run = query.rpartition(":")
                row = {"query": name, "run": run, "batch_id": last, "released": rows}
                row |= {"route": found.place.route, "sink": found.place.sink}
                place = found.place
                app = TransactionId("ledger_move", query, place.route, place.sink, place.table, "repair")
                entry = ledger.LedgerEntry(self.config.ledger, str(app), last)
                ledger.append(self.committers, entry, [row])

    def _notes(self, ends: dict[str, int]) -> dict[str, str]:
        return {"router.query": self.query, REPAIRED: json.dumps(ends)}

    def _copied(self, commit: LogCommit) -> LaterBatch:
        """Copy the files of a commit: one version cannot both remove a file and add it."""
        ((key, batch), *_) = self._batches(commit)
        folder = self.table.replace(".", "/")
        files = []
        for file in commit.added:
            path = f"{folder}/part-{batch:010d}-copied-{uuid.uuid4()}.parquet"
            self.lake.files.copy_file(f"{folder}/{file.path}", path)
            self.lake.sync(path)
            files.append(self._staged(key, path))
        return LaterBatch(key, batch, tuple(files))

    def _staged(self, key: str, path: str) -> StagedFile:
        return staged_file(self.lake, key, self.table, path)

    def _replace_by_spark(self, landed: RebuiltRows, handle: DeltaTable | None) -> int:
        """Overwrite the table through Delta on Spark, while no stream runs: see `_without_stream`."""
        if self._pending() or (handle is not None and self._since(handle)) or self._waited():
            what = "it needs Delta on Spark, which cannot replace it beside the stream"
            raise TableError(self.table, f"{what}; end the stream with a whole batch, then repair it")
        ends = self._ends(landed, [], handle)
        behind = [key for key, end in ends.items() if (have := self._have(key, handle)) is None or have < end]
        if len(behind) > 1:
            raise TableError(self.table, f"Delta on Spark notes one sink at a time, and {', '.join(behind)} write it")
        if not landed.commits:
            raise TableError(self.table, "bronze has no row for it")
        session = self.spark.newSession()
        parts = [staged_rows(session, self.lake, work) for work in landed.commits]
        rows = reduce(lambda all_rows, part: all_rows.unionByName(part, allowMissingColumns=True), parts)
        key = behind[0] if behind else None
        if handle is not None and self.full:
            divided = self._asked_division(landed)
            self._overwrite(rows, key, self.last, ends, new_schema=True, partition_by=divided)
        else:
            widened = [(work.widened, work.widening) for work in landed.commits if work.widened]
            self._overwrite(rows, key, self.last, ends, schema=self._rewritten_schema(session, handle, widened))
        self._discard(landed)
        done = self.lake.open(self.table)
        return done.version() if done is not None else 0

    def _rewritten_schema(
        self, session: SparkSession, handle: DeltaTable | None, widened: list[tuple[str, Widening]]
    ) -> str | None:
        """Return the schema with wider types of a table that is rewritten for them; None if it need not be.

        `widened` has columns (Delta's JSON), and how the table may get them. One that is not rewritten is widened here.
        """
        if handle is None:
            return None
        stored = schema = handle.schema().to_json()
        for columns, widening in widened:
            if way(handle, self.table, widening) == "rewrite":
                schema = wider_schema(schema, columns, new_fields=False)
            else:
                widen(session, self.lake.spark_address(self.table), columns)
        return None if schema == stored else schema

    def _overwrite(
        self,
        rows: DataFrame,
        key: str | None,
        last: int,
        ends: dict[str, int],
        *,
        schema: str | None = None,
        new_schema: bool = False,
        partition_by: Iterable[str] | None = None,
    ) -> None:
        """Replace the content through Delta on Spark, under the id of a sink that is behind, else of the repair."""
        if key is not None:
            once = batch_id(self.query, key, self.table).transaction(last)
        else:
            once = TransactionId("spark_repair", self.query).transaction(int(time.time()))
        if partition_by is None:
            handle = self.lake.open(self.table) if schema is not None else None
            partition_by = handle.metadata().partition_columns if handle is not None else ()
        try:
            replace_by_spark(
                rows,
                self.lake.spark_address(self.table),
                once,
                self._notes(ends),
                schema=schema,
                new_schema=new_schema,
                partition_by=partition_by,
            )
        except Exception as error:  # whatever Spark raises
            raise TableError(self.table, f"the repair could not be committed: {first_line(error)}") from error

    def _refuse_remembered_deletions(self) -> None:
        """Raise TableError where Spark would have to make a table in the folder of what is left of the former one."""
        there = self.handle is not None or not self._only_spark_replaces(None)
        if not there and deletions_table(self.lake, self.table) is not None:
            what = "Delta on Spark makes no table in a folder that holds its remembered deletions; repair it with "
            where = f"{self.lake.address(self.table)}/{DELETIONS}"
            raise TableError(self.table, f"{what}`commit: auto`, or move {where} away first")

    def merged(self) -> Repaired:
        """Make a table that keeps one row per key whole again: merged from nothing, then replaced in one commit.

        Where the stream has merged a later batch meanwhile, its records are taken from bronze, too.
        """
        merging, handle = self.merging(), self.handle
        assert merging is not None  # who calls it has asked
        key, keyed = merging
        self._refuse_remembered_deletions()
        found, until = self._nothing_merged(keyed, None if self.full else handle), self.last
        try:
            self._merge_batches(found, -1, until)
            found.open()
            moved = self._move_aside(self.old) if self.old and handle is None else None
            for attempt in range(TRIES):
                try:
                    later = self._replace_unless_behind(found, key, until)
                    if later is None:
                        break
                    until = later
                except (DeltaError, OSError) as error:
                    if attempt == TRIES - 1:
                        raise TableError(self.table, f"the repair could not be committed: {error}") from error
                    log.info("%s: another writer was faster, trying again", self.table)
            else:
                raise TableError(self.table, f"the stream was faster {TRIES} times; try again when it has less to do")
            rows, done = row_count(found.open()), self.lake.open(self.table)
        finally:
            found.drop()
        assert done is not None  # it was committed
        log.info("%s: repaired, %d rows up to batch %d", self.table, rows, until)
        return Repaired(self.table, done.version(), rows, 0, found.refused, until, moved)

    def _replace_unless_behind(self, found: MergedAgain, key: str, until: int) -> int | None:
        """Put merged rows in place of the content; return None, or up to which batch they are merged and not put there.

        They are not where the stream has merged a later batch: its rows are merged, and it has to be tried again.
        """
        by_spark = self._only_spark_replaces(self.lake.open(self.table))
        with self._without_stream() if by_spark else nullcontext():
            handle = self._grown_for(found)
            if self._only_spark_replaces(handle) != by_spark:
                return until  # somebody changed its features just now
            newest = self._have(key, handle) or 0
            if newest > until:
                self._merge_batches(found, until, newest)
                return newest
            self._replace_merged(found, key, until, handle)
            return None

    def _nothing_merged(self, keyed: KeyedTable, handle: DeltaTable | None) -> MergedAgain:
        name = staged_as(self.config.name, self.table)
        return MergedAgain(self.spark, self.lake, keyed, self.table, handle, name)

    def _merge_batches(self, found: MergedAgain, after: int, until: int) -> None:
        """Merge the records of some batches into what takes the place of the table's content."""
        records = self._records_until(until).frame(self.spark, self.lake)
        bronze = records.filter(F.col("batch_id") > after)
        batches = arrived_batches(bronze)
        no_tables = GivenTables(lambda _: None)
        rebuild = self.rebuild(frozenset({self.table}), no_tables, staging=f"{STAGING}/{self.config.name}")
        landed = rebuild.stage(bronze, sum(batch.records for batch in batches), until)
        try:
            found.merge(landed.commits, batches)
        finally:
            self._discard(landed)

    def _grown_for(self, found: MergedAgain) -> DeltaTable | None:
        """Return the table, with the columns that the merged rows have besides."""
        handle = self.lake.open(self.table)
        if handle is not None:
            self._refuse_changes_of_others()
        if handle is not None and not self.full:
            change = compare(delta_schema(to_arrow(handle)), delta_schema(to_arrow(found.open())))
            if change.cast or change.conflicts:
                raise TableError(self.table, "its columns have changed while it was repaired; repair it again")
            if change.added and not self._only_spark_replaces(handle):
                add_columns(handle, to_delta(pa.schema(list(change.added))))
        return handle

    def _only_spark_replaces(self, handle: DeltaTable | None) -> bool:
        return self.committers.only_spark or (handle is not None and bool(unmergeable(handle)))

    def _replace_merged(self, found: MergedAgain, key: str, until: int, handle: DeltaTable | None) -> None:
        """Put merged rows in place of the content of a table as it is at this version, or make the table of them."""
        now = int(time.time())
        deletions = self._id.transaction(now)
        if self._only_spark_replaces(handle):
            self._replace_merged_by_spark(found, key, until, handle, deletions)
            return
        found.remember_deletions(deletions)
        ids = {str(self._id): now, self._app_id(key): until}
        found.replace(handle, ids, self._notes({key: until}), anew=self.full)
        if handle is None and made_by_spark(found.keyed):
            finish(self.spark.newSession(), self.lake.spark_address(self.table), found.keyed)

    def _replace_merged_by_spark(
        self, found: MergedAgain, key: str, until: int, handle: DeltaTable | None, deletions: Transaction
    ) -> None:
        """Overwrite the table through Delta on Spark, while no stream runs: see `_without_stream`."""
        session = self.spark.newSession()
        address = self.lake.spark_address(self.table)
        merged = to_arrow(found.open())
        properties = own_properties(found.keyed)
        if handle is None:
            create_by_spark(session, self.table, address, merged, options=found.keyed, properties=properties)
        found.remember_deletions(deletions)  # below the table's folder, in which Spark makes no table beside files
        widened: list[tuple[str, Widening]] = []
        if handle is not None:
            change = compare(delta_schema(to_arrow(handle)), delta_schema(merged))
            if change.widened:
                widened.append((to_delta(pa.schema(list(change.widened))), found.keyed.widening))
        schema = self._rewritten_schema(session, handle, widened)
        have = self._have(key, handle)
        rows = session.read.format("delta").load(self.lake.spark_address(found.name))
        self._overwrite(rows, key if have is None or have < until else None, until, {key: until}, schema=schema)
        for name, value in properties.items():
            set_property_by_spark(session, address, name, value)

    def _discard(self, landed: RebuiltRows) -> None:
        self.lake.delete(*(file.path for file in landed.files))


def _let_in(commit: LogCommit) -> bool:
    """Say whether a commit brought rows that a person has released though an expectation does not hold for them."""
    ids = map(parse, commit.transactions)
    return any(transaction_id is not None and transaction_id.kind == "held" for transaction_id in ids)
