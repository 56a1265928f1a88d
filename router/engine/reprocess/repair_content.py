"""Put rebuilt rows in place of the content of a table that sinks append to: one commit, while the stream runs.

| the table | what is committed |
|---|---|
| can be read | its files are removed; rebuilt files, and copies of those of batches after N, are added |
| is gone, or its log is damaged | a new table of rebuilt files, which has the transaction ids of batch N |
| only Delta on Spark may write it | an overwrite (`SparkOverwrite`), for which the stream must not run |

A commit of the stream that comes between only adds to a table: its files are not among those that are removed. A
transaction id is moved only if the table was behind N. Then this commit and the stream's of a later batch cannot both
succeed, and the slower one begins again.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from router.api.sinks import TableSink
from router.api.table_options import PLAIN_TABLE
from router.delta.casting import cast_to
from router.delta.commit import ACCEPT_LOST, to_arrow, to_arrow_schema, to_delta
from router.delta.constraints import features_against_appends
from router.delta.parquet_writer import staged_again
from router.delta.replace import add_columns, create_with_files, made_by_spark, replace_content
from router.delta.replace_by_spark import finish_new_table, replace_by_spark, staged_rows, widen_columns
from router.delta.schema_diff import compare_schemas, delta_schema
from router.delta.staged_files import StagedFile, staged_file
from router.delta.transaction_id import TransactionId, batch_id
from router.delta.widening import choose_widening_way, wider_schema
from router.engine import ledger
from router.engine.commit.committers import only_spark_appends
from router.engine.reprocess.repair_target import NEEDS_SPARK, REPAIR_TRIES, RepairTarget
from router.errors import TableError, first_line
from router.own_names import CAUSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router.api.sinks import Widening
    from router.delta.history import LogCommit
    from router.engine.quarantine.table import Quarantined
    from router.engine.reprocess.rebuild import RebuiltRows

log = logging.getLogger("router")


@dataclass(frozen=True)
class LaterBatch:
    """A batch after N whose rows stay: the key of the sink that wrote it, and copies of its files."""

    key: str
    batch: int
    files: tuple[StagedFile, ...]


@dataclass
class ContentReplacement:
    """The replacement of a table's content by rebuilt rows."""

    target: RepairTarget

    def __post_init__(self) -> None:
        self.lake = self.target.lake
        self.table = self.target.table

    def commit(self, rebuilt: RebuiltRows) -> tuple[int, int]:
        """Replace the content, again while other writers are faster; return the version and the rows after N."""
        for attempt in range(REPAIR_TRIES):
            # Before the table is opened: a release that comes between is seen, as a commit or as a conflict.
            waiting = self.target.waiting_rows()
            handle = self.lake.open(self.table)
            later: list[LaterBatch] = []
            try:
                if self._needs_spark(rebuilt, handle):
                    with self.target.without_stream():
                        # What the stream committed before it ended is seen only in a table that is opened now.
                        return self._replace_by_spark(rebuilt, self.lake.open(self.table)), 0
                if handle is None:
                    self._create(rebuilt, waiting)
                else:
                    self.target.refuse_changes_of_others()
                    schema = None if self.target.full else self._grow(rebuilt, handle)
                    # `_grow` may have made a version, and the commit replaces just that one.
                    later = [self._copy(commit) for commit in self.target.later_commits(handle)]
                    if self.target.full:
                        schema = self._configured_schema(rebuilt, later, handle)
                    self._replace(rebuilt, later, handle, schema, waiting)
            except (DeltaError, OSError) as error:
                self.lake.delete(*(file.path for file in _files(later)))
                if attempt == REPAIR_TRIES - 1:
                    raise TableError(self.table, f"the repair could not be committed: {error}") from error
                log.info("%s: another writer was faster, trying again", self.table)
                continue
            self._release(waiting)
            committed = self.lake.open(self.table)
            assert committed is not None  # it was committed
            return committed.version(), sum(file.rows for file in _files(later))
        raise AssertionError  # the last try raises

    def _needs_spark(self, rebuilt: RebuiltRows, handle: DeltaTable | None) -> bool:
        if self.target.committers.only_spark:
            return True
        if handle is None:
            return False
        partition_columns = handle.metadata().partition_columns
        if self.target.full and rebuilt.commits and [*self._partition_columns(rebuilt)] != partition_columns:
            return True
        for commit in rebuilt.commits:
            if commit.widened and choose_widening_way(handle, self.table, commit.widening) != "rewrite":
                return True
            if only_spark_appends(handle, commit):
                return True
        return bool(features_against_appends(handle))

    def _partition_columns(self, rebuilt: RebuiltRows) -> tuple[str, ...]:
        """Return the columns by which today's sinks divide the table. Raises TableError if they do not agree."""
        options = self.target.committers.options
        divisions = {options.get(commit.target, PLAIN_TABLE).partition_by for commit in rebuilt.commits}
        if len(divisions) > 1:
            raise TableError(self.table, "its sinks divide it in different ways (`partition_by`); let them agree")
        return divisions.pop()

    # A table that is gone

    def _create(self, rebuilt: RebuiltRows, waiting: list[Quarantined]) -> None:
        """Make the table of rebuilt rows."""
        if not rebuilt.commits:
            raise TableError(self.table, "bronze has no row for it")
        self._partition_columns(rebuilt)
        schemas = [to_arrow_schema(commit.columns) for commit in rebuilt.commits]
        options = self.target.committers.options.get(rebuilt.commits[0].target, PLAIN_TABLE)
        ends = self._ends(rebuilt, [], None)
        create_with_files(
            self.lake,
            self.table,
            to_delta(pa.unify_schemas(schemas, promote_options="permissive")),
            rebuilt.files,
            ids=self._ids(ends, None, waiting),
            notes=self.target.notes(ends),
            options=options,
            exclusive=True,
        )
        if made_by_spark(options):
            finish_new_table(self.target.spark.newSession(), self.lake.spark_address(self.table), options)

    def _last_released(self, query: str, batch: int) -> int:
        """Return up to which batch the quarantined rows of a query are in the rebuilt table."""
        return min(batch, self.target.last) if query == self.target.query else batch

    def _release(self, waiting: list[Quarantined]) -> None:
        """Delete the quarantined rows that are in the table now, and note in the ledger that they were released."""
        try:
            for rows in waiting:
                for query, batch in rows.upto.items():
                    self._release_rows(rows, query, self._last_released(query, batch))
        except (DeltaError, OSError, TableError) as error:  # the table says by its ids that it has them
            log.warning("%s: its rows are still in the quarantine as well: %s", self.table, first_line(error))

    def _release_rows(self, waiting: Quarantined, query: str, last: int) -> None:
        place = waiting.place
        quarantine = self.lake.open(waiting.quarantine)
        assert quarantine is not None  # it has rows
        condition = f"_table = '{self.table}' AND _query = '{query}' AND _batch_id <= {last}"
        if CAUSE in {column.name for column in quarantine.schema().fields}:
            condition += f" AND _cause IS {'NULL' if waiting.cause is None else 'NOT NULL'}"
        rows = quarantine.delete(condition)["num_deleted_rows"]
        name, _, run = query.rpartition(":")
        row = {"query": name, "run": run, "batch_id": last, "released": rows, "route": place.route, "sink": place.sink}
        app_id = TransactionId("ledger_move", query, place.route, place.sink, place.table, "repair")
        entry = ledger.LedgerEntry(self.target.config.ledger, str(app_id), last)
        ledger.append(self.target.committers, entry, [row])

    # A table that can be read

    def _grow(self, rebuilt: RebuiltRows, handle: DeltaTable) -> str | None:
        """Give the table the columns that it lacks; return its schema with wider types, None if it needs none.

        Raises TableError if the staged files do not fit it any more.
        """
        widened: list[str] = []
        for commit in rebuilt.commits:
            change = compare_schemas(delta_schema(to_arrow(handle)), to_arrow_schema(commit.columns))
            # The rows were staged for the columns that the table had when it was looked at.
            if change.cast or change.conflicts or (change.widened and not commit.widened):
                raise TableError(self.table, "its columns have changed while it was rebuilt; rebuild it again")
            if change.added:
                add_columns(handle, to_delta(pa.schema(list(change.added))))
            if change.widened:
                widened.append(to_delta(pa.schema(list(change.widened))))
        if not widened:
            return None
        return reduce(wider_schema, widened, handle.schema().to_json())

    def _configured_schema(self, rebuilt: RebuiltRows, later: list[LaterBatch], handle: DeltaTable) -> str:
        """Return the schema that today's configuration gives the table, with the columns that later batches have."""
        if not rebuilt.commits:
            return str(handle.schema().to_json())
        schemas = [delta_schema(to_arrow_schema(commit.columns)) for commit in rebuilt.commits]
        configured = pa.unify_schemas(schemas, promote_options="permissive")
        of_later = set().union(*(file.columns for file in _files(later)))
        columns = [*configured]
        for column in delta_schema(to_arrow(handle)):
            if column.name in of_later and column.name not in configured.names:
                columns.append(column)
        return to_delta(pa.schema(columns))

    def _replace(
        self,
        rebuilt: RebuiltRows,
        later: list[LaterBatch],
        handle: DeltaTable,
        schema: str | None,
        waiting: list[Quarantined],
    ) -> None:
        """Replace the content of a table, and its types if `schema` has others: then no other commit may pass."""
        files = [*rebuilt.files, *_files(later)]
        if schema is not None:
            kinds = delta_schema(to_arrow_schema(schema))
            narrow_files = files
            files = []
            for file in narrow_files:
                files += self._with_types(file, kinds)
        ends = self._ends(rebuilt, later, handle)
        replace_content(
            handle,
            files,
            ids=self._ids(ends, handle, waiting),
            notes=self.target.notes(ends),
            schema=schema,
            alone=schema is not None,
        )

    def _with_types(self, file: StagedFile, schema: pa.Schema) -> list[StagedFile]:
        """Return a file's rows with the types of a schema: the file, or copies if its own are narrower."""
        with self.lake.files.open_input_file(file.path) as source:
            columns = pq.ParquetFile(source).schema_arrow
        file_schema = pa.schema([schema.field(name) for name in columns.names])
        if delta_schema(columns).types == file_schema.types:
            return [file]
        return staged_again(self.lake, file, self._cast(file, file_schema), f"{self.target.last:010d}-wide")

    def _cast(self, file: StagedFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self.lake.files.open_input_file(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches():
                yield from cast_to(pa.Table.from_batches([batch]), schema).to_batches()

    def _copy(self, commit: LogCommit) -> LaterBatch:
        """Copy the files of a commit: one version cannot both remove a file and add it."""
        key, batch = next(self.target.batches_of(commit))
        files = []
        for file in commit.added:
            path = f"{self.target.folder}/part-{batch:010d}-copied-{uuid.uuid4()}.parquet"
            self.lake.files.copy_file(f"{self.target.folder}/{file.path}", path)
            self.lake.sync(path)
            files.append(staged_file(self.lake, key, self.table, path))
        return LaterBatch(key, batch, tuple(files))

    # Transaction ids

    def _ids(self, ends: dict[str, int], handle: DeltaTable | None, waiting: list[Quarantined]) -> dict[str, int]:
        """Return the transaction ids of the commit: the repair's own, those of sinks that were behind, of releases.

        Those of releases say which quarantined rows are in the table: the ones of batches up to N are among the rebuilt
        rows, and the stream releases the others.
        """
        ids = {str(self.target.repair_id): int(time.time())}
        for key, batch in ends.items():
            if self.target.is_behind(key, batch, handle):
                ids[self.target.app_id(key)] = batch
        for rows in waiting:
            for query, batch in rows.upto.items():
                app_id = rows.place.app_id(query, rows.kind)
                released = handle.transaction_version(app_id) if handle is not None else None
                last = self._last_released(query, batch)
                if released is None or released < last:
                    ids[app_id] = last
        return ids

    def _ends(self, rebuilt: RebuiltRows, later: list[LaterBatch], handle: DeltaTable | None) -> dict[str, int]:
        """Return the last batch that the new content has, by target key."""
        ends = {commit.target: self.target.last for commit in rebuilt.commits}
        for route, name, sink in self.target.config.all_sinks():
            key = f"{route}/{name}"
            committed = self.target.committed_batch(key, handle)
            if isinstance(sink, TableSink) and committed is not None:
                ends[key] = max(self.target.last, committed)
        for batch in later:
            ends[batch.key] = max(batch.batch, ends.get(batch.key, -1))
        return ends

    # A table that only Delta on Spark may write

    def _replace_by_spark(self, rebuilt: RebuiltRows, handle: DeltaTable | None) -> int:
        """Overwrite the table through Delta on Spark while no stream runs; return its version."""
        target = self.target
        # Delta on Spark overwrites the whole table under one transaction id: no row after N may be in it, and no more
        # than one sink may be behind.
        has_later = handle is not None and bool(target.later_commits(handle))
        if target.has_unfinished_batch() or has_later:
            raise TableError(self.table, NEEDS_SPARK)
        if target.waiting_rows():
            problem = "rows wait for it in the quarantine, and only Delta on Spark can replace it"
            raise TableError(self.table, f"{problem}: {ACCEPT_LOST} lets them in; then rebuild it")
        ends = self._ends(rebuilt, [], handle)
        behind = [key for key, batch in ends.items() if target.is_behind(key, batch, handle)]
        if len(behind) > 1:
            raise TableError(self.table, f"Delta on Spark notes one sink at a time, and {', '.join(behind)} write it")
        if not rebuilt.commits:
            raise TableError(self.table, "bronze has no row for it")
        session = target.spark.newSession()
        parts = [staged_rows(session, self.lake, commit) for commit in rebuilt.commits]
        rows = reduce(lambda union, part: union.unionByName(part, allowMissingColumns=True), parts)
        overwrite = SparkOverwrite(target, key=behind[0] if behind else None, batch=target.last, ends=ends)
        if handle is not None and target.full:
            overwrite.run(rows, new_schema=True, partition_by=self._partition_columns(rebuilt))
        else:
            widened = [(commit.widened, commit.widening) for commit in rebuilt.commits if commit.widened]
            overwrite.run(rows, schema=overwrite.rewritten_schema(session, handle, widened))
        self.lake.delete(*(file.path for file in rebuilt.files))
        committed = self.lake.open(self.table)
        return committed.version() if committed is not None else 0


def _files(later: list[LaterBatch]) -> list[StagedFile]:
    files: list[StagedFile] = []
    for batch in later:
        files += batch.files
    return files


@dataclass(frozen=True)
class SparkOverwrite:
    """The replacement of a table's content through Delta on Spark, for which the stream must not run.

    `key` is the sink that is behind, which gets the id of `batch`; if it is None, the repair's own id is written.
    `ends` has the last batch that the new content has, by target key.
    """

    target: RepairTarget
    key: str | None
    batch: int
    ends: dict[str, int]

    def rewritten_schema(
        self, session: SparkSession, handle: DeltaTable | None, widened: list[tuple[str, Widening]]
    ) -> str | None:
        """Return the schema with wider types of a table that is rewritten for them; None if it need not be.

        `widened` has columns (Delta's JSON), and how the table may get them. One that is not rewritten is widened here.
        """
        if handle is None:
            return None
        stored = schema = handle.schema().to_json()
        for columns, widening in widened:
            if choose_widening_way(handle, self.target.table, widening) == "rewrite":
                schema = wider_schema(schema, columns, new_fields=False)
            else:
                widen_columns(session, self.target.lake.spark_address(self.target.table), columns)
        return None if schema == stored else schema

    def run(
        self,
        rows: DataFrame,
        *,
        schema: str | None = None,
        new_schema: bool = False,
        partition_by: Iterable[str] = (),
    ) -> None:
        """Put rows in place of the content. Raises TableError."""
        lake = self.target.lake
        table = self.target.table
        if self.key is not None:
            once = batch_id(self.target.query, self.key, table).to_transaction(self.batch)
        else:
            once = TransactionId("spark_repair", self.target.query).to_transaction(int(time.time()))
        # A table that is rewritten with another schema keeps its partitions only if they are named.
        handle = lake.open(table) if schema is not None else None
        if handle is not None:
            partition_by = handle.metadata().partition_columns
        try:
            replace_by_spark(
                rows,
                lake.spark_address(table),
                once,
                self.target.notes(self.ends),
                schema=schema,
                new_schema=new_schema,
                partition_by=partition_by,
            )
        except Exception as error:  # whatever Spark raises
            raise TableError(table, f"the repair could not be committed: {first_line(error)}") from error
