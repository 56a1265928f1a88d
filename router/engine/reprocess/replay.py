"""Send dead letters again, through the path of every batch and today's configuration: a part of `router replay`.

The dead letters of one stage, route and sink are one batch of `Batches`. Its records come from the dead letters in
place of the source (those that a sink refused from bronze, since their dead letter has a row and no record), and they
go to that route and sink only; what no route had taken goes to all. Manifest, transaction ids and marks of applied
batches carry the replay's name where those of the stream carry its run: a replay that was killed goes on where it
ended, from the version of the dead letters that it began with.

What would be the same dead letter again stays as it is. Every other one is taken: it gets the replay's name in the
column `replayed`, and is never taken again. Runs on the driver, while the stream does not.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router.delta.file_statistics import statistics
from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.balance import total
from router.engine.batch import Batches, Steps
from router.engine.checkpoint_store import CheckpointStore
from router.engine.label.layout import RECORD_SCHEMA
from router.engine.outbox.apply import REPLAYED, mark_replayed, opened
from router.engine.position import stored_records, with_arrival
from router.engine.preflight.explain import fixed_table
from router.engine.reprocess.resend import new_name, resending_sinks
from router.engine.spark.executors import Executors
from router.engine.start.checks import writers_of
from router.errors import StartError
from router.sinks import MergingSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, SparkSession

    from router.config.models import Config, Route
    from router.delta.commit import StagedFile, TableCommit
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import Manifest
    from router.engine.land.job import Landed
    from router.sinks import KeyedTable

log = logging.getLogger("router")
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


UNDECODED = Scope("decode", None, None)


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
class LetterReplay:
    """A replay of dead letters that has begun: the version of their table, and the scopes, each a batch of it."""

    name: str
    asked: LetterFilter
    version: int
    scopes: tuple[Scope, ...]

    def dump(self) -> bytes:
        """Return the replay as JSON."""
        return json.dumps({**asdict(self), "scopes": [list(scope) for scope in self.scopes]}).encode()

    @classmethod
    def of(cls, said: dict[str, Any]) -> LetterReplay:
        """Return a replay from what `dump` made of one, by way of JSON."""
        asked = LetterFilter(**{**said["asked"], "stages": tuple(said["asked"]["stages"])})
        return cls(said["name"], asked, said["version"], tuple(Scope(*scope) for scope in said["scopes"]))


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
class LetterBatches(Batches):
    """The batch of one scope. With `trial` it is decided and nothing of it is kept."""

    scope: Scope = UNDECODED
    trial: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outboxes.resending = self.store.run
        if self.trial:
            self.landing.folder = self._folder

    def decided(self, raw: DataFrame) -> tuple[Manifest, int]:
        """Return what would be decided about records, and how many of them would be the same dead letters again."""
        steps = Steps(0)
        plan = self._plan(with_arrival(raw, self.ordinal, 0), replay=False)
        try:
            manifest, _, _ = self._decide(plan, steps)
            return manifest, self._still(manifest.batch)
        finally:
            self._clear(0)

    def _write_down(self, manifest: Manifest, landed: Landed, *, new: bool) -> Manifest:
        works = [self._divided(work, manifest.batch) for work in manifest.commits if work.target == "/dead_letters"]
        others = [work for work in manifest.commits if work.target != "/dead_letters"]
        manifest = replace(manifest, commits=(*others, *(work for work in works if work.files)))
        if not self.trial:
            return super()._write_down(manifest, landed, new=new)
        self.lake.delete(*(file.path for work in manifest.commits for file in work.files))
        return manifest

    def _divided(self, work: TableCommit, batch: int) -> TableCommit:
        """Return the commit of dead letters without those of the scope, whose records are noted: they stay."""
        files, still = [], []
        for file in work.files:
            with self.lake.files.open_input_file(file.path) as source:
                rows = pq.read_table(source)
            same = self._same(rows)
            still.append(rows.filter(same).select([*WHOLE]))
            if other := len(same) - (pc.sum(same).as_py() or 0):
                files.append(self._rewritten(file, rows.filter(pc.invert(same)), other))
            self.lake.delete(file.path)
        if still:
            self.lake.files.create_dir(self._folder, recursive=True)
            with self.lake.files.open_output_stream(self._still_path(batch)) as stream:
                pq.write_table(pa.concat_tables(still), stream)
            self.lake.sync(self._still_path(batch))
        return replace(work, files=tuple(files))

    def _same(self, rows: pa.Table) -> pa.Array:
        """Return which dead letters are those of the scope again; of one route also what does not decode by now."""
        same = pc.equal(rows["stage"], self.scope.stage)
        for name in ("route", "sink"):
            value = getattr(self.scope, name)
            equal = rows[name].is_null() if value is None else pc.fill_null(pc.equal(rows[name], value), False)
            same = pc.and_(same, equal)
        if self.scope.route is not None:
            same = pc.or_(same, pc.equal(rows["stage"], "decode"))
        return same.combine_chunks() if isinstance(same, pa.ChunkedArray) else same

    def _rewritten(self, file: StagedFile, rows: pa.Table, count: int) -> StagedFile:
        """Stage some rows of a file of dead letters in another one; they are of no batch of the stream."""
        at = rows.schema.get_field_index("batch_id")
        rows = rows.set_column(at, rows.schema.field(at), pa.nulls(count, pa.int64()))
        path, footers = f"{file.path.rpartition('/')[0]}/part-replay-{uuid.uuid4()}.parquet", list[Any]()
        with self.lake.files.open_output_stream(path) as stream:
            pq.write_table(rows, stream, compression="zstd", metadata_collector=footers)
            size = stream.tell()
        self.lake.sync(path)
        return replace(file, path=path, bytes=size, rows=count, statistics=statistics(footers[0]))

    @property
    def _folder(self) -> str:
        return f"_staged/{self.config.name}/replays/{self.store.run}"

    def _still_path(self, batch: int) -> str:
        return f"{self._folder}/still-{batch:010d}.parquet"

    def still(self, batch: int) -> DataFrame | None:
        """Return the records of a batch that are the same dead letters again; None where there are none."""
        there = self.lake.files.get_file_info(self._still_path(batch)).is_file
        return self.spark.read.parquet(self.lake.for_spark(self._still_path(batch))) if there else None

    def _still(self, batch: int) -> int:
        if not self.lake.files.get_file_info(self._still_path(batch)).is_file:
            return 0
        with self.lake.files.open_input_file(self._still_path(batch)) as source:
            return int(pq.ParquetFile(source).metadata.num_rows)

    def _clear(self, batch: int) -> None:
        self.lake.delete(self._still_path(batch))

    def outlook(self, batch: int, manifest: Manifest, reason: str) -> LetterOutcome:
        """Return what becomes of the records of a batch by its manifest."""
        places: dict[str, int] = {}
        other = 0
        for work in manifest.commits:
            if work.target == "/dead_letters":
                other += work.rows
            else:
                place = work.target if work.table.startswith("outbox.") else work.table
                places[place] = places.get(place, 0) + work.rows
        return LetterOutcome(self.scope, total(manifest.partitions, "read"), reason, places, self._still(batch), other)

    def _write_ledger(self, manifest: Manifest, applied: dict[str, Any]) -> None:
        """Write what the replay has changed: more rows are there, and as many fewer are dead letters."""
        found = [{**row, "batch_id": None, "violated": None} for row in self._moved(manifest, applied)]
        base = {"query": self.config.name, "run": self.store.run}
        entry = ledger.LedgerEntry(self.config.ledger, str(TransactionId("ledger", self.query)), manifest.batch)
        ledger.append(self.committers, entry, [{**base, **row} for row in found], tables=self.tables)

    def _moved(self, manifest: Manifest, applied: dict[str, Any]) -> list[dict[str, Any]]:
        about = self.config.name, self.store.run, manifest.batch, manifest.targets, manifest.partitions, applied
        found = [row for row in ledger.rows(*about) if row.get("route") is not None]
        found += ledger.of_moved(self.config.name, self.store.run, manifest)
        counted, stage = manifest.partitions, self.scope.stage
        read, failed, bare = (total(counted, kind) for kind in ("read", "failed", "bare"))
        if self.scope.route is None:
            now = {"failed": failed, "bare": bare, "decoded": read - failed - bare}
            was = {"failed": read} if stage == "decode" else {"decoded": read}
            moved = {name: now.get(name, 0) - was.get(name, 0) for name in ("decoded", "failed", "bare")}
            unmatched = total(counted, "unmatched") - (read if stage == "match" else 0)
            return [*found, {"read": 0, "unmatched": unmatched, **moved}]
        gone = failed - read
        counts = ("matched", "landed", "dead") if stage == "apply" else ("matched", "refused")
        for key in manifest.targets:
            route, sink = key.split("/", 1)
            found.append({"route": route, "sink": sink, **dict.fromkeys(counts, gone)})
        return found

    def _after(self, plan: Any, tables: set[str], steps: Steps) -> None:
        """Leave releases, maintenance and the catalog to the stream."""


@dataclass
class DeadLetterReplay:
    """The replays of a configuration's dead letters. Its decoder must be prepared already.

    `folder` is the folder of the configuration, `fingerprint` names what stands in it. With `accept` dead letters also
    go into tables whose rows depend on the order in which records come.
    """

    config: Config
    fingerprint: str
    folder: Path
    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    stop: threading.Event = field(default_factory=threading.Event)
    executors: Executors = field(default_factory=Executors)
    accept: bool = False

    def begin(self, asked: LetterFilter) -> LetterReplay | None:
        """Return a new replay of the dead letters that a filter chooses; None where there are none."""
        handle = self.lake.open(self.config.dead_letters)
        if handle is None:
            return None
        self._refuse_letters_of_others(asked)
        begun = LetterReplay(new_name(), asked, handle.version(), ())
        scopes = self._letters(begun).select(*Scope._fields).distinct().collect()  # few: stages x routes x sinks
        if not scopes:
            return None
        return replace(begun, scopes=tuple(sorted((Scope(*row) for row in scopes), key=repr)))

    def _refuse_letters_of_others(self, asked: LetterFilter) -> None:
        """Raise StartError where several queries write the dead letters: those without a route may be anybody's."""
        name, table = self.config.name, self.config.dead_letters
        if asked.route is None and (others := writers_of(self.lake, table) - {name}):
            what = f"{table} has dead letters of {', '.join(sorted(others))}, too, and does not say whose each is"
            raise StartError(f"{what}: choose those of a route that only {name} has, with --route")

    def cut_off(self) -> LetterReplay | None:
        """Return the replay that was killed before its end; None where there is none."""
        said = self._store().load(NOTE)
        return None if said is None else LetterReplay.of(said)

    def show(self, begun: LetterReplay) -> list[LetterOutcome]:
        """Return what would become of the dead letters of each scope. Stages files, and deletes them."""
        found = []
        for scope in begun.scopes:
            rows, reason = self._counted(begun, scope)
            if left := self._left(scope):
                found.append(LetterOutcome(scope, rows, reason, left=left))
                continue
            batches = self._batches(begun, scope, trial=True)
            manifest, still = batches.decided(self._records(begun, scope))
            look = replace(batches.outlook(0, manifest, reason), still=still)
            found.append(self._counted_in(look, rows))
        self._clear(begun)
        return found

    def send(self, begun: LetterReplay) -> list[LetterOutcome]:
        """Send the dead letters of each scope again, and mark what is taken. Can be repeated from any point.

        Raises StartError, before anything changes, where they would go into tables that depend on the order of records.
        """
        if self.cut_off() is None:
            self._refuse_order_dependent(begun)
        store, found = self._store(), list[LetterOutcome]()
        store.write(NOTE, begun.dump())
        for batch, scope in enumerate(begun.scopes):
            if self.stop.is_set():
                return found
            rows, reason = self._counted(begun, scope)
            if left := self._left(scope):
                found.append(LetterOutcome(scope, rows, reason, left=left))
                continue
            batches = self._batches(begun, scope)
            batches.process(self._records(begun, scope), batch)
            manifest = batches.store.manifest(batch)
            assert manifest is not None  # it was processed
            self._mark(begun, scope, batch, batches)
            found.append(self._counted_in(batches.outlook(batch, manifest, reason), rows))
        store.delete(NOTE)
        for folder in ("manifests", "applied"):
            for path in store.paths(f"{folder}/{begun.name}"):
                store.delete(path)
        self._clear(begun)
        return found

    def _refuse_order_dependent(self, begun: LetterReplay) -> None:
        """Raise StartError where a record that comes late leaves another row than one that came in time.

        A sink that keeps part of an older row needs the rows in their order; all others do not.
        """
        if self.accept:
            return
        names: set[str] = set()
        for route, sink_name, sink in self.config.all_sinks():
            chosen = any(scope.route in (None, route) and scope.sink in (None, sink_name) for scope in begun.scopes)
            if chosen and isinstance(sink, MergingSink) and keeps_older_values(sink.keyed()):
                names.add(fixed_table(sink) or f"the tables of {route}/{sink_name}")
        if names:
            what = f"{', '.join(sorted(names))} keep parts of older rows: a late record does not find them as they were"
            raise StartError(f"{what}. Add --accept, then rebuild them with `router refresh`; nothing was sent")

    def _clear(self, begun: LetterReplay) -> None:
        folder = f"_staged/{self.config.name}/replays/{begun.name}"
        if self.lake.files.get_file_info(folder).type.name == "Directory":
            self.lake.files.delete_dir(folder)

    def _counted_in(self, look: LetterOutcome, rows: int) -> LetterOutcome:
        """Return an outlook with the rows that bronze does not have among those that stay."""
        return replace(look, rows=rows, still=look.still + rows - look.rows)

    def _letters(self, begun: LetterReplay, scope: Scope | None = None) -> DataFrame:
        """Return the chosen dead letters, of all scopes or one, as their table was when the replay began."""
        reader = self.spark.read.format("delta").option("versionAsOf", begun.version)
        found = reader.load(self.lake.spark_address(self.config.dead_letters)).filter(begun.asked.holds())
        if REPLAYED in found.columns:
            found = found.filter(F.col(REPLAYED).isNull())
        for route, sink, _ in resending_sinks(self.config):  # they keep their own
            found = found.filter(~Scope("apply", route, sink).holds())
        return found if scope is None else found.filter(scope.holds())

    def _counted(self, begun: LetterReplay, scope: Scope) -> tuple[int, str]:
        """Return the number of records of a scope, and one of the reasons."""
        letters = self._letters(begun, scope).groupBy(*self._names(scope)).agg(F.max("reason").alias("reason"))
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

    def _records(self, begun: LetterReplay, scope: Scope) -> DataFrame:
        """Return the raw records of a scope, each once."""
        found = letters = self._letters(begun, scope)
        if scope.stage == "apply":
            bronze = self._bronze()
            found = bronze.join(letters, _alike(bronze, letters, PLACE), "left_semi")
        return stored_records(found).dropDuplicates([*self._names(scope)])

    def _bronze(self) -> DataFrame:
        """Return the records of bronze that have a place of their own: those of a topic, or a file."""
        names = self.config.bronze_tables()
        assert names is not None  # see _left
        tables = [table for table in self.lake.tables(names.layer) if table in names]
        none = self.spark.createDataFrame([], RECORD_SCHEMA)
        load = self.spark.read.format("delta").load
        parts = (stored_records(load(self.lake.spark_address(table))) for table in tables)
        return reduce(DataFrame.unionByName, parts, none).filter(F.col("topic").isNotNull())

    def _mark(self, begun: LetterReplay, scope: Scope, batch: int, batches: LetterBatches) -> None:
        """Mark the dead letters of a scope that were taken."""
        taken, names = self._letters(begun, scope), self._names(scope)
        if scope.stage == "apply":
            bronze = self._bronze()
            taken = taken.join(bronze, _alike(taken, bronze, PLACE), "left_semi")
        if (still := batches.still(batch)) is not None:
            taken = taken.join(still, _alike(taken, still, names), "left_anti")
        mark_replayed(taken, self.lake, self.config, begun.name, batch)

    def _batches(self, begun: LetterReplay, scope: Scope, *, trial: bool = False) -> LetterBatches:
        config = _chosen(self.config, scope)
        if not trial:
            try:
                config = opened(config, self.spark, self.folder)
            except OSError as error:
                raise StartError(f"{error}; try again when it is back") from error
        store = CheckpointStore(self.checkpoint, begun.name)
        about = config, self.fingerprint, self.spark, self.lake, store
        return LetterBatches(*about, stop=self.stop, executors=self.executors, scope=scope, trial=trial)

    def _store(self) -> CheckpointStore:
        return CheckpointStore(self.checkpoint)


def keeps_older_values(keyed: KeyedTable) -> bool:
    """Say whether a row of a table keeps values of records before its newest one."""
    return keyed.when_matched == "ignore" or keyed.columns is not None or keyed.soft_delete is not None


def _chosen(config: Config, scope: Scope) -> Config:
    """Return the configuration with what a scope's dead letters are for: one route or sink, or all; never bronze."""
    found = config.model_copy(update={"bronze": None})
    if scope.route is None:
        return found
    route = next(route for route in config.routes if route.identity == scope.route)
    return found.model_copy(update={"routes": (_with_sink(route, scope.sink),), "unmatched": "drop"})


def _with_sink(route: Route, name: str | None) -> Route:
    """Return a route with one of its sinks, which keeps its name: without the others it would have another number."""
    if name is None:
        return route
    sink = route.named_sinks[name].model_copy()
    sink._named = name
    return route.model_copy(update={"sinks": (sink,)})


def _alike(left: DataFrame, right: DataFrame, names: tuple[str, ...]) -> Column:
    return reduce(and_, (left[name].eqNullSafe(right[name]) for name in names))
