"""Refuse a start that would lose or duplicate records: a lost or stale checkpoint, a lost lake."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from router.api.sinks import TableSink
from router.delta.commit import to_arrow
from router.delta.dataset import dataset_of
from router.delta.history import commit_notes
from router.delta.located_files import note_path
from router.delta.table_cache import THREADS, TableCache
from router.delta.transaction_id import TransactionId
from router.engine.checkpoint_store import REPLAY_PREFIX, CheckpointStore
from router.engine.commit.lost_tables import refuse_lost_tables
from router.engine.label.layout import outbox_of, quarantine_of
from router.engine.ledger import OPTIONAL_COLUMNS, last_batch
from router.engine.ledger import SCHEMA as LEDGER
from router.engine.source import source
from router.engine.spark.executors import Executors
from router.engine.start.spark_checkpoint import RECENT, SparkNotes
from router.errors import StartError
from router.registry import parts_in
from router.spark_internals import hadoop_lacks, hadoop_version, set_hadoop
from router.storage import files as storage
from router.storage.locations import may_make_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from router.acceptance import Accepted
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import Manifest
    from router.engine.source.source import Offsets
    from router.registry import Registry


@dataclass(frozen=True)
class Checkpoint:
    """The past of a query, as its Spark checkpoint has it.

    `run` is the query's id, `decided` the last batch whose offsets are decided (a start then continues with them),
    `last` the last committed batch; -1 for none.
    """

    run: str | None = None
    decided: int = -1
    last: int = -1

    @classmethod
    def read(cls, place: Lake) -> Checkpoint:
        """Read the Spark checkpoint in the folder `spark` of the configuration's checkpoint."""
        run = None
        metadata = place.read("spark/metadata")
        if metadata is not None:
            try:
                run = json.loads(metadata)["id"]
            except (ValueError, KeyError, TypeError):
                fault = "is damaged; `router run` mends it, or prints what to do"
                raise StartError(f"{place.root}/spark/metadata {fault}") from None
        notes = SparkNotes(place)
        decided = max(notes.list_batches("offsets"), default=-1)
        return cls(run, decided=decided, last=max(notes.list_batches("commits"), default=-1))


def last_manifest(checkpoint: Lake) -> Manifest | None:
    """Return the manifest of the last batch that was decided; None before the first."""
    past = Checkpoint.read(checkpoint)
    store = CheckpointStore(checkpoint, past.run or "")
    return store.read_manifest(past.decided) or store.read_manifest(past.last)


def was_cut_off(lake: Lake, store: CheckpointStore, config: Config) -> bool:
    """Return whether a batch was cut off: it has a manifest, but is not in the ledger yet."""
    run = Checkpoint.read(store.checkpoint).run
    table = lake.open(config.ledger)
    last_batch = None
    if table is not None:
        last_batch = table.transaction_version(str(TransactionId("ledger", f"{config.name}:{run}")))
    next_batch = 0 if last_batch is None else last_batch + 1
    return store.read(f"manifests/{run}/{next_batch:010d}.json") is not None


def check_lake_and_checkpoint(
    lake: Lake, ledger: str, name: str, checkpoint: Checkpoint, accept: Accepted = frozenset()
) -> None:
    """Raise StartError if lake and checkpoint do not belong together, unless just that is accepted.

    A checkpoint ahead of its lake would continue after records that are nowhere any more; one that is behind would take
    new records for a batch that the tables have; a lake without its checkpoint would get everything again.
    """
    table = TableCache(lake).open_tables([ledger])[ledger]
    if table is not None:
        missing = sorted(set(LEDGER.names) - OPTIONAL_COLUMNS - set(to_arrow(table).names))
        if missing:
            raise StartError(
                f"{ledger} in {lake.root} was written by another version of the router (it has no "
                f"{', '.join(missing)}), from which this one cannot continue; give this run a new lake and a new "
                "checkpoint"
            )
    # A batch is in the ledger after Spark has decided its offsets, and before Spark commits it.
    in_ledger = last_batch(table, name, checkpoint.run)
    if in_ledger < checkpoint.last and "lost-lake" not in accept:
        raise StartError(
            f"the checkpoint of {name} has committed batch {checkpoint.last}, but {ledger} in {lake.root} does not "
            "have it: the lake was deleted, moved or put back from an older copy. Restore it; or delete the "
            "checkpoint also and fill the lake again from the source; or run with --accept lost-lake to continue "
            "with what comes next"
        )
    if in_ledger > max(checkpoint.decided, checkpoint.last):
        raise StartError(
            f"the checkpoint of {name} ends with batch {checkpoint.last}, but {ledger} in {lake.root} has batch "
            f"{in_ledger}: the checkpoint was put back from an older copy, and records would be taken for batches that "
            "the tables have already. Restore a newer copy; or, with a source of Kafka, delete the checkpoint and run "
            "with --accept lost-checkpoint"
        )
    if checkpoint.decided >= 0 or accept & {"lost-checkpoint", "duplicates"}:
        return
    if traces := _describe_earlier_runs(lake, table, name):
        raise StartError(
            f"{lake.root} holds records of {name} ({traces}), but its checkpoint is empty: a start from the beginning "
            "would write them twice. Restore the checkpoint; or run with --accept lost-checkpoint to continue where "
            "the ledger ends (Kafka); or with --accept duplicates"
        )


def _describe_earlier_runs(lake: Lake, ledger: DeltaTable | None, name: str) -> str:
    """Return the runs in the ledger, else the tables, with records of a query, as text."""
    if ledger is not None:
        runs = pc.unique(_ledger_rows(ledger, name, ["run"]).column("run")).to_pylist()
        if runs:
            return f"run {', '.join(sorted(runs))}"
    return ", ".join(sorted(_last_batches(lake, name)))


def _ledger_rows(ledger: DeltaTable, name: str, columns: list[str]) -> pa.Table:
    return dataset_of(ledger).to_table(columns=columns, filter=pc.field("query") == name)


def _last_batches(lake: Lake, name: str) -> dict[str, tuple[str, int]]:
    """Return the last commit of a query in each table that has one: table -> (run, batch)."""
    tables = lake.every_table()
    with ThreadPoolExecutor(THREADS) as pool:
        batches = pool.map(lambda table: _last_batch(lake, table, name), tables)
        return {table: batch for table, batch in zip(tables, batches, strict=True) if batch}


def _last_batch(lake: Lake, table: str, name: str) -> tuple[str, int] | None:
    """Return run and batch of the last commit of a query to a table; None also if its log is damaged."""
    try:
        handle = lake.open(table)
        commits = handle.history(RECENT) if handle else []
    except DeltaError:  # it may be another's; the first batch that writes it reports what is wrong
        return None
    for entry in commits:
        if entry.get("operation") == "RESTORE":
            return None  # the operator who restored the table has decided about older commits
        note = commit_notes(entry)
        query, _, run = str(note.get("router.query", "")).rpartition(":")
        if query == name and not run.startswith(REPLAY_PREFIX):
            return run, int(note["router.batch"])
    return None


def refuse_shared(lake: Lake, config: Config) -> None:
    """Raise StartError if another query writes an outbox or a quarantine of this one.

    The names `a-b` and `a_b` give the same tables. An outbox that two queries share is sent, or merged, twice.
    """
    tables = []
    for route, sink, _ in config.all_sinks():
        tables += [outbox_of(config.name, route, sink), quarantine_of(config.name, route, sink)]
    with ThreadPoolExecutor(THREADS) as pool:
        for table, queries in zip(tables, pool.map(partial(writers_of, lake), tables), strict=True):
            if others := queries - {config.name}:
                raise StartError(
                    f"{table} in {lake.root} belongs to the query {others.pop()}, and {config.name} would also write "
                    "it; give this query another name, or a lake of its own"
                )


def writers_of(lake: Lake, table: str) -> set[str]:
    """Return the queries that a table's last commits are of; none if the table is missing or cannot be read."""
    try:
        handle = lake.open(table)
        commits = handle.history(RECENT) if handle else []
    except (DeltaError, OSError):  # the first batch that writes it reports what is wrong
        return set()
    runs = [str(commit_notes(commit).get("router.query", "")) for commit in commits]
    return {run.rpartition(":")[0] for run in runs if run}


def refuse_speculation(setting: str | None, config: Config) -> None:
    """Raise StartError if Spark may run a task twice at once whose work is more than staged files.

    Of two attempts of a landing task, Spark returns the report of one, and only its files are committed. Calls and
    messages of both are sent, and both merge.
    """
    if setting != "true":
        return
    sinks = [f"{route}/{name}" for route, name, sink in config.all_sinks() if not isinstance(sink, TableSink)]
    if sinks:
        raise StartError(
            f"spark.speculation runs a task twice at once, and {', '.join(sinks)} would send or merge rows twice; set "
            "it to false"
        )


def read_resume_offsets(lake: Lake, ledger: str, name: str) -> Offsets:
    """Return the offsets after the last records in the ledger, where a lost Kafka checkpoint continues.

    Raises StartError if the last batch is in some tables and not in the ledger: it was cut off half-way, and a start
    after the ledger would write those rows again.
    """
    table = lake.open(ledger)
    if table is None:
        raise StartError(f"{ledger} is not in {lake.root}: without a ledger there is no place to continue from")
    rows = _ledger_rows(table, name, ["run", "batch_id", "topic", "partition", "to_offset"])
    last_by_run = rows.group_by("run").aggregate([("batch_id", "max")]).to_pylist()
    _refuse_half_batch(lake, name, {row["run"]: row["batch_id_max"] for row in last_by_run})
    partitions = rows.filter(pc.is_valid(rows.column("topic"))).group_by(["topic", "partition"])
    offsets: Offsets = {}
    for row in partitions.aggregate([("to_offset", "max")]).to_pylist():
        offsets.setdefault(row["topic"], {})[row["partition"]] = row["to_offset_max"] + 1
    return offsets


def _refuse_half_batch(lake: Lake, name: str, in_ledger: dict[str, int]) -> None:
    """Raise StartError if tables have a later batch than the ledger, whose last one of each run is `in_ledger`."""
    batches = _last_batches(lake, name)
    ahead = [table for table, (run, batch) in batches.items() if batch > in_ledger.get(run, -1)]
    if ahead:
        raise StartError(
            f"the last batch of {name} was cut off half-way: {', '.join(sorted(ahead))} have it and the ledger does "
            "not. RESTORE these tables to the version before, then start again"
        )


def find_starting_offsets(
    spark: SparkSession, tables: TableCache, checkpoint: Lake, config: Config, accept: Accepted
) -> Offsets | None:
    """Return where a new checkpoint begins; None if it begins where the configuration says, or is not new."""
    lake = tables.lake
    past = Checkpoint.read(checkpoint)
    refuse_other_source(CheckpointStore(checkpoint), config, past)
    note_source(CheckpointStore(checkpoint), config)
    refuse_moved(lake, config)
    refuse_shared(lake, config)
    check_lake_and_checkpoint(lake, config.ledger, config.name, past, accept)
    if past.run:
        refuse_lost_tables(tables, CheckpointStore(checkpoint, past.run), config, past.last, accept)
    if "lost-checkpoint" not in accept or past.decided >= 0:
        return None
    if config.source.kafka is None:
        raise StartError("only a Kafka source can continue from the ledger; restore the checkpoint")
    return source.complete_offsets(spark, config.source.kafka, read_resume_offsets(lake, config.ledger, config.name))


def refuse_other_source(store: CheckpointStore, config: Config, past: Checkpoint) -> None:
    """Raise StartError if the checkpoint counts the records of another source.

    Topics may come and go. Spark reads the last files of a checkpoint below the folder that the source has now, and
    fails.
    """
    kind = _kind_of_source(config)
    noted = store.read_note().source
    if past.decided >= 0 and noted not in ("", kind):
        raise StartError(
            f"the checkpoint of {config.name} says how far {noted} was read, and the source is {kind} now: it cannot "
            f"continue there. Give the configuration another `name`, it may write the same lake; or go back to {noted}"
        )


def note_source(store: CheckpointStore, config: Config) -> None:
    """Note in the checkpoint whose records it counts."""
    kind = _kind_of_source(config)
    if store.read_note().source != kind:
        store.change_note(source=kind)


def _kind_of_source(config: Config) -> str:
    if config.source.files:
        return f"the files of {config.source.files.path}"
    if config.source.format:
        return f"the format {config.source.format.name}"
    return "Kafka"


def refuse_moved(lake: Lake, config: Config) -> None:
    """Raise StartError if a sink, or bronze, puts a table elsewhere than it is: a second one would begin there."""
    names = config.written_names()
    places = lake.noted_locations()
    if lake.locations:
        # Tables without a note are where they would be if no sink had a `location`.
        layout = replace(lake, locations=())
        places = {**{table: layout.address(table) for table in layout.every_table()}, **places}
    for table, place in places.items():
        if not any(may_make_name(template, table) for template in names):
            continue
        configured = _configured_place(lake, table)
        if configured != place:
            raise StartError(
                f"{table} is at {place}, and the configuration puts it at {configured}: its rows would be in two "
                f"places. Give it back its `location`; or move its folder and delete {lake.root}/{note_path(table)}"
            )


def _configured_place(lake: Lake, table: str) -> str:
    """Return where the configuration puts a table, or why it has no place."""
    try:
        return lake.address(table)
    except ValueError as error:
        return f"a place that cannot be ({error})"


def make_reachable(spark: SparkSession, place: Lake, *, needed_for: Sequence[str] = (), writes: bool = True) -> None:
    """Try a place, and let Spark's own file systems reach it with the rights of the router. Raises StartError.

    Without `writes` it is not tried whether the place takes files.

    The settings hold secrets: they go where no page of Spark and no plan shows them. `needed_for` is what Spark itself
    has to have a file system for the place for.
    """
    if writes:
        storage.probe_conditional_writes(place.root, place.options)
    for location in place.locations:
        settings = storage.hadoop_settings(location.place, location.options)
        if location.bucket:
            # The settings are for this bucket alone: other buckets may have other keys.
            prefix = f"fs.s3a.bucket.{location.bucket}."
            settings = {name.replace("fs.s3a.", prefix): value for name, value in settings.items()}
        set_hadoop(spark, settings)
    if place.is_local:
        return
    set_hadoop(spark, storage.hadoop_settings(place.root, place.options))
    if not needed_for:
        return
    if reason := hadoop_lacks(spark, place.for_spark()):
        raise StartError(
            f"Spark has no file system for {place.root} ({reason}), and needs one for {', '.join(needed_for)}. Name it "
            f"under `spark:`, for S3 as spark.jars.packages: org.apache.hadoop:hadoop-aws:{hadoop_version(spark)}"
        )


def executors_of(spark: SparkSession, registry: Registry, config: Config, lake: Lake, command: str = "") -> Executors:
    """Return the executors of a run, which look for the modules of the parts.

    `command` is the name of a command that runs at the same time as the stream: it leaves marks of its own.
    """
    modules = ["router.engine.land.task", *registry.modules_of_parts(config)]
    for part in parts_in(config):
        modules += part.needs
    run_name = f"{config.name}.{command}" if command else config.name
    return Executors.of_session(spark, dict.fromkeys(modules), lake, run_name)
