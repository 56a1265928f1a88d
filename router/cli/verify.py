"""`router verify`: hold tables against what the router wrote down about them; `router repair`: make one whole again."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option, stopped_by_signals
from router.cli.watching import Watcher
from router.config.loader import load
from router.errors import printable
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router.engine.tables.repair import Repair, Repaired
    from router.engine.tables.verify import TableAudit
    from router.registry import Registry


@click.command(short_help="Hold tables against manifests, ledger and bronze.")
@config_argument
@click.argument("tables", metavar="[LAYER.TABLE]...", nargs=-1)
@click.option("--footers", is_flag=True, help="Open every file, and count its rows.")
@plugin_option
def verify(file: Path, tables: tuple[str, ...], footers: bool, plugin_files: tuple[Path, ...]) -> None:
    """Hold the tables of the configuration FILE, or those named, against manifests, ledger and bronze.

    A line per table says `ok` or what is wrong: batches that it lacks, files that are missing or damaged, rows that are
    not those of the manifest or the ledger, and what others wrote or removed, by version and author. May run beside the
    stream; Spark is not started. Exit code 1: something is wrong.
    """
    config = load(file, load_registry(plugin_files)).config
    engine = import_module("router.engine.tables.verify")
    found: list[TableAudit] = engine.verified(config, tables, footers=footers)
    if absent := sorted(set(tables) - {audit.table for audit in found}):
        raise click.ClickException(f"{config.name} has no rows in {', '.join(absent)}")
    width = max((len(audit.table) for audit in found), default=0)
    for audit in found:
        click.echo(printable(f"{audit.table:<{width}}  {_told(audit)}"))
    raise SystemExit(int(any(audit.problems for audit in found)))


def _told(audit: TableAudit) -> str:
    if audit.problems:
        return "; ".join(audit.problems)
    return f"ok, {audit.rows:,} rows in {audit.files:,} files, version {audit.version}"


@click.command(short_help="Make a table whole again from bronze.")
@config_argument
@click.argument("table", metavar="LAYER.TABLE")
@click.option("--accept", is_flag=True, help="Bring back what others removed from it, and remove what they added.")
@click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
@plugin_option
def repair(file: Path, table: str, accept: bool, master: str | None, plugin_files: tuple[Path, ...]) -> None:
    """Make LAYER.TABLE anew of all records in bronze, as the configuration FILE routes them today.

    For a table that was dropped, put back from an older copy, has lost files, or whose log is damaged. One commit
    replaces its content; the stream may run meanwhile. A log that cannot be read is moved below `_replaced/` in the
    lake, with the files that it named. Refused where others have changed the table, unless --accept is given; and where
    bronze does not have every record.
    """
    registry = load_registry(plugin_files)
    loaded = load(file, registry)
    session = import_module("router.engine.spark.session")
    stop = threading.Event()
    with stopped_by_signals(stop), Watcher(loaded.config.name):
        spark = session.build_session(loaded.config, master)
        try:
            _show(_repair(loaded, registry, spark, table, stop, accept=accept).run())
        finally:
            session.stop_session(spark)


def _repair(
    loaded: Loaded, registry: Registry, spark: SparkSession, table: str, stop: threading.Event, *, accept: bool
) -> Repair:
    """Return the repair of a table, once the decoder has learnt what it needs."""
    engine, source = import_module("router.engine.tables.repair"), import_module("router.engine.source")
    stores, parts = import_module("router.engine.checkpoint_store"), import_module("router.parts")
    config = loaded.config
    lake, checkpoint = stores.lake_and_checkpoint(config)
    learnt = stores.LearntSchemas(stores.CheckpointStore(checkpoint))
    about = loaded.path.parent, False, lambda rows: source.sample(spark, config, rows), learnt
    config = config.model_copy(update={"decode": config.decode.prepare(parts.Preparation(*about))})
    executors = import_module("router.engine.start.checks").executors_of(spark, registry, config, lake, "repair")
    executors.look(spark)
    made: Repair = engine.Repair(config, spark, lake, checkpoint, table, accept, stop, executors=executors)
    return made


def _show(done: Repaired) -> None:
    later = f", {done.later:,} of later batches" if done.later else ""
    left = f"; {done.refused:,} rows have no place in it" if done.refused else ""
    click.echo(f"{done.table}: {done.rows:,} rows of batches up to {done.until}{later}, version {done.version}{left}")
    if done.moved:
        click.echo(f"its former log and files are in {done.moved}")
