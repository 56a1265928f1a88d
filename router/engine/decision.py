"""The first half of a batch: land its records and decide how their rows go into tables.

Nothing is written here but staged files, no table is blocked, and no batch stops but for what its destination asks.
`Batches` carries out what is decided: manifest, commits, quarantine, ledger. A rebuild puts the staged rows in place of
a table's content instead (`reprocess`), and a trial deletes them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from router.delta.table_cache import SparkTables, TableCache
from router.engine.balance import partitions
from router.engine.commit.schema_evolution import SchemaEvolution
from router.engine.label.layout import Demands
from router.engine.label.planner import Planner
from router.engine.land.job import LandingJob, UndecodedError
from router.engine.spark.executors import Executors
from router.errors import BatchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.destination import Destination
    from router.engine.label.planner import Plan
    from router.engine.land.job import Landed
    from router.engine.steps import Steps

log = logging.getLogger("router")
TRIES = 5
"""How often a batch is landed again because its tables have changed, before the batch stops."""
STAGING = "_staged"


@dataclass(frozen=True)
class BatchDecision:
    """How the staged rows of a batch go into tables; nothing refers to its files yet.

    `partitions` are its counts; `tables` are those that were opened to decide.
    """

    plan: Plan
    landed: Landed
    partitions: tuple[Partition, ...]
    commits: tuple[TableCommit, ...]
    tables: dict[str, Any]


def tables_of(config: Config, spark: SparkSession, lake: Lake) -> Any:
    """Return what opens the tables of a configuration: Delta on Spark where only that may write them."""
    return SparkTables(spark, lake) if config.commit == "spark" else TableCache(lake)


@dataclass
class BatchDecider:
    """The decisions of a query's batches. The decoder must be prepared already.

    `query` is the query with its run: transaction ids begin with it. `tables` opens the tables as rows are to find
    them. With `only` rows of other tables land nowhere. `staging` is the folder for staged files, None for those of the
    tables. What the object keeps between batches (demands, known names, the size of files) only saves work: a new
    process starts without it.
    """

    config: Config
    spark: SparkSession
    lake: Lake
    query: str
    planner: Planner
    tables: Any
    only: frozenset[str] | None = None
    staging: str | None = None
    executors: Executors = field(default_factory=Executors)
    demands: Demands = field(default_factory=Demands)

    def __post_init__(self) -> None:
        self.landing = LandingJob(
            self.spark,
            self.lake,
            self.config.landing,
            self.query,
            self.staging,
            only=self.only,
            executors=self.executors,
            counts_ages=self.config.ui is not None,
        )
        self.evolution = SchemaEvolution(self.lake, self.tables, self.query, self.spark, self.config.table_options())

    @classmethod
    def of(
        cls,
        config: Config,
        spark: SparkSession,
        lake: Lake,
        query: str,
        *,
        planner: Planner | None = None,
        tables: Any = None,
        only: frozenset[str] | None = None,
        staging: str | None = None,
        executors: Executors | None = None,
    ) -> BatchDecider:
        """Return the decisions for the tables of a lake; what is not given follows from the configuration."""
        if staging is None and config.commit == "spark":
            staging = f"{STAGING}/{config.name}"
        if tables is None:
            tables = tables_of(config, spark, lake)
        planner = planner or Planner(config, config.decode, quiet=only is not None)
        return cls(config, spark, lake, query, planner, tables, only, staging, executors or Executors())

    def plan(self, records: DataFrame, *, refresh: bool = True) -> Plan:
        """Return the plan of a batch. With `refresh` the decoder and lookups first take what is new. Lazy."""
        if refresh:
            self.planner.refresh()
        return self.planner.plan(records)

    def forget_released(self, blocked: dict[str, str]) -> None:
        """Take the tables that are blocked now, by place, in place of those that were: some may have been released."""
        for place in self.demands.blocked.keys() - blocked.keys():
            self.evolution.committed_batches.forget(place.rpartition("/")[2])
        self.demands = replace(self.demands, blocked=blocked)

    def land_and_decide(self, plan: Plan, steps: Steps, destination: Destination) -> BatchDecision:
        """Stage the rows of a batch, again while tables demand other rows, and decide how they go into tables.

        Raises BatchError, with no file left, if the destination finds a fault or a table may not change.
        """
        for _ in range(TRIES):
            plan, landed = self._land(plan, steps)
            try:
                decision = self._decide(plan, landed, steps, destination)
            except BaseException:
                self.landing.discard(landed)
                raise
            if decision is not None:
                return decision
            self.landing.discard(landed)
        raise self._error(steps, f"tables changed {TRIES} times while the batch was landed; who else writes them?")

    def _land(self, plan: Plan, steps: Steps) -> tuple[Plan, Landed]:
        try:
            return self.landing.run_decoded(self.planner, plan, self.demands, steps.batch, steps.step)
        except UndecodedError as error:
            raise self._error(steps, str(error)) from error

    def _decide(self, plan: Plan, landed: Landed, steps: Steps, destination: Destination) -> BatchDecision | None:
        """Return the decision about staged files; None if tables demand that the batch lands otherwise."""
        if landed.failed:
            faults = destination.faults_of_failed_files(landed)
            self._stop_on(faults, steps)
            self.demands = replace(self.demands, blocked={**landed.failed, **self.demands.blocked})
            return None
        counted = partitions(landed.counts)
        self._stop_on(destination.faults(plan.layout, landed, counted), steps)
        quarantined = {place for part in counted for place in part.quarantined}
        with steps.step("decide"):
            decision = self.evolution.decide(
                plan.layout, landed.files, self.demands, steps.batch, quarantined, landed.named
            )
        self._stop_on(decision.refused, steps)
        demands = decision.demands
        if not destination.limits_names:
            demands = replace(demands, allowed={})
        before = self.demands
        self.demands = demands
        staged = {f"{file.target}/{file.table}" for file in landed.files}
        if before.differ(demands, staged | quarantined):
            log.info("%s, batch %d: landing again, tables ask for it", self.config.name, steps.batch)
            return None
        return BatchDecision(plan, landed, counted, decision.commits, decision.handles)

    def _stop_on(self, faults: list[str] | tuple[str, ...], steps: Steps) -> None:
        if faults:
            raise self._error(steps, f"{'; '.join(faults)}; nothing was committed")

    def _error(self, steps: Steps, what: str) -> BatchError:
        return BatchError(self.config.name, steps.batch, what)
