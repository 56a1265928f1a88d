"""The destination of a stream: limits before the manifest; releases, maintenance, catalog and views after the batch."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from router.config.models import parse_interval
from router.delta.maintenance_process import MaintenanceProcess
from router.engine.balance import sum_counts
from router.engine.batch import Batches
from router.engine.commit.catalog import Catalog
from router.engine.commit.committers import Committers
from router.engine.dead_letter_share import WARNING_SHARE, DeadLetterLimit, dead_letter_share
from router.engine.decision import tables_of
from router.engine.deploys import read_deploys
from router.engine.destination import Destination
from router.engine.maintenance import TableMaintenance
from router.engine.outbox.apply import Outboxes
from router.engine.outbox.detached import detached_outboxes
from router.engine.reprocess.release import Release
from router.engine.spark.executors import Executors
from router.engine.status.board import StatusBoard

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.delta.table_cache import TableCache
    from router.engine.batch_decision import BatchDecision
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.destination import CarriedOut
    from router.engine.label.planner import Planner
    from router.engine.source.failing_records import Span
    from router.engine.steps import Steps, Watch
    from router.engine.topic_ids import TopicIds
    from router.engine.views.schedule import ViewSchedule

log = logging.getLogger("router")


@dataclass
class StreamDestination(Destination):
    """The destination of a stream's batches. `views` is informed of every batch."""

    lake: Lake
    tables: Any
    release: Release
    catalog: Catalog
    maintenance: TableMaintenance
    status: StatusBoard
    views: ViewSchedule | None = None
    dead_letter_limit: DeadLetterLimit = field(default_factory=DeadLetterLimit)

    def faults_of_decision(self, decision: BatchDecision, batch: int) -> list[str]:
        """Log a batch most of which becomes dead letters; return the fault of one above the limit."""
        # The manifest does not have it: the status takes it from here, and adds the time to the commits.
        self.status.note_ages(batch, decision.landed.began, decision.landed.ages)
        limit = self.dead_letter_limit
        read = sum_counts(decision.partitions, "read")
        share = dead_letter_share(self.lake, decision.landed.files, read, above=limit.smallest_share)
        if share is None:
            return []
        if limit.is_exceeded(share, batch):
            allowed = f"{limit.at_most:.1%} may (`dead_letters: at_most`)"
            todo = "correct the configuration, or start with --accept dead-letters to let this batch pass"
            return [f"{share}; {allowed}; {todo}"]
        if share.share > WARNING_SHARE:
            log.warning("%s, batch %d: %s", self.config.name, batch, share)
        return []

    def follow(self, done: CarriedOut, steps: Steps) -> None:
        """Register tables in the catalog, refresh views, maintain tables, and release quarantined rows."""
        self.status.carried_out(
            done.manifest, done.applied, done.blocked, merged=done.merged, committed_by=done.committed_by
        )
        if self.config.register_tables:
            self.catalog.register_tables(done.tables)
        # Refreshes run while the stream does: these are the tables that one of them has written since.
        refreshed: set[str] = set()
        if self.views:
            refreshed = self.views.count_batch(done.tables)
        self.maintenance.after_batch({*done.tables, *refreshed, self.config.ledger}, self.tables.file_count)

        targets = done.plan.layout.targets
        may_wait = any(target.evolution == "quarantine" or target.held for target in targets)
        if not may_wait and not done.blocked:
            return
        due = self.release.due()
        if due:
            with steps.step("release"):
                self.release.carry_out(due)

    def close(self, *, finish: bool = False) -> None:
        """End maintenance: see `TableMaintenance.close`."""
        self.maintenance.close(finish=finish)


def stream_batches(
    config: Config,
    fingerprint: str,
    spark: SparkSession,
    lake: Lake,
    store: CheckpointStore,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
    *,
    planner: Planner | None = None,
    executors: Executors | None = None,
    opened: TableCache | None = None,
    views: ViewSchedule | None = None,
    dead_letter_limit: DeadLetterLimit | None = None,
    status: StatusBoard | None = None,
    topics: TopicIds | None = None,
    spans: Callable[[int], tuple[Span, ...]] | None = None,
) -> Batches:
    """Return the batches of a stream. `store` names its run.

    `planner` may have planned before; `opened` has tables that are open. What is kept between batches only saves work:
    a new process starts without it.
    """
    stop = stop or threading.Event()
    executors = executors or Executors()
    committers = Committers.of(config, spark, lake)
    tables: Any = opened
    plans = config.maintenance_plans()
    # With `commit: spark` tables are opened through Spark, and a cache of delta-rs tables is of no use.
    if committers.only_spark:
        plans = config.maintenance
    if tables is None or committers.only_spark:
        tables = tables_of(config, spark, lake)
    outboxes = Outboxes(
        config=config,
        spark=spark,
        lake=lake,
        store=store,
        query=f"{config.name}:{store.run}",
        committers=committers,
        stop=stop,
        executors=executors,
    )
    maintenance = TableMaintenance(
        lake,
        lambda: spark,
        plans,
        detached_outboxes(config),
        in_thread=True,
        process=MaintenanceProcess(),
        views=config.views,
        keep=parse_interval(config.history.keep),
        read_deploys=partial(read_deploys, store),
    )
    destination = StreamDestination(
        config=config,
        run=store.run,
        lake=lake,
        tables=tables,
        release=Release(config, spark, lake, store, committers, executors, outboxes.deliver_released),
        catalog=Catalog(spark, lake),
        maintenance=maintenance,
        status=status or StatusBoard(config.name),
        views=views,
        dead_letter_limit=dead_letter_limit or DeadLetterLimit(),
    )
    return Batches(
        config=config,
        fingerprint=fingerprint,
        spark=spark,
        lake=lake,
        store=store,
        destination=destination,
        watch=watch,
        stop=stop,
        prepared=planner,
        executors=executors,
        tables=tables,
        topics=topics,
        spans=spans,
    )
