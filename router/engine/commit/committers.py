"""Commit a decided batch: one Delta commit per table, in parallel, each at most once.

A table's committer follows from its protocol and metadata: delta-rs if it implements every feature that the table has,
else Delta on Spark, which appends the rows of the staged files. With `commit: spark` Delta on Spark writes all tables,
for catalogs and storage that only Spark may write: then even schemas and transaction ids are read through Spark.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import AnalysisException, PySparkException

from router.api.table_options import PLAIN_TABLE
from router.delta.commit import (
    TableCommit,
    commit_files,
    is_committed,
    schema_column_names,
    to_arrow,
    to_arrow_schema,
    to_delta,
)
from router.delta.constraints import features_against_appends
from router.delta.log_tail import delta_rs_table
from router.delta.replace import create_table, made_by_spark
from router.delta.replace_by_spark import (
    append_by_spark,
    create_by_spark,
    finish_new_table,
    is_finished,
    rewrite_by_spark,
    staged_rows,
    widen_columns,
)
from router.delta.schema_diff import SchemaDiff, compare_schemas, delta_schema
from router.delta.table_cache import THREADS, SparkTable, check_log, spark_table, unreadable_table_error
from router.delta.widening import choose_widening_way, is_still_narrower, rewrite_table
from router.errors import TableError, first_line
from router.own_names import OUTBOX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import deltalake
    from pyspark.sql import DataFrame, SparkSession

    from router.api.table_options import NewTable
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile


LIBRARIES = DeltaError, OSError, ValueError, PySparkException, Py4JError
"""Errors of the libraries that read and write tables; they do not name the table."""
Committer = Literal["delta-rs", "Spark"]
"""What writes a table."""


@dataclass(frozen=True)
class Committers:
    """The committers of a lake; with `only_spark` Delta on Spark writes every table.

    `options` are those with which tables are created, by target. `committed_by` has the tables that were written here,
    each with what wrote it last.
    """

    lake: Lake
    spark: SparkSession
    only_spark: bool = False
    options: Mapping[str, NewTable] = field(default_factory=dict)
    committed_by: dict[str, Committer] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, spark: SparkSession, lake: Lake) -> Committers:
        """Return the committers of a configuration."""
        return cls(lake, spark, config.commit == "spark", config.table_options())

    def commit_all(
        self,
        commits: tuple[TableCommit, ...],
        tables: Mapping[str, Any],
        notes: dict[str, str],
        tell: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Make every commit that its table lacks; return how many were made. Raises the first TableError."""
        made, errors = self.attempt_commits(commits, tables, notes, tell)
        if errors:
            raise errors[0]
        return made

    def attempt_commits(
        self,
        commits: tuple[TableCommit, ...],
        tables: Mapping[str, Any],
        notes: dict[str, str],
        tell: Callable[[int], None] = lambda done: None,
    ) -> tuple[int, list[TableError]]:
        """Make every commit that its table lacks; return how many were made, and the errors of tables.

        `tables` has the open tables, or the error of a table that cannot be opened. A table that fails does not stop
        the others. The commits of one table run one after another: in parallel they would only conflict.
        """
        by_table: dict[str, list[TableCommit]] = defaultdict(list)
        for commit_of_table in commits:
            by_table[commit_of_table.table].append(commit_of_table)
        made = 0
        errors: list[TableError] = []
        with ThreadPoolExecutor(THREADS) as pool:
            futures = [pool.submit(self._commit_twice, works, tables, notes) for works in by_table.values()]
            for index, (table, future) in enumerate(zip(by_table, futures, strict=True)):
                try:
                    made += future.result()
                except TableError as error:
                    errors.append(error)
                # An error of a library concerns this table only; any other is a bug, which stops the stream.
                except LIBRARIES as error:
                    errors.append(unreadable_table_error(self.lake, table, error))
                tell(index + 1)
        return made, errors

    def missing_files(self, works: Iterable[TableCommit]) -> list[str]:
        """Return the staged files of commits that are missing or truncated: VACUUM deletes unreferenced files."""
        files: list[StagedFile] = []
        for work in works:
            files.extend(work.files)
        infos = self.lake.files.get_file_info([file.path for file in files])
        paths = []
        for info, file in zip(infos, files, strict=True):
            if info.type is not fs.FileType.File or info.size != file.bytes:
                paths.append(file.path)
        return paths

    def delete_applied_files(self, work: TableCommit) -> None:
        """Delete the staged files of an outbox that its sink has dealt with, if its table has copies of the rows."""
        if not _is_staged_elsewhere(work):
            return
        for file in work.files:
            with suppress(FileNotFoundError):
                self.lake.files.delete_file(file.path)

    def _commit_twice(self, works: list[TableCommit], tables: Mapping[str, Any], notes: dict[str, str]) -> int:
        """Make the commits of a table; try again with the table opened again: another writer may have been faster."""
        try:
            return self._commit_table(works, tables, notes)
        except TableError:
            return self._commit_table(works, {}, notes)

    def _commit_table(self, works: list[TableCommit], tables: Mapping[str, Any], notes: dict[str, str]) -> int:
        made = 0
        for number, work in enumerate(works):
            # The handle of the decision is of use to the first commit only: a second one follows on it.
            table = tables.get(work.table) if number == 0 else None
            if isinstance(table, TableError):
                raise table
            made += self._commit_one(work, table, notes)
        return made

    def _commit_one(self, work: TableCommit, table: Any, notes: dict[str, str]) -> int:
        """Make one commit unless its table has it; return how many were made. `table` is None if it is not open."""
        # Only an append is written without delta-rs: a change of the schema needs its handle of the newest version.
        if work.added or work.widened:
            table = delta_rs_table(table)
        by_spark = self.only_spark or _is_staged_elsewhere(work)
        if table is None:
            table = self._open_by_spark(work.table) if by_spark else self.lake.open(work.table)
        if table is None:
            self.lake.note_location(work.table)
        elif is_committed(table, work):
            return 0

        # Create the table if its options need more than a first commit gives it, or finish what a crash left.
        options = self.options.get(work.target, PLAIN_TABLE)
        if not options.is_plain and (table is None or _is_unfinished(table, work, options)):
            table = self._create_with_options(work, options, by_spark=by_spark)
        elif by_spark and table is None:
            _create_empty(self.spark.newSession(), self.lake, work)

        work = self._widen_table(as_decided(work, table), table)
        if by_spark or (table is not None and (work.widened or only_spark_appends(table, work))):
            self._append_staged_rows(work, notes)
            self.committed_by[work.table] = "Spark"
            return 1
        made = commit_files(self.lake, work, notes, table)
        self.committed_by[work.table] = "delta-rs"
        return made

    def _open_by_spark(self, name: str) -> SparkTable | None:
        table = spark_table(self.spark, self.lake, name)
        if table is not None:
            check_log(self.lake, name, table.version())
        return table

    def _create_with_options(self, work: TableCommit, options: NewTable, *, by_spark: bool) -> Any:
        """Create the table of a commit with its sink's options, without rows; return it open.

        Delta on Spark creates no table in a folder that has files, and the staged ones are there: so delta-rs creates
        it with the options that it supports, and Spark sets the others.
        """
        schema = to_arrow_schema(work.columns)
        address = self.lake.spark_address(work.table)
        session = self.spark.newSession()
        try:
            if by_spark:
                create_by_spark(session, work.table, address, schema, options=options)
                return spark_table(self.spark, self.lake, work.table)
            table = create_table(self.lake, work.table, schema, options=options)
            if made_by_spark(options):
                finish_new_table(session, address, options)
                table.update_incremental()
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"it cannot be made: {first_line(error)}") from error
        return table

    def _widen_table(self, work: TableCommit, table: Any) -> TableCommit:
        """Rewrite a table with wider types if the commit needs them; return the commit as it is to be made then."""
        if table is None or not work.widened:
            return work
        if not is_still_narrower(table, work.table, work.widened):
            return replace(work, widened=None)
        widening_way = choose_widening_way(table, work.table, work.widening)
        if widening_way is None:
            raise TableError(work.table, "its types are narrower than those of the staged rows, and must stay so")
        if widening_way == "feature":  # the append itself does it
            return work
        if isinstance(table, SparkTable):
            self._rewrite_by_spark(table, work)
        else:
            rewrite_table(self.lake, work.table, table, work.widened, work.app_id)
        return replace(work, widened=None)

    def _rewrite_by_spark(self, table: SparkTable, work: TableCommit) -> None:
        session = self.spark.newSession()
        address = self.lake.spark_address(work.table)
        try:
            rewrite_by_spark(session, address, table, str(work.widened), work.app_id)
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"it could not be rewritten with wider types: {first_line(error)}") from error

    def _append_staged_rows(self, work: TableCommit, notes: dict[str, str]) -> None:
        """Append the staged files' rows through Delta on Spark, under the same transaction id."""
        session = self.spark.newSession()
        self.append_rows(session, work, notes, staged_rows(session, self.lake, work))
        # The table has copies of the rows now. The files of an outbox stay: its sink still reads them.
        if not work.table.startswith(OUTBOX):
            for file in work.files:
                self.lake.files.delete_file(file.path)

    def append_rows(self, session: SparkSession, work: TableCommit, notes: dict[str, str], rows: DataFrame) -> None:
        """Append rows through Delta on Spark under the transaction id of a commit. Raises TableError."""
        address = self.lake.spark_address(work.table)
        try:
            if work.widened:
                widen_columns(session, address, work.widened)
            append_by_spark(rows, address, work.transaction, notes)
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"the append failed: {first_line(error)}") from error


def as_decided(work: TableCommit, table: Any) -> TableCommit:
    """Return a commit for the table as it is now. Raises TableError if the staged files do not fit it.

    Another writer may have changed columns or types of a table since the decision: staged files would then be read
    wrongly, or not at all.
    """
    version = -1 if table is None else table.version()
    if work.decided is None or work.decided == version:
        return work
    columns = to_arrow_schema(work.columns)
    change = SchemaDiff()
    if table is not None:
        change = compare_schemas(delta_schema(to_arrow(table)), columns)

    # The rows were staged for the changes that the commit has; any other does not fit them.
    decided_changes: set[str] = set()
    if work.decided == -1 and table is not None and _is_empty(table):
        # A crash may have come between creating a table and giving it all columns (`create_table`).
        decided_changes.update(column.name for column in change.added)
    if work.added:
        decided_changes.update(schema_column_names(work.added))
    if work.widened:
        decided_changes.update(schema_column_names(work.widened))
    new_changes = {column.name for column in (*change.added, *change.widened)} - decided_changes
    unfit = sorted({*change.cast, *change.conflicts, *new_changes})
    if unfit:
        problem = f"another writer has changed it since the rows were staged ({', '.join(unfit)})"
        raise TableError(work.table, problem)
    return replace(work, added=_as_delta(change.added), widened=_as_delta(change.widened))


def _as_delta(columns: Iterable[pa.Field]) -> str | None:
    """Return columns as Delta's JSON, None if there are none."""
    schema = pa.schema(list(columns))
    if not len(schema):
        return None
    return to_delta(schema)


def _is_staged_elsewhere(work: TableCommit) -> bool:
    """Return whether files are outside their table's folder: delta-rs cannot add those.

    The option `commit` may have changed since they were staged.
    """
    folder = f"{work.table.replace('.', '/')}/"
    return not all(file.path.startswith(folder) for file in work.files)


def only_spark_appends(table: deltalake.DeltaTable, work: TableCommit) -> bool:
    """Return whether delta-rs cannot add staged files to a table, which may have other partitions than they do."""
    partition_columns = set(table.metadata().partition_columns)
    for file in work.files:
        if partition_columns != file.partition.keys():
            return True
    return bool(features_against_appends(table) - {"partitioning"})


def _is_unfinished(table: Any, work: TableCommit, options: NewTable) -> bool:
    """Return whether a crash, or an error of Spark, came between creating a table and giving it Spark's options."""
    if work.decided not in (None, -1) or not made_by_spark(options) or isinstance(table, SparkTable):
        return False
    if is_finished(table, options):
        return False
    return _is_empty(table)  # a table with rows is in use as it is


def _is_empty(table: Any) -> bool:
    """Return whether a table has no files; False for one that is read through Spark, which creates it whole."""
    return not isinstance(table, SparkTable) and len(table.file_uris()) == 0


def _create_empty(session: SparkSession, lake: Lake, work: TableCommit) -> None:
    """Create a table without rows that names its writer, unless its folder has other files."""
    with suppress(AnalysisException):
        create_by_spark(session, work.table, lake.spark_address(work.table), to_arrow_schema(work.columns))
