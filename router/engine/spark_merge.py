"""Merge lanes with Delta on Spark: for storage that Python cannot reach, and for tables that delta-rs refuses.

What becomes of a row is decided by the same code as elsewhere (see `decide`): the rows of a table meet what it holds of
their keys in one task. MERGE writes what was decided, in a session of its own for each table: it takes its transaction
id from the session's settings only.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from router.delta.handles import THREADS
from router.delta.newer import DELETED
from router.delta.rivals import in_turn, outrun
from router.delta.upsert import TRIES, WAIT_SECONDS
from router.engine.columns import quoted
from router.engine.keyed import TABLE
from router.engine.spark_table import Share, Table
from router.errors import TableError

if TYPE_CHECKING:
    from router.delta.lake import Lake
    from router.engine.merge import Job, Outcomes
    from router.keyed import Keyed


@dataclass(frozen=True)
class SparkMerger:
    """Merge the rows of a lane into its tables, each in a thread of its own."""

    spark: SparkSession
    lake: Lake
    job: Job

    def merge(self, events: DataFrame, found: Outcomes) -> None:
        """Merge all tables that the rows name, and add to the outcomes what became of them."""
        shares = _shares(events, self.job.keyed)
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = {
                table: pool.submit(self._table, table, events.filter(F.col(TABLE) == table), share)
                for table, share in shares.items()
            }
            for table, future in waiting.items():
                try:
                    found.add({"table": table, "rows": shares[table].rows, **future.result()})
                except Exception as error:  # whatever Spark raises, it is this table's
                    what = f"the merge failed: {error.what if isinstance(error, TableError) else _first(error)}"
                    found.add({"table": table, "rows": shares[table].rows, "failed": what, "unfit": False})

    def _table(self, table: str, rows: DataFrame, share: Share) -> dict[str, Any]:
        """Merge one table; begin anew when another writer was faster."""
        try:
            return in_turn(
                lambda: Table(self.spark, self.lake, self.job, self.job.upsert(table), rows, share).merge(),
                DeltaConcurrentModificationException,
                TRIES,
                WAIT_SECONDS,
            )
        except DeltaConcurrentModificationException as error:
            raise outrun(table, TRIES, error) from error


def _first(error: Exception) -> str:
    """Return what is at the bottom of an error, in one line."""
    cause: Any = error.java_exception if isinstance(error, Py4JJavaError) else error
    while isinstance(error, Py4JJavaError) and cause.getCause() is not None:
        cause = cause.getCause()
    return (str(cause) if cause is error else cause.toString()).split("\n")[0]


def _shares(events: DataFrame, keyed: Keyed) -> dict[str, Share]:
    """Return the tables that rows are for, in one small job."""
    names = [name for name in events.columns if name != TABLE]
    sums = [F.count(F.when(~F.col(DELETED), F.col(quoted(name)))).alias(f"c{k}") for k, name in enumerate(names)]
    sums.append(F.count(F.lit(1)).alias("rows"))
    for k, key in enumerate(keyed.keys):
        sums += [F.min(quoted(key)).alias(f"low{k}"), F.max(quoted(key)).alias(f"high{k}")]
    return {
        row[TABLE]: Share(
            row["rows"],
            {name for k, name in enumerate(names) if row[f"c{k}"]},
            {key: (row[f"low{k}"], row[f"high{k}"]) for k, key in enumerate(keyed.keys) if row[f"low{k}"] is not None},
        )
        for row in events.groupBy(TABLE).agg(*sums).collect()  # as many rows as tables
    }
