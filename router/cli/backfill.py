"""`router backfill`: take a range of records once more, through today's configuration."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option, reprocess_context, stopped_by_signals
from router.cli.watching import Watcher
from router.config.loader import load
from router.config.models import moment
from router.errors import RunningError, StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.loader import Loaded
    from router.engine.reprocess.backfill import Backfill
    from router.engine.reprocess.records import RecordRange
    from router.registry import Registry

KINDS = 'a time with a zone (2025-01-31T12:00:00Z), or offsets as JSON: {"events": {"0": 1200}}'


@click.command(short_help="Take a range of records once more.")
@config_argument
@click.option("--from", "since", required=True, metavar="PLACE", help=f"Where the range begins: {KINDS}.")
@click.option("--to", "until", required=True, metavar="PLACE", help="Where it ends; the record there is not taken.")
@click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
@plugin_option
def backfill(file: Path, since: str, until: str, master: str | None, plugin_files: tuple[Path, ...]) -> None:
    """Take a range of records once more, as the configuration FILE routes them today, into tables only.

    They come from bronze, without one from the topic. Tables that keep topic, partition and offset get each record
    once, whatever is there; others are refused where they have rows of the range already. The stream must not run. A
    backfill that was killed is ended first.
    """
    asked = _range(since, until)
    registry = load_registry(plugin_files)
    loaded = load(file, registry)
    session, stop = import_module("router.engine.spark.session"), threading.Event()
    with stopped_by_signals(stop), Watcher(loaded.config.name):
        spark = session.build_session(loaded.config, master)
        try:
            _run(loaded, registry, spark, asked, stop)
        finally:
            session.stop_session(spark)


def _run(loaded: Loaded, registry: Registry, spark: Any, chosen: RecordRange, stop: threading.Event) -> None:
    locks = import_module("router.engine.start.run_lock")
    name = loaded.config.name
    context = reprocess_context(loaded, spark, stop)
    with ExitStack() as held:
        try:
            held.enter_context(locks.alone(context.checkpoint, name))
        except RunningError as error:
            raise StartError(f"{name} is running, and writes the same tables: stop it first") from error
        made: type[Backfill] = import_module("router.engine.reprocess.backfill").Backfill
        backfill = made(context.with_decoder().with_executors(registry, "backfill"))
        cut_off = backfill.cut_off()
        if cut_off is not None:
            click.echo(f"{cut_off.name} was cut off, and is ended first")
            _show(backfill.run(cut_off))
        _show(backfill.run(backfill.begin(chosen)))


def _show(done: Any) -> None:
    click.echo(f"{done.name}: {done.read:,} records")
    for place, rows in sorted(done.rows.items()):
        click.echo(f"  {place}: {rows:,} rows")


def _range(since: str, until: str) -> RecordRange:
    made = import_module("router.engine.reprocess.records").RecordRange
    begin, end = _place(since, "--from"), _place(until, "--to")
    if isinstance(begin, dict) != isinstance(end, dict):
        raise click.UsageError("--from and --to are both times, or both offsets")
    found: RecordRange = made(begins=begin, ends=end) if isinstance(begin, dict) else made(since=begin, until=end)
    return found


def _place(text: str, option: str) -> Any:
    """Return a time in seconds since 1970, or offsets."""
    try:
        return moment(text).timestamp()
    except ValueError:
        pass
    try:
        said = json.loads(text)
        return {str(topic): {int(number): int(at) for number, at in by.items()} for topic, by in said.items()}
    except (ValueError, TypeError, AttributeError):
        raise click.BadParameter(f"{text!r} is neither {KINDS}", param_hint=option) from None
