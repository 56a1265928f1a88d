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

from router.columns import quoted
from router.config.models import interval
from router.delta.constraints import unsupported
from router.delta.maintenance import MaintenanceOptions, delete_older
from router.engine.label.layout import TABLE
from router.engine.merge.coordinator import BacklogStore
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    Rows of a backlog stay, with all others for the same tables: a later batch merges them.
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


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
