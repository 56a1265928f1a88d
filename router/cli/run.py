"""`router run`: start a configuration and keep it going; `router warm-up`: make every later start shorter."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

import click
from pydantic import ValidationError

from router.acceptance import CONSEQUENCES
from router.cli import accept_option, config_argument, master_option, plugin_option
from router.cli.session import spark_session, start_jvm_early, stopped_by_signals
from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.acceptance import Accepted
    from router.config.models import Config, Trigger, Ui
    from router.engine.status.board import StatusBoard


@click.command()
@config_argument
@click.option("--once", is_flag=True, help="Take what is there, then end.")
@click.option("--every", metavar="INTERVAL", help="Start a batch at this interval: 10 s, 5 min.")
@click.option("--continuous", is_flag=True, help="Start the next batch as soon as the last is done.")
@click.option("--commit", type=click.Choice(["auto", "spark"]), help="Instead of the configuration's `commit`.")
@master_option
@click.option("--refresh-schema", is_flag=True, help="Infer schemas again and show what changed.")
@accept_option(CONSEQUENCES.items())
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
    accepted: Accepted,
    wait_for_topic: bool,
    debug: bool,
    ui: str | None,
    json_logs: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Run the configuration FILE until its source is drained (--once), or until Ctrl-C or SIGTERM.

    A signal ends the run after the current batch; at once if nothing goes on for 6 s after Ctrl-C, or for 25 s after
    SIGTERM, and at a second Ctrl-C: the next start does the rest of the batch. Exit code 1: it ended too early, and a
    later start may succeed and continues where this one ended; 2: a person has to act first, as the last line says.
    """
    start_jvm_early(file, master)

    from router.cli.watching import Watcher, json_errors
    from router.config.loader import load_config
    from router.registry import load_registry

    errors = json_errors(click.get_current_context()) if json_logs else nullcontext()
    with errors:
        loaded = load_config(file, load_registry(plugin_files))
        if commit:
            loaded = loaded.with_fields(commit=commit)
        if ui is not None:
            loaded = loaded.with_fields(ui=ui_at(loaded.config.ui, ui, "--ui"))
        if debug:
            loaded = loaded.with_debug_places()
        # What a batch needs is imported while the JVM starts.
        threading.Thread(target=import_module, args=("router.engine.stream",), daemon=True).start()

        from router.engine.status.board import StatusBoard

        config = loaded.config
        stop = threading.Event()
        board = StatusBoard(config.name)
        board.note_start_step("the start of Spark")
        from router.engine.spark.session import starts_jvm_itself

        with (
            stopped_by_signals(stop, lambda: board.snapshot().progress) as ended,
            Watcher(config.name, json_lines=json_logs) as watcher,
            serve_status(config, board, file),
            spark_session(config, master) as spark,
        ):
            from router.engine.stream import RunOptions
            from router.engine.stream import run as run_stream

            options = RunOptions(
                trigger=_choose_trigger(once, every, continuous),
                refresh=refresh_schema,
                accept=accepted,
                wait_for_topic=wait_for_topic,
                watch=watcher.show_step,
                finished=watcher.log_batch,
                stop=stop,
                status=board,
            )
            run_stream(loaded, loaded.registry, spark, options)
            ended.set()
            uses_archive = starts_jvm_itself(spark)
        if uses_archive:
            from router.cli.class_archive import make_archive_later

            make_archive_later()
        if (options.trigger or config.trigger).once and not stop.is_set():
            _refuse_waiting_rows(config)


def _refuse_waiting_rows(config: Config) -> None:
    """Raise StartError if rows wait for a table after a source is drained: a person looks, no supervisor restarts."""
    from router.engine.quarantine.table import waiting_tables

    causes = waiting_tables(config)
    if causes:
        table = min(causes)
        others = f", and for {len(causes) - 1} other tables" if len(causes) > 1 else ""
        raise StartError(f"table {table}: rows wait for it{others}, and every start tries them again: {causes[table]}")


def ui_at(ui: Ui | None, address: str, option: str) -> Ui:
    """Return where a run shows itself, with an address that an option of the command line has."""
    from router.config.models import Ui

    fields = ui.model_dump() if ui else {}
    fields["address"] = address
    try:
        return Ui(**fields)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise click.BadParameter(message, param_hint=option) from None


@contextmanager
def serve_status(config: Config, board: StatusBoard, file: Path) -> Iterator[None]:
    """Serve the status of a run while it lasts, if that is asked for."""
    if config.ui is None:
        yield
        return
    from router.cli.graph import NO_COUNTS, graph_of
    from router.engine.status.file_reader import StatusFileReader
    from router.engine.status.server import StatusServer
    from router.engine.status.summary import noted_address

    graph = graph_of(config, NO_COUNTS).as_document()
    server = StatusServer(board, config.ui, config.metrics, str(file), graph)
    with ExitStack() as readers:
        readers.enter_context(server)
        # Without an address it could not be served, which is logged: then nothing is read for it.
        if server.address is not None:
            logging.getLogger("router").info("%s: status at http://%s:%d/", config.name, *server.address)
            readers.enter_context(noted_address(config, server.address))
            readers.enter_context(StatusFileReader(board, config))
            if config.source.kafka is not None:
                from router.engine.status.source_ends import SourceEnds

                readers.enter_context(SourceEnds(board, config.source.kafka))
        yield


def _choose_trigger(once: bool, every: str | None, continuous: bool) -> Trigger | None:
    if sum((once, every is not None, continuous)) > 1:
        raise click.UsageError("give one of --once, --every and --continuous")
    if not once and every is None and not continuous:
        return None

    from router.config.models import Trigger, parse_interval

    if every is not None:
        try:
            parse_interval(every)
        except ValueError as error:
            raise click.BadParameter(f"{every!r} {error}", param_hint="--every") from None
    return Trigger(once=once, every=every, continuous=continuous)


@click.command(hidden=True)
def warm_up() -> None:
    """Write an archive of the classes that a run loads (about 200 MB, in ~/.cache/spark-event-router or $ROUTER_CACHE).

    The end of a first run on this machine does so in the background. Fetches the jars of Spark's connectors if they are
    missing, and runs a small configuration, which takes half a minute. Sessions that `router` starts by itself then map
    the archive instead of loading some ten thousand classes from jars; under spark-submit nothing changes. Archives of
    installations that are gone are deleted.
    """
    from router.cli.class_archive import make_class_archive

    click.echo(make_class_archive())
