"""Commit a decided batch: one Delta commit per table, in parallel, each at most once.

A table's committer follows from its protocol and metadata: delta-rs where it implements every feature that the table
has, Delta on Spark for the others, which appends the rows of the staged files. `commit: spark` takes Delta on Spark for
all, for catalogs and storage that only Spark may write: then even schemas and transaction ids are read through Spark.
With `register_tables` Spark's catalog knows the tables as `layer.table`.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import AnalysisException, PySparkException

from router.delta.commit import TableCommit, commit, is_committed, names, to_arrow, to_arrow_schema, to_delta
from router.delta.constraints import unsupported
from router.delta.log_tail import newest
from router.delta.replace import create_table, made_by_spark, supported
from router.delta.replace_by_spark import append_by_spark, create_by_spark, finish, rewrite_by_spark, staged_rows, widen
from router.delta.schema_diff import SchemaDiff, compare, delta_schema
from router.delta.table_cache import THREADS, SparkTable, check_log, spark_table, unreadable
from router.delta.widening import narrower, rewrite, way
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import deltalake
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.table_options import TableOptions


LIBRARIES = DeltaError, OSError, ValueError, PySparkException, Py4JError
"""What the libraries raise that read and write tables, where nothing of ours has named the table yet."""


@dataclass(frozen=True)
class Committers:
    """The committers of a lake; with `only_spark` Delta on Spark writes every table.

    `options` say how tables are made, by target.
    """

    lake: Lake
    spark: SparkSession
    only_spark: bool = False
    options: Mapping[str, TableOptions] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, spark: SparkSession, lake: Lake) -> Committers:
        """Return the committers that a configuration asks for."""
        return cls(lake, spark, config.commit == "spark", config.table_options())

    def commit(
        self,
        commits: tuple[TableCommit, ...],
        tables: Mapping[str, Any],
        notes: dict[str, str],
        tell: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Make every commit that is not there yet; return how many were made. Raises the TableError of the first."""
        made, errors = self.attempt(commits, tables, notes, tell)
        if errors:
            raise errors[0]
        return made

    def attempt(
        self,
        commits: tuple[TableCommit, ...],
        tables: Mapping[str, Any],
        notes: dict[str, str],
        tell: Callable[[int], None] = lambda done: None,
    ) -> tuple[int, list[TableError]]:
        """Make every commit that is not there yet; return how many were made, and the tables that failed.

        `tables` are those that are open, or the error of one that cannot be. A table that fails does not keep the
        others from theirs. Commits of one table run one after another: they would only get into each other's way.
        """
        by_table: dict[str, list[TableCommit]] = defaultdict(list)
        for work in commits:
            by_table[work.table].append(work)
        made, errors = 0, list[TableError]()
        with ThreadPoolExecutor(THREADS) as pool:
            running = [pool.submit(partial(self._twice, works, tables, notes)) for works in by_table.values()]
            for index, (table, future) in enumerate(zip(by_table, running, strict=True)):
                try:
                    made += future.result()
                except TableError as error:
                    errors.append(error)
                except LIBRARIES as error:  # they concern this table only; an error of our own stops the stream
                    errors.append(unreadable(self.lake, table, error))
                tell(index + 1)
        return made, errors

    def missing(self, works: Iterable[TableCommit]) -> list[str]:
        """Return the files of decided commits that are not there whole: a VACUUM takes what no commit refers to."""
        files = [file for work in works for file in work.files]
        found = self.lake.files.get_file_info([file.path for file in files])
        return [
            file.path
            for info, file in zip(found, files, strict=True)
            if info.type is not fs.FileType.File or info.size != file.bytes
        ]

    def applied(self, work: TableCommit) -> None:
        """Delete the staged files of an outbox that its sink has dealt with, where its table has rows of its own."""
        for file in work.files if _staged_elsewhere(work) else ():
            with suppress(FileNotFoundError):
                self.lake.files.delete_file(file.path)

    def _twice(self, works: list[TableCommit], tables: Mapping[str, Any], notes: dict[str, str]) -> int:
        """Make the commits of a table; once more with it opened anew, for another writer may have been faster."""
        try:
            return self._table(works, tables, notes)
        except TableError:
            return self._table(works, {}, notes)

    def _table(self, works: list[TableCommit], tables: Mapping[str, Any], notes: dict[str, str]) -> int:
        made = 0
        table: Any
        for work in works:
            # a second target of one table needs what the first one did to it
            table = tables.get(work.table) if work is works[0] else None
            if isinstance(table, TableError):
                raise table
            if work.added or work.widened:
                table = newest(table)  # only an append is written without delta-rs
            by_spark = self.only_spark or _staged_elsewhere(work)
            if table is None:
                table = self._opened(work.table) if by_spark else self.lake.open(work.table)
            if table is None:
                self.lake.note_location(work.table)
            elif is_committed(table, work):
                continue
            options = self.options.get(work.target)
            if options and not options.plain and (table is None or _unfinished(table, work, options)):
                table = self._make(work, options, by_spark=by_spark)
            elif by_spark and table is None:
                _create(self.spark.newSession(), self.lake, work)
            still = self._widened(as_decided(work, table), table)
            if by_spark or (table is not None and (still.widened or only_spark_appends(table, still))):
                self._with_spark(still, notes)
                made += 1
            else:
                made += commit(self.lake, still, notes, table)
        return made

    def _opened(self, name: str) -> SparkTable | None:
        table = spark_table(self.spark, self.lake, name)
        if table is not None:
            check_log(self.lake, name, table.version())
        return table

    def _make(self, work: TableCommit, options: TableOptions, *, by_spark: bool) -> Any:
        """Make the table of a commit as its sink asks for, without rows; return it open.

        Delta on Spark makes no table in a folder that has files, and the staged ones are there: so delta-rs makes it as
        far as it can, and Spark gives it the rest.
        """
        schema = to_arrow_schema(work.columns)
        address = self.lake.spark_address(work.table)
        session = self.spark.newSession()
        try:
            if by_spark:
                create_by_spark(session, work.table, address, schema, options=options)
                return spark_table(self.spark, self.lake, work.table)
            table = create_table(
                self.lake,
                work.table,
                schema,
                partition_by=options.partition_by,
                comment=options.comment,
                properties=supported(options.properties),
            )
            if made_by_spark(options):
                finish(session, address, options)
                table.update_incremental()
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"it cannot be made: {first_line(error)}") from error
        return table

    def _widened(self, work: TableCommit, table: Any) -> TableCommit:
        """Rewrite a table with wider types where the commit needs them; return what is left to do with the commit."""
        if table is None or not work.widened:
            return work
        if not narrower(table, work.table, work.widened):
            return replace(work, widened=None)
        chosen = way(table, work.table, work.widening)
        if chosen is None:
            raise TableError(work.table, "its types are narrower than those of the staged rows, and must stay so")
        if chosen == "feature":
            return work
        if isinstance(table, SparkTable):
            self._rewrite_by_spark(table, work)
        else:
            rewrite(self.lake, work.table, table, work.widened, work.app_id)
        return replace(work, widened=None)

    def _rewrite_by_spark(self, table: SparkTable, work: TableCommit) -> None:
        session = self.spark.newSession()
        address = self.lake.spark_address(work.table)
        try:
            rewrite_by_spark(session, address, table, str(work.widened), work.app_id)
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"it could not be rewritten with wider types: {first_line(error)}") from error

    def _with_spark(self, work: TableCommit, notes: dict[str, str]) -> None:
        """Append the staged files' rows through Delta on Spark, under the same transaction id."""
        session = self.spark.newSession()
        self.append(session, work, notes, staged_rows(session, self.lake, work))
        if not work.table.startswith("outbox."):  # a sink still reads those; the rows of others are in the table now
            for file in work.files:
                self.lake.files.delete_file(file.path)

    def append(self, session: SparkSession, work: TableCommit, notes: dict[str, str], rows: DataFrame) -> None:
        """Append rows through Delta on Spark under the transaction id of a commit. Raises TableError."""
        address = self.lake.spark_address(work.table)
        try:
            if work.widened:
                widen(session, address, work.widened)
            append_by_spark(rows, address, work.once, notes)
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"the append failed: {first_line(error)}") from error


def as_decided(work: TableCommit, table: Any) -> TableCommit:
    """Return a commit for what its table is by now. Raises TableError where the staged files do not fit that.

    A table that moved on since the decision may have got columns or types from another writer: files that were staged
    for the former ones would be read as something else, or not at all.
    """
    if work.decided in (None, -1 if table is None else table.version()):
        return work
    have = None if table is None else delta_schema(to_arrow(table))
    change = compare(have, to_arrow_schema(work.columns)) if have is not None else SchemaDiff()
    asked = {*(names(work.added) if work.added else ()), *(names(work.widened) if work.widened else ())}
    more = {column.name for column in (*change.added, *change.widened)} - asked
    if wrong := sorted({*change.cast, *change.conflicts, *more}):
        columns = ", ".join(wrong)
        raise TableError(work.table, f"another writer has changed it since the rows were staged ({columns})")
    added, widened = (pa.schema(list(columns)) for columns in (change.added, change.widened))
    return replace(work, added=to_delta(added) if added else None, widened=to_delta(widened) if widened else None)


def _staged_elsewhere(work: TableCommit) -> bool:
    """Say whether files lie outside their table's folder, whatever `commit` says by now: delta-rs cannot add those."""
    folder = f"{work.table.replace('.', '/')}/"
    return not all(file.path.startswith(folder) for file in work.files)


def only_spark_appends(table: deltalake.DeltaTable, work: TableCommit) -> bool:
    """Say whether delta-rs cannot add staged files to a table, which may be divided in another way than they are."""
    divided = {*table.metadata().partition_columns}
    alike = all(divided == file.partition.keys() for file in work.files)
    return not alike or bool(unsupported(table) - {"partitioning"})


def _unfinished(table: Any, work: TableCommit, options: TableOptions) -> bool:
    """Say whether a process died, or Spark failed, between making a table and giving it what only Spark can."""
    if work.decided not in (None, -1) or not made_by_spark(options) or isinstance(table, SparkTable):
        return False
    features = {*(table.protocol().writer_features or ())}
    whole = options.properties.items() <= table.metadata().configuration.items()
    return not (whole and (not options.cluster_by or "clustering" in features)) and not len(table.file_uris())


def _create(session: SparkSession, lake: Lake, work: TableCommit) -> None:
    """Make a table without rows that says who made it, unless its folder holds files of somebody else."""
    with suppress(AnalysisException):
        create_by_spark(session, work.table, lake.spark_address(work.table), to_arrow_schema(work.columns))


@dataclass(frozen=True)
class Catalog:
    """The catalog of a session. Its layers are schemas; what the router keeps for itself stays out of it."""

    spark: SparkSession
    lake: Lake
    known: set[str] = field(default_factory=set)

    def register(self, tables: Iterable[str]) -> None:
        """Make tables known that are not. Raises TableError where the name is that of a table elsewhere."""
        for table in sorted(set(tables) - self.known):
            if not table.startswith(("outbox.", "quarantine.")):
                self._register(table)
            self.known.add(table)

    def _register(self, table: str) -> None:
        layer, _, name = table.partition(".")
        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{layer}`")
        if self.spark.catalog.tableExists(table):
            (about,) = self.spark.sql(f"DESCRIBE DETAIL `{layer}`.`{name}`").select("location").collect()
            if (place := str(about["location"])).removeprefix("file:") != self.lake.spark_address(table):
                raise TableError(table, f"the catalog has one of this name at {place}; drop it there, or its entry")
        else:
            place = self.lake.spark_address(table).replace("'", "\\'")
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS `{layer}`.`{name}` USING delta LOCATION '{place}'")
