"""The first half of a batch: land its records and decide how their rows go into tables.

It writes nothing but staged files, blocks no table, and stops a batch only for a fault that the destination finds.
`Batches` carries out the decision: manifest, commits, quarantine, ledger. A rebuild instead replaces the content of a
table by the staged rows (`reprocess`), and a trial deletes them.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from router.delta.table_cache import SparkTables, TableCache
from router.engine.balance import add_up_partitions
from router.engine.batch_decision import BatchDecision
from router.engine.checkpoint_store import UNREADABLE_FOLDER
from router.engine.commit.schema_evolution import SchemaEvolution
from router.engine.label.layout import Demands
from router.engine.label.planner import Planner
from router.engine.land.failing_columns import FailingColumns, nulls_of
from router.engine.land.job import LandingJob
from router.engine.retryable_errors import is_for_search, kind_of
from router.engine.source.failing_records import FoundRecords
from router.engine.spark.executors import Executors
from router.engine.spark.session import quiet_tasks
from router.engine.steps import Stopped
from router.errors import BatchError, first_line
from router.own_names import STAGING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from router.api.parts import Memory
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.destination import Destination
    from router.engine.label.planner import Plan
    from router.engine.land.job import Landed
    from router.engine.source.failing_records import RecordPlace
    from router.engine.source.unreadable import RawRecords
    from router.engine.steps import Steps

log = logging.getLogger("router")
TRIES_BEFORE_SEARCH = 3
"""Equal failures of a landing job, after which the columns and records that cause them are searched for."""
_LANDING_TRIES = 5
"""How often a batch is landed again because its tables have changed, before the batch stops."""


def tables_of(config: Config, spark: SparkSession, lake: Lake) -> Any:
    """Return the table cache of a configuration: of Delta on Spark if only that may write its tables."""
    if config.commit == "spark":
        return SparkTables(spark, lake)
    return TableCache(lake)


@dataclass
class BatchDecider:
    """The decisions of a query's batches. The decoder must be prepared already.

    `query` is the query with its run: transaction ids begin with it. `tables` opens the tables of the lake. With `only`
    rows of other tables do not land. `staging` is the folder for staged files, None for the folders of the tables; it
    is one of `staging_lake`, if that is given. With `traced` staged rows have the place of their record (`TRACED`).
    What the object keeps between batches (demands, names of tables, the size of files) only saves work: a new process
    starts without it.
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
    staging_lake: Lake | None = None
    traced: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        staging_lake = self.staging_lake or self.lake
        self.landing = LandingJob(
            self.spark,
            staging_lake,
            self.config.landing,
            self.query,
            self.staging,
            only=self.only,
            executors=self.executors,
            counts_ages=self.config.ui is not None,
            traced=self.traced,
        )
        self.searched: set[str] = set()
        self.evolution = SchemaEvolution(
            self.lake, self.tables, self.query, self.spark, self.config.table_options(), staging_lake=staging_lake
        )

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
        staging_lake: Lake | None = None,
        traced: bool = False,
        executors: Executors | None = None,
        memory: Memory | None = None,
        stop: threading.Event | None = None,
    ) -> BatchDecider:
        """Return the decider for the tables of a lake; arguments that are None follow from the configuration."""
        if staging is None and config.commit == "spark":
            staging = f"{STAGING}/{config.name}"
        if tables is None:
            tables = tables_of(config, spark, lake)
        if planner is None:
            planner = Planner(config, config.decode, memory=memory, quiet=only is not None)
        return cls(
            config=config,
            spark=spark,
            lake=lake,
            query=query,
            planner=planner,
            tables=tables,
            only=only,
            staging=staging,
            staging_lake=staging_lake,
            traced=traced,
            executors=executors or Executors(),
            stop=stop or threading.Event(),
        )

    def plan_batch(self, records: DataFrame, arrival: int | None = None, *, refresh: bool = True) -> Plan:
        """Return the plan of a batch. With `refresh` decoder and lookups are updated first. Lazy.

        Records without an arrival get `arrival`; None: they have one, or land without it.
        """
        if refresh:
            self.planner.fetch_schemas()
        return self.planner.plan_batch(records, arrival)

    def forget_released(self, blocked: dict[str, str]) -> None:
        """Replace the blocked tables, by place, by those of now: some may have been released."""
        for place in self.demands.blocked.keys() - blocked.keys():
            self.evolution.committed_batches.forget_table(place.rpartition("/")[2])
        self.demands = replace(self.demands, blocked=blocked)

    def land_and_decide(self, plan: Plan, steps: Steps, destination: Destination) -> BatchDecision:
        """Stage the rows of a batch, decide how they go into tables, and land it again if tables demand other rows.

        Raises BatchError if the destination finds a fault or a table may not change; its files are deleted then.
        """
        for _ in range(_LANDING_TRIES):
            plan, landed = self._land_batch(plan, steps)
            try:
                decision = self._decide_commits(plan, landed, steps, destination)
            except BaseException:
                self.landing.discard_files(landed)
                raise
            if decision is not None:
                return decision
            self.landing.discard_files(landed)
        raise self._batch_error(
            steps, f"tables changed {_LANDING_TRIES} times while the batch was landed; find who writes them"
        )

    def land_readable(
        self,
        records: RawRecords,
        plan: Plan,
        steps: Steps,
        destination: Destination,
        store: CheckpointStore | None = None,
    ) -> BatchDecision:
        """Do the same for a plan of some records, of which those that cannot be read become dead letters.

        They are searched for once the batch fails for no known cause, and noted in `store` before anything lands.
        """
        try:
            return self.land_and_decide(plan, steps, destination)
        except Exception as error:
            if not is_for_search(error):
                raise
            readable = self._mark_unreadable(records, plan, steps, store, error)
        return self.land_and_decide(self.plan_batch(readable, plan.arrival, refresh=False), steps, destination)

    def _mark_unreadable(
        self, records: RawRecords, plan: Plan, steps: Steps, store: CheckpointStore | None, error: Exception
    ) -> DataFrame:
        """Return the records of a batch after a failure, those that cause it with the reason in the column UNREADABLE.

        Raises the error if no such record is found.
        """
        trial = self.make_trial(steps)

        def land_records(frame: DataFrame) -> None:
            trial(self.plan_batch(frame, plan.arrival, refresh=False))

        with steps.step("search"), quiet_tasks(self.spark):
            tell = partial(steps.report_progress, "search")
            search = records.search(self.spark, self.config.source.kafka, land_records, tell)
            path = f"{UNREADABLE_FOLDER}/{store.run if store else ''}.json"
            noted = store.load(path) if store else None
            found = FoundRecords.from_json(noted) if noted and noted["batch"] == steps.batch else search.find()
            if not found.reasons:
                raise error
            if store:
                store.write(path, json.dumps({"batch": steps.batch, **found.as_json()}).encode())
            log.warning("%s, batch %d: %s", self.config.name, steps.batch, found)
            return records.shape(search.frame_with_reasons(found))

    def _land_batch(self, plan: Plan, steps: Steps) -> tuple[Plan, Landed]:
        """Land a batch. Columns of Spark on which the job fails equally each time are null on the records to blame."""
        failures: Counter[str] = Counter()
        while True:
            try:
                return self.landing.run_decoded(self.planner, plan, self.demands, steps.batch, steps.step)
            except Exception as error:
                if not is_for_search(error) or plan.nulls:
                    raise
                kind = kind_of(first_line(error))
                failures[kind] += 1
                if failures[kind] < TRIES_BEFORE_SEARCH and kind not in self.searched:
                    continue
                if kind not in self.searched:
                    what = "%s, batch %d: fails equally each time; what is to blame is searched for: %s"
                    log.warning(what, self.config.name, steps.batch, first_line(error))
                self.searched.add(kind)
                found = self._failing_columns(plan, steps)
                if not found:
                    raise
                plan = replace(plan, nulls=nulls_of(found))

    def _failing_columns(self, plan: Plan, steps: Steps) -> dict[str, dict[RecordPlace, str]]:
        trial = self.make_trial(steps)
        with steps.step("search"), quiet_tasks(self.spark):
            found = FailingColumns(plan, trial).find()
        for name, places in found.items():
            place, reason = next(iter(places.items()))
            number = re.match(r"_[a-z]+_?(\d+)", name)
            where = f"route {self.config.routes[int(number[1])].name}" if number else "an expression of bronze"
            message = "%s, batch %d: %s fails on %d records, and is null there, as if it raised: %s: %s"
            log.warning(message, self.config.name, steps.batch, where, len(places), place, reason)
        return found

    def make_trial(self, steps: Steps) -> Callable[[Plan], None]:
        """Return a function that runs the landing job of a plan without writing anything; it obeys a stop."""
        landing = replace(self.landing, only=frozenset())

        def run_plan(plan: Plan) -> None:
            if self.stop.is_set():
                raise Stopped
            landing.run(plan, self.demands, steps.batch)

        return run_plan

    def _decide_commits(
        self, plan: Plan, landed: Landed, steps: Steps, destination: Destination
    ) -> BatchDecision | None:
        """Return the decision about staged files; None if tables demand that the batch lands otherwise."""
        # Files of some tables could not be written: their rows land in the quarantine instead.
        if landed.failed:
            self._stop_on(destination.faults_of_failed_files(landed), steps)
            self.demands = replace(self.demands, blocked={**landed.failed, **self.demands.blocked})
            return None

        counted = add_up_partitions(landed.counts)
        self._stop_on(destination.faults_of_counts(plan.layout, landed, counted), steps)
        quarantined: set[str] = set()
        for partition in counted:
            quarantined.update(partition.quarantined)
        with steps.step("decide"):
            decision = self.evolution.decide_commits(
                layout=plan.layout,
                files=landed.files,
                demands=self.demands,
                batch=steps.batch,
                quarantined=quarantined,
                named=landed.tables_by_outbox,
            )
        self._stop_on(destination.faults_of_tables(decision.refused), steps)

        # Only demands on tables of this batch make it land again; the others are kept for later batches.
        demands = decision.demands
        if not destination.limits_names:
            demands = replace(demands, allowed={})
        before = self.demands
        self.demands = demands
        staged = {f"{file.target}/{file.table}" for file in landed.files}
        if before.differ_in(demands, staged | quarantined):
            log.info("%s, batch %d: landing again, as its tables require", self.config.name, steps.batch)
            return None
        return BatchDecision(plan, landed, counted, decision.commits, decision.handles)

    def _stop_on(self, faults: list[str] | tuple[str, ...], steps: Steps) -> None:
        if faults:
            raise self._batch_error(steps, f"{'; '.join(faults)}; nothing was committed")

    def _batch_error(self, steps: Steps, what: str) -> BatchError:
        return BatchError(self.config.name, steps.batch, what)
