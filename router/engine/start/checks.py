"""Refuse a start that would lose or duplicate records: a lost or stale checkpoint, a lost lake."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyarrow import fs

from router import storage
from router.delta.commit import to_arrow
from router.delta.history import commit_notes
from router.delta.lake import native_files
from router.delta.located_files import note_path
from router.delta.table_cache import THREADS, TableCache
from router.delta.transaction_id import TransactionId
from router.engine import source
from router.engine.checkpoint_store import REPLAY, CheckpointStore
from router.engine.commit.lost_tables import refuse_lost_tables
from router.engine.label.layout import outbox_of, quarantine_of
from router.engine.ledger import LATER
from router.engine.ledger import SCHEMA as LEDGER
from router.engine.spark.executors import Executors
from router.errors import StartError
from router.locations import makes
from router.registry import parts_in
from router.sinks import TableSink
from router.spark_internals import hadoop_lacks, set_hadoop

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.source import Offsets
    from router.registry import Registry

Accept = Literal[
    "",
    "lost-checkpoint",
    "lost-lake",
    "lost-records",
    "lost-tables",
    "duplicates",
    "dead-letters",
    "gone-sinks",
]
RECENT = 100
"""Commits of a table that are searched for the last batch of a query."""


@dataclass(frozen=True)
class Checkpoint:
    """The past of a query, as its Spark checkpoint has it.

    `run` is the query's id, `begun` says whether the offsets of any batch are decided (a start then goes on with
    them), `last` is the last committed batch, -1 for none.
    """

    run: str | None = None
    begun: bool = False
    last: int = -1

    @classmethod
    def read(cls, place: Lake) -> Checkpoint:
        """Read the Spark checkpoint in the folder `spark` of the configuration's checkpoint."""
        metadata = place.read("spark/metadata")
        try:
            run = None if metadata is None else json.loads(metadata)["id"]
        except ValueError:
            what = "is damaged; `router run` mends it, or says what to do"
            raise StartError(f"{place.root}/spark/metadata {what}") from None
        return cls(run, bool(_numbers(place, "spark/offsets")), max(_numbers(place, "spark/commits"), default=-1))


def _numbers(place: Lake, folder: str) -> list[int]:
    found = place.files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    names = (entry.base_name for entry in found)
    return [int(name) for name in names if name.isdecimal()]


def examine(lake: Lake, ledger: str, name: str, checkpoint: Checkpoint, accept: Accept = "") -> None:
    """Raise StartError where lake and checkpoint do not belong together, unless just that is accepted.

    A checkpoint ahead of its lake would go on after records that are nowhere any more; one that is behind would take
    new records for a batch that the tables have; a lake without its checkpoint would get everything again. A batch is
    in the ledger before Spark commits it, so the ledger is level with the checkpoint or one batch ahead.
    """
    table = TableCache(lake).open([ledger])[ledger]
    if table is not None and (lacks := sorted({*LEDGER.names} - LATER - {*to_arrow(table).names})):
        raise StartError(
            f"{ledger} in {lake.root} was written by another version of the router (it has no {', '.join(lacks)}), "
            "which this one cannot go on from; give this run a new lake and a new checkpoint"
        )
    app_id = str(TransactionId("ledger", f"{name}:{checkpoint.run}"))
    version = table.transaction_version(app_id) if table else None
    booked = -1 if version is None else version
    if booked < checkpoint.last and accept != "lost-lake":
        raise StartError(
            f"the checkpoint of {name} has committed batch {checkpoint.last}, but {ledger} in {lake.root} does not "
            "have it: the lake was deleted, moved or put back from an older copy. Restore it; or delete the "
            "checkpoint too and fill the lake again from the source; or run with --accept lost-lake to go on with "
            "what comes next"
        )
    if booked > checkpoint.last + 1:
        raise StartError(
            f"the checkpoint of {name} ends with batch {checkpoint.last}, but {ledger} in {lake.root} has batch "
            f"{booked}: the checkpoint was put back from an older copy, and records would be taken for batches that "
            "the tables have already. Delete the checkpoint and run with --accept lost-checkpoint"
        )
    if (
        not checkpoint.begun
        and accept not in ("lost-checkpoint", "duplicates")
        and (where := _traces(lake, table, name))
    ):
        raise StartError(
            f"{lake.root} holds records of {name} ({where}), but its checkpoint is empty: a start from the beginning "
            "would write them twice. Restore the checkpoint; or run with --accept lost-checkpoint to go on where the "
            "ledger ends (Kafka); or with --accept duplicates"
        )


def _traces(lake: Lake, ledger: DeltaTable | None, name: str) -> str:
    """Return where the lake holds records of a query, as text."""
    if ledger is not None:
        found = ledger.to_pyarrow_table(
            columns=["query", "run"], filters=[("query", "=", name)], filesystem=native_files(ledger)
        )
        if runs := pc.unique(found.column("run")).to_pylist():
            return f"run {', '.join(sorted(runs))}"
    return ", ".join(sorted(_last_batches(lake, name)))


def _last_batches(lake: Lake, name: str) -> dict[str, tuple[str, int]]:
    """Return the last commit of a query in each table that has one: table -> (run, batch)."""
    tables = lake.every_table()
    with ThreadPoolExecutor(THREADS) as pool:
        notes = pool.map(lambda table: _last_note(lake.open(table), name), tables)
        return {table: note for table, note in zip(tables, notes, strict=True) if note}


def having(lake: Lake, query: str, batch: int) -> dict[str, str]:
    """Return the tables that have a batch of a query (with its run), and the configuration of that commit.

    A table that cannot be read counts as one that has it.
    """

    def committed(table: str) -> str | None:
        try:
            handle = lake.open(table)
            notes = map(commit_notes, handle.history(RECENT)) if handle else iter(())
            mine = (
                note for note in notes if (note.get("router.query"), note.get("router.batch")) == (query, str(batch))
            )
            return next((str(note.get("router.configuration")) for note in mine), None)
        except (DeltaError, OSError):
            return ""

    tables = lake.every_table()
    with ThreadPoolExecutor(THREADS) as pool:
        found = zip(tables, pool.map(committed, tables), strict=True)
        return {table: configuration for table, configuration in found if configuration is not None}


def _last_note(table: DeltaTable | None, name: str) -> tuple[str, int] | None:
    for entry in table.history(RECENT) if table else []:
        if entry.get("operation") == "RESTORE":
            return None  # the operator who restored the table has decided about older commits
        note = commit_notes(entry)
        query, _, run = str(note.get("router.query", "")).rpartition(":")
        if query == name and not run.startswith(REPLAY):
            return run, int(note["router.batch"])
    return None


def refuse_shared(lake: Lake, config: Config) -> None:
    """Raise StartError where another query writes an outbox or a quarantine of this one: their names fold to the same.

    `a-b` and `a_b` do, and an outbox that two queries share is sent, or merged, twice.
    """
    own = [of(config.name, route, sink) for route, sink, _ in config.all_sinks() for of in (outbox_of, quarantine_of)]
    with ThreadPoolExecutor(THREADS) as pool:
        writers = pool.map(lambda table: writers_of(lake, table), own)
        for table, found in zip(own, writers, strict=True):
            if others := found - {config.name}:
                raise StartError(
                    f"{table} in {lake.root} belongs to the query {others.pop()}, and {config.name} would write it, "
                    "too; give this query another name, or a lake of its own"
                )


def writers_of(lake: Lake, table: str) -> set[str]:
    """Return the queries that a table's last commits are of; none of a table that cannot be read."""
    try:
        handle = lake.open(table)
        return _writers(handle) if handle else set()
    except (DeltaError, OSError):  # the first batch that writes it says what is wrong
        return set()


def refuse_speculation(setting: str | None, config: Config) -> None:
    """Raise StartError where Spark may run a task twice at once whose work is more than staged files.

    Of two attempts of a landing task, Spark hands on the report of one, and only its files are committed. Calls and
    messages of both are sent, and both merge.
    """
    doing = [f"{route}/{name}" for route, name, sink in config.all_sinks() if not isinstance(sink, TableSink)]
    if setting == "true" and doing:
        raise StartError(
            f"spark.speculation runs a task twice at once, and {', '.join(doing)} would send or merge rows twice; set "
            "it to false"
        )


def _writers(table: DeltaTable) -> set[str]:
    """Return the queries that a table's last commits are of."""
    notes = (str(commit_notes(entry).get("router.query", "")) for entry in table.history(RECENT))
    return {note.rpartition(":")[0] for note in notes if note}


def resume(lake: Lake, ledger: str, name: str) -> Offsets:
    """Return the offsets after the last records in the ledger: where a lost Kafka checkpoint goes on.

    Raises StartError when the last batch stands in some tables and not in the ledger: it was cut off half-way, and
    going on after the ledger would write those rows again.
    """
    table = lake.open(ledger)
    if table is None:
        raise StartError(f"{ledger} is not in {lake.root}: without a ledger there is nothing to go on from")
    columns = ["run", "batch_id", "topic", "partition", "to_offset"]
    found = table.to_pyarrow_table(columns=columns, filters=[("query", "=", name)], filesystem=native_files(table))
    booked = found.group_by("run").aggregate([("batch_id", "max")]).to_pylist()
    _refuse_half_batch(lake, name, {row["run"]: row["batch_id_max"] for row in booked})
    known = found.filter(pc.is_valid(found.column("topic"))).group_by(["topic", "partition"])
    offsets: Offsets = {}
    for row in known.aggregate([("to_offset", "max")]).to_pylist():
        offsets.setdefault(row["topic"], {})[row["partition"]] = row["to_offset_max"] + 1
    return offsets


def _refuse_half_batch(lake: Lake, name: str, booked: dict[str, int]) -> None:
    """Raise StartError when tables have a later batch than the ledger. `booked`: run -> its last batch there."""
    ahead = [table for table, (run, batch) in _last_batches(lake, name).items() if batch > booked.get(run, -1)]
    if ahead:
        raise StartError(
            f"the last batch of {name} was cut off half-way: {', '.join(sorted(ahead))} have it and the ledger does "
            "not. RESTORE these tables to the version before, then start again"
        )


def begin(spark: SparkSession, tables: TableCache, checkpoint: Lake, config: Config, accept: Accept) -> Offsets | None:
    """Return where a new checkpoint begins, None for where the configuration says."""
    lake = tables.lake
    past = Checkpoint.read(checkpoint)
    refuse_other_source(CheckpointStore(checkpoint), config, past)
    refuse_moved(lake, config)
    refuse_shared(lake, config)
    examine(lake, config.ledger, config.name, past, accept)
    if past.run:
        refuse_lost_tables(tables, CheckpointStore(checkpoint, past.run), config, past.last, accept)
    if accept != "lost-checkpoint" or past.begun:
        return None
    if config.source.kafka is None:
        raise StartError("only a Kafka source can go on from the ledger; restore the checkpoint")
    return source.complete_offsets(spark, config.source.kafka, resume(lake, config.ledger, config.name))


def refuse_other_source(store: CheckpointStore, config: Config, past: Checkpoint) -> None:
    """Raise StartError where the checkpoint counts what another source has; note what a new one counts.

    Topics may come and go. Spark reads the last files of a checkpoint below the folder of now, and fails.
    """
    files, other = config.source.files, config.source.format
    kind = f"the files of {files.path}" if files else f"the format {other.name}" if other else "Kafka"
    noted = (store.read("source") or b"").decode()
    if past.begun and noted and noted != kind:
        raise StartError(
            f"the checkpoint of {config.name} says how far {noted} was read, and the source is {kind} now: it cannot "
            f"go on there. Give the configuration another `name`, it may write the same lake; or go back to {noted}"
        )
    if noted != kind:
        store.write("source", kind.encode())


def refuse_moved(lake: Lake, config: Config) -> None:
    """Raise StartError where a sink, or bronze, puts a table elsewhere than it is: a second one would begin there."""
    written, noted = config.written_names(), lake.noted_locations()
    layout = replace(lake, locations=())
    if lake.locations:
        noted = {**{table: layout.address(table) for table in layout.every_table()}, **noted}
    for table, place in noted.items():
        if any(makes(names, table) for names in written) and (now := _place(lake, table)) != place:
            raise StartError(
                f"{table} is at {place}, and the configuration puts it at {now}: its rows would be in two places. Give "
                f"it back its `location`; or move its folder and delete {lake.root}/{note_path(table)}"
            )


def _place(lake: Lake, table: str) -> str:
    """Return where the configuration puts a table, or why it has no place."""
    try:
        return lake.address(table)
    except ValueError as error:
        return f"a place that cannot be ({error})"


def reach(spark: SparkSession, place: Lake, *, by_spark: bool = False) -> None:
    """Try a place, and let Spark's own file systems reach it with the rights of the router. Raises StartError.

    The settings hold secrets: they go where no page of Spark and no plan shows them. With `by_spark` Spark itself has
    to have a file system for the place: for its checkpoint, and for a lake that views read.
    """
    storage.probe(place.root, place.options)
    for one in place.locations:
        settings = storage.hadoop_settings(one.place, one.options)
        set_hadoop(spark, {_of_bucket(name, one.bucket): value for name, value in settings.items()})
    if place.local:
        return
    set_hadoop(spark, storage.hadoop_settings(place.root, place.options))
    if by_spark and (why := hadoop_lacks(spark, place.for_spark())):
        raise StartError(
            f"Spark cannot reach {place.root}: {why}. Name its file system under `spark:`, for S3 as "
            "spark.jars.packages: org.apache.hadoop:hadoop-aws:3.4.1; without it the checkpoint has to be in a folder, "
            "and there are no views"
        )


def _of_bucket(setting: str, bucket: str | None) -> str:
    """Return the name of a setting for one bucket, where it is known: others may have other keys."""
    return setting.replace("fs.s3a.", f"fs.s3a.bucket.{bucket}.") if bucket else setting


def executors_of(spark: SparkSession, registry: Registry, config: Config, lake: Lake, command: str = "") -> Executors:
    """Return the executors of a run, which look for the modules of the parts; `command` is one beside the stream's."""
    modules = ["router.engine.land.task", *registry.modules(config)]
    modules += dict.fromkeys(module for part in parts_in(config) for module in part.needs)
    return Executors.of(spark, modules, lake, f"{config.name}.{command}" if command else config.name)
