"""Run detached sinks, each with a query of its own over its outbox, so that a slow API delays no other sink."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyarrow import fs
from pyspark.errors import StreamingQueryException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_when_event_set
from tenacity.nap import sleep_using_event

from router.api.sinks import Applied, ApplyingSink, Batch
from router.config.models import parse_interval
from router.delta.commit import has_parts
from router.delta.maintenance import delete_older
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.label.layout import outbox_of
from router.engine.outbox.apply import Applier, OutboxSink
from router.engine.outbox.retention import TIDY_SECONDS, not_parked
from router.engine.retryable_errors import GrowingPauses, RepeatedTrouble, is_temporary
from router.engine.spark.session import write_notes_directly
from router.engine.start.spark_checkpoint import SparkNotes
from router.errors import RouterError, SinkError, StartError, TableError, first_line
from router.registry import call_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from router.acceptance import Accepted
    from router.api.sinks import Opening
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.spark.executors import Executors

log = logging.getLogger("router")
OUTBOX_CHECK_SECONDS = 1.0
"""Seconds between two looks for new rows in an outbox."""
_FILES_AT_ONCE = 200
"""Files of an outbox that one batch reads, at most."""
_LONGEST_SINK_PAUSE_SECONDS = 60.0
"""Longest pause between two tries of a sink that fails, in seconds. The other sinks continue meanwhile."""
_QUERY_POLL_SECONDS = 0.2
GROWN = "DELTA_SCHEMA_CHANGED"
"""The error of Delta's source when an outbox has gained columns: a new start of the query reads them."""


_WIDENED = "spark.databricks.delta.streaming.unsafeReadOnIncompatibleSchemaChangesDuringStreamStart.enabled"
"""Lets Delta's source begin with the schema of today although it read a narrower one before: Parquet files of the
narrower one are read as the wider one."""


def detached_outboxes(config: Config) -> frozenset[str]:
    """Return the tables that detached sinks send from."""
    return frozenset(outbox_of(config.name, route, name) for route, name, _ in config.detached_sinks())


class _Stopped(Exception):  # noqa: N818 - no error
    """The end of a query before a batch that came after the order to stop; the next start processes that batch."""


@dataclass
class DetachedSink(OutboxSink):
    """One sink with a streaming query of its own over its outbox.

    `opening` is what a sink that is still closed needs to be prepared. With `once` the query ends when all rows of the
    outbox are sent, else when `stop` is set. `failed` is the error that ended it; `ended` is its last batch. `sent` is
    called with the key and the counts of each batch, `waits` with the key and why a batch failed, or an empty text once
    one has come through.
    """

    opening: Opening | None = None
    once: bool = False
    sent: Callable[[str, Applied], None] | None = None
    waits: Callable[[str, str], None] | None = None
    failed: BaseException | None = None
    began: bool = False
    ended: int | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while rows of a batch are sent."""
    tidied: float = field(default_factory=time.monotonic)
    pauses: GrowingPauses = field(default_factory=GrowingPauses)
    trouble: RepeatedTrouble = field(default_factory=RepeatedTrouble)

    def run(self) -> None:
        """Send the rows of the outbox. A failed batch is tried again, with `once` only if that may help."""
        self.pauses = GrowingPauses(_LONGEST_SINK_PAUSE_SECONDS)
        policy = Retrying(
            retry=retry_if_exception(lambda error: not self.once or is_temporary(error)),
            wait=self.pauses,
            stop=stop_when_event_set(self.stop),
            sleep=sleep_using_event(self.stop),
            before_sleep=self._log_retry,
            reraise=True,
        )
        try:
            policy(self._run_query)
            if isinstance(self.failed, _Stopped):
                self.failed = None
            if self.once and self.ended is not None:
                self.delete_sent_rows(self.ended)
        except Exception as error:
            self.failed = error
            if self.stop.is_set():
                message = "%s, %s: stopped while it could not continue: %s"
                log.warning(message, self.config.name, self.key, first_line(error))

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if GROWN in str(error):  # no failure: the next start reads the new columns
            return
        if self.waits:
            self.waits(self.key, first_line(error))
        if not self.trouble.is_new(first_line(error)):
            return
        message = "%s, %s: %s; its rows stay in the outbox, trying again in %.0f s, and then after growing pauses"
        log.warning(message, self.config.name, self.key, first_line(error), state.upcoming_sleep)

    def _run_query(self) -> None:
        self.failed = None
        if self.opening:
            self.sink = call_part(self.sink, "prepare", ApplyingSink, self.opening)
            self.opening = None
            if self.waits:
                self.waits(self.key, "")
        if not self._wait_for_outbox():
            return
        self.mend_notes()
        session = self.spark.newSession()
        session.conf.set(_WIDENED, "true")
        write_notes_directly(session, self.checkpoint.root)
        frame = session.readStream.format("delta").option("maxFilesPerTrigger", _FILES_AT_ONCE)
        # Maintenance compacts an outbox and deletes its old rows: such commits have no new rows.
        frame = frame.option("skipChangeCommits", "true")
        rows = frame.load(self.lake.spark_address(self.outbox))
        writer = rows.writeStream.queryName(f"{self.config.name}/{self.key}").foreachBatch(self._handle_batch)
        writer = writer.option("checkpointLocation", self.checkpoint.for_spark(self.place))
        if self.once:
            writer = writer.trigger(availableNow=True)
        else:
            pause = f"{max(OUTBOX_CHECK_SECONDS, self.sink.seconds_between):.3f} seconds"
            writer = writer.trigger(processingTime=pause)
        query = writer.start()
        try:
            self._follow_query(query)
        finally:
            query.stop()

    def mend_notes(self) -> None:
        """Repair Spark's notes about the query after a power cut. Raises StartError if a person has to decide."""
        notes = SparkNotes(self.checkpoint, self.place)
        begun = notes.list_batches("offsets")
        if notes.find_damage("metadata"):
            if begun:
                raise notes.make_refusal("metadata", "It says which run of the sink this is", self._recovery_hint)
            notes.mend_note("metadata", None, "the sink has got nothing, and a new run begins")
        notes.mend_commits()
        # A note can be deleted only if nothing of its batch was sent: else the batch would get other rows.
        for batch in reversed(begun):
            path = f"offsets/{batch}"
            if not notes.find_damage(path):
                return
            run = json.loads(notes.read_text("metadata") or "{}").get("id", "")
            if self._may_have_got(run, batch, notes):
                raise notes.make_refusal(
                    path, f"It says which rows are in batch {batch} of the sink", self._recovery_hint
                )
            notes.mend_note(path, None, f"the sink has got nothing of batch {batch}, and its rows are read again")

    @property
    def _recovery_hint(self) -> str:
        folder = f"{self.checkpoint.root}/{self.place}"
        again = "run with --accept duplicates to send the whole outbox again"
        return f"Restore it from a copy; or delete {folder} and {again}"

    def _may_have_got(self, run: str, batch: int, notes: SparkNotes) -> bool:
        """Return whether the sink may have got rows of a batch."""
        if batch in notes.list_batches("commits") or self.key in CheckpointStore(self.checkpoint, run).read_applied(
            batch
        ):
            return True
        owner = TransactionId("sink", f"{self.config.name}:{run}", self.route, self.name)
        return has_parts(self.lake, str(owner), batch)

    def _follow_query(self, query: StreamingQuery) -> None:
        """Return when the query has ended, or once `stop` is set and no batch runs; raise its error if it failed."""
        try:
            while not query.awaitTermination(_QUERY_POLL_SECONDS):  # type: ignore[arg-type] # it takes fractions
                if not self.stop.is_set() or self.busy.locked():
                    continue
                # Spark plans the first batches of twenty sinks for half a minute, and one that begins now ends by
                # itself. Later Spark is waited for, so that it notes the last batch as done.
                if self.ended is None or not query.status["isTriggerActive"]:
                    return
        except StreamingQueryException as error:
            if not isinstance(self.failed, _Stopped):
                failed = self.failed or error
                raise failed from failed.__cause__  # which says whether it passes

    def _wait_for_outbox(self) -> bool:
        """Wait until the outbox exists; return False if the run ends before."""
        while self.lake.open(self.outbox) is None:
            if self.once or self.stop.wait(1):
                return False
        return True

    def _handle_batch(self, events: DataFrame, number: int) -> None:
        with self.busy:
            try:
                if self.stop.is_set():
                    raise _Stopped
                self._process_batch(events, number)
            except BaseException as error:
                self.failed = error
                raise

    def _process_batch(self, events: DataFrame, number: int) -> None:
        started = time.monotonic()
        run = self.spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert run is not None  # Spark sets it for the thread of every streaming query
        owner = f"{self.config.name}:{run}"
        applier = Applier(self.lake, CheckpointStore(self.checkpoint, run), self.config.dead_letters, owner)
        # A process that was killed may have begun the first batch of this one.
        replay = not self.began
        self.began = True
        batch = Batch(
            query=self.config.name,
            id=number,
            route=self.route,
            sink=self.name,
            replay=replay,
            stop=self.stop,
            keeps=applier.kept_parts(number, self.key),
            guards=self.executors.guard_task,
        )
        counts = applier.apply_once(self.sink, events.count(), events, batch)
        self.book_counts(run, number, {"batch_id": number, **ledger.of_sink(self.key, counts)})
        if self.sent:
            self.sent(self.key, counts)
        self._log_batch(number, counts, time.monotonic() - started)
        self.ended = number
        self.pauses.note_success()
        if self.waits:
            self.waits(self.key, "")
        if self.trouble.is_over():
            log.info("%s, %s: batch %d has come through: the trouble is over", self.config.name, self.key, number)
        if time.monotonic() - self.tidied > TIDY_SECONDS:
            self.tidied = time.monotonic()
            self.delete_sent_rows(number)

    def delete_sent_rows(self, number: int) -> None:
        """Delete rows of the outbox older than `outbox_retention` that batch `number` or earlier ones have dealt with.

        Rows that the sink has parked stay.
        """
        before = datetime.now(timezone.utc) - parse_interval(self.config.outbox_retention)
        try:
            version = self._first_unsent_version(number)
            if not version:
                return
            batch = Batch(self.config.name, number, self.route, self.name)
            deletable = not_parked(self.sink, batch, self.spark, self.lake)
            deleted = delete_older(self.lake, self.outbox, before, version - 1, deletable)
            if deleted:
                log.info("%s: %d rows are older than %s", self.outbox, deleted, self.config.outbox_retention)
        except TableError as error:
            log.warning("%s", error)
        except Exception as error:  # the rows are sent, whatever is raised about old ones
            log.warning("%s: its old rows could not be deleted: %s", self.outbox, first_line(error))

    def _first_unsent_version(self, number: int) -> int | None:
        """Return the version of the outbox before which all rows are sent once batch `number` is."""
        text = self.checkpoint.read(f"{self.place}/offsets/{number}") or b"{}"
        # The first lines of the note are Spark's own; the last one is the offset of Delta's source.
        offset = json.loads(text.decode().strip().split("\n")[-1])
        if offset.get("isStartingVersion", True):
            return None
        return int(offset["reservoirVersion"])

    def _log_batch(self, number: int, counts: Applied, seconds: float) -> None:
        text = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts._asdict().items() if count)
        log.info("%s, %s: batch %d, %s, %.2f s", self.config.name, self.key, number, text or "nothing", seconds)

    @property
    def place(self) -> str:
        """Return the folder of the query's checkpoint, below the configuration's."""
        return f"detached/{self.key.replace('/', '__')}"

    @property
    def has_begun(self) -> bool:
        """Return whether the query's checkpoint has the offsets of any batch."""
        offsets = fs.FileSelector(f"{self.place}/offsets", allow_not_found=True)
        return any(entry.base_name.isdecimal() for entry in self.checkpoint.files.get_file_info(offsets))


@dataclass
class DetachedSinks:
    """All detached sinks of a configuration, each in a thread of its own."""

    sinks: tuple[DetachedSink, ...]
    threads: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        config: Config,
        spark: SparkSession,
        lake: Lake,
        checkpoint: Lake,
        stop: threading.Event,
        executors: Executors,
        closed: Mapping[str, Opening],
        *,
        once: bool,
        sent: Callable[[str, Applied], None] | None = None,
        waits: Callable[[str, str], None] | None = None,
    ) -> DetachedSinks:
        """Return the detached sinks of a configuration; `closed` has what those that are not open need for it."""
        detached = []
        for route, name, sink in config.detached_sinks():
            detached.append(
                DetachedSink(
                    config=config,
                    spark=spark,
                    lake=lake,
                    checkpoint=checkpoint,
                    stop=stop,
                    executors=executors,
                    route=route,
                    name=name,
                    sink=sink,
                    opening=closed.get(f"{route}/{name}"),
                    once=once,
                    sent=sent,
                    waits=waits,
                )
            )
        return cls(tuple(detached))

    def check_checkpoints(self, accept: Accepted) -> None:
        """Raise StartError if the ledger has sent rows of an outbox and no checkpoint says which."""
        if "duplicates" in accept:
            return
        for sink in self.sinks:
            if sink.has_begun:
                continue
            sent = ledger.count_sent_rows(sink.lake, sink.config, sink.key)
            if sent:
                raise StartError(
                    f"route {sink.route}, sink {sink.name}: {sent:,} rows of its outbox were sent before and there is "
                    f"no checkpoint {sink.checkpoint.root}/{sink.place} that says which. Restore it; or run with "
                    "--accept duplicates to send all that the outbox holds; or, if it sent within the batches, keep "
                    "`mode: inline`"
                )

    def start(self) -> None:
        """Start a thread for each sink."""
        for sink in self.sinks:
            thread = threading.Thread(target=sink.run, name=sink.key, daemon=True)
            self.threads.append(thread)
            thread.start()

    def join(self, *, quiet: bool = False) -> None:
        """Wait until all threads have ended; raise the error of the first sink that failed, and log those of others.

        `quiet` raises and logs nothing.
        """
        for thread in self.threads:
            thread.join()
        if quiet:
            return
        errors: list[RouterError] = []
        for sink in self.sinks:
            # An error that may pass is no reason to end with a failure: the next run tries again.
            if sink.failed is None or is_temporary(sink.failed):
                continue
            if isinstance(sink.failed, SinkError):
                errors.append(sink.failed)
            else:
                errors.append(StartError(f"{sink.key}: {sink.failed}"))
        for error in errors[1:]:
            log.error("%s", error)
        if errors:
            raise errors[0]
