"""Apply a batch: give the rows of each lane to its sink, once it is decided and committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.applying import Applied
from router.delta.staged_files import KeptParts
from router.engine.label.layout import COORDINATES
from router.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.applying import ApplyingSink, Batch, Parts
    from router.delta.lake import Lake
    from router.engine.manifest import Shelf


@dataclass(frozen=True)
class Applier:
    """Give batches to the applying sinks of a query, once each. `run` is the query with its run.

    `sends` is False for a test and a debugging run: rows stay in their lane, and count as applied.
    """

    lake: Lake
    shelf: Shelf
    dead_letters: str
    run: str
    sends: bool = True

    def apply(self, sink: ApplyingSink, rows: int, events: DataFrame, batch: Batch) -> Applied:
        """Give the rows of a batch to its sink, unless that was done."""
        key = f"{batch.route}/{batch.sink}"
        if before := self.shelf.applied(batch.id).get(key):
            return before
        if not self.sends:
            return Applied(rows)
        counts = self._applied(sink, rows, events, batch)
        self.shelf.mark_applied(batch.id, key, counts)
        return counts

    def keeper(self, batch: int, key: str) -> Callable[[str], Parts]:
        """Return where a sink keeps rows of its own of a batch."""
        return keeper(self.lake, f"{self.run}/{key}", batch)

    def _applied(self, sink: ApplyingSink, rows: int, events: DataFrame, batch: Batch) -> Applied:
        about = batch.query, batch.id, batch.route, batch.sink
        try:
            outcome = sink.apply(events, batch)
        except Exception as error:
            raise SinkError(*about, f"{type(error).__name__}: {error}") from error
        dead = 0
        if outcome.refused is not None:
            dead = bury(outcome.refused, events, batch, self.lake, self.dead_letters, self.run)
        counts = Applied(outcome.applied, dead, outcome.parked, outcome.in_doubt)
        if counts.done != rows:
            parked = f" and {counts.parked} parked" if counts.parked else ""
            what = f"{rows} rows landed, but {counts.applied} applied and {dead} refused{parked} were reported"
            raise SinkError(*about, what)
        return counts


def keeper(lake: Lake, owner: str, batch: int) -> Callable[[str], Parts]:
    """Return where a sink keeps rows of its own of a batch; `owner` is the query with its run, route and sink."""
    notes = {"router.sink": owner, "router.sink_batch": str(batch)}
    return lambda table: KeptParts(lake, table, owner, batch, notes)


def bury(refused: DataFrame, events: DataFrame, batch: Batch, lake: Lake, table: str, run: str) -> int:
    """Append refused rows to the dead letters, once; the record itself is in bronze under the same coordinates."""
    columns = [f"`{name.replace('`', '``')}`" for name in events.columns if name not in COORDINATES]
    letters = refused.select(
        F.lit("apply").alias("stage"),
        F.col("reason"),
        F.lit(batch.route).alias("route"),
        F.lit(batch.sink).alias("sink"),
        F.col("_key").alias("key"),
        F.to_json(F.struct(*columns)).cast("binary").alias("value"),
        F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("timestamp"),
        F.lit(batch.id if batch.resending is None else None).cast("long").alias("batch_id"),
    ).persist()  # fmt: skip
    try:
        count = letters.count()
        if count:
            writer = letters.write.format("delta").mode("append").option("mergeSchema", "true")
            app = f"{run}/{batch.route}/{batch.sink}/dead_letters"
            writer.option("txnAppId", app).option("txnVersion", batch.id).save(lake.address(table))
    finally:
        letters.unpersist()
    return count
