"""Run a configuration as a streaming query until its source is drained or `stop` is set."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_when_event_set
from tenacity.nap import sleep_using_event

from router.api.parts import BatchReport, Decoder, Preparation
from router.config.models import Ui, parse_interval
from router.delta.lake import DAMAGED_LOG, Lake
from router.delta.table_cache import TableCache
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas, lake_and_checkpoint
from router.engine.commit.committers import Committers
from router.engine.dead_letter_share import DeadLetterLimit
from router.engine.deploys import note_deploy
from router.engine.label.planner import Planner
from router.engine.merge.key_checks import refuse_changed_keys
from router.engine.outbox.apply import Outboxes, open_sinks
from router.engine.outbox.detached import DetachedSinks
from router.engine.preflight.lake_changes import LakeChanges, refuse_changes, tell_changes
from router.engine.quarantine.table import waiting_places
from router.engine.reprocess.release import Release
from router.engine.retryable_errors import (
    NO_LATEST_OFFSETS,
    GrowingPauses,
    Outage,
    RepeatedTrouble,
    is_temporary,
    refusal_by_broker,
    says_lost,
)
from router.engine.source import source
from router.engine.source.consumer_group import ConsumerGroup, refuse_foreign_group
from router.engine.source.failing_records import Span
from router.engine.spark.session import is_alive, quiet_failures, quiet_gateway, write_notes_directly
from router.engine.start.checks import (
    Checkpoint,
    executors_of,
    find_starting_offsets,
    last_manifest,
    make_reachable,
    refuse_speculation,
    was_cut_off,
)
from router.engine.start.killed_repairs import clear_killed_repairs
from router.engine.start.lost_records import LostRecords
from router.engine.start.missing_topics import NO_POSITION, NO_TOPIC, refuse_missing_topics, wait_for_topics
from router.engine.start.run_lock import hold_run_lock
from router.engine.start.spark_checkpoint import CheckpointMending, SparkNotes, path_before, refuse_left_topics
from router.engine.start.spark_needs import spark_needs
from router.engine.status.api_states import ApiStates
from router.engine.status.board import StatusBoard
from router.engine.status.findings import stuck_finding
from router.engine.status.webhook import failures_reported
from router.engine.steps import Stopped
from router.engine.stream_destination import stream_batches
from router.engine.topic_ids import TopicIds
from router.engine.views.schedule import ViewSchedule, create_refresher, in_order
from router.errors import SessionLost, StartError, TableError, first_line
from router.moments import parse_moment
from router.registry import call_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.acceptance import Accepted
    from router.api.sinks import Applied
    from router.config.loader import Loaded
    from router.config.models import Config, Trigger
    from router.engine.batch import Batches
    from router.engine.spark.executors import Executors
    from router.engine.status.snapshot import StreamSnapshot
    from router.engine.steps import Watch
    from router.registry import Registry

log = logging.getLogger("router")
_QUERY_POLL_SECONDS = 0.2
_APPROVAL_CHECK_SECONDS = 5
_BACKLOG_RETRY_SECONDS = 60.0
_LONGEST_BACKLOG_RETRY_SECONDS = 600.0
"""Seconds between two tries of rows that wait for tables of upserts while no batch comes, at first and at most."""
"""Seconds between two looks for approvals while no batch is running."""
EXECUTOR_SECONDS = 30
KEPT_REPORTS = 1_000
OWN_LOG = "put it back from a copy, or see `router help storage-faults`"
"""What a person can do about the log of a table for which the stream waits."""


@dataclass
class RunOptions:
    """What one run does otherwise than its configuration says.

    `watch` sees the progress of steps; `finished` gets each report with the records behind the topic's end (None
    where the source does not say); `stop` ends the run after the current batch. With `wait_for_topic` a topic that is
    missing at the start is waited for. `status` is told what happens.
    """

    trigger: Trigger | None = None
    refresh: bool = False
    accept: Accepted = frozenset()
    wait_for_topic: bool = False
    watch: Watch | None = None
    finished: Callable[[BatchReport, int | None], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    status: StatusBoard | None = None


def run(
    loaded: Loaded, registry: Registry, spark: SparkSession, options: RunOptions | None = None
) -> list[BatchReport]:
    """Run until the source is drained (trigger once) or `stop` is set; return the last reports.

    Raises ViewError when the source is drained and a view could not be refreshed,
    StartError when it may not start, the broker refuses login or rights, or records are gone from Kafka,
    BatchError, TableError or SinkError when a batch cannot be finished, SessionLost when Spark's JVM ends, and waits
    with growing pauses while the source or the storage is unavailable.
    """
    options = options or RunOptions()
    status = options.status = options.status or StatusBoard(loaded.config.name)
    status.note_configuration(loaded.config)
    with ApiStates(loaded.config, status), failures_reported(loaded.config, status, str(loaded.path)):
        return _run_with_status(loaded, registry, spark, options, status)


def _run_with_status(
    loaded: Loaded, registry: Registry, spark: SparkSession, options: RunOptions, status: StatusBoard
) -> list[BatchReport]:
    try:
        with quiet_gateway(), status.keep_warnings():
            reports = _run_with_retries(loaded, registry, spark, options, status)
        status.enter_state("ended")
        _log_totals(status.snapshot())
        return reports
    except Exception as error:
        status.enter_state("failed", first_line(error))
        if is_alive(spark):
            refusal = refusal_by_broker(loaded.config, error)
            if refusal:
                raise refusal from error
            raise
        raise SessionLost(
            f"{loaded.config.name}: Spark has ended (its JVM was killed, or had too little memory); "
            "start again, and the run continues where it ended"
        ) from error


def _log_totals(stream: StreamSnapshot) -> None:
    """Log what a run did that has ended in order: its log must differ from that of one that was killed."""
    read = stream.records.get("read", 0)
    dead_letters = stream.records.get("dead_letters", 0)
    message = "%s: ended: %s batches, %s rows, %s dead letters, %.1f s"
    counts = [f"{count:,}" for count in (stream.finished, read, dead_letters)]
    log.info(message, stream.query, *counts, time.time() - stream.started)


def _run_with_retries(
    loaded: Loaded, registry: Registry, spark: SparkSession, options: RunOptions, status: StatusBoard
) -> list[BatchReport]:
    config = loaded.config
    lake, checkpoint = lake_and_checkpoint(config)
    tables = TableCache(lake)
    make_reachable(spark, lake, needed_for=spark_needs(config))
    make_reachable(spark, checkpoint, needed_for=("its checkpoint",))
    write_notes_directly(spark, checkpoint.root)
    trouble = RepeatedTrouble()
    retry = make_retrying(config, spark, options.stop, status, trouble=trouble)
    status.note_start_step("the lock and the check of lake and checkpoint")
    with hold_run_lock(checkpoint, config.name, options.stop.set):
        retry.copy()(refuse_foreign_group, config)
        since = retry.copy()(_mend_and_check, loaded, spark, (tables, checkpoint), options.accept)
        status.note_start_step("the decoder and its schemas")
        if options.wait_for_topic:
            try:
                retry.copy()(wait_for_topics, spark, config)
            except OSError:
                if options.stop.is_set():
                    return []
                raise
        memory = LearntSchemas(CheckpointStore(checkpoint))
        source.learn_columns(spark, config, memory)

        def sample_rows(rows: int) -> DataFrame:
            return retry.copy()(source.read_sample, spark, config, rows)

        reads_topic = config.source.reads_topic
        preparation = Preparation(loaded.path.parent, options.refresh, sample_rows, memory, config.debug, reads_topic)
        try:
            prepared = call_part(config.decode, "prepare", Decoder, preparation)
        except StartError:
            refuse_missing_topics(spark, config)  # a sample of nothing has no schema
            raise
        config = config.model_copy(update={"decode": prepared})
        if trouble.is_over():
            log.info("%s: the start no longer waits: the trouble is over", config.name)
        with ThreadPoolExecutor(1) as pool:  # Spark plans the query meanwhile; the first batch waits for it
            executors = executors_of(spark, registry, config, lake)
            probe = pool.submit(executors.check_started, spark)
            stream = _StreamRun(
                config=config,
                folder=loaded.path.parent,
                loaded=loaded,
                registry=registry,
                spark=spark,
                tables=tables,
                checkpoint=checkpoint,
                options=options,
                status=status,
                executors=executors,
                probe=probe,
                trouble=trouble,
            )
            try:
                with stream.consumer_group():
                    return stream.until_done(since)
            finally:
                if stream.topics:
                    stream.topics.close()


def _mend_and_check(
    loaded: Loaded, spark: SparkSession, at: tuple[TableCache, Lake], accept: Accepted
) -> source.Offsets | None:
    """Mend and check lake and checkpoint; return where a new checkpoint begins, None for where the file says."""
    tables, checkpoint = at
    refuse_speculation(spark.sparkContext.getConf().get("spark.speculation"), loaded.config)
    CheckpointStore(checkpoint).note_format()
    CheckpointMending(loaded.config, tables.lake, checkpoint, loaded.fingerprint).mend_notes()
    clear_killed_repairs(tables.lake, checkpoint, loaded.config.name)
    since = find_starting_offsets(spark, tables, checkpoint, loaded.config, accept)
    refuse_changed_keys(tables, CheckpointStore(checkpoint), loaded.config)
    refuse_changes(LakeChanges(loaded.config, tables, checkpoint), accept)
    refuse_left_topics(loaded.config, checkpoint)
    return since


def make_retrying(
    config: Config,
    spark: SparkSession,
    stop: threading.Event,
    status: StatusBoard,
    pauses: GrowingPauses | None = None,
    trouble: RepeatedTrouble | None = None,
) -> Retrying:
    """Return the retry policy that calls a function again, with growing pauses, after failures that pass.

    There is a line in the log for the first failure, and for one of another kind.
    """
    trouble = trouble or RepeatedTrouble()

    def log_retry(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        hint = f"; {OWN_LOG}" if isinstance(error, TableError) and DAMAGED_LOG in error.what else ""
        if trouble.is_new(first_line(error)):
            what = "%s: %s%s; trying again in %.0f s, and then after growing pauses"
            log.warning(what, config.name, first_line(error), hint, state.upcoming_sleep)
        status.enter_state("waiting", first_line(error))

    return Retrying(
        retry=retry_if_exception(lambda error: is_temporary(error) and is_alive(spark)),
        wait=pauses or GrowingPauses(),
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=log_retry,
        reraise=True,
    )


@dataclass
class _StreamRun:
    config: Config
    folder: Path
    loaded: Loaded
    registry: Registry
    spark: SparkSession
    tables: TableCache
    checkpoint: Lake
    options: RunOptions
    status: StatusBoard
    executors: Executors
    probe: Future[None]
    trouble: RepeatedTrouble
    error: BaseException | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)
    releasing: threading.Lock = field(default_factory=threading.Lock)
    looked: float = 0.0
    retried: float = -_LONGEST_BACKLOG_RETRY_SECONDS
    retry_pause: float = _BACKLOG_RETRY_SECONDS
    unreported: deque[BatchReport] = field(default_factory=deque)
    reports: deque[BatchReport] = field(default_factory=lambda: deque(maxlen=KEPT_REPORTS))
    planner: Planner | None = None
    batches: Batches | None = None
    open: bool = False
    compared: bool = False
    silent_at: str = ""
    stopped: bool = False
    detached: DetachedSinks | None = None
    group: ConsumerGroup | None = None
    views: ViewSchedule | None = None
    topics: TopicIds | None = None
    pauses: GrowingPauses = field(default_factory=GrowingPauses)

    @cached_property
    def _dead_letter_limit(self) -> DeadLetterLimit:
        """Return the limit of this run: a batch that was accepted stays so when the query begins again."""
        largest = self.config.dead_letter_options.largest_share
        return DeadLetterLimit(largest, accepts_one_batch="dead-letters" in self.options.accept)

    @property
    def lake(self) -> Lake:
        """Return the lake of the tables."""
        return self.tables.lake

    def until_done(self, begin: source.Offsets | None) -> list[BatchReport]:
        """Run the query, and again after a failure that passes: every batch can continue where it was interrupted."""
        try:
            with quiet_failures(self.spark), self._detached_sinks(), self._refresh_views():
                retry = make_retrying(
                    self.config, self.spark, self.options.stop, self.status, self.pauses, self.trouble
                )
                retry(self._run_query, begin)
                if self._runs_once and self.batches:
                    self.batches.outboxes.retention.delete_old_rows()
        except Exception as error:
            if not (self.stopped and is_temporary(error)):
                raise
            log.warning("%s: stopped while it could not continue: %s", self.config.name, first_line(error))
        # After all else is done: a view that fails holds up no batch and no sink.
        if self._runs_once and self.views:
            self.views.raise_failure()
        if self._runs_once and self.topics and self.topics.held:
            raise StartError(self.topics.describe_held())
        return list(self.reports)

    @contextmanager
    def consumer_group(self) -> Iterator[None]:
        """Commit the offsets of batches for the group of the source, if it has one; a debugging run commits none."""
        kafka = self.config.source.kafka
        if kafka is None or kafka.commit_group is None or self.config.debug:
            yield
            return
        with ConsumerGroup(self.config) as self.group:
            yield

    @contextmanager
    def _detached_sinks(self) -> Iterator[None]:
        """Run the detached sinks: together with the query, or after a query that drains its source and ends."""
        try:
            yield
            if self.detached and self._runs_once:
                self.detached.start()
        except Exception:
            self.stopped = self.options.stop.is_set()
            self.options.stop.set()
            if self.detached:
                self.detached.join(quiet=True)
            raise
        if self.detached:
            self.detached.join()

    @contextmanager
    def _refresh_views(self) -> Iterator[None]:
        """Refresh views: together with the query, or after a query that drains its source and ends."""
        store = CheckpointStore(self.checkpoint)
        by = create_refresher(self.config, self.spark, self.lake, store, self.executors)
        self.views = ViewSchedule(by, in_order(self.config.views), observer=self.status)
        tell_changes(self.config, LakeChanges(self.config, self.tables, self.checkpoint).changed_views(by))
        drained = False
        try:
            yield
            drained = self._runs_once and not self.options.stop.is_set()
        finally:
            self.views.end_thread(refresh=drained)

    def _run_query(self, begin: source.Offsets | None) -> None:
        self.error, self.batches = None, None  # a query that starts again has a session of its own
        self.status.note_start_step("the sinks and the lookups")
        if not self.open:  # within the retries: they wait for a source that is unavailable
            self._open_sinks()
            self.open = True
        if self.topics is None:
            by_ledger = begin is not None
            self.topics = TopicIds.of(self.spark, self.config, self.lake, self.checkpoint, by_ledger=by_ledger)
        self._release_rows()
        self.planner = self.planner or Planner(
            self.config, self.config.decode, memory=self._learnt_schemas, at_start=True
        )
        self.planner.check_routes()
        self.planner.lookups.load_missing(self.spark)  # waits for a table that is unavailable, before anything is read
        query = self._start_query(begin)
        if not self.trouble.kind:  # else each try would have this line
            log.info("%s: reading %s", self.config.name, source.display_name(self.config))
        self.status.enter_state("running")
        try:
            self.planner.prepare_stages(self.spark)  # while Spark starts the query and asks for offsets
            self._tell_changed_types()
            self._wait_for_executors()
            if self.views and not self._runs_once:
                self.views.start_thread()
            self._follow_query(query)
        except Exception as error:
            self._end_query(query)
            if NO_TOPIC in str(error):
                self._explain_missing_topics()
            if not (self._pass_over(error) or self._failed_after_its_batch(error)):
                raise
            self._run_query(begin)
            return
        self._end_query(query)  # not after a KeyboardInterrupt: it does not wait for the current batch

    def _failed_after_its_batch(self, error: Exception) -> bool:
        """Return whether Spark could only not tell the progress of a batch that was cut off, and has now ended.

        Spark 4.1 wants to know how far it is behind Kafka, which it did not ask for this batch (SPARK-57438).
        """
        return self.batches is not None and self.error is None and NO_LATEST_OFFSETS in str(error)

    def _open_sinks(self) -> None:
        """Prepare the sinks; a detached one that cannot be is tried again by its own query, and nothing else waits.

        One that refuses a configuration which is new is a mistake of that, and ends the start.
        """

        def may_wait(error: Exception) -> bool:
            if isinstance(error, OSError):
                return True
            with suppress(StartError):  # the manifest of a batch that has ended may be damaged
                newest = last_manifest(self.checkpoint)
                return newest is not None and newest.config == self.loaded.fingerprint
            return True

        self.config, closed = open_sinks(
            self.config,
            self.spark,
            self.folder,
            self._learnt_schemas,
            trial=self.config.debug,
            may_wait=may_wait,
        )
        about = self.config, self.spark, self.lake, self.checkpoint, self.options.stop, self.executors
        self.detached = DetachedSinks.of(
            *about, closed, once=self._runs_once, sent=self.status.note_sent, waits=self.status.sink_waits
        )
        self.detached.check_checkpoints(self.options.accept)
        if not self._runs_once:
            self.detached.start()

    def _tell_changed_types(self) -> None:
        """Log once how the columns of the next batches differ from those of the tables with one name."""
        if self.compared or self.planner is None or self.planner.stages is None:
            return
        self.compared = True
        layout = self.planner.stages.labelling.layout
        # Handles of its own: the first batch may use those of the run at the same time.
        changes = LakeChanges(self.config, TableCache(self.lake), self.checkpoint)
        tell_changes(self.config, changes.changed_types(layout, named_by_rows=False))

    def _explain_missing_topics(self) -> None:
        """Raise StartError if a topic is missing at the start; OSError, which is tried again, if it went later."""
        if self.reports or self.options.wait_for_topic:
            wait_for_topics(self.spark, self.config)
        else:
            refuse_missing_topics(self.spark, self.config)

    def _wait_for_executors(self) -> None:
        """Wait until the executors that are there were checked; warn if a cluster gives none, as Spark does not."""
        if self.executors.check.lake and not wait([self.probe], EXECUTOR_SECONDS).done:
            what = "no executor has taken a task for %d s: has the cluster cores and memory free for it?"
            log.warning(f"%s: {what}", self.config.name, EXECUTOR_SECONDS)
        self.probe.result()

    def _start_query(self, begin: source.Offsets | None) -> StreamingQuery:
        frame, trigger = source.open_stream(self.spark, self.config, begin), self._trigger
        writer = frame.writeStream.queryName(self.config.name).foreachBatch(self._handle_batch)
        writer = writer.option("checkpointLocation", self.checkpoint.for_spark("spark"))
        if trigger.once:
            writer = writer.trigger(availableNow=True)
        elif trigger.every:
            millis = max(1, round(parse_interval(trigger.every).total_seconds() * 1000))
            writer = writer.trigger(processingTime=f"{millis} milliseconds")  # Spark knows neither `ms` nor `1.5 s`
        return writer.start()

    def _pass_over(self, error: Exception) -> bool:
        """Leave out what is gone from Kafka, if a query ended for that; return whether it can continue.

        Raises StartError if records are gone and that was not accepted.
        """
        is_lost = says_lost(error)
        if not is_lost and NO_POSITION not in str(error):
            return False
        gone = LostRecords(self.spark, self.lake, self.checkpoint, self.config, self._committers)
        passed_over = gone.pass_over(accepted=is_lost and "lost-records" in self.options.accept)
        if is_lost and not passed_over:
            raise gone.make_start_error(error) from error
        for sentence in passed_over:
            log.warning("%s: %s", self.config.name, sentence)
        return bool(passed_over)

    @property
    def _learnt_schemas(self) -> LearntSchemas:
        return LearntSchemas(CheckpointStore(self.checkpoint))

    @property
    def _committers(self) -> Committers:
        return Committers.of(self.config, self.spark, self.lake)

    @property
    def _trigger(self) -> Trigger:
        return self.options.trigger or self.config.trigger

    @property
    def _runs_once(self) -> bool:
        return self._trigger.once

    def _follow_query(self, query: StreamingQuery) -> None:
        """Return when the query has ended, or between two batches once `stop` is set; raise its error if it failed."""
        outage = Outage(self.config, self.status.enter_state)
        try:
            while not query.awaitTermination(_QUERY_POLL_SECONDS):  # type: ignore[arg-type] # it takes fractions
                if self.options.stop.is_set() and not self.busy.locked():
                    return
                self._report_batches(query)
                if not self.busy.locked():
                    self.status.note_alive()
                if time.monotonic() > self.looked + _APPROVAL_CHECK_SECONDS and not self.busy.locked():
                    self._release_rows()
                outage.watch_query(query, busy=self.busy.locked())
                self._tell_silence()
        except StreamingQueryException as error:
            if not isinstance(self.error, Stopped):
                failed = self.error or error
                raise failed from failed.__cause__  # which says whether it passes

    def _tell_silence(self) -> None:
        """Log once for each step that it takes longer than a stream should."""
        snapshot = self.status.snapshot()
        longest = parse_interval((self.config.ui or Ui()).stuck_after).total_seconds()
        finding = stuck_finding(snapshot, longest, time.time())
        if finding is not None and self.silent_at != snapshot.place:
            message = "%s: %s If it has to end, Ctrl-C or SIGTERM ends it all the same"
            log.warning(message, self.config.name, finding.text)
            self.silent_at = snapshot.place

    def _release_rows(self) -> None:
        """Release quarantined rows that are approved, and merge rows that wait, while no batch is running."""
        self.looked = time.monotonic()
        if not self.releasing.acquire(blocking=False):
            return  # a batch has just begun; it does the same at its end
        try:
            store = CheckpointStore(self.checkpoint)
            about = self.lake, store, self._committers, self.executors
            released = Release(self.config, self.spark, *about, self._deliver_released).idle()
            if self._merge_backlogs() or released:
                waiting = waiting_places(self.config, store)
                self.status.note_blocked({place: backlog.why for place, backlog in waiting.items()})
        finally:
            self.releasing.release()

    def _merge_backlogs(self) -> bool:
        """Merge rows that wait for tables of upserts if it is time to; say whether there were any.

        Not if a batch was cut off: it merges them. A table may be mended while no batch comes.
        """
        if self.config.debug or time.monotonic() < self.retried + self.retry_pause:
            return False
        outboxes = self._make_outboxes()
        pending = outboxes.with_backlogs()
        # Whether a batch was cut off is asked last: that opens the ledger.
        is_due = bool(pending) and not was_cut_off(self.lake, outboxes.store, self.config)
        if is_due:
            outboxes.merge_backlogs(pending)
        self.retry_pause = (
            min(2 * self.retry_pause, _LONGEST_BACKLOG_RETRY_SECONDS) if is_due else _BACKLOG_RETRY_SECONDS
        )
        self.retried = time.monotonic()
        return is_due

    def _deliver_released(self, key: str, query: str, last: int, rows: DataFrame) -> Applied | None:
        """Give rows of an outbox that left the quarantine to their sink, while no batch is running."""
        return self._make_outboxes().deliver_released(key, query, last, rows)

    def _make_outboxes(self) -> Outboxes:
        """Return the sinks with outboxes, for rows that are in no batch of this process."""
        of_run = f"{self.config.name}:{Checkpoint.read(self.checkpoint).run}"
        store = CheckpointStore(self.checkpoint)
        about = self.lake, store, of_run, self._committers, self.options.stop, self.executors
        return Outboxes(self.config, self.spark, *about)

    def _end_query(self, query: StreamingQuery) -> None:
        """Stop the query between two batches, and report the last ones."""
        with self.busy:
            query.stop()
        if self.batches:
            self.batches.destination.close(finish=self._runs_once)
        self._report_batches(query, last=True)

    def _handle_batch(self, raw: DataFrame, batch: int) -> None:
        # Never wait here: who holds the lock is stopping the query, which ends when this call has returned.
        free = self.busy.acquire(blocking=False)
        try:
            if not free or self.options.stop.is_set():
                raise Stopped
            if self.batches is None:
                self.batches = self._make_batches(raw)
                if not self.config.debug:
                    note_deploy(self.loaded, self.batches.store, self.lake, self.batches.ordinal, batch)
            records = source.read_batch(raw, self.config, self._learnt_schemas, batch, self.batches.numbers)
            with self.releasing:
                report = self.batches.process(records, batch)
            self.pauses.note_success()
            if self.trouble.is_over():
                log.info("%s: batch %d has come through: the trouble is over", self.config.name, batch)
            self.status.note_report(report)
            self.reports.append(report)
            self.unreported.append(report)
            self.registry.notify_observers(report)
        except BaseException as error:
            self.error = error
            raise
        finally:
            if free:
                self.busy.release()

    def _make_batches(self, raw: DataFrame) -> Batches:
        self.probe.result()
        run = self.spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert run is not None  # Spark sets it for the thread of every streaming query
        return stream_batches(
            self.config,
            self.loaded.fingerprint,
            raw.sparkSession,
            self.lake,
            CheckpointStore(self.checkpoint, run),
            self._watch_step,
            self.options.stop,
            planner=self.planner,
            executors=self.executors,
            opened=self.tables,
            views=self.views,
            dead_letter_limit=self._dead_letter_limit,
            status=self.status,
            topics=self.topics,
            spans=self._spans_of_batch if self.config.source.kafka else None,
        )

    def _spans_of_batch(self, batch: int) -> tuple[Span, ...]:
        """Return the records of a batch that has begun, by Spark's notes. Partitions without new ones are left out."""
        kafka = self.config.source.kafka
        assert kafka is not None
        notes = SparkNotes(self.checkpoint)
        begins = notes.read_offsets(path_before(batch))
        ends = notes.read_offsets(f"offsets/{batch}")
        # A partition that is new begins with its first record.
        first = source.retained_offsets(self.spark, kafka, ends)
        spans = []
        for topic, numbers in ends.items():
            for number, end in numbers.items():
                begin = begins.get(topic, {}).get(number)
                if begin is None:
                    begin, _ = first.get(topic, {}).get(number, (end, end))
                if begin < end:
                    spans.append(Span(topic, number, begin, end))
        return tuple(spans)

    def _watch_step(self, batch: int, step: str, done: int, of: int) -> None:
        self.status.note_batch_step(batch, step, done, of)
        if self.options.watch:
            self.options.watch(batch, step, done, of)

    def _report_batches(self, query: StreamingQuery, *, last: bool = False) -> None:
        """Report finished batches, with the lag that Spark's progress knows a moment later."""
        if not self.unreported:
            return
        progresses = [json.loads(progress.json) for progress in query.recentProgress]
        if progresses:
            self._tell_source(progresses[-1])
        behind = {progress["batchId"]: _records_behind(progress) for progress in progresses}
        while self.unreported and (last or self.unreported[0].batch in behind):
            report = self.unreported.popleft()
            if self.options.finished:
                self.options.finished(report, behind.get(report.batch))

    def _tell_source(self, progress: dict[str, Any]) -> None:
        """Note how far each partition of a topic is processed, and where it ended when Spark last asked."""
        if self.config.source.kafka is None:
            return
        positions: dict[tuple[str, int], int] = {}
        ends: dict[tuple[str, int], int] = {}
        for entry in progress["sources"]:
            positions |= _by_partition(entry["endOffset"])
            ends |= _by_partition(entry["latestOffset"])
        read = parse_moment(progress["timestamp"])
        self.status.source_is_at(positions, ends, read.timestamp())
        if self.group:
            self.group.commit(positions)


def _by_partition(offsets: dict[str, dict[str, int]] | None) -> dict[tuple[str, int], int]:
    """Return offsets of Kafka, as the JSON of Spark's progress has them, by topic and partition.

    Of a batch that is run again Spark does not know the newest offsets: they are None.
    """
    by_partition: dict[tuple[str, int], int] = {}
    for topic, by_number in (offsets or {}).items():
        for number, offset in by_number.items():
            by_partition[topic, int(number)] = offset
    return by_partition


def _records_behind(progress: dict[str, Any]) -> int | None:
    """Return how many records of Kafka came after a batch; None for other sources, and if Spark does not know."""
    behind: int | None = None
    for entry in progress["sources"]:
        # Only Kafka has this metric.
        if "maxOffsetsBehindLatest" not in (entry.get("metrics") or {}):
            continue
        positions = _by_partition(entry["endOffset"])
        behind = behind or 0
        for partition, end in _by_partition(entry["latestOffset"]).items():
            behind += max(0, end - positions.get(partition, 0))
    return behind
