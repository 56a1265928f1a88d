"""Commit a decided batch: one Delta commit per table, in parallel, each at most once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from router.delta.commit import TableCommit, commit, done, fields, unsupported
from router.delta.lake import Lake
from router.engine.fit import THREADS
from router.errors import TableError


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
                made += self._with_spark(work, handle)
            else:
                made += commit(self.lake, work, notes, handle)
        return made

    def _with_spark(self, work: TableCommit, handle: DeltaTable) -> bool:
        """Append the landed files' rows through Delta on Spark, under the same transaction id."""
        if done(handle, work):
            return False
        session = self.spark.newSession()
        address = self.lake.address(work.table)
        if work.widened:
            widen(session, address, work.widened)
        files = [f"{self.lake.root}/{file.path}" for file in work.files]
        rows = session.read.option("mergeSchema", "true").parquet(*files)
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        writer.option("txnAppId", work.app_id).option("txnVersion", work.version).save(address)
        for file in work.files:  # their rows live in the files of the commit now
            self.lake.files.delete_file(file.path)
        return True


def widen(session: SparkSession, address: str, widened: str) -> None:
    """Widen columns in place. Source: Delta protocol, table feature typeWidening."""
    quoted = "delta.`" + address.replace("`", "``") + "`"
    session.sql(f"ALTER TABLE {quoted} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for column in fields(widened):
        name = column.name.replace("`", "``")
        kind = str(column.type.type) if hasattr(column.type, "type") else ""
        session.sql(f"ALTER TABLE {quoted} ALTER COLUMN `{name}` TYPE {_SQL.get(kind, kind)}")


_SQL = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
