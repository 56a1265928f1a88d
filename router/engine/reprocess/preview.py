"""Run records through the steps of a batch, and say where they would go, for `router preview`. Nothing is sent.

The records are landed and decided as those of a batch are, against the tables of the lake as they are now, with today's
configuration. Their files are staged in a folder of their own, which is deleted at the end. What decoder and planner
learn stays in memory. No checkpoint is written, no sink is opened, no lock is taken: the stream may run.

The rows of an upsert are merged, by the merge of a batch, into a copy of what its table has of the same keys. The table
is taken as it was before the first of the records: its commits note the offsets that they contain.
"""

from __future__ import annotations

import ast
import os
import tempfile
import uuid
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError
from pyarrow import fs
from pyspark.sql import functions as F

from router.api.sinks import ApplyingSink, MergingSink, Opening
from router.api.table_options import NewTable
from router.delta.commit import stored_bytes, to_arrow, to_arrow_schema
from router.delta.dataset import dataset_of
from router.delta.history import REPAIRED, first_commit_after
from router.delta.keyed.row_order import OUTBOX_ONLY
from router.delta.keyed.row_versions import deletions_table, rows_of_keys
from router.delta.keyed.upsert import LARGE
from router.delta.lake import Lake
from router.delta.replace import copy_constraints, create_table, write_rows
from router.delta.replace_by_spark import spark_schema, staged_rows
from router.delta.staged_files import staged_parts
from router.delta.transaction_id import deletions_id
from router.delta.unreadable_values import as_rows
from router.engine.audit.dead_letters import DeadLetterSelection, groups_in
from router.engine.balance import sum_by_key, sum_counts
from router.engine.batch import Batches
from router.engine.checkpoint_store import CheckpointStore, CopiedSchemas
from router.engine.commit.committers import Committers
from router.engine.dead_letter_share import dead_letter_share
from router.engine.decision import BatchDecider
from router.engine.destination import Destination
from router.engine.label.layout import DEAD_SCHEMA, MERGED_COORDINATES
from router.engine.merge.coordinator import MergeCoordinator, OutboxRows
from router.engine.quarantine.table import blocked_places, faults_of_size
from router.engine.reprocess.records import BronzeRecords, RecordRange, bronze_tables, offsets_of_range, open_until
from router.engine.source import source
from router.engine.source.position import arrival_of, stored_records
from router.engine.source.unreadable import RawRecords
from router.engine.start.run_lock import RUN_LOCK, hold_file_lock, is_run_active
from router.engine.steps import Steps
from router.engine.views.schedule import create_refresher, in_order
from router.errors import StartError, TableError, ViewError, first_line
from router.own_names import DELETIONS, OFFSET, OUTBOX, PARTITION, STAGING, TABLE, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable

    from router.api.sinks import KeyedTable
    from router.delta.commit import TableCommit
    from router.delta.history import LogCommit
    from router.engine.audit.dead_letters import DeadLetterGroup
    from router.engine.balance import Partition
    from router.engine.batch_decision import BatchDecision
    from router.engine.label.layout import Layout
    from router.engine.land.job import Landed
    from router.engine.reprocess.context import ReprocessContext

_ONLY_IN_OUTBOXES = {*OUTBOX_ONLY, *MERGED_COORDINATES}
BRONZE_PLACE = "bronze"
"""What a preview calls the place of records that were stored."""
CALLS_OF = 100
"""Rows of a sink of which the calls are made: sinks make those of a small batch only, on the driver."""
_JUST_NOW = timedelta(seconds=2)
"""A preview that began within this time may not have its lock yet."""


@dataclass(frozen=True)
class RecordChoice:
    """The records of a preview: those of a range, else about the newest `last`.

    They come from bronze (`auto`: if it has a table), or else from the source.
    """

    last: int = 1000
    chosen: RecordRange | None = None
    source: Literal["auto", "bronze", "topic"] = "auto"


@dataclass(frozen=True)
class TrialMerge:
    """What a merge would do with its rows, by count, or why it cannot be said (`unknown`).

    `held_against` is the version of the table that it was tried on; -1: an empty one, since there was none before the
    first record, or since the log does not reach back so far (`is_lost`).
    """

    counts: dict[str, int]
    unknown: str = ""
    held_against: int = -1
    is_lost: bool = False


@dataclass(frozen=True)
class TablePreview:
    """The rows that a table would get from one sink; `target` is `route/sink`, or `/bronze`.

    `change` says what it would become: `new`, `wider`, or nothing. `columns` has the columns that it would get, with
    their types; those of a new table are all. `samples` are a few rows. `merge`: what an upsert would do with them.
    """

    table: str
    target: str
    rows: int
    change: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    merge: TrialMerge | None = None


@dataclass(frozen=True)
class SinkPreview:
    """The rows that a sink would send, and the first calls; the first rows, if it cannot say what calls would be."""

    sink: str
    rows: int
    calls: list[dict[str, Any]]


@dataclass(frozen=True)
class Preview:
    """Where records would go. `place` is what they were read from; `stops` has why the batch would not be committed.

    `views` are the rows that views would have of these records alone; of those, `target` is the name of the view.
    By name: `expectations` (`route/expectation`) the events on which they do not hold, `waiting` (`route/sink/table`)
    why rows would wait in a quarantine.
    """

    place: str
    read: int
    unmatched: int
    stops: tuple[str, ...]
    tables: tuple[TablePreview, ...]
    views: tuple[TablePreview, ...]
    sinks: tuple[SinkPreview, ...]
    dead_letters: tuple[DeadLetterGroup, ...]
    expectations: dict[str, int]
    waiting: dict[str, str]


@dataclass
class PreviewDestination(Destination):
    """A destination that notes why a batch would stop, and goes on."""

    noted: list[str] = field(default_factory=list)

    def faults_of_counts(self, layout: Layout, landed: Landed, counted: tuple[Partition, ...]) -> list[str]:
        """Note the faults of a batch; it may be landed again, which replaces them."""
        self.noted = super().faults_of_counts(layout, landed, counted)
        return []

    def faults_of_tables(self, refused: tuple[str, ...]) -> tuple[str, ...]:
        """Note the tables that must not change and would have to."""
        self.noted += refused
        return ()


@dataclass(frozen=True)
class Trial:
    """A batch that was landed into a lake of its own, and decided against the tables of the real one.

    `noted` says why it would stop, `waiting` why rows would wait, by ROUTE/SINK/TABLE; `away`, by ROUTE/SINK, why a
    sink does not say now what it would send.
    """

    context: ReprocessContext
    staging_lake: Lake
    decision: BatchDecision
    noted: list[str]
    waiting: dict[str, str]
    away: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, context: ReprocessContext, staging_lake: Lake, place: str, records: RawRecords, tables: Any = None
    ) -> Trial:
        """Land and decide records of a place. With `tables` rows keep the places of their records: see `TRACED`."""
        store = CheckpointStore(context.checkpoint)
        memory = CopiedSchemas(store)
        context = context.with_decoder(memory)
        config = context.config
        if place == BRONZE_PLACE:
            config = config.model_copy(update={"bronze": None})
        destination = PreviewDestination(config, "preview")
        decider = BatchDecider.of(
            config,
            context.spark,
            context.lake,
            f"{config.name}:preview",
            tables=tables,
            staging_lake=staging_lake,
            traced=tables is not None,
            memory=memory,
            stop=context.stop,
        )
        decider.forget_released(blocked_places(store))
        # Records that no batch has read arrive after all others.
        decision = decider.land_readable(
            records, decider.plan_batch(records.frame, arrival=arrival_of(1 << 20, 0)), Steps(0), destination
        )
        return cls(
            context=context,
            staging_lake=staging_lake,
            decision=decision,
            noted=[*destination.noted, *_faults_of_limits(context, staging_lake, decision)],
            waiting=decider.demands.blocked,
        )

    def staged_rows(self) -> Iterator[tuple[TableCommit, str, pa.Table]]:
        """Yield the rows of all sinks and of bronze part by part: their commit, the table that they are for, the rows.

        If a sink sends its rows elsewhere, the target of the commit stands in place of the table.
        """
        for commit in self.decision.commits:
            if commit.target == "/dead_letters":
                continue
            is_outbox = commit.table.startswith(OUTBOX)
            for rows in staged_parts(self.staging_lake, commit.files, to_arrow_schema(commit.columns)):
                if not is_outbox or TABLE not in rows.column_names:
                    yield commit, commit.target if is_outbox else commit.table, rows
                    continue
                for table in pc.unique(rows.column(TABLE)).to_pylist():
                    yield commit, table, rows.filter(pc.equal(rows.column(TABLE), table))

    def dead_letters(self) -> ds.Dataset:
        """Return the dead letters of the batch."""
        paths = [file.path for file in self.decision.landed.files if file.target == "/dead_letters"]
        return ds.dataset(paths, DEAD_SCHEMA, format="parquet", filesystem=self.staging_lake.files)

    def calls(self, count: int, places: Sequence[tuple[str, int, int]] | None = None) -> Iterator[SinkPreview]:
        """Yield what sinks would send. Those that can say how make their first calls, at most `count`.

        Those of the first rows, or of the records at some places (topic, partition, offset). Of a sink that cannot say
        how come the first rows; for places none, as `staged_rows` has them. Notes why a sink could not send.
        """
        sinks = {f"{route}/{name}": sink for route, name, sink in self.context.config.all_sinks()}
        for commit in self.decision.commits:
            sink = sinks.get(commit.target)
            if not isinstance(sink, ApplyingSink):
                continue
            events = staged_rows(self.context.spark, self.staging_lake, commit)
            calls: list[dict[str, Any]] = []
            if sink.previews and count:
                if places is None:
                    events = events.limit(CALLS_OF)
                else:
                    chosen = events.sparkSession.createDataFrame(
                        places, f"{TOPIC} string, {PARTITION} int, {OFFSET} long"
                    )
                    events = events.join(F.broadcast(chosen), [TOPIC, PARTITION, OFFSET], "left_semi")
                try:
                    calls = sink.preview(events, Opening(self.context.folder, events.limit(0), trial=True))
                except StartError as error:
                    self.noted.append(f"{commit.target}: {first_line(error)}")
                except OSError as error:
                    self.away[commit.target] = first_line(error)
            elif count and places is None:
                calls = as_rows(events.drop(*_ONLY_IN_OUTBOXES).limit(count).toArrow())
            yield SinkPreview(commit.target, commit.rows, calls[:count])


def preview_records(context: ReprocessContext, choice: RecordChoice, samples: int) -> Preview:
    """Return where records would go, with some rows of each table as samples. Deletes what it has staged."""
    with staging_lake_of(context) as staging_lake, chosen_records(context, choice) as (place, records):
        return preview_of(Trial.of(context, staging_lake, place, records), records, samples, place)


def preview_of(trial: Trial, records: RawRecords, samples: int, place: str) -> Preview:
    """Return the preview of records by their trial."""
    partitions = trial.decision.partitions
    sinks = tuple(trial.calls(samples))
    return Preview(
        place=place,
        read=sum_counts(partitions, "read"),
        unmatched=sum_counts(partitions, "unmatched"),
        stops=tuple(trial.noted),
        tables=tuple(_tables(trial, samples)),
        views=tuple(_views(trial, records, samples)),
        sinks=sinks,
        dead_letters=tuple(groups_in(trial.dead_letters(), DeadLetterSelection(), samples=1, value_bytes=None)),
        expectations=dict(sum_by_key(partitions, "violated")),
        waiting={**trial.waiting, **trial.away},
    )


@contextmanager
def staging_lake_of(context: ReprocessContext) -> Iterator[Lake]:
    """Make a lake for staged files that executors reach; delete it at the end, and what killed previews have left."""
    begun = datetime.now(timezone.utc)
    name = f"{begun:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
    if str(context.spark.sparkContext.master).startswith("local"):
        folder = Path(tempfile.gettempdir()) / f"router-previews-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise StartError(f"{folder} is another user's, who could read the records: set TMPDIR to another folder")
        around = Lake.at(str(folder))
    else:
        around = Lake.at(f"{context.lake.root}/{STAGING}/{context.config.name}/previews", context.lake.options)
    try:
        own = Lake.at(f"{around.root}/{name}", around.options)
        with hold_file_lock(own, RUN_LOCK, f"{own.root} is another preview's"):
            yield own
    finally:
        for info in around.files.get_file_info(fs.FileSelector("", allow_not_found=True)):
            is_old = info.base_name < f"{begun - _JUST_NOW:%Y%m%dT%H%M%SZ}"
            if info.base_name == name or (
                is_old and not is_run_active(Lake.at(f"{around.root}/{info.base_name}", around.options))
            ):
                around.files.delete_dir(info.path)


@contextmanager
def chosen_records(context: ReprocessContext, choice: RecordChoice) -> Iterator[tuple[str, RawRecords]]:
    """Yield where the records come from, and the records: the same ones however often they are read, and in one order.

    Raises StartError if they cannot be had there.
    """
    place, records = _find_records(context, choice)
    records.frame.persist()
    try:
        yield place, records
    finally:
        records.frame.unpersist()


def _find_records(context: ReprocessContext, choice: RecordChoice) -> tuple[str, RawRecords]:
    """Return where the records come from, and the records. Lazy. Raises StartError if they cannot be had there."""
    config = context.config
    chosen = choice.chosen
    if choice.source != "topic" and bronze_tables(context.lake, config):
        bronze = BronzeRecords.newest(context.lake, config)
        records = bronze.frame(context.spark, context.lake)
        if chosen is not None:
            return BRONZE_PLACE, RawRecords(stored_records(records.filter(chosen.holds())))
        first_batch = bronze.batch_of_newest(context.lake, choice.last)
        # A batch may be landed more than once: the order says which records are chosen, each time the same.
        order = [F.desc("batch_id"), *(F.desc(name) for name in ("offset", "topic", "partition"))]
        newest = records.filter(F.col("batch_id") >= first_batch).orderBy(*order)
        return BRONZE_PLACE, RawRecords(stored_records(newest.limit(choice.last)))
    if choice.source == "bronze":
        raise StartError(f"{config.name} has no bronze with records; take them from the source: --source topic")

    kafka = config.source.kafka
    if kafka is None and chosen is not None:
        raise StartError("records are chosen by time or offset in bronze or in a topic only; choose --last")
    if kafka is None:
        return "the source", RawRecords(source.read_sample(context.spark, config, choice.last))
    if chosen is None:
        offsets = source.newest_offsets(context.spark, kafka, choice.last)
    else:
        offsets = offsets_of_range(context.spark, kafka, chosen)
    is_chosen = (chosen or RecordRange()).holds()
    return "the topic", RawRecords.of_topic(context.spark, kafka, offsets, lambda records: records.filter(is_chosen))


def _faults_of_limits(context: ReprocessContext, staging_lake: Lake, decision: BatchDecision) -> list[str]:
    """Return why a decided batch would still not be committed: more goes into quarantine or dead letters than may."""
    faults = faults_of_size(context.config, context.lake, decision.landed.files)
    largest = context.config.dead_letter_options.largest_share
    share = dead_letter_share(
        staging_lake, decision.landed.files, sum_counts(decision.partitions, "read"), above=largest
    )
    if share is not None:
        faults.append(f"{share}; {largest:.1%} may (`dead_letters: at_most`)")
    return faults


def _tables(trial: Trial, samples: int) -> Iterator[TablePreview]:
    """Yield what tables would get, the rows of upserts by the table that each is for."""
    counts: Counter[tuple[str, str]] = Counter()
    kept: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    commits: dict[tuple[str, str], TableCommit] = {}
    for commit, table, rows in trial.staged_rows():
        if table == commit.target:
            continue
        key = (table, commit.target)
        commits[key] = commit
        counts[key] += len(rows)
        shown = rows.slice(0, samples - len(kept[key]))
        if commit.table.startswith(OUTBOX):
            shown = shown.drop_columns([name for name in _ONLY_IN_OUTBOXES if name in rows.column_names])
        kept[key] += as_rows(shown)

    merges = _merge_upserts(trial)
    for (table, target), commit in sorted(commits.items(), key=itemgetter(0)):
        is_outbox = commit.table.startswith(OUTBOX)
        columns = {} if is_outbox else {**columns_of(commit.added), **columns_of(commit.widened)}
        change = "wider" if columns else ""
        if is_outbox and trial.context.lake.open(table) is None:
            change = "new"
        elif not is_outbox and commit.decided == -1:
            change = "new"
            columns = columns_of(commit.columns)
        yield TablePreview(
            table, target, counts[table, target], change, columns, kept[table, target], merges.get((target, table))
        )


def _merge_upserts(trial: Trial) -> dict[tuple[str, str], TrialMerge]:
    """Return the outcomes of a trial's merges, by target and table."""
    config, spark, lake = trial.context.config, trial.context.spark, trial.staging_lake
    sinks = {f"{route}/{name}": sink for route, name, sink in config.all_sinks() if isinstance(sink, MergingSink)}
    keys: dict[str, list[pa.Table]] = defaultdict(list)
    keyed_by: dict[str, KeyedTable] = {}
    for commit, table, rows in trial.staged_rows():
        if commit.target in sinks:
            keyed_by[table] = sinks[commit.target].keyed()
            keys[table].append(rows.select(keyed_by[table].keys))
    # Of all sinks of a table at once, since their merges follow one another.
    copied = {}
    for table, parts in keys.items():
        try:
            copied[table] = _copy_rows(
                trial, table, pa.concat_tables(parts, promote_options="permissive"), keyed_by[table]
            )
        except (TableError, DeltaError, OSError, ValueError, KeyError, SyntaxError) as error:
            copied[table] = TrialMerge({}, unknown=first_line(error))

    merger = MergeCoordinator(
        query=f"{config.name}:preview",
        lake=lake,
        spark=spark,
        store=CheckpointStore(lake, "preview"),
        committers=Committers.of(config, spark, lake),
        options=config.landing,
        dead_letters=config.dead_letters,
        ledger=config.ledger,
        executors=trial.context.executors,
    )
    targets = {target.key: target for target in trial.decision.plan.layout.targets}
    merges: dict[tuple[str, str], TrialMerge] = {}
    for work in trial.decision.commits:
        if work.target not in sinks:
            continue
        events = OutboxRows(targets[work.target], work, staged_rows(spark, lake, work), trial.decision.partitions, {})
        outcomes = merger.merge_tables(sinks[work.target], events, {})
        for table in outcomes.by_table.keys() | outcomes.failed.keys():
            unknown = copied[table].unknown or outcomes.failed.get(table, "")
            counts = {} if unknown else outcomes.by_table[table]
            merges[work.target, table] = replace(copied[table], counts=counts, unknown=unknown)
    return merges


def _copy_rows(trial: Trial, table: str, keys: pa.Table, keyed: KeyedTable) -> TrialMerge:
    """Copy the rows of some keys, and the deletions that are remembered of them; return what they are copied from."""
    lake = trial.context.lake
    before = lake.open(table)
    if before is None:
        return TrialMerge({})
    if stored_bytes(before) > LARGE:
        return TrialMerge({}, unknown=f"it has more than {LARGE >> 30} GiB")
    first = _first_commit(lake, table, trial.decision.partitions)
    if first is not None and first.version == 0:
        return TrialMerge({})
    deletions = deletions_table(lake, table)
    try:
        if first is not None:
            before.load_as_version(first.version - 1)
        if first is not None and deletions is not None:
            # A batch remembers its deletions under its number.
            deletions = open_until(
                lake, f"{table}.{DELETIONS}", f".*{deletions_id('')}", int(first.notes["router.batch"]) - 1
            )
        rows = rows_of_keys(before, keys, keyed, to_arrow(before).names)
        gone = deletions and rows_of_keys(deletions, keys, keyed, to_arrow(deletions).names)
    except (DeltaError, OSError):
        if first is None:
            raise
        return TrialMerge({}, is_lost=True)  # its log or its files do not reach back so far
    _write_copy(trial.staging_lake, table, rows, before)
    if deletions is not None:
        _write_copy(trial.staging_lake, f"{table}.{DELETIONS}", gone, deletions)
    return TrialMerge({}, held_against=before.version())


def _first_commit(lake: Lake, table: str, partitions: tuple[Partition, ...]) -> LogCommit | None:
    """Return the first commit of a table that contains one of the records, or later ones; None if none does.

    The newest commits are read first, up to one that is older: a table gets its rows in the order of offsets. Raises
    TableError if the table was rebuilt since, for that contains all of them.
    """
    first_by_source = {f"{partition.topic}/{partition.partition}": partition.first for partition in partitions}

    def is_later(commit: LogCommit) -> bool | None:
        if REPAIRED in commit.notes:
            raise TableError(table, "it was rebuilt, perhaps from these records")
        spans = ast.literal_eval(str(commit.notes.get("router.offsets") or "{}"))
        later = [last >= first_by_source[place] for place, (_, last) in spans.items() if place in first_by_source]
        return any(later) if later else None

    return first_commit_after(lake, table, is_later)


def _write_copy(lake: Lake, name: str, rows: pa.Table, like: DeltaTable) -> None:
    """Make a table of some rows, with the properties of another one that matter to a merge."""
    metadata = like.metadata()
    copy = create_table(
        lake,
        name,
        rows.schema,
        options=NewTable(partition_by=tuple(metadata.partition_columns)),
        properties={key: value for key, value in metadata.configuration.items() if not key.startswith("delta.")},
        name=metadata.name or "",
    )
    write_rows(copy, rows)
    copy_constraints(like, copy)


def columns_of(schema: str | None) -> dict[str, str]:
    """Return the columns of Delta's JSON of a schema, with their types as Spark names them; none without a schema."""
    columns = spark_schema(to_arrow_schema(schema)) if schema else ()
    return {column.name: column.dataType.simpleString() for column in columns}


def _views(trial: Trial, records: RawRecords, samples: int) -> Iterator[TablePreview]:
    """Yield what views would make of the records if there were no others: all goes into a lake of their own."""
    context = trial.context
    if not context.config.views:
        return
    lake = Lake.at(f"{trial.staging_lake.root}/alone", trial.staging_lake.options)
    # Lookups read the real lake. `debug` sends nothing.
    config = context.config.model_copy(update={"debug": True})
    store = CheckpointStore(lake, "preview")
    Batches(config, "", context.spark, lake, store, PreviewDestination(config, "preview")).process(records, 0)
    refreshes = create_refresher(config, context.spark, lake, store)
    for view in in_order(config.views):
        try:
            note = refreshes.refresh_view(view).note
        except ViewError as error:
            yield TablePreview(view.into, view.name, 0, f"cannot be told: {error}")
            continue
        for table in note.targets if note else ():
            handle = lake.open(table)
            if handle is not None:
                rows = dataset_of(handle)
                yield TablePreview(
                    table,
                    view.name,
                    rows.count_rows(),
                    columns=columns_of(handle.schema().to_json()),
                    samples=as_rows(rows.head(samples)),
                )
