"""Send parked rows and dead letters of a sink that keeps them again: a part of `router replay`.

A replay is not a batch: it reads rows of many batches from the outbox, and its receipts and its row in the ledger have
a name in place of a batch number. Before it sends anything, it writes its name, filter and table versions into the
checkpoint's store. If a replay was killed, the next one first sends the same rows again under the same name, so that
the ledger has what became of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router.api.sinks import ApplyingSink, Batch, Opening
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.label.layout import COORDINATES
from router.engine.outbox.apply import OutboxSink, append_dead_letters, kept_parts, mark_replayed
from router.engine.reprocess.records import delta_rows
from router.engine.reprocess.run import NamedRun
from router.engine.spark.executors import refusal_by_executors
from router.errors import RouterError, SinkError, StartError
from router.record import PLACE
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from router.api.sinks import Resent
    from router.config.models import Config
    from router.delta.lake import Lake

_PLACE = tuple(COORDINATES.items())[:3]
"""The columns of an outbox that identify a row, and their names in the receipts."""


@dataclass(frozen=True)
class ReplayFilter:
    """The choice of rows to send again: by status, by time, and dead ones by the API's answer code.

    `since` is in seconds since 1970. Without `codes` all codes are chosen.
    """

    statuses: tuple[str, ...] = ("parked", "dead")
    codes: tuple[int, ...] = ()
    since: float | None = None

    def holds(self) -> Column:
        """Return a boolean column: the filter chooses the row."""
        is_dead = F.col("status") == "dead"
        if self.codes:
            is_dead &= F.col("code").isin(*self.codes)
        condition = F.lit(False)
        if "parked" in self.statuses:
            condition |= F.col("status") == "parked"
        if "dead" in self.statuses:
            condition |= is_dead
        if self.since is not None:
            condition &= F.col("at").cast("double") >= self.since
        return condition


@dataclass(frozen=True)
class ReplayGroup:
    """The number of rows of one status and code: those in the outbox, and those `gone` from it.

    `calls` is how many calls the rows take at most. `oldest` and `newest` are times in seconds since 1970, `reason` is
    that of the newest row.
    """

    status: str
    code: int | None
    rows: int
    calls: int
    gone: int
    oldest: float
    newest: float
    reason: str | None


@dataclass(frozen=True)
class ReplayRows:
    """The rows that a filter has chosen and that the outbox still has: `events`, with their receipts, `aside`."""

    events: DataFrame
    aside: DataFrame
    groups: tuple[ReplayGroup, ...]

    @property
    def rows(self) -> int:
        """Return how many rows there are to send."""
        return sum(group.rows for group in self.groups)

    @property
    def gone(self) -> int:
        """Return how many chosen rows the outbox no longer has."""
        return sum(group.gone for group in self.groups)


@dataclass
class TableSnapshots:
    """The tables of a lake, each at the version that it had when it was first read."""

    spark: SparkSession
    lake: Lake
    versions: dict[str, int] = field(default_factory=dict)

    def __call__(self, table: str) -> DataFrame | None:
        """Return the rows of a table; None if it does not exist."""
        if table not in self.versions:
            handle = self.lake.open(table)
            if handle is None:
                return None
            self.versions[table] = handle.version()
        return delta_rows(self.spark, self.lake, table, self.versions[table])


def resending_sinks(config: Config) -> Iterator[tuple[str, str, ApplyingSink]]:
    """Yield route, name and sink of each sink that can send rows again."""
    for route, name, sink in config.all_sinks():
        if isinstance(sink, ApplyingSink) and sink.resends:
            yield route, name, sink


@dataclass
class Resender(OutboxSink):
    """The replays of one sink. `folder` is the folder of the configuration; `stop` ends a replay early."""

    folder: Path

    def cut_off(self) -> NamedRun[ReplayFilter] | None:
        """Return the replay that was killed before the ledger had its row; None if there is none."""
        return NamedRun.resume(self.checkpoint, self._mark, ReplayFilter)

    def find(self, chosen: ReplayFilter, tables: TableSnapshots | None = None) -> ReplayRows | None:
        """Return the rows that a filter chooses; None if the sink has never sent anything."""
        tables = tables or TableSnapshots(self.spark, self.lake)
        outbox = tables(self.outbox)
        aside = self.sink.set_aside(self._batch(""), tables)
        if outbox is None or aside is None:
            return None
        # Receipts may be older than the rows of the outbox, which is cleaned: `_in_outbox` is null for these.
        stored = outbox.select(*[F.col(name).alias(f"_of_{in_receipt}") for name, in_receipt in _PLACE]).distinct()
        is_stored = [F.col(in_receipt).eqNullSafe(F.col(f"_of_{in_receipt}")) for _, in_receipt in _PLACE]
        receipts = aside.filter(chosen.holds())
        receipts = receipts.join(stored.withColumn("_in_outbox", F.lit(True)), is_stored, "left").persist()
        sendable = receipts.filter("_in_outbox").select(aside.columns)
        is_chosen = [F.col(name).eqNullSafe(F.col(in_receipt)) for name, in_receipt in _PLACE]
        events = outbox.join(sendable, is_chosen, "left_semi").dropDuplicates([name for name, _ in _PLACE])
        return ReplayRows(events, sendable, tuple(_groups(receipts)))

    def resume(self, run: NamedRun[ReplayFilter]) -> ReplayRows:
        """Return the rows of a replay that was killed."""
        rows = self.find(run.choice, TableSnapshots(self.spark, self.lake, run.versions))
        assert rows is not None  # it had rows
        return rows

    def begin(self, chosen: ReplayFilter) -> tuple[NamedRun[ReplayFilter], ReplayRows | None]:
        """Return a new replay and its rows; the rows are None if the sink has never sent anything."""
        tables = TableSnapshots(self.spark, self.lake)
        rows = self.find(chosen, tables)
        return NamedRun.new(self.checkpoint, self._mark, chosen, tables.versions), rows

    def send(self, run: NamedRun[ReplayFilter], rows: ReplayRows) -> Resent:
        """Send the rows of a replay again and write what became of them into the ledger, once. Raises RouterError."""
        batch = self._batch(run.name)
        sink = self._prepare(rows)
        run.begin()
        try:
            resent = sink.resend(rows.events, rows.aside, batch)
        except RouterError:
            raise
        except Exception as error:
            # An executor that cannot work at all raises StartError; any other error is the sink's.
            executor_error = refusal_by_executors(error)
            if executor_error:
                raise executor_error from error
            todo = f"to give it up, delete {self.checkpoint.root}/store/{self._mark}"
            problem = f"{type(error).__name__}: {error}. The next replay ends this one first; {todo}"
            raise SinkError(self.config.name, batch.id, self.route, self.name, problem) from error
        self._note(run.name, rows, batch, resent)
        run.finish()
        return resent

    def _prepare(self, rows: ReplayRows) -> ApplyingSink:
        try:
            return self.sink.prepare(Opening(self.folder, rows.events.limit(0)))
        except OSError as error:
            raise StartError(f"route {self.route}, sink {self.name}: {error}; try again when it is back") from error
        except RouterError as error:
            raise StartError(f"route {self.route}, sink {self.name}: {error}") from error

    def _note(self, name: str, rows: ReplayRows, batch: Batch, resent: Resent) -> None:
        """Write what became of the rows into the dead letters and the ledger."""
        if resent.refused is not None:
            query = f"{self.config.name}:{name}"
            append_dead_letters(resent.refused, rows.events, batch, self.lake, self.config.dead_letters, query)
        self.book_counts(name, 0, ledger.of_replay(self.key, resent))
        self._mark_dead_letters(name, rows, batch)

    def _mark_dead_letters(self, name: str, rows: ReplayRows, batch: Batch) -> None:
        """Mark the dead letters whose rows are dead no more."""
        handle = self.lake.open(self.config.dead_letters)
        aside = self.sink.set_aside(batch, TableSnapshots(self.spark, self.lake))
        if handle is None or aside is None:
            return
        place = [in_receipt for _, in_receipt in _PLACE]
        is_dead = F.col("status") == "dead"
        taken = rows.aside.filter(is_dead).select(*place).subtract(aside.filter(is_dead).select(*place))
        dead_letters = self.spark.read.format("delta").load(self.lake.spark_address(self.config.dead_letters))
        of_sink = (F.col("stage") == Stage.APPLY.value) & (F.col("route") == self.route) & (F.col("sink") == self.name)
        mark_replayed(dead_letters.filter(of_sink).join(taken, place, "left_semi"), self.lake, self.config, name, 0)

    def _batch(self, name: str) -> Batch:
        owner = TransactionId("sink", f"{self.config.name}:{name}", self.route, self.name)
        return Batch(
            query=self.config.name,
            id=0,
            route=self.route,
            sink=self.name,
            replay=True,
            stop=self.stop,
            keeps=kept_parts(self.lake, str(owner), 0),
            resending=name,
            guards=self.executors.guard_task,
        )

    @property
    def _mark(self) -> str:
        return f"replays/{self.key.replace('/', '__')}.json"


def _groups(receipts: DataFrame) -> list[ReplayGroup]:
    """Count receipts by their status and the API's answer code."""
    in_outbox = F.col("_in_outbox")
    call = F.coalesce(F.col("call"), F.to_json(F.struct(*PLACE)))
    at = F.col("at").cast("double")
    counted = receipts.groupBy("status", "code").agg(
        F.count(in_outbox).alias("rows"),
        F.count_distinct(F.when(in_outbox, call)).alias("calls"),
        F.count(F.when(in_outbox.isNull(), 1)).alias("gone"),
        F.min(at).alias("oldest"),
        F.max(at).alias("newest"),
        F.max_by("reason", "at").alias("reason"),
    )
    groups = [ReplayGroup(**row.asDict()) for row in counted.collect()]
    return sorted(groups, key=lambda group: (group.status, group.code or 0))
