"""The command line: `router COMMAND`.

In come arguments, out go an exit code and text. A command is imported when it is called, so that checking a file does
not wait for what running a stream needs; what several commands take stands here.
"""

from __future__ import annotations

import difflib
import gc
import os
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typing_extensions import override

from router.errors import (
    VERBOSE,
    ConfigError,
    RouterError,
    SessionLost,
    SinkError,
    StartError,
    commands_with_file,
    first_line,
    is_verbose,
    to_printable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COMMANDS = {
    "backfill": ("router.cli.backfill:backfill", "Reprocess a range of records, into tables."),
    "bench": ("router_bench.cli:bench", "Measure a configuration against the partitions of its topic."),
    "check": ("router.cli.check:check", "Find every mistake in a configuration."),
    "dead-letters": ("router.cli.dead_letters:dead_letters", "Count dead letters by stage, route, sink and reason."),
    "doctor": ("router.cli.doctor:doctor", "Report what on this machine keeps a configuration from running."),
    "expectations": ("router.cli.tables:expectations", "Show how often expectations do not hold."),
    "graph": ("router.cli.graph:graph", "Draw a configuration: source, decoder, routes, sinks, tables."),
    "help": ("router.cli.manual:show_topic", "Show a page of the documentation, or list all."),
    "history": ("router.cli.history:history", "Show what ran when, what it changed, and what became of the records."),
    "init": ("router_init.cli:init", "Write a configuration and its tests, from a sample of a topic or of files."),
    "ledger": ("router.cli.tables:ledger", "Show what became of the records of the last batches."),
    "maintain": ("router.cli.tables:maintain", "Compact and clean tables."),
    "plugins": (
        "router.cli.plugins:plugins",
        "List parts, show the page of one, or write a package for your own.",
    ),
    "preview": ("router.cli.preview:preview", "Show where real records would go, before anything is written."),
    "quarantine": ("router.cli.quarantine:quarantine", "Show, approve, release or discard quarantined rows."),
    "rebuild": ("router.cli.verify:rebuild", "Rebuild tables from bronze, or from the topic."),
    "replay": ("router.cli.replay:replay", "Send dead letters and parked rows again."),
    "run": ("router.cli.run:run", "Run a configuration."),
    "schema": ("router.cli.plugins:schema", "Print the configuration's JSON Schema, for editors."),
    "status": ("router.cli.status:status", "Show the state of a stream in a dozen lines, and as an exit code."),
    "submit": ("router.cli.submit:submit", "Run a configuration on a cluster, by spark-submit."),
    "tables": ("router.cli.tables:tables", "List tables with their state, or show all about one."),
    "test": ("router.cli.check:test", "Run route tests: records in, rows expected."),
    "trace": ("router.cli.record_trace:trace", "Show what happened to one record, and how that is known."),
    "verify": ("router.cli.verify:verify", "Compare tables with manifests, ledger and bronze."),
    "views": ("router.cli.views:views", "Show views, how they follow changes, or refresh them now."),
}
"""Command -> where it is, and its line in the help and on its page: `router --help` imports none of them."""

COMMAND_GROUPS = {
    "Write a configuration": ("init", "check", "test", "preview", "graph", "schema"),
    "Run it": ("doctor", "run", "submit", "maintain", "bench"),
    "See what happened to records": (
        "status",
        "ledger",
        "history",
        "trace",
        "dead-letters",
        "tables",
        "verify",
        "views",
        "expectations",
    ),
    "Repair tables, send again": ("rebuild", "backfill", "replay", "quarantine"),
    "Extend it": ("plugins",),
    "Read about it": ("help",),
}
"""What a user is about -> the commands for it, as `router --help` lists them."""

HIDDEN_COMMANDS = {"warm-up": "router.cli.run:warm_up"}
"""Commands that the help does not list -> where they are."""

FORMER_COMMANDS = {
    "approve": "router quarantine approve",
    "explain-table": "router tables",
    "grants": "router tables --grants",
    "lineage": "router graph --table",
    "refresh": "router rebuild",
    "repair": "router rebuild",
    "simulate": "python -m router_demo.simulate",
    "size": "router bench --estimate",
    "top": "router status --watch",
    "ui": "router status --page",
}
"""Former names of commands -> what they are now."""

REFUSED_EXIT_CODE = 2
"""The exit code of a command that could not do or see anything. Those that look end with 0 if all is well and with 1 if
they have found something; those that mend end with 1 if something could not be done. `router run` has codes of its own,
by which a supervisor decides: `RouterError.exit_code`."""


def shipped_folder(name: str) -> Path:
    """Return a folder of the repository that is not code, such as `docs`: the wheel has it inside the package.

    Raises StartError if it is missing, as in an image that was made of the code alone.
    """
    package = Path(__file__).parents[1]
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise StartError(f"this installation lacks the folder `{name}`; do this where the whole package is installed")


existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)
"""The type of an argument or option that names a file."""


def _keep_file(context: click.Context, _argument: click.Parameter, file: Path) -> Path:
    # Of the command, and of the group that prints its errors.
    context.meta[__name__] = file
    return file


def configuration_file() -> Path | None:
    """Return the configuration of the command that runs in this thread; None if it has none."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(__name__)


def echo_message(text: str, *, err: bool = False) -> None:
    """Print a message of the engine on one line: its commands have the path of the configuration."""
    click.echo(to_printable(commands_with_file(text, configuration_file())), err=err)


config_argument = click.argument("file", type=existing_file, callback=_keep_file)
"""FILE, the configuration; the command gets it as `file`."""

plugin_option = click.option(
    "--plugin",
    "plugin_files",
    multiple=True,
    metavar="FILE",
    type=existing_file,
    help="Load a plugin from one file; may be given several times.",
)
"""`--plugin FILE`; the command gets a tuple of paths as `plugin_files`."""

master_option = click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
"""`--master`, of commands that start Spark; the command gets it as `master`."""


def accept_option(kinds: Iterable[tuple[str, str]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return `--accept KIND` of a command that refuses something unless a person accepts it: kinds, and what follows.

    It may be given several times; the command gets a frozenset as `accepted`.
    """

    def as_set(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> frozenset[str]:
        return frozenset(given)

    meanings = dict(kinds)
    what = "; ".join(f"{kind}: {meaning}" for kind, meaning in meanings.items())
    choice = click.Choice([*meanings])
    return click.option(
        *("--accept", "accepted"), multiple=True, type=choice, metavar="KIND", callback=as_set, help=f"{what}."
    )


class Commands(click.Group):
    """The commands, each imported when it is called; the router's own errors are printed without a traceback."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = HIDDEN_COMMANDS.get(cmd_name)
        if cmd_name in COMMANDS:
            place, _ = COMMANDS[cmd_name]
        if place is None:
            return None
        module, _, name = place.partition(":")
        try:
            command = getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise StartError(f"`{cmd_name}` needs the module {error.name}, which is not installed") from error
        assert isinstance(command, click.Command)
        return command

    @override
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] in FORMER_COMMANDS:
            ctx.fail(f"`router {args[0]}` is `{FORMER_COMMANDS[args[0]]}` now")
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if near and args[0] not in {*COMMANDS, *HIDDEN_COMMANDS}:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, click.ClickException, click.exceptions.Exit, click.Abort):
            # click ends quietly when the reader of the output has gone.
            raise
        except Exception as error:
            show_error(error, ctx.invoked_subcommand)
            ctx.exit(_exit_code(ctx, error))


def show_error(error: Exception, command: str | None) -> None:
    """Print why a command could not do what it was asked for, without a traceback."""
    if is_verbose():
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if isinstance(error, RouterError):
        lines = [f"router: {error}"]
        if isinstance(error, ConfigError):
            # One problem a line, each with its own place in the file.
            lines = str(error).split("\n")
        for line in lines:
            echo_message(line, err=True)
        return
    text = to_printable(first_line(error))
    # A disk or an object store that does not answer is no fault of the program.
    if not isinstance(error, OSError):
        where = "" if is_verbose() else f"; `router --verbose {command} ...` shows where"
        text = f"unexpected {type(error).__name__}: {text}{where}"
    click.echo(f"router: {text}", err=True)


def _exit_code(ctx: click.Context, error: Exception) -> int:
    """Return the exit code of a command that an error ends."""
    if ctx.invoked_subcommand == "run":
        # What supervises a run starts it again after an error that nobody expects.
        return error.exit_code if isinstance(error, RouterError) else 1
    # These come when a part is done.
    return error.exit_code if isinstance(error, SinkError | SessionLost) else REFUSED_EXIT_CODE


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from router.registry import router_version

    click.echo(f"router {router_version()}")
    ctx.exit()


@click.group(cls=Commands)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print it.")
@click.option("--verbose", is_flag=True, help="Print stack traces, and Spark's own log.")
def commands(verbose: bool) -> None:
    """Route the events of a stream to hundreds of tables and services."""
    if verbose:
        os.environ[VERBOSE] = "1"  # also for the processes that this one starts


def main() -> None:
    """Run the command line."""
    try:
        commands(prog_name="router")
    finally:
        gc.freeze()  # or Python would look through all objects several times while it ends, for a third of a second
