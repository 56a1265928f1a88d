"""Commit a decided batch: one Delta commit per table, in parallel, each at most once."""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from router.delta.commit import TableCommit, commit, done, to_arrow_schema, unsupported
from router.delta.table_cache import THREADS
from router.engine.label.column_types import quoted
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake


@dataclass(frozen=True)
class Committer:
    """Commit with delta-rs; with Delta on Spark where delta-rs refuses a table or a column has to be widened."""

    lake: Lake
    spark: SparkSession

    def commit(
        self,
        commits: tuple[TableCommit, ...],
        handles: dict[str, DeltaTable | None],
        notes: dict[str, str],
        tell: Callable[[int], None] = lambda done: None,
    ) -> int:
        """Make every commit that is not there yet; return how many were made.

        A table that fails does not keep the others from theirs; its error is raised at the end. Commits of one
        table run one after another: they would only get into each other's way.
        """
        by_table: dict[str, list[TableCommit]] = defaultdict(list)
        for work in commits:
            by_table[work.table].append(work)
        made, errors = 0, []
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = [pool.submit(partial(self._table, works, handles, notes)) for works in by_table.values()]
            for index, future in enumerate(waiting):
                try:
                    made += future.result()
                except TableError as error:
                    errors.append(error)
                tell(index + 1)
        if errors:
            raise errors[0]
        return made

    def _table(self, works: list[TableCommit], handles: dict[str, DeltaTable | None], notes: dict[str, str]) -> int:
        made = 0
        for work in works:
            # a second target of one table needs what the first one did to it
            handle = handles.get(work.table) if work is works[0] else None
            handle = handle or self.lake.open(work.table)
            if handle is not None and (work.widened or unsupported(handle)):
                made += self._with_spark(work, notes, handle)
            else:
                made += commit(self.lake, work, notes, handle)
        return made

    def _with_spark(self, work: TableCommit, notes: dict[str, str], handle: DeltaTable) -> bool:
        """Append the landed files' rows through Delta on Spark, under the same transaction id."""
        if done(handle, work):
            return False
        try:
            self._append(self.spark.newSession(), work, notes)
        except Exception as error:  # whatever Spark raises belongs to this table only
            raise TableError(work.table, f"the append failed: {error}; it is tried again from the manifest") from error
        if not work.table.startswith("lanes."):  # their rows live in the files of the commit now; a sink reads a lane's
            for file in work.files:
                self.lake.files.delete_file(file.path)
        return True

    def _append(self, session: SparkSession, work: TableCommit, notes: dict[str, str]) -> None:
        address = self.lake.address(work.table)
        if work.widened:
            widen(session, address, work.widened)
        files = [f"{self.lake.root}/{file.path}" for file in work.files]
        rows = session.read.option("mergeSchema", "true").parquet(*files)
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", work.app_id).option("txnVersion", work.version)
        writer.option("userMetadata", json.dumps(notes)).save(address)


def widen(session: SparkSession, address: str, widened: str) -> None:
    """Widen columns in place, nested ones too. Source: Delta protocol, table feature typeWidening."""
    table = f"delta.{quoted(address)}"
    have = session.read.format("delta").load(address).schema
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for column in from_arrow_schema(to_arrow_schema(widened), prefer_timestamp_ntz=True):
        for path, kind in _grown(quoted(column.name), have[column.name].dataType, column.dataType):
            session.sql(f"ALTER TABLE {table} ALTER COLUMN {path} TYPE {kind}")


def _grown(path: str, have: DataType, want: DataType) -> Iterator[tuple[str, str]]:
    """Return path and new type of each leaf that a column has and that is to become wider."""
    if isinstance(have, StructType) and isinstance(want, StructType):
        for child in want:
            if child.name in have.names:
                yield from _grown(f"{path}.{quoted(child.name)}", have[child.name].dataType, child.dataType)
    elif isinstance(have, ArrayType) and isinstance(want, ArrayType):
        yield from _grown(f"{path}.element", have.elementType, want.elementType)
    elif isinstance(have, MapType) and isinstance(want, MapType):
        yield from _grown(f"{path}.key", have.keyType, want.keyType)
        yield from _grown(f"{path}.value", have.valueType, want.valueType)
    elif have != want:
        yield path, want.simpleString()
