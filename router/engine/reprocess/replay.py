"""Send dead letters again, through the path of every batch and today's configuration: a part of `router replay`.

The dead letters of one stage, route and sink are one batch. Its records come from the dead letters in place of the
source (those that a sink refused from bronze, since their dead letter has a row and no record), and they go to that
route and sink only; what no route had taken goes to all. Manifest, transaction ids and marks of applied batches carry
the replay's name where those of the stream carry its run: a replay that was killed goes on where it ended, from the
version of the dead letters that it began with.

What would be the same dead letter again stays as it is. Every other one is taken: it gets the replay's name in the
column `replayed`, and is never taken again. Runs on the driver, while the stream does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from router.delta.parquet_writer import staged_again
from router.engine import ledger
from router.engine.balance import total
from router.engine.batch import Batches
from router.engine.decision import STAGING, BatchDecider
from router.engine.destination import Destination
from router.engine.outbox.apply import REPLAYED, mark_replayed, opened
from router.engine.position import stored_records, with_arrival
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import blocked_places
from router.engine.reprocess.records import BronzeRecords, delta_rows
from router.engine.reprocess.resend import resending_sinks
from router.engine.reprocess.run import NamedRun
from router.engine.start.checks import writers_of
from router.engine.steps import Steps
from router.errors import StartError
from router.sinks import MergingSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from router.config.models import Config
    from router.delta.commit import StagedFile, TableCommit
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import Manifest
    from router.engine.decision import BatchDecision
    from router.engine.reprocess.context import ReprocessContext
    from router.sinks import Applied, KeyedTable

NOTE = "replays/dead_letters.json"
PLACE = ("topic", "partition", "offset")
WHOLE = (*PLACE, "timestamp", "key", "value")
"""The columns that tell dead letters of one stage, route and sink apart."""


class Scope(NamedTuple):
    """The dead letters of one stage, route and sink; those of `decode` and `match` have no route."""

    stage: str
    route: str | None
    sink: str | None

    def holds(self) -> Column:
        """Return a boolean column over dead letters: the scope has the row."""
        return reduce(and_, (F.col(name).eqNullSafe(F.lit(value)) for name, value in self._asdict().items()))


@dataclass(frozen=True)
class LetterFilter:
    """The choice of dead letters: by stage, route and sink, by a text in their reason, by their record's time.

    `since` is in seconds since 1970; what is empty or None chooses all.
    """

    stages: tuple[str, ...] = ()
    route: str | None = None
    sink: str | None = None
    reason: str | None = None
    since: float | None = None

    def holds(self) -> Column:
        """Return a boolean column over dead letters: the filter chooses the row."""
        found = F.lit(True)
        if self.stages:
            found &= F.col("stage").isin(*self.stages)
        for name in ("route", "sink"):
            if (value := getattr(self, name)) is not None:
                found &= F.col(name) == value
        if self.reason is not None:
            found &= F.col("reason").contains(self.reason)
        return found if self.since is None else found & (F.col("timestamp").cast("double") >= self.since)


@dataclass(frozen=True)
class LetterChoice:
    """The dead letters of a replay: a filter, and the scopes of what it chooses, each a batch."""

    filter: LetterFilter
    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True)
class LetterOutcome:
    """What becomes of the dead letters of a scope, or would: rows by where they go, and those that stay dead letters.

    `places` has tables, route/sink of those with an outbox, and quarantines; `other` rows become dead letters of
    another kind. `left` says why nothing of a scope can be taken. `reason` is that of one of them.
    """

    scope: Scope
    rows: int
    reason: str
    places: dict[str, int] = field(default_factory=dict)
    still: int = 0
    other: int = 0
    left: str = ""

    @property
    def taken(self) -> int:
        """Return how many dead letters are taken."""
        return 0 if self.left else self.rows - self.still


@dataclass
class ReplayDestination(Destination):
    """The destination of a scope's records. Dead letters that they become again are not committed: they stay."""

    resends: ClassVar[bool] = True

    lake: Lake
    scope: Scope

    def chosen(self, decision: BatchDecision, batch: int) -> tuple[TableCommit, ...]:
        """Return the commits without the dead letters of the scope, whose records are noted."""
        works = []
        for work in decision.commits:
            rest = self._without_same(work, batch) if work.target == "/dead_letters" else work
            if rest.files:
                works.append(rest)
        return tuple(works)

    def _without_same(self, work: TableCommit, batch: int) -> TableCommit:
        files: list[StagedFile] = []
        still: list[pa.Table] = []
        for file in work.files:
            with self.lake.files.open_input_file(file.path) as source:
                rows = pq.read_table(source)
            same = self._same(rows)
            still.append(rows.filter(same).select([*WHOLE]))
            others = rows.filter(pc.invert(same))
            if len(others):
                # They are of no batch of the stream.
                at = others.schema.get_field_index("batch_id")
                others = others.set_column(at, others.schema.field(at), pa.nulls(len(others), pa.int64()))
                files += staged_again(self.lake, file, others.to_batches(), "replay")
            self.lake.delete(file.path)
        if still:
            path = still_path(self.folder, batch)
            self.lake.files.create_dir(self.folder, recursive=True)
            with self.lake.files.open_output_stream(path) as stream:
                pq.write_table(pa.concat_tables(still), stream)
            self.lake.sync(path)
        return replace(work, files=tuple(files))

    def _same(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return which dead letters are those of the scope again; of one route also what does not decode by now."""
        same = pc.equal(rows["stage"], self.scope.stage)
        for name in ("route", "sink"):
            value = getattr(self.scope, name)
            equal = rows[name].is_null() if value is None else pc.fill_null(pc.equal(rows[name], value), False)
            same = pc.and_(same, equal)
        if self.scope.route is not None:
            same = pc.or_(same, pc.equal(rows["stage"], "decode"))
        return same

    @property
    def folder(self) -> str:
        """Return the folder of what the replay stages for itself."""
        return folder_of(self.config, self.run)

    def ledger_rows(self, manifest: Manifest, applied: dict[str, Applied]) -> list[dict[str, Any]]:
        """Return what the replay has changed: more rows are there, and as many fewer are dead letters."""
        about = self.config.name, self.run
        rows = ledger.rows(*about, manifest.batch, manifest.targets, manifest.partitions, applied)
        moved = [row for row in rows if row.get("route") is not None]
        moved += ledger.of_moved(*about, manifest)
        moved += self._fewer_dead_letters(manifest)
        base = {"query": self.config.name, "run": self.run}
        return [{**base, **row, "batch_id": None, "violated": None} for row in moved]

    def _fewer_dead_letters(self, manifest: Manifest) -> list[dict[str, Any]]:
        counted, stage = manifest.partitions, self.scope.stage
        read, failed, bare = (total(counted, kind) for kind in ("read", "failed", "bare"))
        if self.scope.route is None:
            now = {"failed": failed, "bare": bare, "decoded": read - failed - bare}
            was = {"failed": read} if stage == "decode" else {"decoded": read}
            moved = {name: now.get(name, 0) - was.get(name, 0) for name in ("decoded", "failed", "bare")}
            unmatched = total(counted, "unmatched") - (read if stage == "match" else 0)
            return [{"read": 0, "unmatched": unmatched, **moved}]
        gone = failed - read
        counts = ("matched", "landed", "dead") if stage == "apply" else ("matched", "refused")
        rows = []
        for key in manifest.targets:
            route, sink = key.split("/", 1)
            rows.append({"route": route, "sink": sink, **dict.fromkeys(counts, gone)})
        return rows


def folder_of(config: Config, run: str) -> str:
    """Return the folder of what a replay stages for itself."""
    return f"{STAGING}/{config.name}/replays/{run}"


def still_path(folder: str, batch: int) -> str:
    """Return the file with the records of a batch that are the same dead letters again."""
    return f"{folder}/still-{batch:010d}.parquet"


@dataclass
class DeadLetterReplay:
    """The replays of a configuration's dead letters. To show or send some, its decoder must be prepared.

    With `accept` dead letters also go into tables whose rows depend on the order in which records come.
    """

    context: ReprocessContext
    accept: bool = False

    def __post_init__(self) -> None:
        self.config = self.context.config
        self.spark = self.context.spark
        self.lake = self.context.lake

    def begin(self, chosen: LetterFilter) -> NamedRun[LetterChoice] | None:
        """Return a new replay of the dead letters that a filter chooses; None where there are none."""
        table = self.config.dead_letters
        handle = self.lake.open(table)
        if handle is None:
            return None
        self._refuse_letters_of_others(chosen)
        run = NamedRun.new(self.context.checkpoint, NOTE, LetterChoice(chosen), {table: handle.version()})
        scopes = self._letters(run).select(*Scope._fields).distinct().collect()  # few: stages x routes x sinks
        if not scopes:
            return None
        return replace(run, choice=LetterChoice(chosen, tuple(sorted((Scope(*row) for row in scopes), key=repr))))

    def _refuse_letters_of_others(self, chosen: LetterFilter) -> None:
        """Raise StartError where several queries write the dead letters: those without a route may be anybody's."""
        name, table = self.config.name, self.config.dead_letters
        if chosen.route is None and (others := writers_of(self.lake, table) - {name}):
            what = f"{table} has dead letters of {', '.join(sorted(others))}, too, and does not say whose each is"
            raise StartError(f"{what}: choose those of a route that only {name} has, with --route")

    def cut_off(self) -> NamedRun[LetterChoice] | None:
        """Return the replay that was killed before its end; None where there is none."""
        return NamedRun.resume(self.context.checkpoint, NOTE, LetterChoice)

    def show(self, run: NamedRun[LetterChoice]) -> list[LetterOutcome]:
        """Return what would become of the dead letters of each scope. Stages files, and deletes them."""
        found = []
        for scope in run.choice.scopes:
            rows, reason = self._counted(run, scope)
            left = self._left(scope)
            look = LetterOutcome(scope, rows, reason, left=left) if left else self._tried(run, scope, rows, reason)
            found.append(look)
        self._clear(run)
        return found

    def _tried(self, run: NamedRun[LetterChoice], scope: Scope, rows: int, reason: str) -> LetterOutcome:
        """Return what would become of a scope: its records are landed and decided, and then deleted."""
        config = _chosen(self.config, scope)
        destination = ReplayDestination(config, run.name, self.lake, scope)
        query = f"{config.name}:{run.name}"
        decider = BatchDecider.of(
            config,
            self.spark,
            self.lake,
            query,
            staging=destination.folder,
            executors=self.context.executors,
        )
        decider.forget_released(blocked_places(run.store))
        plan = decider.plan(with_arrival(self._records(run, scope), 0, 0))
        decision = decider.land_and_decide(plan, Steps(0), destination)
        commits = destination.chosen(decision, 0)
        self.lake.delete(*(file.path for work in commits for file in work.files))
        decider.landing.discard(decision.landed)
        look = self._outcome(run, scope, 0, rows, reason, commits, decision.partitions)
        self.lake.delete(still_path(destination.folder, 0))
        return look

    def send(self, run: NamedRun[LetterChoice]) -> list[LetterOutcome]:
        """Send the dead letters of each scope again, and mark what is taken. Can be repeated from any point.

        Raises StartError, before anything changes, where they would go into tables that depend on the order of records.
        """
        if self.cut_off() is None:
            self._refuse_order_dependent(run)
        run.begin()
        found = list[LetterOutcome]()
        for batch, scope in enumerate(run.choice.scopes):
            if self.context.stop.is_set():
                return found
            rows, reason = self._counted(run, scope)
            if left := self._left(scope):
                found.append(LetterOutcome(scope, rows, reason, left=left))
                continue
            self._batches(run, scope).process(self._records(run, scope), batch)
            manifest = run.store.manifest(batch)
            assert manifest is not None  # it was processed
            self._mark(run, scope, batch)
            found.append(self._outcome(run, scope, batch, rows, reason, manifest.commits, manifest.partitions))
        run.finish()
        self._clear(run)
        return found

    def _refuse_order_dependent(self, run: NamedRun[LetterChoice]) -> None:
        """Raise StartError where a record that comes late leaves another row than one that came in time.

        A sink that keeps part of an older row needs the rows in their order; all others do not.
        """
        if self.accept:
            return
        names: set[str] = set()
        for route, sink_name, sink in self.config.all_sinks():
            chosen = any(
                scope.route in (None, route) and scope.sink in (None, sink_name) for scope in run.choice.scopes
            )
            if chosen and isinstance(sink, MergingSink) and keeps_older_values(sink.keyed()):
                names.add(fixed_table(sink) or f"the tables of {route}/{sink_name}")
        if names:
            what = f"{', '.join(sorted(names))} keep parts of older rows: a late record does not find them as they were"
            raise StartError(f"{what}. Add --accept, then rebuild them with `router refresh`; nothing was sent")

    def _clear(self, run: NamedRun[LetterChoice]) -> None:
        folder = folder_of(self.config, run.name)
        if self.lake.files.get_file_info(folder).type.name == "Directory":
            self.lake.files.delete_dir(folder)

    def _outcome(
        self,
        run: NamedRun[LetterChoice],
        scope: Scope,
        batch: int,
        rows: int,
        reason: str,
        commits: Iterable[TableCommit],
        partitions: tuple[Partition, ...],
    ) -> LetterOutcome:
        """Return what becomes of the records of a scope by what is committed; what bronze lacks stays, too."""
        places: dict[str, int] = {}
        other = 0
        for work in commits:
            if work.target == "/dead_letters":
                other += work.rows
                continue
            place = work.target if work.table.startswith("outbox.") else work.table
            places[place] = places.get(place, 0) + work.rows
        still = self._count_still(run, batch) + rows - total(partitions, "read")
        return LetterOutcome(scope, rows, reason, places, still, other)

    def _count_still(self, run: NamedRun[LetterChoice], batch: int) -> int:
        path = still_path(folder_of(self.config, run.name), batch)
        if not self.lake.files.get_file_info(path).is_file:
            return 0
        with self.lake.files.open_input_file(path) as source:
            return int(pq.ParquetFile(source).metadata.num_rows)

    def _letters(self, run: NamedRun[LetterChoice], scope: Scope | None = None) -> DataFrame:
        """Return the chosen dead letters, of all scopes or one, as their table was when the replay began."""
        ((table, version),) = run.versions.items()
        found = delta_rows(self.spark, self.lake, table, version).filter(run.choice.filter.holds())
        if REPLAYED in found.columns:
            found = found.filter(F.col(REPLAYED).isNull())
        for route, sink, _ in resending_sinks(self.config):  # they keep their own
            found = found.filter(~Scope("apply", route, sink).holds())
        return found if scope is None else found.filter(scope.holds())

    def _counted(self, run: NamedRun[LetterChoice], scope: Scope) -> tuple[int, str]:
        """Return the number of records of a scope, and one of the reasons."""
        letters = self._letters(run, scope).groupBy(*self._names(scope)).agg(F.max("reason").alias("reason"))
        (row,) = letters.agg(F.count(F.lit(1)).alias("rows"), F.max("reason").alias("reason")).collect()
        return row["rows"], row["reason"] or ""

    def _left(self, scope: Scope) -> str:
        """Return why no dead letter of a scope can be sent again; nothing where they can."""
        route = next((route for route in self.config.routes if route.identity == scope.route), None)
        if scope.route is not None and (route is None or (scope.sink and scope.sink not in route.named_sinks)):
            return f"the configuration has no {'/'.join(filter(None, scope[1:]))} any more"
        if scope.stage == "apply" and self.config.bronze is None:
            return "there is no `bronze`, which alone has the records that a sink refused"
        return ""

    def _names(self, scope: Scope) -> tuple[str, ...]:
        return PLACE if scope.stage == "apply" else WHOLE

    def _records(self, run: NamedRun[LetterChoice], scope: Scope) -> DataFrame:
        """Return the raw records of a scope, each once."""
        found = letters = self._letters(run, scope)
        if scope.stage == "apply":
            bronze = self._bronze()
            found = bronze.join(letters, _alike(bronze, letters, PLACE), "left_semi")
        return stored_records(found).dropDuplicates([*self._names(scope)])

    def _bronze(self) -> DataFrame:
        """Return the records of bronze that have a place of their own: those of a topic, or a file."""
        records = BronzeRecords.newest(self.lake, self.config).frame(self.spark, self.lake)
        return records.filter(F.col("topic").isNotNull())

    def _mark(self, run: NamedRun[LetterChoice], scope: Scope, batch: int) -> None:
        """Mark the dead letters of a scope that were taken."""
        taken, names = self._letters(run, scope), self._names(scope)
        if scope.stage == "apply":
            bronze = self._bronze()
            taken = taken.join(bronze, _alike(taken, bronze, PLACE), "left_semi")
        path = still_path(folder_of(self.config, run.name), batch)
        if self.lake.files.get_file_info(path).is_file:
            still = self.spark.read.parquet(self.lake.for_spark(path))
            taken = taken.join(still, _alike(taken, still, names), "left_anti")
        mark_replayed(taken, self.lake, self.config, run.name, batch)

    def _batches(self, run: NamedRun[LetterChoice], scope: Scope) -> Batches:
        try:
            config = opened(_chosen(self.config, scope), self.spark, self.context.folder)
        except OSError as error:
            raise StartError(f"{error}; try again when it is back") from error
        return Batches(
            config,
            self.context.fingerprint,
            self.spark,
            self.lake,
            run.store,
            ReplayDestination(config, run.name, self.lake, scope),
            stop=self.context.stop,
            executors=self.context.executors,
        )


def keeps_older_values(keyed: KeyedTable) -> bool:
    """Say whether a row of a table keeps values of records before its newest one."""
    return keyed.when_matched == "ignore" or keyed.columns is not None or keyed.soft_delete is not None


def _chosen(config: Config, scope: Scope) -> Config:
    """Return the configuration with what a scope's dead letters are for: one route or sink, or all; never bronze."""
    if scope.route is None:
        return config.model_copy(update={"bronze": None})
    return config.with_sinks(lambda route, sink, _: route == scope.route and scope.sink in (None, sink))


def _alike(left: DataFrame, right: DataFrame, names: tuple[str, ...]) -> Column:
    return reduce(and_, (left[name].eqNullSafe(right[name]) for name in names))
