"""Explain one table: what it holds, which sinks write it, with which engine and why. Needs no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from router.delta.commit import row_count as count
from router.delta.constraints import unsupported
from router.delta.keyed.row_versions import deletions_table
from router.delta.keyed.upsert import merge_engine
from router.delta.transaction_id import batch_id
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import merge_options
from router.engine.merge.coordinator import BacklogStore
from router.engine.start.checks import Checkpoint
from router.errors import TableError
from router.sinks import MergingSink, Sink, TableSink

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.commit.committers import Committer

Lines = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class WrittenTable:
    """A table that a sink (`target`, as ROUTE/SINK) has written, its rows, and what commits to it."""

    table: str
    target: str
    rows: int
    committer: Committer


@dataclass(frozen=True)
class WritingSink:
    """A sink that writes a table: its route and name, and its last batch in the table (None before the first)."""

    place: str
    sink: Sink
    batch: int | None


def explain(config: Config, table: str) -> list[tuple[str, str]]:
    """Return the explanation as (name, text) lines. Raises TableError where neither lake nor sinks know the table."""
    lake, checkpoint = lake_and_checkpoint(config)
    handle = lake.open(table)
    found = [*_writers(config, table, handle, Checkpoint.read(checkpoint).run)]
    own = [*_own(config, table)]
    if handle is None and not found and not own:
        raise TableError(table, f"it is not in {lake.root}, and no sink of {config.name} has it as its one table")
    lines = [("table", f"{table} at {lake.address(table)}")]
    lines += _table(lake, table, handle) if handle else [("rows", "none: it is made with the first of them")]
    lines += [("written by", f"`{key}`: {what}") for key, what in own]
    for writer in found:
        lines += _writer(config, writer, handle)
        lines += _backlog(BacklogStore(CheckpointStore(checkpoint), writer.place), table)
    return lines


def _table(lake: Lake, table: str, handle: DeltaTable) -> Lines:
    actions: Any = pa.table(handle.get_add_actions())
    counts, about = actions.column("num_records"), handle.metadata()
    unknown = f", and what is in {counts.null_count} files without statistics" if counts.null_count else ""
    yield "rows", f"{sum(counts.drop_null().to_pylist()):,}{unknown}"
    yield (
        "bytes",
        f"{sum(actions.column('size_bytes').to_pylist()):,} in {len(actions):,} files, version {handle.version()}",
    )
    if about.description:
        yield "comment", about.description
    protocol = handle.protocol()
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    yield (
        "features",
        ", ".join(features) or f"those of versions {protocol.min_reader_version}, {protocol.min_writer_version}",
    )
    if about.partition_columns:
        yield "partitioned by", ", ".join(about.partition_columns)
    for name, value in sorted(about.configuration.items()):
        yield "property", f"{name} = {value}"
    if (gone := deletions_table(lake, table)) is not None:
        yield "deletions", f"{count(gone):,} remembered"


def _own(config: Config, table: str) -> Lines:
    whats = {"bronze": "every record", "dead_letters": "what went nowhere else", "ledger": "the counts"}
    own = {"bronze": config.bronze_tables() or (), "dead_letters": {config.dead_letters}, "ledger": {config.ledger}}
    return ((key, what) for key, what in whats.items() if table in own[key])


def _writers(config: Config, table: str, handle: DeltaTable | None, run: str | None) -> Iterator[WritingSink]:
    """Return the sinks whose one table it is, and those whose transaction ids it has."""
    for route, name, sink in config.all_sinks():
        place = f"{route}/{name}"
        app_id = str(batch_id(f"{config.name}:{run}", place, table))
        batch = handle.transaction_version(app_id) if handle else None
        if batch is not None or fixed_table(sink) == table:
            yield WritingSink(place, sink, batch)


def tables_by_sink(config: Config) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the tables that each sink (`route/sink`) has written, with their rows."""
    tables: dict[str, list[tuple[str, int]]] = {}
    for written in written_tables(config):
        tables.setdefault(written.target, []).append((written.table, written.rows))
    return {target: tuple(sorted(of_sink)) for target, of_sink in tables.items()}


def written_tables(config: Config) -> Iterator[WrittenTable]:
    """Yield each table that a sink has written; one that two sinks have written comes twice.

    A sink has written a table when the table has a transaction id of it. Tables that nobody can read are left out.
    """
    lake, checkpoint = lake_and_checkpoint(config)
    run = Checkpoint.read(checkpoint).run
    for table in lake.every_table():
        try:
            handle = lake.open(table)
        except (DeltaError, OSError):
            continue
        writers = [writer for writer in _writers(config, table, handle, run) if writer.batch is not None]
        if handle is None or not writers:
            continue
        counts: Any = pa.table(handle.get_add_actions()).column("num_records")
        rows = sum(counts.drop_null().to_pylist())
        for writer in writers:
            yield WrittenTable(table, writer.place, rows, _committer(config, writer.sink, handle))


def _committer(config: Config, sink: Sink, handle: DeltaTable) -> Committer:
    """Return what commits the next rows of a sink to a table."""
    only_spark = config.commit == "spark"
    if isinstance(sink, MergingSink):
        by_spark = merge_engine(handle, merge_options(sink.keyed(), only_spark)).engine == "spark"
    else:
        by_spark = only_spark or bool(_left_to_spark(sink, handle))
    return "Spark" if by_spark else "delta-rs"


def fixed_table(sink: Sink) -> str:
    """Return the one table of a sink; nothing where data names it."""
    try:
        table = sink.table() if isinstance(sink, (TableSink, MergingSink)) else ""
    except (PySparkException, AssertionError):  # a column cannot be made without a JVM
        return ""
    return table if isinstance(table, str) else ""


def _writer(config: Config, writer: WritingSink, handle: DeltaTable | None) -> Lines:
    only_spark = config.commit == "spark"
    route, sink = config.shown_names(*writer.place.split("/", 1))
    last = "has not yet" if writer.batch is None else f"last in batch {writer.batch}"
    yield "written by", f"{route}/{sink}, {last}"
    if not isinstance(writer.sink, MergingSink):
        spark = _left_to_spark(writer.sink, handle) if handle else ""
        yield "engine", f"spark: {spark}" if spark else f"{'spark' if only_spark else 'arrow'}: as configured"
        return
    keyed = writer.sink.keyed()
    chosen = merge_engine(handle, merge_options(keyed, only_spark))
    yield "engine", f"{chosen.engine}: {chosen.why}"
    yield "keys", ", ".join(keyed.keys)


def _left_to_spark(sink: Sink, handle: DeltaTable) -> str:
    """Return why delta-rs does not append what a sink stages; nothing where it does."""
    features, divided = unsupported(handle), handle.metadata().partition_columns
    if isinstance(sink, TableSink):  # it stages files by the values of these columns
        features -= {"partitioning"}
        if {*divided} != {*sink.partition_by}:
            return f"it is partitioned by {', '.join(divided) or 'nothing'}, and the sink divides otherwise"
    return f"it has {', '.join(sorted(features))}" if features else ""


def _backlog(backlogs: BacklogStore, table: str) -> Lines:
    if found := backlogs.now().get(table):
        yield "backlog", f"{found.rows} rows: {found.why}"
