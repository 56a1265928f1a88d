"""Send dead letters again, through the steps of every batch and today's configuration: a part of `router replay`.

The dead letters of one stage, route and sink are one batch. Its records come from the dead letters in place of the
source (those that a sink refused from bronze, since their dead letter has a row and no record), and they go to that
route and sink only; records that no route had matched go to all. Manifest, transaction ids and marks of applied batches
carry the replay's name where those of the stream carry its run: a replay that was killed continues where it ended, from
the version of the dead letters that it began with.

A record that would become the same dead letter again stays one. Every other dead letter is taken: it gets the replay's
name in the column `replayed`, and no later replay takes it. Runs on the driver, while the stream does not.
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

from router.api.sinks import MergingSink
from router.config.models import names_of
from router.counts import BY_NAME
from router.delta.parquet_writer import staged_again
from router.engine import ledger
from router.engine.audit.dead_letters import DeadLetterFilter  # noqa: TC001 - the note of a replay is read by it
from router.engine.balance import sum_counts
from router.engine.batch import Batches
from router.engine.decision import BatchDecider
from router.engine.destination import Destination
from router.engine.outbox.apply import REPLAYED, mark_replayed, open_sinks
from router.engine.quarantine.table import blocked_places
from router.engine.reprocess.context import Reprocessing
from router.engine.reprocess.records import BronzeRecords, are_near, delta_rows
from router.engine.reprocess.resend import resending_sinks
from router.engine.reprocess.run import NamedRun
from router.engine.source.position import stored_records
from router.engine.start.checks import writers_of
from router.engine.steps import Steps
from router.errors import StartError
from router.own_names import OUTBOX, STAGING
from router.record import PLACE
from router.stages import Stage
from router.table_names import template_glob

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from router.api.sinks import Applied, KeyedTable
    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile
    from router.engine.balance import Partition
    from router.engine.batch_decision import BatchDecision
    from router.engine.checkpoint_store import Manifest

_NOTE = "replays/dead_letters.json"
_DEAD_LETTER_KEY = (*PLACE, "timestamp", "key", "value")
"""The columns that identify a dead letter of one stage, route and sink."""


class Scope(NamedTuple):
    """The dead letters of one stage, route and sink; those of `decode` and `match` have no route."""

    stage: str
    route: str | None
    sink: str | None

    def includes(self, route: str, sink: str) -> bool:
        """Return whether records of the scope go to a sink."""
        return self.route in (None, route) and self.sink in (None, sink)

    def holds(self) -> Column:
        """Return a boolean column over dead letters: the scope has the row."""
        return reduce(and_, [F.col(name).eqNullSafe(F.lit(value)) for name, value in self._asdict().items()])


def is_chosen(letters: DeadLetterFilter) -> Column:
    """Return a boolean column over dead letters: the filter chooses the row, as `as_filter` does without Spark."""
    condition = F.lit(True)
    if letters.stages:
        condition &= F.col("stage").isin(*letters.stages)
    if letters.route is not None:
        condition &= F.col("route") == letters.route
    if letters.sink is not None:
        condition &= F.col("sink") == letters.sink
    if letters.reason is not None:
        condition &= F.col("reason").contains(letters.reason)
    if letters.since is not None:
        condition &= F.col("timestamp").cast("double") >= letters.since
    return condition


@dataclass(frozen=True)
class DeadLetterChoice:
    """The dead letters of a replay: a filter, and the scopes of what it chooses, each a batch."""

    filter: DeadLetterFilter
    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True)
class DeadLetterOutcome:
    """What becomes of the dead letters of a scope, or would: rows by destination, and those that stay dead letters.

    `places` has tables, route/sink of those with an outbox, and quarantines. `still` rows become the same dead letter
    again, `other` rows one of another kind. `obstacle` is why no dead letter of the scope can be taken. `reason` is the
    reason of one of them.
    """

    scope: Scope
    rows: int
    reason: str
    places: dict[str, int] = field(default_factory=dict)
    still: int = 0
    other: int = 0
    obstacle: str = ""

    @property
    def taken(self) -> int:
        """Return how many dead letters are taken."""
        return 0 if self.obstacle else self.rows - self.still


@dataclass
class ReplayDestination(Destination):
    """The destination of a scope's records. Dead letters that they become again are not committed: they stay."""

    resends: ClassVar[bool] = True

    lake: Lake
    scope: Scope

    def choose_commits(self, decision: BatchDecision, batch: int) -> tuple[TableCommit, ...]:
        """Return the commits without the dead letters of the scope, whose records are noted."""
        commits = []
        for commit in decision.commits:
            if commit.target == "/dead_letters":
                commits.append(self._without_same(commit, batch))
            else:
                commits.append(commit)
        return tuple(commit for commit in commits if commit.files)

    def _without_same(self, work: TableCommit, batch: int) -> TableCommit:
        """Return a commit of dead letters without those of the scope, and note the records of these in a file."""
        files: list[StagedFile] = []
        still: list[pa.Table] = []
        for file in work.files:
            with self.lake.files.open_input_file(file.path) as source:
                rows = pq.read_table(source)
            same = self._same(rows)
            still.append(rows.filter(same).select([*_DEAD_LETTER_KEY]))
            others = rows.filter(pc.invert(same))
            if len(others):
                # They are of no batch of the stream.
                index = others.schema.get_field_index("batch_id")
                others = others.set_column(index, others.schema.field(index), pa.nulls(len(others), pa.int64()))
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
        """Return which dead letters are those of the scope again; of one route also those that do not decode now."""
        same = pc.equal(rows["stage"], self.scope.stage)
        for name in ("route", "sink"):
            value = getattr(self.scope, name)
            if value is None:
                same = pc.and_(same, rows[name].is_null())
            else:
                same = pc.and_(same, pc.fill_null(pc.equal(rows[name], value), False))
        if self.scope.route is not None:
            same = pc.or_(same, pc.equal(rows["stage"], Stage.DECODE.value))
        return same

    @property
    def folder(self) -> str:
        """Return the folder of the replay's own files."""
        return folder_of(self.config, self.run)

    def ledger_rows(self, manifest: Manifest, applied: dict[str, Applied]) -> list[dict[str, Any]]:
        """Return the ledger rows of the replay: more rows are there, and as many fewer are dead letters."""
        rows = ledger.rows_of_batch(
            self.config.name, self.run, manifest.batch, manifest.targets, manifest.partitions, applied
        )
        changed = [row for row in rows if row.get("route") is not None]
        changed += ledger.of_moved(self.config.name, self.run, manifest)
        changed += self._fewer_dead_letters(manifest)
        base = {"query": self.config.name, "run": self.run}
        return [{**base, **row, "batch_id": None, "violated": None} for row in changed]

    def _fewer_dead_letters(self, manifest: Manifest) -> list[dict[str, Any]]:
        """Return the changes of the counts that the dead letters had in the ledger until now."""
        partitions = manifest.partitions
        read = sum_counts(partitions, "read")
        if self.scope.route is None:
            changes = {name: sum_counts(partitions, name) for name in (*BY_NAME["read"].parts, "unmatched")}
            changes["read"] = 0
            # All of them were counted as failed until now, or as decoded and unmatched.
            if self.scope.stage in (Stage.READ, Stage.DECODE):
                changes["failed"] -= read
            else:
                changes["decoded"] -= read
            if self.scope.stage == Stage.MATCH:
                changes["unmatched"] -= read
            return [changes]

        counts = ["matched", "refused"]
        if self.scope.stage == Stage.APPLY:
            counts = ["matched", "landed", "dead"]
        rows = []
        for key in manifest.targets:
            route, sink = key.split("/", 1)
            rows.append(
                {"route": route, "sink": sink, **dict.fromkeys(counts, sum_counts(partitions, "failed") - read)}
            )
        return rows


def folder_of(config: Config, run: str) -> str:
    """Return the folder of a replay's own files."""
    return f"{STAGING}/{config.name}/replays/{run}"


def still_path(folder: str, batch: int) -> str:
    """Return the file with the records of a batch that are the same dead letters again."""
    return f"{folder}/still-{batch:010d}.parquet"


@dataclass
class DeadLetterReplay(Reprocessing):
    """The replays of a configuration's dead letters. To show or send some, its decoder must be prepared.

    With `accept` dead letters also go into tables whose rows depend on the order in which records come.
    """

    accept: bool = False

    def begin(self, chosen: DeadLetterFilter) -> NamedRun[DeadLetterChoice] | None:
        """Return a new replay of the dead letters that a filter chooses; None if there are none."""
        table = self.config.dead_letters
        handle = self.lake.open(table)
        if handle is None:
            return None
        self._refuse_dead_letters_of_others(chosen)
        run = NamedRun.new(self.context.checkpoint, _NOTE, DeadLetterChoice(chosen), {table: handle.version()})
        rows = self._dead_letters(run).select(*Scope._fields).distinct().collect()  # few: stages x routes x sinks
        if not rows:
            return None
        scopes = sorted([Scope(*row) for row in rows], key=repr)
        return replace(run, choice=DeadLetterChoice(chosen, tuple(scopes)))

    def _refuse_dead_letters_of_others(self, chosen: DeadLetterFilter) -> None:
        """Raise StartError if several queries may have written them: a dead letter does not say which one did."""
        name = self.config.name
        table = self.config.dead_letters
        others = writers_of(self.lake, table) - {name}
        advice = f"choose those of a route that only {name} has, with --route"
        if chosen.route is not None:
            others &= ledger.queries_of_route(self.lake, self.config.ledger, chosen.route)
            advice = f"{chosen.route} is a route of theirs also. Give each a `dead_letters` table of its own"
        if others:
            problem = f"{table} also has dead letters of {', '.join(sorted(others))}, and the query of each is unknown"
            raise StartError(f"{problem}: {advice}")

    def cut_off(self) -> NamedRun[DeadLetterChoice] | None:
        """Return the replay that was killed before its end; None if there is none."""
        return NamedRun.resume(self.context.checkpoint, _NOTE, DeadLetterChoice)

    def show(self, run: NamedRun[DeadLetterChoice]) -> list[DeadLetterOutcome]:
        """Return the outcome that the dead letters of each scope would have. Stages files, and deletes them."""
        outcomes = []
        for scope in run.choice.scopes:
            outcome = self._count(run, scope)
            if not outcome.obstacle:
                outcome = self._try_out(run, outcome)
            outcomes.append(outcome)
        self._clear(run)
        return outcomes

    def _try_out(self, run: NamedRun[DeadLetterChoice], counted: DeadLetterOutcome) -> DeadLetterOutcome:
        """Return the outcome that a scope would have: its records are landed and decided, and then deleted."""
        scope = counted.scope
        config = _config_of(scope, self.config)
        destination = ReplayDestination(config, run.name, self.lake, scope)
        decider = BatchDecider.of(
            config,
            self.spark,
            self.lake,
            f"{config.name}:{run.name}",
            staging=destination.folder,
            executors=self.context.executors,
            memory=self.context.memory,
        )
        decider.forget_released(blocked_places(run.store))
        plan = decider.plan_batch(self._records(run, scope), arrival=0)
        decision = decider.land_and_decide(plan, Steps(0), destination)
        # Nothing is committed: all staged files are deleted again.
        commits = destination.choose_commits(decision, 0)
        for commit in commits:
            self.lake.delete(*(file.path for file in commit.files))
        decider.landing.discard_files(decision.landed)
        outcome = self._outcome(run, counted, 0, commits, decision.partitions)
        self.lake.delete(still_path(destination.folder, 0))
        return outcome

    def send(self, run: NamedRun[DeadLetterChoice]) -> list[DeadLetterOutcome]:
        """Send the dead letters of each scope again, and mark what is taken. Can be repeated from any point.

        Raises StartError, before anything changes, if they would go into tables that depend on the order of records.
        """
        if self.cut_off() is None:
            self._refuse_order_dependent(run)
        run.begin()
        outcomes: list[DeadLetterOutcome] = []
        for batch, scope in enumerate(run.choice.scopes):
            if self.context.stop.is_set():
                return outcomes
            outcome = self._count(run, scope)
            if not outcome.obstacle:
                self._batches(run, scope).process(self._records(run, scope), batch)
                manifest = run.store.read_manifest(batch)
                assert manifest is not None  # it was processed
                self._mark(run, scope, batch)
                outcome = self._outcome(run, outcome, batch, manifest.commits, manifest.partitions)
            outcomes.append(outcome)
        run.finish()
        self._clear(run)
        return outcomes

    def _refuse_order_dependent(self, run: NamedRun[DeadLetterChoice]) -> None:
        """Raise StartError if a late record would leave another row than one that came in time.

        A sink that keeps part of an older row needs the rows in their order; all others do not.
        """
        if self.accept:
            return
        names: set[str] = set()
        for route, sink_name, sink in self.config.all_sinks():
            if not isinstance(sink, MergingSink) or not keeps_older_values(sink.keyed()):
                continue
            if any(scope.includes(route, sink_name) for scope in run.choice.scopes):
                names.add(template_glob(names_of(sink)) or f"the tables of {route}/{sink_name}")
        if names:
            problem = "keep parts of older rows: a late record does not find them as they were"
            todo = "Add --accept other-order, then rebuild them with `router rebuild`"
            raise StartError(f"{', '.join(sorted(names))} {problem}. {todo}; nothing was sent")

    def _clear(self, run: NamedRun[DeadLetterChoice]) -> None:
        folder = folder_of(self.config, run.name)
        if self.lake.files.get_file_info(folder).type.name == "Directory":
            self.lake.files.delete_dir(folder)

    def _outcome(
        self,
        run: NamedRun[DeadLetterChoice],
        counted: DeadLetterOutcome,
        batch: int,
        commits: Iterable[TableCommit],
        partitions: tuple[Partition, ...],
    ) -> DeadLetterOutcome:
        """Return the outcome of some commits for the counted dead letters of a scope."""
        places: dict[str, int] = {}
        other = 0
        for commit in commits:
            if commit.target == "/dead_letters":
                other += commit.rows
                continue
            place = commit.target if commit.table.startswith(OUTBOX) else commit.table
            places[place] = places.get(place, 0) + commit.rows
        # Dead letters whose record bronze lacks were not read: they stay as well.
        still = self._count_still(run, batch) + counted.rows - sum_counts(partitions, "read")
        return replace(counted, places=places, still=still, other=other)

    def _count_still(self, run: NamedRun[DeadLetterChoice], batch: int) -> int:
        path = still_path(folder_of(self.config, run.name), batch)
        if not self.lake.files.get_file_info(path).is_file:
            return 0
        with self.lake.files.open_input_file(path) as source:
            return int(pq.ParquetFile(source).metadata.num_rows)

    def _dead_letters(self, run: NamedRun[DeadLetterChoice], scope: Scope | None = None) -> DataFrame:
        """Return the chosen dead letters, of all scopes or one, as their table was when the replay began."""
        ((table, version),) = run.versions.items()
        rows = delta_rows(self.spark, self.lake, table, version).filter(is_chosen(run.choice.filter))
        if REPLAYED in rows.columns:
            rows = rows.filter(F.col(REPLAYED).isNull())
        for route, sink, _ in resending_sinks(self.config):  # `Resender` sends their dead letters again
            rows = rows.filter(~Scope(Stage.APPLY, route, sink).holds())
        if scope is None:
            return rows
        return rows.filter(scope.holds())

    def _count(self, run: NamedRun[DeadLetterChoice], scope: Scope) -> DeadLetterOutcome:
        """Return the number of records of a scope, one of the reasons, and why none can be sent again."""
        records = self._dead_letters(run, scope).groupBy(*self._names(scope)).agg(F.max("reason").alias("reason"))
        (row,) = records.agg(F.count(F.lit(1)).alias("rows"), F.max("reason").alias("reason")).collect()
        return DeadLetterOutcome(scope, row["rows"], row["reason"] or "", obstacle=self._obstacle(scope))

    def _obstacle(self, scope: Scope) -> str:
        """Return why no dead letter of a scope can be sent again; an empty text if they can."""
        if scope.route is not None:
            sinks = {(route, sink) for route, sink, _ in self.config.all_sinks()}
            routes = {route.identity for route in self.config.routes}
            if scope.route not in routes or (scope.sink and (scope.route, scope.sink) not in sinks):
                return f"the configuration has no {'/'.join(filter(None, scope[1:]))} any more"
        if scope.stage == Stage.APPLY and self.config.bronze is None:
            return "there is no `bronze`, which alone has the records that a sink refused"
        return ""

    def _names(self, scope: Scope) -> tuple[str, ...]:
        """Return the columns that identify a dead letter of a scope. Those of `apply` have the sink's row as value."""
        return PLACE if scope.stage == Stage.APPLY else _DEAD_LETTER_KEY

    def _records(self, run: NamedRun[DeadLetterChoice], scope: Scope) -> DataFrame:
        """Return the raw records of a scope, each once."""
        records = self._dead_letters(run, scope)
        if scope.stage == Stage.APPLY:
            bronze = self._bronze(near=records)
            records = bronze.join(records, _same_values(bronze, records, PLACE), "left_semi")
        return stored_records(records).dropDuplicates([*self._names(scope)])

    def _bronze(self, near: DataFrame) -> DataFrame:
        """Return the records of bronze that may be those of dead letters, by place: of a topic, or a file."""
        records = BronzeRecords.newest(self.lake, self.config).frame(self.spark, self.lake)
        return records.filter(F.col("topic").isNotNull() & are_near(near))

    def _mark(self, run: NamedRun[DeadLetterChoice], scope: Scope, batch: int) -> None:
        """Mark the dead letters of a scope that were taken."""
        taken = self._dead_letters(run, scope)
        if scope.stage == Stage.APPLY:
            bronze = self._bronze(near=taken)
            taken = taken.join(bronze, _same_values(taken, bronze, PLACE), "left_semi")
        path = still_path(folder_of(self.config, run.name), batch)
        if self.lake.files.get_file_info(path).is_file:
            still = self.spark.read.parquet(self.lake.for_spark(path))
            taken = taken.join(still, _same_values(taken, still, self._names(scope)), "left_anti")
        mark_replayed(taken, self.lake, self.config, run.name, batch)

    def _batches(self, run: NamedRun[DeadLetterChoice], scope: Scope) -> Batches:
        try:
            config = _config_of(scope, self.config)
            # Rows of a detached sink go to its outbox only.
            config = open_sinks(
                config,
                self.spark,
                self.context.folder,
                self.context.memory,
                may_wait=lambda error: isinstance(error, OSError),
            ).config
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
    """Return whether a row of a table keeps values of records before its newest one."""
    return keyed.when_matched == "ignore" or keyed.columns is not None or keyed.soft_delete is not None


def _config_of(scope: Scope, config: Config) -> Config:
    """Return the configuration with only the sinks that a scope's records go to; never with bronze."""
    if scope.route is None:
        return config.model_copy(update={"bronze": None})
    return config.with_sinks(lambda route, sink, _: scope.includes(route, sink))


def _same_values(left: DataFrame, right: DataFrame, names: tuple[str, ...]) -> Column:
    return reduce(and_, [left[name].eqNullSafe(right[name]) for name in names])
