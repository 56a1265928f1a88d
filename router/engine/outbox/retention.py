"""Delete rows from outboxes that their sinks have applied in the batches of a query, once their records are old.

Detached sinks do the same by their own progress, which may be batches behind.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from router.api.columns import quote_identifier
from router.api.sinks import ApplyingSink, Batch
from router.config.models import parse_interval
from router.delta.constraints import NARROWER_MAP, features_against_appends
from router.delta.maintenance import MaintenanceOptions, delete_older, shorten_log
from router.engine.merge.backlog import BacklogStore
from router.errors import TableError, first_line
from router.own_names import TABLE

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
JOINED_SECONDS = 600.0
"""Seconds between two deletions of files of an outbox that compaction has joined: they are most of its bytes."""


@dataclass
class OutboxRetention:
    """The deletion of applied rows, and of joined files, from the outboxes of a query.

    `tidied` and `joined` are when these were done last.

    Rows of a backlog stay, with all others for the same tables: a later batch merges them. So do rows that are parked.
    """

    config: Config
    lake: Lake
    store: CheckpointStore
    committers: Committers
    targets: tuple[Target, ...] = ()
    tidied: float = field(default_factory=time.monotonic)
    joined: float = field(default_factory=time.monotonic)

    def after_batch(self, targets: Iterable[Target]) -> None:
        """Tidy the outboxes of a batch's sinks if it is time. Call it when each sink has applied all rows."""
        self.targets = tuple(targets)
        if time.monotonic() - self.tidied > TIDY_SECONDS:
            self.delete_old_rows()
        elif time.monotonic() - self.joined > JOINED_SECONDS:
            self._delete_joined_files()

    def _delete_joined_files(self) -> None:
        """Delete the files that compaction has joined, of outboxes for which no rows wait."""
        self.joined = time.monotonic()
        for target in self.targets:
            table = str(target.table)
            try:
                handle = None
                if not self.committers.only_spark and not BacklogStore(self.store, target.key).read_now():
                    handle = self.lake.open(table)
                if handle is not None:
                    shorten_log(
                        self.lake, table, handle, MaintenanceOptions(), before=handle.version(), with_files=True
                    )
            except (DeltaError, OSError, TableError) as error:
                log.warning("%s: its joined files could not be deleted: %s", table, first_line(error))

    def delete_old_rows(self) -> None:
        """Delete the rows of outboxes whose record is older than `outbox_retention`."""
        self.tidied = time.monotonic()
        before = datetime.now(timezone.utc) - parse_interval(self.config.outbox_retention)
        for target in self.targets:
            table = str(target.table)
            try:
                deleted = self._delete_from_outbox(target, table, before)
                if deleted:
                    log.info("%s: %d rows are older than %s", table, deleted, self.config.outbox_retention)
            except TableError as error:
                log.warning("%s", error)
            except Exception as error:  # whatever Spark raises about what a sink has parked concerns this outbox only
                log.warning("%s: its old rows could not be deleted: %s", table, first_line(error))

    def _delete_from_outbox(self, target: Target, table: str, before: datetime) -> int:
        """Delete old rows of an outbox, except a backlog and parked ones; return their number."""
        deletable = "true"
        backlog = sorted(BacklogStore(self.store, target.key).read_now())
        if backlog:
            names = ", ".join(f"'{name}'" for name in backlog)
            deletable = f"{TABLE} NOT IN ({names})"
        # An applying sink has no backlog, but may have parked rows.
        for route, name, sink in self.config.all_sinks():
            if (route, name) == (target.route, target.sink) and isinstance(sink, ApplyingSink):
                batch = Batch(self.config.name, 0, route, name)
                deletable = not_parked(sink, batch, self.committers.spark, self.lake)
        if self.committers.only_spark:
            return self._delete_by_spark(table, before, deletable)
        handle = self.lake.open(table)
        if handle is None:
            return 0
        if features_against_appends(handle):
            return self._delete_by_spark(table, before, deletable)
        try:
            return delete_older(self.lake, table, before, handle.version(), deletable, is_read=bool(backlog))
        except TableError as error:
            if NARROWER_MAP not in error.what:
                raise
            return self._delete_by_spark(table, before, deletable)

    def _delete_by_spark(self, table: str, before: datetime, deletable: str) -> int:
        session: Any = self.committers.spark.newSession()
        # VACUUM lists a table in as many tasks as this is set to, 10 000 by default.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        place = f"delta.{quote_identifier(self.lake.spark_address(table))}"
        old = f"_timestamp < timestamp_micros({(before - EPOCH) // timedelta(microseconds=1)})"
        try:
            (metrics,) = session.sql(f"DELETE FROM {place} WHERE {old} AND {deletable}").collect()
            session.sql(f"VACUUM {place} RETAIN {MaintenanceOptions().retention_hours} HOURS").collect()
        except Exception as error:  # whatever Spark raises concerns this table only
            raise TableError(table, f"its old rows could not be deleted: {first_line(error)}") from error
        return int(metrics["num_affected_rows"])


def not_parked(sink: ApplyingSink, batch: Batch, spark: SparkSession, lake: Lake) -> str:
    """Return SQL that is false for rows which a sink has parked: they wait for `router replay`, whatever their age.

    Rows of the same source partition between two parked ones stay with them. `batch` names the sink.
    """

    def read_outbox(table: str) -> DataFrame | None:
        if lake.open(table) is None:
            return None
        return spark.read.format("delta").load(lake.spark_address(table))

    try:
        set_aside = sink.set_aside(batch, read_outbox)
    except NotImplementedError:  # it parks nothing
        return "true"
    if set_aside is None:
        return "true"
    parked = set_aside.filter(F.col("status") == "parked").groupBy("topic", "partition")
    spans = parked.agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
    conditions = []
    for row in spans.collect():  # a row per source partition
        conditions.append(
            f"NOT (_topic = {_sql_text(row['topic'])} AND _partition = {row['partition']} "
            f"AND _offset BETWEEN {row['first']} AND {row['last']})"
        )
    return " AND ".join(conditions) or "true"


def _sql_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
