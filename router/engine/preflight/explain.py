"""Explain one table: what it holds, which sinks write it, with which engine and why. Needs no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException

from router.api.sinks import LakeSink, MergingSink, Sink, TableSink
from router.delta.commit import row_count
from router.delta.constraints import features_against_appends
from router.delta.keyed.row_versions import deletions_table
from router.delta.keyed.upsert import merge_engine
from router.delta.transaction_id import batch_id
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import merge_options
from router.engine.quarantine.table import waiting_places
from router.engine.start.checks import Checkpoint
from router.errors import TableError

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


def explain_table(config: Config, table: str) -> list[tuple[str, str]]:
    """Return the explanation as (name, text) lines. Raises TableError if neither lake nor sinks know the table."""
    lake, checkpoint = lake_and_checkpoint(config)
    handle = lake.open(table)
    writers = list(_find_writing_sinks(config, table, handle, Checkpoint.read(checkpoint).run))
    system_lines = list(_system_table(config, table))
    if handle is None and not writers and not system_lines:
        raise TableError(table, f"it is not in {lake.root}, and no sink of {config.name} has it as its one table")
    lines = [("table", f"{table} at {lake.address(table)}")]
    if handle is None:
        lines.append(("rows", "none: it is made with the first of them"))
    else:
        lines += _describe_content(lake, table, handle)
    lines += system_lines
    for writer in writers:
        lines += _describe_writer(config, writer, handle)
        backlog = waiting_places(config, CheckpointStore(checkpoint)).get(f"{writer.place}/{table}")
        if backlog is not None and backlog.rows:
            lines.append(("backlog", f"{backlog.rows} rows: {backlog.why}"))
    return lines


def _describe_content(lake: Lake, table: str, handle: DeltaTable) -> Lines:
    """Yield what a table holds, from its log: rows, bytes, comment, features, partitions and properties."""
    files: Any = pa.table(handle.get_add_actions())
    row_counts = files.column("num_records")
    rows = f"{sum(row_counts.drop_null().to_pylist()):,}"
    if row_counts.null_count:
        rows += f", and those in {row_counts.null_count} files without statistics"
    yield "rows", rows
    file_bytes = sum(files.column("size_bytes").to_pylist())
    yield "bytes", f"{file_bytes:,} in {len(files):,} files, version {handle.version()}"
    metadata = handle.metadata()
    if metadata.description:
        yield "comment", metadata.description
    protocol = handle.protocol()
    # Tables of the older protocols have no list of features: their versions stand for one.
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
    versions = f"those of versions {protocol.min_reader_version}, {protocol.min_writer_version}"
    yield "features", ", ".join(features) or versions
    if metadata.partition_columns:
        yield "partitioned by", ", ".join(metadata.partition_columns)
    for name, value in sorted(metadata.configuration.items()):
        yield "property", f"{name} = {value}"
    deletions = deletions_table(lake, table)
    if deletions is not None:
        yield "deletions", f"{row_count(deletions):,} remembered"


def _system_table(config: Config, table: str) -> Lines:
    """Yield which of the router's own tables it is: bronze, dead letters, ledger."""
    if table in (config.bronze_tables() or ()):
        yield "written by", "`bronze`: every record"
    if table == config.dead_letters:
        yield "written by", "`dead_letters`: what went nowhere else"
    if table == config.ledger:
        yield "written by", "`ledger`: the counts"


def _find_writing_sinks(
    config: Config, table: str, handle: DeltaTable | None, run: str | None
) -> Iterator[WritingSink]:
    """Yield the sinks whose one table it is, and those whose transaction ids it has."""
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

    A sink has written a table if the table has a transaction id of it. Tables that cannot be read are left out.
    """
    lake, checkpoint = lake_and_checkpoint(config)
    run = Checkpoint.read(checkpoint).run
    for table in lake.every_table():
        try:
            handle = lake.open(table)
        except (DeltaError, OSError):
            continue
        writers = [writer for writer in _find_writing_sinks(config, table, handle, run) if writer.batch is not None]
        if handle is None or not writers:
            continue
        counts: Any = pa.table(handle.get_add_actions()).column("num_records")
        rows = sum(counts.drop_null().to_pylist())
        for writer in writers:
            yield WrittenTable(table, writer.place, rows, _committer_of_sink(config, writer.sink, handle))


def _committer_of_sink(config: Config, sink: Sink, handle: DeltaTable) -> Committer:
    """Return the committer of a sink's next rows to a table."""
    only_spark = config.commit == "spark"
    if isinstance(sink, MergingSink):
        by_spark = merge_engine(handle, merge_options(sink, only_spark=only_spark)).engine == "spark"
    else:
        by_spark = only_spark or bool(_left_to_spark(sink, handle))
    return "Spark" if by_spark else "delta-rs"


def fixed_table(sink: Sink) -> str:
    """Return the one table of a sink; an empty text if data names its tables, or it has none."""
    if not isinstance(sink, LakeSink):
        return ""
    try:
        table = sink.table()
    except (PySparkException, AssertionError):  # a column cannot be made without a JVM
        return ""
    return table if isinstance(table, str) else ""


def _describe_writer(config: Config, writer: WritingSink, handle: DeltaTable | None) -> Lines:
    """Yield when a sink has last written the table, and with which engine it does."""
    only_spark = config.commit == "spark"
    route, sink_name = config.shown_names(*writer.place.split("/", 1))
    last = "has not yet" if writer.batch is None else f"last in batch {writer.batch}"
    yield "written by", f"{route}/{sink_name}, {last}"
    if isinstance(writer.sink, MergingSink):
        keyed = merge_options(writer.sink, only_spark=only_spark)
        engine = merge_engine(handle, keyed)
        yield "engine", f"{engine.engine}: {engine.why}"
        yield "keys", ", ".join(keyed.keys)
        return
    reason = _left_to_spark(writer.sink, handle) if handle else ""
    if reason:
        yield "engine", f"spark: {reason}"
    else:
        yield "engine", f"{'spark' if only_spark else 'arrow'}: as configured"


def _left_to_spark(sink: Sink, handle: DeltaTable) -> str:
    """Return why delta-rs does not append what a sink stages; an empty text if it does."""
    features = features_against_appends(handle)
    if isinstance(sink, TableSink):
        # The sink stages files by the values of these columns, so delta-rs need not divide rows.
        features -= {"partitioning"}
        partition_columns = handle.metadata().partition_columns
        if set(partition_columns) != set(sink.partition_by):
            return f"it is partitioned by {', '.join(partition_columns) or 'nothing'}, and the sink divides otherwise"
    return f"it has {', '.join(sorted(features))}" if features else ""
