"""Send rows again that a sink set aside: `router rest-replay`.

A replay is not a batch: its rows come from many, by their lane, and its receipts and its row of the ledger have a name
in place of a number. What it is about is written beside the checkpoint before anything is sent. One that was killed is
ended by the next, of the same rows and under the same name, so that what it did is known.
"""

from __future__ import annotations

import json
import logging
import secrets
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from router.applying import ApplyingSink, Batch, Opening
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.committers import Committers
from router.engine.label.layout import COORDINATES, outbox_of
from router.engine.outbox.apply import append_dead_letters, keeper
from router.engine.start_checks import locked
from router.errors import RouterError, SinkError, StartError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from router.applying import Resent
    from router.config.models import Config
    from router.delta.lake import Lake

log = logging.getLogger("router")
PLACE = tuple(COORDINATES.items())[:3]
"""The columns of a lane that name a row, and what they are called elsewhere."""


@dataclass(frozen=True)
class ReplayFilter:
    """Say which rows are sent again: by what they are, since when, and what the other side answered to dead ones.

    `since` is in seconds since 1970; without `codes` any answer is as good.
    """

    statuses: tuple[str, ...] = ("parked",)
    codes: tuple[int, ...] = ()
    since: float | None = None

    def holds(self) -> Column:
        """Return whether a row is asked for."""
        of_code = F.col("code").isin(*self.codes) if self.codes else F.lit(True)
        kinds = {"parked": F.col("status") == "parked", "dead": (F.col("status") == "dead") & of_code}
        wanted = reduce(or_, (kinds[status] for status in self.statuses), F.lit(False))
        return wanted if self.since is None else wanted & (F.col("at").cast("double") >= self.since)


@dataclass(frozen=True)
class ReplayGroup:
    """Count rows of one kind: how many are in the lane, in how many calls at most, and how many are `gone` from it.

    `oldest` and `newest` are times in seconds since 1970, `reason` is the newest one's.
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
    """Be rows that are asked for: `aside` says what became of them, `events` are those that the lane still has."""

    events: DataFrame
    aside: DataFrame
    groups: tuple[ReplayGroup, ...]

    @property
    def rows(self) -> int:
        """Return how many rows there are to send."""
        return sum(group.rows for group in self.groups)

    @property
    def gone(self) -> int:
        """Return how many rows are not in the lane any more."""
        return sum(group.gone for group in self.groups)


@dataclass
class TableSnapshots:
    """Read tables of a lake as they were when each was read first."""

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
        reader = self.spark.read.format("delta").option("versionAsOf", self.versions[table])
        return reader.load(self.lake.address(table))


@dataclass(frozen=True)
class Replay:
    """Be what a replay is about: its name, what was asked for, and the versions of the tables that say which rows."""

    name: str
    asked: ReplayFilter
    versions: dict[str, int]

    def dump(self) -> bytes:
        """Return this as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, text: bytes) -> Replay:
        """Return what JSON says."""
        said = json.loads(text)
        asked: dict[str, Any] = said["asked"]
        lists = {name: tuple(asked[name]) for name in ("statuses", "codes")}
        return cls(said["name"], ReplayFilter(**{**asked, **lists}), said["versions"])


def resending_sinks(config: Config) -> Iterator[tuple[str, str, ApplyingSink]]:
    """Yield route, name and sink of those that can send rows again."""
    for route in config.routes:
        for name, sink in route.named_sinks.items():
            if isinstance(sink, ApplyingSink) and sink.resends:
                yield route.name, name, sink


@dataclass
class Resender:
    """Send rows of one sink again. `folder` is the configuration's; `stop` ends it early."""

    config: Config
    folder: Path
    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    stop: threading.Event
    route: str
    name: str
    sink: ApplyingSink

    @property
    def key(self) -> str:
        """Return route/sink."""
        return f"{self.route}/{self.name}"

    @property
    def store(self) -> CheckpointStore:
        """Return where a replay that has begun is noted."""
        return CheckpointStore(self.checkpoint)

    @property
    def outbox(self) -> str:
        """Return the table that rows are sent from."""
        return outbox_of(self.config.name, self.route, self.name)

    def alone(self) -> AbstractContextManager[None]:
        """Hold the lock of the sink's replays; raise StartError while another holds it. A run has its own."""
        return locked(self.checkpoint, f"{self._place}/lock", f"{self.key}: another replay of it is at work")

    def cut_off(self) -> Replay | None:
        """Return a replay that was killed before it had told what it did."""
        text = self.store.read(self._mark)
        return None if text is None else Replay.load(text)

    def find(self, asked: ReplayFilter, tables: TableSnapshots | None = None) -> ReplayRows | None:
        """Return the rows that are asked for; None where nothing was ever sent."""
        tables = tables or TableSnapshots(self.spark, self.lake)
        lane, aside = tables(self.outbox), self.sink.set_aside(self._batch(""), tables)
        if lane is None or aside is None:
            return None
        there = lane.select(*(F.col(old).alias(f"_of_{new}") for old, new in PLACE)).distinct()
        same = [F.col(new).eqNullSafe(F.col(f"_of_{new}")) for _, new in PLACE]
        joined = aside.filter(asked.holds()).join(there.withColumn("_there", F.lit(True)), same, "left").persist()
        mine = joined.filter("_there").select(aside.columns)
        rows = lane.join(mine, [F.col(old).eqNullSafe(F.col(new)) for old, new in PLACE], "left_semi")
        return ReplayRows(rows.dropDuplicates([old for old, _ in PLACE]), mine, tuple(_groups(joined)))

    def resume(self, begun: Replay) -> ReplayRows:
        """Return the rows of a replay that was cut off."""
        found = self.find(begun.asked, TableSnapshots(self.spark, self.lake, begun.versions))
        assert found is not None  # it had rows
        return found

    def begin(self, asked: ReplayFilter) -> tuple[Replay, ReplayRows | None]:
        """Return a new replay, and its rows; None where nothing was ever sent."""
        tables = TableSnapshots(self.spark, self.lake)
        found = self.find(asked, tables)
        name = f"replay-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        return Replay(name, asked, tables.versions), found

    def send(self, begun: Replay, found: ReplayRows) -> Resent:
        """Send rows again; write down what became of them, once. Raises RouterError."""
        batch = self._batch(begun.name)
        sink = self._prepared(found)
        self.store.write(self._mark, begun.dump())
        try:
            resent = sink.resend(found.events, found.aside, batch)
        except RouterError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {error}. The next replay ends this one first; to give it up, delete "
            what += f"{self.checkpoint.root}/store/{self._mark}"
            raise SinkError(self.config.name, batch.id, self.route, self.name, what) from error
        self._book(found, batch, resent)
        self.store.delete(self._mark)
        return resent

    def _prepared(self, found: ReplayRows) -> ApplyingSink:
        try:
            return self.sink.prepare(Opening(self.folder, found.events.limit(0)))
        except OSError as error:
            raise StartError(f"route {self.route}, sink {self.name}: {error}; try again when it is back") from error
        except RouterError as error:
            raise StartError(f"route {self.route}, sink {self.name}: {error}") from error

    def _book(self, found: ReplayRows, batch: Batch, resent: Resent) -> None:
        run = f"{self.config.name}:{batch.resending}"
        if resent.refused is not None:
            append_dead_letters(resent.refused, found.events, batch, self.lake, self.config.dead_letters, run)
        row: dict[str, Any] = {"query": self.config.name, "run": batch.resending, **ledger.of_replay(self.key, resent)}
        committers = Committers(self.lake, self.spark, self.config.commit == "spark")
        ledger.append(self.lake, None, committers, ledger.LedgerEntry(self.config.ledger, f"{run}/ledger", 0), [row])

    def _batch(self, name: str) -> Batch:
        keeps = keeper(self.lake, f"{self.config.name}:{name}/{self.key}", 0)
        return Batch(self.config.name, 0, self.route, self.name, True, self.stop, keeps, name)

    @property
    def _place(self) -> str:
        return f"replays/{self.key.replace('/', '__')}"

    @property
    def _mark(self) -> str:
        return f"{self._place}.json"


def _groups(joined: DataFrame) -> Iterator[ReplayGroup]:
    """Count rows by what they are and what the other side answered."""
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
