"""`router run`: start a configuration and keep it going; `router warm-up`: make every later start shorter.

A run is shown with one log line per batch, and with a live line on a terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.status import Status

from router.cli import config_argument, plugin_option, stopped_by_signals
from router.config.loader import load
from router.config.models import Trigger, interval
from router.errors import printable
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from router.parts import BatchReport


@click.command(short_help="Run a configuration.")
@config_argument
@click.option("--once", is_flag=True, help="Take what is there, then end.")
@click.option("--every", metavar="INTERVAL", help="Start a batch at this interval: 10 s, 5 min.")
@click.option("--continuous", is_flag=True, help="Start the next batch as soon as the last is done.")
@click.option("--commit", type=click.Choice(["auto", "spark"]), help="In place of the configuration's `commit`.")
@click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
@click.option("--refresh-schema", is_flag=True, help="Infer schemas again and show what changed.")
@click.option(
    "--accept",
    type=click.Choice(["lost-checkpoint", "lost-lake", "lost-records", "duplicates"]),
    default=None,
    help="Go on although lake, checkpoint and source do not belong together; the refusal says which one fits.",
)
@click.option("--debug", is_flag=True, help="Write to LAKE_debug, with a checkpoint of its own; send nothing.")
@click.option("--json-logs", is_flag=True, help="Log one JSON object per line.")
@plugin_option
def run(
    file: Path,
    once: bool,
    every: str | None,
    continuous: bool,
    commit: str | None,
    master: str | None,
    refresh_schema: bool,
    accept: str | None,
    debug: bool,
    json_logs: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Run the configuration FILE until its source is drained (--once), or until Ctrl-C or SIGTERM.

    A signal ends the run after the current batch. Exit code 1: it ended before its time, and a later start may
    succeed and goes on where this one ended; 2: somebody has to act first, as the last line says.
    """
    registry = load_registry(plugin_files)
    loaded = load(file, registry)
    overrides: dict[str, Any] = {"commit": commit} if commit else {}
    loaded = loaded.changed(**overrides)
    loaded = loaded.debugged() if debug else loaded
    session = import_module("router.engine.session")
    # What a batch needs is imported while the JVM starts.
    threading.Thread(target=import_module, args=("router.engine.stream",), daemon=True).start()
    stop = threading.Event()
    with stopped_by_signals(stop), Watcher(loaded.config.name, json_lines=json_logs) as watcher:
        spark = session.build_session(loaded.config, master)
        stream = import_module("router.engine.stream")
        options = stream.RunOptions(
            trigger=_trigger(once, every, continuous),
            refresh=refresh_schema,
            accept=accept or "",
            watch=watcher.step,
            finished=watcher.finished,
            stop=stop,
        )
        try:
            stream.run(loaded, registry, spark, options)
        finally:
            session.stop_session(spark)


def _trigger(once: bool, every: str | None, continuous: bool) -> Trigger | None:
    if sum((once, every is not None, continuous)) > 1:
        raise click.UsageError("give one of --once, --every and --continuous")
    if every is not None:
        try:
            interval(every)
        except ValueError as error:
            raise click.BadParameter(f"{every!r} {error}", param_hint="--every") from None
    return Trigger(once=once, every=every, continuous=continuous) if once or every or continuous else None


@click.command(short_help="Make every later start some seconds shorter.")
def warm_up() -> None:
    """Write an archive of the classes that a run loads (about 200 MB, in ~/.cache/spark-event-router or $ROUTER_CACHE).

    Runs a small configuration once, which takes half a minute. Sessions that `router` starts by itself then map the
    archive instead of loading some ten thousand classes from jars; under spark-submit nothing changes.
    """
    click.echo(import_module("router.engine.session").make_class_archive())


STEPS = ("plan", "land", "decide", "manifest", "commit", "apply", "ledger", "release")


class Watcher:
    """The log of batches on standard error; on a terminal also the current step."""

    def __init__(self, name: str, *, json_lines: bool = False) -> None:
        self.name = name
        self.log = logging.getLogger("router")
        self.handler = logging.StreamHandler(sys.stderr)
        self.handler.setFormatter(_JsonLines() if json_lines else _TextLines("%(asctime)s %(levelname)s %(message)s"))
        terminal = Console(stderr=True)
        self.status = Status(f"{name}: starting", console=terminal) if terminal.is_terminal and not json_lines else None

    def __enter__(self) -> Watcher:
        self.log.addHandler(self.handler)
        self.log.setLevel(logging.INFO)
        self.log.propagate = False
        if self.status:
            self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status:
            self.status.stop()
        self.log.removeHandler(self.handler)
        self.log.propagate = True

    def step(self, batch: int, step: str, done: int, of: int) -> None:
        """Show the step of a batch."""
        if self.status:
            share = f" {done} of {of}" if of > 1 else ""
            self.status.update(f"{self.name}: batch {batch}, {step}{share}")

    def finished(self, report: BatchReport, behind: int | None) -> None:
        """Log a finished batch; `behind` is in records, None where the source does not say."""
        self.log.info(line(report, behind), extra={"batch": {**asdict(report), "behind": behind}})


def line(report: BatchReport, behind: int | None) -> str:
    """Return a batch as one line: rows, tables, dead letters, seconds by step, lag."""
    total = sum(report.seconds.values())
    steps = " ".join(f"{name} {report.seconds[name]:.2f}" for name in STEPS if report.seconds.get(name, 0) >= 0.005)
    kinds = ("frozen", "quarantined")
    kept = {kind: sum(route.get(kind, 0) for route in report.routes.values()) for kind in kinds}
    odd = "".join(f", {count:,} {kind}" for kind, count in kept.items() if count)
    lag = "" if behind is None else f", {behind:,} behind"
    return (
        f"{report.query} batch {report.batch}: {report.read:,} rows into {report.tables} tables "
        f"({report.files} files), {report.dead_letters:,} dead letters{odd}, {total:.2f} s ({steps}){lag}"
    )


class _TextLines(logging.Formatter):
    """Log records as lines of text: whatever a message quotes, it stays on its line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable(record.message)
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    """Log records as JSON lines; that of a batch has its whole report."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        if batch := getattr(record, "batch", None):
            found["batch"] = batch
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found)
