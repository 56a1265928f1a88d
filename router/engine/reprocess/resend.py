"""Send parked rows and dead letters of a sink that keeps them again, a part of `router replay`.

A replay is not a batch: it reads rows of many batches from the outbox, and its receipts and its row in the ledger have
a name in place of a batch number. Before it sends anything, it writes its name, filter and table versions into the
checkpoint's store. When a replay was killed, the next one first sends the same rows again under the same name, so that
the ledger says what became of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.label.layout import COORDINATES
from router.engine.outbox.apply import OutboxSink, append_dead_letters, keeper, mark_replayed
from router.engine.reprocess.records import delta_rows
from router.engine.reprocess.run import NamedRun
from router.engine.spark.executors import refusal
from router.errors import RouterError, SinkError, StartError
from router.sinks import ApplyingSink, Batch, Opening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.sinks import Resent

PLACE = tuple(COORDINATES.items())[:3]
"""The columns of an outbox that identify a row, and their names in the receipts."""


@dataclass(frozen=True)
class ReplayFilter:
    """The choice of rows to send again: by status, by time, and dead ones by the API's answer code.

    `since` is in seconds since 1970; without `codes` every code is chosen.
    """

    statuses: tuple[str, ...] = ("parked", "dead")
    codes: tuple[int, ...] = ()
    since: float | None = None

    def holds(self) -> Column:
        """Return a boolean column: the filter chooses the row."""
        of_code = F.col("code").isin(*self.codes) if self.codes else F.lit(True)
        kinds = {"parked": F.col("status") == "parked", "dead": (F.col("status") == "dead") & of_code}
        wanted = reduce(or_, (kinds[status] for status in self.statuses), F.lit(False))
        return wanted if self.since is None else wanted & (F.col("at").cast("double") >= self.since)


@dataclass(frozen=True)
class ReplayGroup:
    """The number of rows of one status and code: those in the outbox, their calls at most, and those `gone` from it.

    `oldest` and `newest` are times in seconds since 1970, `reason` is that of the newest row.
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
    """The rows that a filter has chosen: their receipts, and as `events` those rows that the outbox still has."""

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
        """Return the rows of a table, None where there is none."""
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
        """Return the replay that was killed before the ledger had its row; None where there is none."""
        return NamedRun.resume(self.checkpoint, self._mark, ReplayFilter)

    def find(self, chosen: ReplayFilter, tables: TableSnapshots | None = None) -> ReplayRows | None:
        """Return the rows that a filter chooses; None where the sink has never sent anything."""
        tables = tables or TableSnapshots(self.spark, self.lake)
        outbox, aside = tables(self.outbox), self.sink.set_aside(self._batch(""), tables)
        if outbox is None or aside is None:
            return None
        there = outbox.select(*(F.col(old).alias(f"_of_{new}") for old, new in PLACE)).distinct()
        same = [F.col(new).eqNullSafe(F.col(f"_of_{new}")) for _, new in PLACE]
        joined = aside.filter(chosen.holds()).join(there.withColumn("_there", F.lit(True)), same, "left").persist()
        mine = joined.filter("_there").select(aside.columns)
        rows = outbox.join(mine, [F.col(old).eqNullSafe(F.col(new)) for old, new in PLACE], "left_semi")
        return ReplayRows(rows.dropDuplicates([old for old, _ in PLACE]), mine, tuple(_groups(joined)))

    def resume(self, run: NamedRun[ReplayFilter]) -> ReplayRows:
        """Return the rows of a replay that was killed."""
        found = self.find(run.choice, TableSnapshots(self.spark, self.lake, run.versions))
        assert found is not None  # it had rows
        return found

    def begin(self, chosen: ReplayFilter) -> tuple[NamedRun[ReplayFilter], ReplayRows | None]:
        """Return a new replay and its rows; the rows are None where the sink has never sent anything."""
        tables = TableSnapshots(self.spark, self.lake)
        found = self.find(chosen, tables)
        return NamedRun.new(self.checkpoint, self._mark, chosen, tables.versions), found

    def send(self, run: NamedRun[ReplayFilter], found: ReplayRows) -> Resent:
        """Send the rows of a replay again and write what became of them into the ledger, once. Raises RouterError."""
        batch = self._batch(run.name)
        sink = self._prepared(found)
        run.begin()
        try:
            resent = sink.resend(found.events, found.aside, batch)
        except RouterError:
            raise
        except Exception as error:
            if refused := refusal(error):
                raise refused from error
            what = f"{type(error).__name__}: {error}. The next replay ends this one first; to give it up, delete "
            what += f"{self.checkpoint.root}/store/{self._mark}"
            raise SinkError(self.config.name, batch.id, self.route, self.name, what) from error
        self._note(run.name, found, batch, resent)
        run.finish()
        return resent

    def _prepared(self, found: ReplayRows) -> ApplyingSink:
        try:
            return self.sink.prepare(Opening(self.folder, found.events.limit(0)))
        except OSError as error:
            raise StartError(f"route {self.route}, sink {self.name}: {error}; try again when it is back") from error
        except RouterError as error:
            raise StartError(f"route {self.route}, sink {self.name}: {error}") from error

    def _note(self, name: str, found: ReplayRows, batch: Batch, resent: Resent) -> None:
        """Write what became of the rows into the dead letters and the ledger."""
        if resent.refused is not None:
            dead_letters, run = self.config.dead_letters, f"{self.config.name}:{name}"
            append_dead_letters(resent.refused, found.events, batch, self.lake, dead_letters, run)
        self.book(name, 0, ledger.of_replay(self.key, resent))
        self._mark_letters(name, found, batch)

    def _mark_letters(self, name: str, found: ReplayRows, batch: Batch) -> None:
        """Mark the dead letters whose rows are dead no more."""
        handle = self.lake.open(self.config.dead_letters)
        now = self.sink.set_aside(batch, TableSnapshots(self.spark, self.lake))
        if handle is None or now is None:
            return
        names, dead = [name for _, name in PLACE], F.col("status") == "dead"
        taken = found.aside.filter(dead).select(*names).subtract(now.filter(dead).select(*names))
        letters = self.spark.read.format("delta").load(self.lake.spark_address(self.config.dead_letters))
        here = (F.col("stage") == "apply") & (F.col("route") == self.route) & (F.col("sink") == self.name)
        mark_replayed(letters.filter(here).join(taken, names, "left_semi"), self.lake, self.config, name, 0)

    def _batch(self, name: str) -> Batch:
        owner = TransactionId("sink", f"{self.config.name}:{name}", self.route, self.name)
        keeps = keeper(self.lake, str(owner), 0)
        guards = self.executors.guarded
        return Batch(self.config.name, 0, self.route, self.name, True, self.stop, keeps, name, guards)

    @property
    def _mark(self) -> str:
        return f"replays/{self.key.replace('/', '__')}.json"


def _groups(joined: DataFrame) -> Iterator[ReplayGroup]:
    """Count rows by their status and the API's answer code."""
    there, place = F.col("_there"), F.struct("topic", "partition", "offset")
    call = F.coalesce(F.col("call"), F.to_json(place))
    at = F.col("at").cast("double")
    counted = joined.groupBy("status", "code").agg(
        F.count(there).alias("rows"),
        F.count_distinct(F.when(there, call)).alias("calls"),
        F.count(F.when(there.isNull(), 1)).alias("gone"),
        F.min(at).alias("oldest"),
        F.max(at).alias("newest"),
        F.max_by("reason", "at").alias("reason"),
    )
    found = (ReplayGroup(**row.asDict()) for row in counted.collect())
    yield from sorted(found, key=lambda group: (group.status, group.code or 0))
