"""`router rest-replay`: send parked rows and dead letters of a sink again."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.cli import config_argument, plugin_option, stopped_by_signals
from router.cli.watching import Watcher
from router.config.loader import load
from router.config.models import interval, moment
from router.engine.checkpoint_store import lake_and_checkpoint
from router.errors import StartError, printable
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.config.models import Config
    from router.engine.outbox.replay import Replay, ReplayFilter, ReplayGroup, ReplayRows, Resender
    from router.sinks import ApplyingSink, Resent

COLUMNS = ("route", "sink", "status", "answer", "rows", "calls", "oldest", "newest", "such as")
LONGEST = 120
"""Characters of a reason that are shown."""
RIGHT = {"answer", "rows", "calls"}


@click.command(short_help="Send rows again that a REST sink parked or refused.")
@config_argument
@click.option("--route", metavar="NAME", help="The route whose sink it is, where several have one.")
@click.option("--sink", "name", metavar="NAME", help="The sink, where the route has several.")
@click.option("--since", metavar="TIME", help="Only rows parked or refused since: 2025-01-31T12:00:00Z, or 2 h ago.")
@click.option(
    "--status",
    "statuses",
    metavar="STATUS",
    multiple=True,
    help="`parked` (the default), `dead`, or what the API answered, such as 422; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
@plugin_option
def rest_replay(
    file: Path,
    route: str | None,
    name: str | None,
    since: str | None,
    statuses: tuple[str, ...],
    dry_run: bool,
    master: str | None,
    plugin_files: tuple[Path, ...],
) -> None:
    """Send rows of the configuration FILE again, by the idempotency keys that they had.

    Rows are parked when an API stayed away for longer than `max_outage`, and dead when it refused them. They are sent
    from the sink's outbox, within its limits, beside a running stream or without one. A row that was delivered is not
    sent again. Ctrl-C ends a replay after the calls in flight. Exit code 1: not all of the rows were delivered.
    """
    asked = _asked(statuses, since)
    registry = load_registry(plugin_files)
    loaded = load(file, registry)
    chosen = _chosen(loaded.config, route, name, several=dry_run)
    resend, session = import_module("router.engine.outbox.replay"), import_module("router.engine.spark.session")
    start = import_module("router.engine.start.checks")
    lake, checkpoint = lake_and_checkpoint(loaded.config)
    stop = threading.Event()
    with stopped_by_signals(stop), Watcher(loaded.config.name):
        spark = session.build_session(loaded.config, master)
        about, folder = (loaded.config, spark, lake, checkpoint, stop), loaded.path.parent
        try:
            if dry_run:
                nobody = import_module("router.engine.spark.executors").Executors()
                _show_all([resend.Resender(*about, nobody, *sink, folder) for sink in chosen], asked)
                return
            executors = start.executors_of(spark, registry, loaded.config, lake, "rest-replay")
            executors.look(spark)
            whole = _replayed(resend.Resender(*about, executors, *chosen[0], folder), asked)
        finally:
            session.stop_session(spark)
    raise SystemExit(int(not whole))


def _asked(statuses: tuple[str, ...], since: str | None) -> ReplayFilter:
    """Return the filter of a replay; a number among the statuses is the answer code of dead rows."""
    words = {status for status in statuses if not status.isdecimal()}
    codes = {int(status) for status in statuses if status.isdecimal()}
    if unknown := sorted(words - {"parked", "dead"}):
        told = f"{unknown[0]!r} is neither `parked` nor `dead`, nor a status of HTTP"
        raise click.BadParameter(told, param_hint="--status")
    chosen = words | ({"dead"} if codes else set()) or {"parked"}
    asked: ReplayFilter = import_module("router.engine.outbox.replay").ReplayFilter(
        tuple(sorted(chosen)), tuple(sorted(codes)), None if since is None else _since(since)
    )
    return asked


def _since(text: str) -> float:
    """Return a time, or how long ago it was, in seconds since 1970."""
    try:
        return moment(text).timestamp()
    except ValueError:
        pass
    try:
        return (datetime.now(timezone.utc) - interval(text)).timestamp()
    except ValueError:
        told = f"{text!r} is neither a time with a zone (2025-01-31T12:00:00Z) nor a length (2 h)"
        raise click.BadParameter(told, param_hint="--since") from None


def _chosen(
    config: Config, route: str | None, name: str | None, *, several: bool
) -> list[tuple[str, str, ApplyingSink]]:
    """Return the sinks that the options choose; one, unless there may be `several`."""
    if config.debug:
        raise StartError(f"{config.name} has `debug: true`: it sends nothing, and so nothing again")
    there = list(import_module("router.engine.outbox.replay").resending_sinks(config))
    found = [one for one in there if route in (None, one[0]) and name in (None, one[1])]
    names = ", ".join(f"{one[0]}/{one[1]}" for one in found or there) or "none"
    if not found:
        raise click.UsageError(f"no such sink sends rows again; {config.name} has {names}")
    if len(found) > 1 and not several:
        raise click.UsageError(f"say which with --route and --sink: {names}")
    return found


def _show_all(resenders: list[Resender], asked: ReplayFilter) -> None:
    found = [(resender, resender.find(asked)) for resender in resenders]
    _show([(resender, rows) for resender, rows in found if rows is not None], "what would be sent")
    for resender in resenders:
        if begun := resender.cut_off():
            click.echo(f"{resender.key}: {begun.name} was cut off; the next replay ends it first")


def _replayed(resender: Resender, asked: ReplayFilter) -> bool:
    """Send the chosen rows; say whether all of them were delivered."""
    whole = True
    with resender.alone():
        for begun, found in _replays(resender, asked):
            _show([(resender, found)], f"what is sent by {begun.name}")
            whole &= _tell(resender, begun, found, resender.send(begun, found))
    return whole


def _replays(resender: Resender, asked: ReplayFilter) -> Iterator[tuple[Replay, ReplayRows]]:
    """Yield a replay that was killed before, and then the new one."""
    if begun := resender.cut_off():
        click.echo(f"{resender.key}: {begun.name} was cut off, and is ended first")
        yield begun, resender.resume(begun)
    if not resender.stop.is_set():
        begun, new = resender.begin(asked)
        if new is not None and new.rows:
            yield begun, new
        else:
            _show([] if new is None else [(resender, new)], "what would be sent")


def _tell(resender: Resender, begun: Replay, found: ReplayRows, resent: Resent) -> bool:
    """Print what a replay did; say whether all rows were delivered."""
    delivered = resent.are("delivered")
    left = found.rows - sum(resent.moved.values())
    counts = {"delivered": delivered, "dead": resent.are("dead"), "parked": resent.are("parked"), "not sent": left}
    told = ", ".join(f"{rows:,} {what}" for what, rows in counts.items() if rows) or "nothing"
    doubt = f"; {resent.in_doubt:,} in doubt" if resent.in_doubt else ""
    why = f": {resent.left or 'it was stopped'}" if left else ""
    click.echo(f"{resender.key}: {begun.name}: {told}{doubt}{why}")
    return delivered == found.rows


def _show(found: list[tuple[Resender, ReplayRows]], title: str) -> None:
    """Print rows by route, sink, status and answer code, and where those are that cannot be sent."""
    rows = [(resender.route, resender.name, *_cells(group)) for resender, what in found for group in what.groups]
    if not rows:
        click.echo("there is nothing to send again")
        return
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in COLUMNS:
        table.add_column(name, overflow="fold", justify="right" if name in RIGHT else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    for resender, what in found:
        if what.gone:
            _tell_gone(resender, what.gone)


def _tell_gone(resender: Resender, gone: int) -> None:
    config = resender.config
    kept = (
        f"{config.bronze.table} has their records" if config.bronze else "there is no `bronze` that has their records"
    )
    click.echo(
        f"{gone:,} more rows are not in {resender.outbox} any more (outbox_retention: {config.outbox_retention}) and "
        f"cannot be sent; {kept}, and {config.dead_letters} the rows of those that are dead"
    )


def _cells(group: ReplayGroup) -> tuple[str, ...]:
    times = (_time(group.oldest), _time(group.newest))
    return group.status, _number(group.code), f"{group.rows:,}", f"{group.calls:,}", *times, _reason(group.reason or "")


def _reason(text: str) -> str:
    """Return the answer of an API as a terminal can show it safely: it is somebody else's text."""
    return escape(printable(text[:LONGEST] + ("..." if len(text) > LONGEST else "")))


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%SZ}"
