"""Apply a batch: give the rows of each lane to its sink, once it is decided and committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.delta.commit import TableCommit, names
from router.errors import SinkError

if TYPE_CHECKING:
    from router.applying import ApplyingSink, Batch
    from router.delta.lake import Lake
    from router.engine.layout import Target
    from router.engine.manifest import Shelf


@dataclass(frozen=True)
class Applier:
    """Run the inline applying sinks of a query."""

    lake: Lake
    shelf: Shelf
    dead_letters: str

    def apply(
        self, sink: ApplyingSink, target: Target, work: TableCommit, events: DataFrame, batch: Batch
    ) -> tuple[int, int]:
        """Give one lane's rows of this batch to its sink; return the rows (applied, dead)."""
        query = batch.query
        try:
            outcome = sink.apply(events, batch)
        except Exception as error:
            raise SinkError(query, batch.id, target.route, target.sink, f"{type(error).__name__}: {error}") from error
        dead = self._bury(outcome.refused, target, work, batch) if outcome.refused is not None else 0
        if outcome.applied + dead != work.rows:
            what = f"{work.rows} rows landed, but {outcome.applied} applied and {dead} refused were reported"
            raise SinkError(query, batch.id, target.route, target.sink, what)
        self.shelf.mark_applied(work.version, target.key, (outcome.applied, dead))
        return outcome.applied, dead

    def _bury(self, refused: DataFrame, target: Target, work: TableCommit, batch: Batch) -> int:
        """Append refused rows to the dead letters; the record itself is in bronze under the same coordinates."""
        columns = [name for name in names(work.columns) if not name.startswith("_")]
        letters = refused.select(
            F.lit("apply").alias("stage"),
            F.col("reason"),
            F.lit(target.route).alias("route"),
            F.lit(target.sink).alias("sink"),
            F.col("_key").alias("key"),
            F.to_json(F.struct(*columns)).cast("binary").alias("value"),
            F.col("_topic").alias("topic"),
            F.col("_partition").alias("partition"),
            F.col("_offset").alias("offset"),
            F.col("_timestamp").alias("timestamp"),
            F.lit(batch.id).cast("long").alias("batch_id"),
        ).persist()  # fmt: skip
        try:
            count = letters.count()
            if count:
                writer = letters.write.format("delta").mode("append").option("mergeSchema", "true")
                app = f"{work.app_id}/dead_letters"
                writer.option("txnAppId", app).option("txnVersion", batch.id).save(self.lake.address(self.dead_letters))
        finally:
            letters.unpersist()
        return count


class LaneOnly(Applier):
    """Leave the rows in their lane: a test and a debugging run send nothing anywhere."""

    def apply(
        self, sink: ApplyingSink, target: Target, work: TableCommit, events: DataFrame, batch: Batch
    ) -> tuple[int, int]:
        """Count all rows as applied."""
        return work.rows, 0
