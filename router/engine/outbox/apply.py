"""Give the rows of each outbox to its sink after the batch is committed; prepare sinks before the first batch."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from delta.tables import DeltaTable
from pyarrow import fs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.api.columns import quote_identifier, row
from router.api.sinks import Applied, ApplyingSink, Batch, MergingSink, Opening, Outcome
from router.delta.commit import StagedParts, TableCommit, retry_on_conflict, to_delta
from router.delta.replace_by_spark import CONFLICTS, append_by_spark, staged_rows
from router.delta.staged_files import staged_file
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.checkpoint_store import REPLAY_PREFIX, LearntSchemas, Manifest
from router.engine.commit.committers import Committers
from router.engine.json_rows import from_json
from router.engine.label.layout import COORDINATES, outbox_of
from router.engine.label.planner import Planner
from router.engine.merge.backlog import BacklogStore
from router.engine.merge.coordinator import MergeCoordinator, OutboxRows
from router.engine.outbox.retention import OutboxRetention
from router.engine.spark.executors import Executors, refusal_by_executors
from router.errors import RouterError, SinkError, StartError, TableError, first_line
from router.own_names import KEY, OFFSET, OUTBOX, PARTITION, STAGING, TIMESTAMP, TOPIC
from router.record import RECORD_SCHEMA
from router.registry import call_part
from router.spark_internals import to_spark_columns
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.api.parts import Memory
    from router.api.sinks import Parts, Sink
    from router.config.models import Config, Route
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.label.layout import Layout, Target
    from router.engine.steps import Steps

log = logging.getLogger("router")
REPLAYED = "replayed"
"""The column of dead letters with the name of the replay that took them."""
_DEAD_LETTER_KEY = (
    *("stage", "reason", "route", "sink"),
    *("topic", "partition", "offset", "timestamp", "key", "value", "batch_id"),
)
"""The columns that identify a dead letter."""
_APPEND_TRIES = 10
_APPEND_WAIT_SECONDS = 0.02
"""Seconds to wait at most before the second try."""


class OpenedSinks(NamedTuple):
    """A configuration with its sinks prepared; `closed` has by route/sink what detached ones need to prepare later."""

    config: Config
    closed: dict[str, Opening]


class AppliedBatch(NamedTuple):
    """What the sinks of a batch did: counts by route/sink, and the tables that were merged into, each with its sink."""

    counts: dict[str, Applied]
    merged: dict[str, str]


@dataclass
class Outboxes:
    """The sinks of a query that apply or merge the rows of their outbox. `resending` is the name of a replay."""

    config: Config
    spark: SparkSession
    lake: Lake
    store: CheckpointStore
    query: str
    committers: Committers
    stop: threading.Event = field(default_factory=threading.Event)
    executors: Executors = field(default_factory=Executors)
    resending: str | None = None

    def __post_init__(self) -> None:
        config = self.config
        self.applier = Applier(self.lake, self.store, config.dead_letters, self.query, sends=not config.debug)
        self.merger = MergeCoordinator(
            query=self.query,
            lake=self.lake,
            spark=self.spark,
            store=self.store,
            committers=self.committers,
            options=config.landing,
            dead_letters=config.dead_letters,
            ledger=config.ledger,
            executors=self.executors,
        )
        self.sinks: dict[str, Sink] = {f"{route}/{name}": sink for route, name, sink in config.all_sinks()}
        self.retention = OutboxRetention(config, self.lake, self.store, self.committers)

    def apply_batch(self, layout: Layout, manifest: Manifest, steps: Steps, *, replay: bool) -> AppliedBatch:
        """Give each sink its rows of a batch, unless it has applied them before."""
        targets = {target.key: target for target in layout.targets if target.outbox}
        counts: dict[str, Applied] = {}
        self.merger.tables.clear()
        before = self.store.read_applied(manifest.batch) if targets else {}
        for work in manifest.commits:
            if work.note_key in manifest.quarantined:
                continue
            target = targets.get(work.target)
            if target is not None:
                steps.report_progress(f"apply {target.key}", 0, 1)  # which one, if it takes long
                counts[target.key] = before.get(target.key) or self._apply_commit(target, work, manifest, replay)
                self.committers.delete_applied_files(work)
            # The batch was decided under a configuration that still had the sink.
            elif work.target in manifest.targets and work.table.startswith(OUTBOX):
                outcome = f"its {work.rows} events stay in {work.table}"
                message = "%s, batch %d: no sink %s any more; %s"
                log.warning(message, self.config.name, work.version, work.target, outcome)
        if self.applier.sends:
            self.retention.after_batch(target for target in targets.values() if not self._is_detached(target.key))
        return AppliedBatch(counts, dict(self.merger.tables))

    def with_backlogs(self) -> set[str]:
        """Return the keys of the upserts with rows that wait for tables."""
        pending = set()
        for key, sink in self.sinks.items():
            if isinstance(sink, MergingSink) and BacklogStore(self.store, key).is_pending():
                pending.add(key)
        return pending

    def merge_backlogs(self, pending: set[str]) -> None:
        """Merge the rows that wait for tables of some upserts, while no batch is under way: see `merge_backlog`."""
        for target in layout_of(self.config, self.spark, LearntSchemas(self.store)).targets:
            if target.key not in pending or not target.outbox:
                continue
            sink = self.sinks[target.key]
            assert isinstance(sink, MergingSink)
            try:
                self.merger.merge_backlog(sink, target)
            except Exception as error:  # the stream must not stop for rows that wait
                text = "%s: the rows that wait for tables of %s cannot be merged now, they are with the next batch: %s"
                log.warning(text, self.config.name, target.key, first_line(error))

    def waiting_reasons(self) -> dict[str, str]:
        """Return why rows of this process's batches wait for tables of upserts, by place."""
        places = {}
        for key, backlog in self.merger.waiting.items():
            for table, of_table in backlog.items():
                places[f"{key}/{table}"] = of_table.why
        return places

    def unapplied_commits(self, manifest: Manifest) -> list[TableCommit]:
        """Return the commits of a batch whose staged files a sink still has to read."""
        applied = self.store.read_applied(manifest.batch)
        waiting = {key for key in self.sinks if not self._is_detached(key)} - applied.keys()
        unapplied = []
        for work in manifest.commits:
            if work.table.startswith(OUTBOX) and work.target in waiting and work.note_key not in manifest.quarantined:
                unapplied.append(work)
        return unapplied

    def deliver_released(self, key: str, query: str, last: int, rows: DataFrame) -> Applied | None:
        """Give rows of an outbox that left the quarantine to their sink, once.

        `rows` are those of a query's batches up to the last, as the quarantine has them. They are appended to the
        outbox under the id of the release. Returns the sink's counts, or None for a detached sink, which reads the
        outbox itself. Raises TableError while the outbox cannot take the rows.
        """
        layout = layout_of(self.config, self.spark, LearntSchemas(self.store))
        target = next((target for target in layout.targets if target.key == key and target.outbox), None)
        if target is None or target.table is None:
            raise TableError(key, "the configuration has no such sink any more")
        # A run of its own: the mark of the release must not be taken for that of a batch of this run.
        run = f"{REPLAY_PREFIX}{query.rpartition(':')[2]}"
        store = replace(self.store, run=run)
        applied = store.read_applied(last).get(key)
        if applied is not None:
            return applied
        work = self._stage_rows(target, query, last, from_json(rows, to_spark_columns(target.schema, ntz=True)))
        notes = {"router.released": query, "router.up_to_batch": str(last)}
        self.committers.commit_all((work,), {}, notes)
        if self._is_detached(key):
            self.committers.delete_applied_files(work)
            return None
        released = replace(self, query=f"{self.config.name}:{run}", store=store, resending=run)
        manifest = Manifest(batch=last, config="", targets=(key,), commits=(work,), partitions=())
        counts = released._apply_commit(target, work, manifest, replay=False)
        self.committers.delete_applied_files(work)
        return counts

    def _stage_rows(self, target: Target, query: str, last: int, rows: DataFrame) -> TableCommit:
        """Stage rows of an outbox in files; return their commit."""
        assert target.table is not None  # an outbox has a name of its own
        folder = f"{STAGING}/{self.config.name}/released/{uuid.uuid4().hex}"
        rows.write.parquet(self.lake.for_spark(folder))
        files = []
        for info in self.lake.files.get_file_info(fs.FileSelector(folder)):
            if info.path.endswith(".parquet"):
                files.append(staged_file(self.lake, target.key, target.table, info.path))
        app_id = str(TransactionId("unblock", query, target.route, target.sink, target.table))
        return TableCommit(
            target=target.key,
            table=target.table,
            app_id=app_id,
            version=last,
            files=tuple(files),
            columns=to_delta(target.schema),
        )

    def _is_detached(self, key: str) -> bool:
        sink = self.sinks[key]
        return isinstance(sink, ApplyingSink) and sink.detached

    def _apply_commit(self, target: Target, work: TableCommit, manifest: Manifest, replay: bool) -> Applied:
        sink = self.sinks[target.key]
        if self._is_detached(target.key) and self.applier.sends:
            return Applied()  # its own query reads them from the outbox
        events = staged_rows(self.spark, self.lake, work)
        if isinstance(sink, MergingSink):
            rows = OutboxRows(target, work, events, manifest.partitions, manifest.commit_notes(self.query))
            return self.merger.merge_outbox(sink, rows)
        assert isinstance(sink, ApplyingSink)  # others have no outbox
        batch = Batch(
            query=self.config.name,
            id=work.version,
            route=target.route,
            sink=target.sink,
            replay=replay,
            stop=self.stop,
            keeps=self.applier.kept_parts(work.version, target.key),
            resending=self.resending,
            guards=self.executors.guard_task,
        )
        return self.applier.apply_once(sink, work.rows, events, batch)


@dataclass(frozen=True)
class Applier:
    """The applying sinks of a query, each given a batch once. `run` is the query with its run.

    `sends` is False for a test and a debugging run: rows stay in their outbox, and count as applied.
    """

    lake: Lake
    store: CheckpointStore
    dead_letters: str
    run: str
    sends: bool = True

    def apply_once(self, sink: ApplyingSink, rows: int, events: DataFrame, batch: Batch) -> Applied:
        """Give the rows of a batch to its sink, unless that was done."""
        key = f"{batch.route}/{batch.sink}"
        before = self.store.read_applied(batch.id).get(key)
        if before:
            return before
        if not self.sends:
            return Applied(rows)
        counts = self._call_sink(sink, rows, events, batch)
        self.store.mark_applied(batch.id, key, counts)
        return counts

    def kept_parts(self, batch: int, key: str) -> Callable[[str], Parts]:
        """Return the parts in which a sink keeps its own rows of a batch."""
        return kept_parts(self.lake, str(TransactionId("sink", self.run, *key.split("/"))), batch)

    def _call_sink(self, sink: ApplyingSink, rows: int, events: DataFrame, batch: Batch) -> Applied:
        """Call a sink with the rows of a batch; store the dead letters that it returns, and check its counts."""
        try:
            outcome: Any = sink.apply(events, batch)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            sink_error = SinkError(batch.query, batch.id, batch.route, batch.sink, problem)
            raise refusal_by_executors(error) or sink_error from error
        if not isinstance(outcome, Outcome):
            problem = f"apply() returned {type(outcome).__name__}; it must return an Outcome"
            raise SinkError(batch.query, batch.id, batch.route, batch.sink, problem)
        dead = 0
        if outcome.refused is not None:
            dead = append_dead_letters(outcome.refused, events, batch, self.lake, self.dead_letters, self.run)
        counts = Applied(outcome.applied, dead, outcome.parked, outcome.in_doubt)
        if counts.finished_rows != rows:
            parked = f" and {counts.parked} parked" if counts.parked else ""
            problem = f"{rows} rows landed, but {counts.applied} applied and {dead} refused{parked} were reported"
            raise SinkError(batch.query, batch.id, batch.route, batch.sink, problem)
        return counts


@dataclass
class OutboxSink:
    """One applying sink and its outbox, for rows that are sent in no batch of the router."""

    config: Config
    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    stop: threading.Event
    executors: Executors
    route: str
    name: str
    sink: ApplyingSink

    @property
    def key(self) -> str:
        """Return route/sink."""
        return f"{self.route}/{self.name}"

    @property
    def outbox(self) -> str:
        """Return the name of the outbox that rows are sent from."""
        return outbox_of(self.config.name, self.route, self.name)

    def book_counts(self, run: str, version: int, counts: dict[str, Any]) -> None:
        """Write the counts of rows into the ledger, once for each version of a run."""
        app_id = str(TransactionId("ledger", f"{self.config.name}:{run}"))
        entry = ledger.LedgerEntry(self.config.ledger, app_id, version)
        row = {"query": self.config.name, "run": run, **counts}
        ledger.append(Committers.of(self.config, self.spark, self.lake), entry, [row])


def kept_parts(lake: Lake, owner: str, batch: int) -> Callable[[str], Parts]:
    """Return the parts in which a sink keeps its own rows of a batch; `owner` is the transaction id of the sink."""
    notes = {"router.sink": owner, "router.sink_batch": str(batch)}
    return lambda table: StagedParts(lake, table, owner, batch, notes)


def append_dead_letters(refused: DataFrame, events: DataFrame, batch: Batch, lake: Lake, table: str, run: str) -> int:
    """Append refused rows to the dead letters, once; the record itself is in bronze under the same coordinates."""
    columns = [name for name in events.columns if name not in COORDINATES]
    dead = refused.select(
        F.lit(Stage.APPLY.value).alias("stage"),
        F.col("reason"),
        F.lit(batch.route).alias("route"),
        F.lit(batch.sink).alias("sink"),
        F.col(KEY).alias("key"),
        F.to_json(row(columns)).cast("binary").alias("value"),
        F.col(TOPIC).alias("topic"),
        F.col(PARTITION).alias("partition"),
        F.col(OFFSET).alias("offset"),
        F.col(TIMESTAMP).alias("timestamp"),
        F.lit(batch.id if batch.resending is None else None).cast("long").alias("batch_id"),
    ).persist()  # fmt: skip
    try:
        count = dead.count()
        if count:
            once = TransactionId("sink_refusals", run, batch.route, batch.sink).to_transaction(batch.id)
            # Queries of other sinks append at the same time, and the first of all makes the table.
            append = partial(append_by_spark, dead, lake.spark_address(table), once)
            retry_on_conflict(append, CONFLICTS, _APPEND_TRIES, _APPEND_WAIT_SECONDS)
    finally:
        dead.unpersist()
    return count


def mark_replayed(taken: DataFrame, lake: Lake, config: Config, name: str, number: int) -> None:
    """Write the name of a replay into the dead letters that it took, once for each number.

    Adds the column if it is not there. Raises TableError if conflicts with the stream do not end.
    """
    if taken.isEmpty():
        return
    # A session of its own: Delta takes the transaction id of a MERGE from the session's settings.
    session = taken.sparkSession.newSession()
    app = TransactionId("replayed", f"{config.name}:{name}", part=str(number))
    session.conf.set("spark.databricks.delta.write.txnAppId", str(app))
    session.conf.set("spark.databricks.delta.write.txnVersion", "0")

    address = lake.spark_address(config.dead_letters)
    is_same_letter = [f"t.{column} <=> s.{column}" for column in _DEAD_LETTER_KEY]
    condition = " AND ".join([*is_same_letter, f"t.{REPLAYED} IS NULL"])
    letters = taken.select(*_DEAD_LETTER_KEY).distinct().alias("s")

    def mark_letters() -> None:
        if REPLAYED not in session.read.format("delta").load(address).columns:
            session.sql(f"ALTER TABLE delta.{quote_identifier(address)} ADD COLUMNS ({REPLAYED} STRING)")
        merger = DeltaTable.forPath(session, address).alias("t").merge(letters, condition)
        merger.whenMatchedUpdate(set={REPLAYED: F.lit(name)}).execute()

    try:
        # The stream appends meanwhile.
        retry_on_conflict(mark_letters, CONFLICTS, _APPEND_TRIES, _APPEND_WAIT_SECONDS)
    except Exception as error:
        problem = f"what was sent could not be marked: {first_line(error)}"
        raise TableError(config.dead_letters, problem) from error


def layout_of(config: Config, spark: SparkSession, memory: Memory) -> Layout:
    """Return the layout of the batches of a configuration, whose decoder is prepared, in `memory`. No job runs."""
    records = spark.createDataFrame([], RECORD_SCHEMA)
    return Planner(config, config.decode, memory=memory, quiet=True).plan_batch(records).layout


def wants_opening(sink: Sink) -> bool:
    """Return whether a sink has to be prepared before the stream starts."""
    return isinstance(sink, ApplyingSink) and type(sink).prepare is not ApplyingSink.prepare


def open_sinks(
    config: Config,
    spark: SparkSession,
    folder: Path,
    memory: Memory,
    *,
    trial: bool = False,
    may_wait: Callable[[Exception], bool] = lambda error: False,
) -> OpenedSinks:
    """Prepare the sinks of a configuration, whose decoder must be prepared already, in `memory`. No job runs.

    With `trial` they change nothing. A detached sink with an error that `may_wait` stays closed. Raises StartError with
    route and sink, and OSError if a service is unavailable: try again later.
    """
    closed: dict[str, Opening] = {}
    if not any(wants_opening(sink) for route in config.routes for sink in route.sinks):
        return OpenedSinks(config, closed)
    decoder = config.decode.refresh(frozenset())
    config = config.model_copy(update={"decode": decoder})
    layout = layout_of(config, spark, memory)

    routes = []
    for route in config.routes:
        openings = {sink: Opening(folder, frame, trial) for sink, frame in _empty_frames(layout, route, spark)}
        sinks: list[Sink] = []
        for name, sink in route.named_sinks.items():
            if not wants_opening(sink):
                sinks.append(sink)
                continue
            try:
                sinks.append(call_part(sink, "prepare", ApplyingSink, openings[name]))
            except (RouterError, OSError) as error:
                if isinstance(sink, ApplyingSink) and sink.detached and may_wait(error):
                    closed[f"{route.identity}/{name}"] = openings[name]
                    sinks.append(sink)
                elif isinstance(error, RouterError):
                    raise StartError(f"route {route.name}, sink {name}: {error}") from error
                else:
                    raise
        routes.append(route.model_copy(update={"sinks": tuple(sinks)}))
    return OpenedSinks(config.model_copy(update={"routes": tuple(routes)}), closed)


def _empty_frames(layout: Layout, route: Route, spark: SparkSession) -> Iterator[tuple[str, DataFrame]]:
    """Yield an empty frame for each outbox of a route."""
    for target in layout.targets:
        if target.outbox and target.route == route.identity:
            kinds = to_spark_columns(target.schema, ntz=True)
            yield target.sink, spark.createDataFrame([], kinds)
