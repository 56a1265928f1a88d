"""The command line: `router COMMAND`.

In come arguments, out go an exit code and text. A command is imported when it is called, so that checking a file does
not wait for what running a stream needs; what several commands take stands here.
"""

from __future__ import annotations

import difflib
import logging
import signal
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from router.errors import ConfigError, MachineError, RouterError, first_line, printable

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from types import FrameType

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router.engine.reprocess.context import ReprocessContext

log = logging.getLogger("router")
COMMANDS = {
    "approve": ("router.cli.quarantine:approve", "Let tables gain the columns that rows wait for."),
    "backfill": ("router.cli.backfill:backfill", "Take a range of records once more, into tables."),
    "bench": ("router.cli.bench:bench", "Measure a configuration against the partitions of its topic."),
    "check": ("router.cli.check:check", "Find every mistake in a configuration."),
    "dead-letters": ("router.cli.dead_letters:dead_letters", "Count dead letters by stage, route, sink and reason."),
    "doctor": ("router.cli.doctor:doctor", "Say what on this machine keeps a configuration from running."),
    "explain-table": ("router.cli.tables:explain_table", "Say what a table is, and who writes it how."),
    "expectations": ("router.cli.tables:expectations", "Show how often expectations do not hold."),
    "graph": ("router.cli.graph:graph", "Draw source, decoder, routes, sinks and tables."),
    "grants": ("router.cli.tables:grants", "Print owner, tags and rights of tables as SQL, for a catalog."),
    "ledger": ("router.cli.tables:ledger", "Print the last batches and their balance."),
    "lineage": ("router.cli.graph:lineage", "Say what a table is made of, and who reads it."),
    "maintain": ("router.cli.tables:maintain", "Compact and clean tables."),
    "plugins": (
        "router.cli.plugins:plugins",
        "List decoders, rules, sinks, encoders and views, or show the page of one.",
    ),
    "quarantine": ("router.cli.quarantine:quarantine", "Show, release or discard rows whose table takes none."),
    "refresh": ("router.cli.verify:refresh", "Make tables anew from bronze, or the topic."),
    "repair": ("router.cli.verify:repair", "Make a table whole again from bronze."),
    "replay": ("router.cli.replay:replay", "Send dead letters and parked rows again."),
    "run": ("router.cli.run:run", "Run a configuration."),
    "schema": ("router.cli.plugins:schema", "Print the configuration's JSON Schema, for editors."),
    "status": ("router.cli.status:status", "Say in ten lines how a stream is, and in an exit code."),
    "submit": ("router.cli.submit:submit", "Run a configuration on a cluster, by spark-submit."),
    "tables": ("router.cli.tables:tables", "List every table with its state."),
    "test": ("router.cli.check:test", "Run route tests: records in, rows expected."),
    "top": ("router.cli.top:top", "Watch a stream in the terminal."),
    "ui": ("router.cli.ui:ui", "Show the page of a stream that is down."),
    "verify": ("router.cli.verify:verify", "Hold tables against manifests, ledger and bronze."),
    "views": ("router.cli.views:views", "Show views, how they follow changes, or refresh them now."),
    "warm-up": ("router.cli.run:warm_up", "Make every later start some seconds shorter."),
    "size": ("router.cli.size:size", "Say how many cores, files and requests a rate takes."),
    "simulate": ("router_demo.cli:simulate", "Write game events to a Kafka topic."),
}
"""Command -> where it is, and its line in the help: `router --help` imports none of them."""

GROUPS = {
    "Write a configuration": ("check", "test", "graph", "size", "schema"),
    "Run it": ("doctor", "run", "submit", "maintain", "grants", "warm-up", "bench", "simulate"),
    "Look at what became of records": (
        *(
            "status",
            "top",
            "ui",
            "ledger",
            "dead-letters",
            "tables",
            "verify",
            "views",
            "expectations",
            "lineage",
            "explain-table",
        ),
    ),
    "Mend tables, send again": ("repair", "refresh", "backfill", "replay", "approve", "quarantine"),
    "Extend it": ("plugins",),
}
"""What a user is about -> the commands for it, as `router --help` lists them."""


config_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
"""FILE, the configuration; the command gets it as `file`."""

plugin_option = click.option(
    "--plugin",
    "plugin_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Load a plugin from one file; may be given several times.",
)
"""`--plugin FILE`; the command gets a tuple of paths as `plugin_files`."""


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at SIGTERM and Ctrl-C, which ends a run after its current batch; a second Ctrl-C ends it at once."""

    def order(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    former = {number: signal.signal(number, order) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def reprocess_context(loaded: Loaded, spark: SparkSession, stop: threading.Event) -> ReprocessContext:
    """Return what commands work with that process records again; Spark reaches lake and checkpoint then."""
    made: type[ReprocessContext] = import_module("router.engine.reprocess.context").ReprocessContext
    return made.of(loaded, spark, stop)


class Commands(click.Group):
    """The commands, each imported when it is called; the router's own errors are printed without a traceback."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise click.ClickException(f"`{cmd_name}` needs the module {error.name}, which is not installed") from error
        assert isinstance(command, click.Command)
        return command

    @override
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if near and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RouterError as error:
            lines = str(error).split("\n") if isinstance(error, ConfigError) else [f"router: {error}"]
            click.echo("\n".join(map(printable, lines)), err=True)
            by_cause = ctx.invoked_subcommand == "run" or isinstance(error, MachineError)
            ctx.exit(error.exit_code if by_cause else 1)
        except BrokenPipeError:
            raise  # click ends quietly when nobody reads any more
        except OSError as error:  # a disk or an object store that does not answer is no fault of the program
            log.debug("the command ended", exc_info=True)
            click.echo(f"router: {printable(first_line(error))}", err=True)
            ctx.exit(1)


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        try:
            click.echo(f"router {version('spark-event-router')}")
        except PackageNotFoundError:
            click.echo("router, not installed: run from a checkout")
        ctx.exit()


@click.group(cls=Commands)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print it.")
def commands() -> None:
    """Route the events of a stream to hundreds of tables and services."""


def main() -> None:
    """Run the command line."""
    commands(prog_name="router")
