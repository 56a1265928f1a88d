"""`router run`: start a configuration and keep it going; `router warm-up`: make every later start shorter."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from router.cli import config_argument, plugin_option, stopped_by_signals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.config.models import Config, Trigger, Ui
    from router.engine.status.board import StatusBoard


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
    type=click.Choice(
        [
            "lost-checkpoint",
            "lost-lake",
            "lost-records",
            "lost-tables",
            "duplicates",
            "dead-letters",
            "gone-sinks",
        ]
    ),
    default=None,
    help="Go on although lake, checkpoint and source do not belong together; the refusal says which one fits.",
)
@click.option("--wait-for-topic", is_flag=True, help="Wait for a topic that the broker does not have yet.")
@click.option("--debug", is_flag=True, help="Write to LAKE_debug, with a checkpoint of its own; send nothing.")
@click.option(
    "--ui",
    metavar="HOST:PORT",
    is_flag=False,
    flag_value="127.0.0.1:4480",
    help="Show what the run does: /api/status, /metrics, /healthz, /readyz (127.0.0.1:4480 without an address).",
)
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
    wait_for_topic: bool,
    debug: bool,
    ui: str | None,
    json_logs: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Run the configuration FILE until its source is drained (--once), or until Ctrl-C or SIGTERM.

    A signal ends the run after the current batch. Exit code 1: it ended before its time, and a later start may
    succeed and goes on where this one ended; 2: somebody has to act first, as the last line says.
    """
    # It hooks into forks: imported while the JVM is forked off, it says with a traceback that its lock was not held.
    import_module("concurrent.futures.thread")
    session = import_module("router.engine.spark.session")
    session.start_jvm(file, master)  # ahead of all other imports: the JVM takes as long as they do
    watching = import_module("router.cli.watching")
    with watching.json_errors(click.get_current_context()) if json_logs else nullcontext():
        registry = import_module("router.registry").load_registry(plugin_files)
        loaded = import_module("router.config.loader").load(file, registry)
        overrides: dict[str, Any] = {"commit": commit} if commit else {}
        if ui is not None:
            overrides["ui"] = ui_at(loaded.config.ui, ui, "--ui")
        loaded = loaded.changed(**overrides)
        loaded = loaded.debugged() if debug else loaded
        # What a batch needs is imported while the JVM starts.
        threading.Thread(target=import_module, args=("router.engine.stream",), daemon=True).start()
        stop = threading.Event()
        board = import_module("router.engine.status.board").StatusBoard(loaded.config.name)
        with (
            stopped_by_signals(stop),
            watching.Watcher(loaded.config.name, json_lines=json_logs) as watcher,
            _served(loaded.config, board, file),
        ):
            spark = session.build_session(loaded.config, master)
            stream = import_module("router.engine.stream")
            options = stream.RunOptions(
                trigger=_trigger(once, every, continuous),
                refresh=refresh_schema,
                accept=accept or "",
                wait_for_topic=wait_for_topic,
                watch=watcher.step,
                finished=watcher.finished,
                stop=stop,
                status=board,
            )
            try:
                stream.run(loaded, registry, spark, options)
            finally:
                session.stop_session(spark)


def ui_at(given: Ui | None, address: str, option: str) -> Ui:
    """Return where a run shows itself, with an address that an option of the command line has."""
    try:
        made: Ui = import_module("router.config.models").Ui(
            **{**(given.model_dump() if given else {}), "address": address}
        )
    except ValidationError as error:
        raise click.BadParameter(error.errors()[0]["msg"].removeprefix("Value error, "), param_hint=option) from None
    return made


@contextmanager
def _served(config: Config, board: StatusBoard, file: Path) -> Iterator[None]:
    """Serve the status of a run while it lasts, where that is asked for."""
    if config.ui is None:
        yield
        return
    drawing = import_module("router.cli.graph")
    graph = drawing.drawn(config, drawing.NOTHING).document()
    server = import_module("router.engine.status.server").StatusServer(
        board, config.ui, config.metrics, str(file), graph
    )
    with ExitStack() as readers:
        readers.enter_context(server)
        if server.address is not None:
            logging.getLogger("router").info("%s: status at http://%s:%d/", config.name, *server.address)
            reader = import_module("router.engine.status.file_reader").StatusFileReader(board, config)
            readers.enter_context(reader)
            if config.source.kafka is not None:
                ends = import_module("router.engine.status.source_ends").SourceEnds(board, config.source.kafka)
                readers.enter_context(ends)
        yield


def _trigger(once: bool, every: str | None, continuous: bool) -> Trigger | None:
    if sum((once, every is not None, continuous)) > 1:
        raise click.UsageError("give one of --once, --every and --continuous")
    models = import_module("router.config.models")
    if every is not None:
        try:
            models.interval(every)
        except ValueError as error:
            raise click.BadParameter(f"{every!r} {error}", param_hint="--every") from None
    return models.Trigger(once=once, every=every, continuous=continuous) if once or every or continuous else None


@click.command(short_help="Make every later start some seconds shorter.")
def warm_up() -> None:
    """Write an archive of the classes that a run loads (about 200 MB, in ~/.cache/spark-event-router or $ROUTER_CACHE).

    Fetches the jars of Spark's connectors where they are not there yet, and runs a small configuration, which takes
    half a minute. Sessions that `router` starts by itself then map the archive instead of loading some ten thousand
    classes from jars; under spark-submit nothing changes.
    """
    click.echo(import_module("router.cli.class_archive").make_class_archive())
