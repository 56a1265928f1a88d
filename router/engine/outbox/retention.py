"""Delete from outboxes what their sinks have applied in the batches of a query, once its records are old enough.

Detached sinks do the same by their own progress: they may be batches behind.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from router.columns import quoted
from router.config.models import interval
from router.delta.constraints import unsupported
from router.delta.maintenance import MaintenanceOptions, delete_older
from router.engine.label.layout import TABLE
from router.engine.merge.coordinator import BacklogStore
from router.errors import TableError, first_line
from router.sinks import ApplyingSink, Batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.commit.committers import Committers
    from router.engine.label.layout import Target

log = logging.getLogger("router")
TIDY_SECONDS = 3600.0
"""Seconds between two deletions of old rows from an outbox."""


@dataclass
class OutboxRetention:
    """The deletion of applied rows from the outboxes of a query. `tidied` is when it was done last.

    Rows of a backlog stay, with all others for the same tables: a later batch merges them. So do rows that are parked.
    """

    config: Config
    lake: Lake
    store: CheckpointStore
    committers: Committers
    targets: tuple[Target, ...] = ()
    tidied: float = field(default_factory=time.monotonic)

    def after_batch(self, targets: Iterable[Target]) -> None:
        """Look at the outboxes of a batch's sinks when it is time. Call it when each sink has applied all there is."""
        self.targets = tuple(targets)
        if time.monotonic() - self.tidied > TIDY_SECONDS:
            self.tidy()

    def tidy(self) -> None:
        """Delete the rows of outboxes whose record is older than `outbox_retention`."""
        self.tidied = time.monotonic()
        before = datetime.now(timezone.utc) - interval(self.config.outbox_retention)
        for target in self.targets:
            table = str(target.table)
            try:
                if gone := self._delete(target, table, before):
                    log.info("%s: %d rows are older than %s", table, gone, self.config.outbox_retention)
            except TableError as error:
                log.warning("%s", error)
            except (DeltaError, OSError) as error:
                log.warning("%s: its old rows could not be deleted: %s", table, first_line(error))

    def _delete(self, target: Target, table: str, before: datetime) -> int:
        names = ", ".join(f"'{name}'" for name in sorted(BacklogStore(self.store, target.key).now()))
        more = f"{TABLE} NOT IN ({names})" if names else "true"
        for route, name, sink in self.config.all_sinks():
            if (route, name) == (target.route, target.sink) and isinstance(sink, ApplyingSink):
                more = not_parked(sink, Batch(self.config.name, 0, route, name), self.committers.spark, self.lake)
        if self.committers.only_spark:
            return self._with_spark(table, before, more)
        handle = self.lake.open(table)
        if handle is None:
            return 0
        if unsupported(handle):
            return self._with_spark(table, before, more)
        return delete_older(self.lake, table, before, handle.version(), more)

    def _with_spark(self, table: str, before: datetime, more: str) -> int:
        session: Any = self.committers.spark.newSession()
        # VACUUM lists a table in as many tasks as this says, 10 000 of them if nobody does
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        place = f"delta.{quoted(self.lake.spark_address(table))}"
        old = f"_timestamp < timestamp_micros({(before - EPOCH) // timedelta(microseconds=1)})"
        try:
            (found,) = session.sql(f"DELETE FROM {place} WHERE {old} AND {more}").collect()
            session.sql(f"VACUUM {place} RETAIN {MaintenanceOptions().hours} HOURS").collect()
        except Exception as error:  # whatever Spark raises concerns this table only
            raise TableError(table, f"its old rows could not be deleted: {first_line(error)}") from error
        return int(found["num_affected_rows"])


def not_parked(sink: ApplyingSink, batch: Batch, spark: SparkSession, lake: Lake) -> str:
    """Return SQL that holds for no row which a sink has parked: it waits for `router replay`, whatever its age.

    Rows of the same source partition between two parked ones stay with them. `batch` names the sink.
    """

    def read(table: str) -> DataFrame | None:
        there = lake.open(table) is not None
        return spark.read.format("delta").load(lake.spark_address(table)) if there else None

    try:
        aside = sink.set_aside(batch, read)
    except NotImplementedError:  # it parks nothing
        return "true"
    if aside is None:
        return "true"
    bounds = F.min("offset").alias("first"), F.max("offset").alias("last")
    parked = aside.filter(F.col("status") == "parked").groupBy("topic", "partition").agg(*bounds)
    each = [
        f"NOT (_topic = {_text(row['topic'])} AND _partition = {row['partition']} "
        f"AND _offset BETWEEN {row['first']} AND {row['last']})"
        for row in parked.collect()  # a row per source partition
    ]
    return " AND ".join(each) or "true"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
