"""`router replay`: show what would become of dead letters and parked rows today, and send them again."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option, reprocess_context, stopped_by_signals
from router.cli.dead_letters import cut, letter_options, parse_since
from router.cli.listing import Listing, ListingField, numbers, show_listing
from router.cli.watching import Watcher
from router.config.loader import load
from router.errors import RunningError, StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.replay import DeadLetterReplay, LetterFilter, LetterOutcome
    from router.engine.reprocess.resend import ReplayFilter, ReplayGroup, ReplayRows, Resender
    from router.engine.reprocess.run import NamedRun
    from router.registry import Registry
    from router.sinks import ApplyingSink, Resent


@dataclass(frozen=True)
class Choice:
    """What the options choose: rows that sinks keep, and dead letters; None for none of a kind."""

    kept: ReplayFilter | None
    letters: LetterFilter | None
    sinks: list[tuple[str, str, ApplyingSink]]


@click.command(short_help="Send dead letters and parked rows again.")
@config_argument
@letter_options
@click.option(
    "--status",
    "statuses",
    metavar="STATUS",
    multiple=True,
    help="Only rows that a sink keeps: `parked`, `dead`, or what the API answered, such as 422; may be repeated.",
)
@click.option("--send", is_flag=True, help="Send them. Without it nothing changes.")
@click.option("--accept", is_flag=True, help="Also into tables that depend on the order of their records.")
@click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
@plugin_option
def replay(
    file: Path,
    stages: tuple[str, ...],
    route: str | None,
    name: str | None,
    reason: str | None,
    since: str | None,
    statuses: tuple[str, ...],
    send: bool,
    accept: bool,
    master: str | None,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show what would become of the dead letters of the configuration FILE today; with --send, send them again.

    Their records go through decoder, routes and sinks as FILE says now, to the route and sink that refused them; what
    would be the same dead letter again stays as it is, and the others are marked and never taken again. Rows that a
    sink parked, or an API refused, go out by the idempotency keys that they had, also beside a running stream.
    Exit code 1: not all of what was sent was delivered.
    """
    if statuses and (stages or reason):
        raise click.UsageError("--status is about rows that a sink keeps, --stage and --reason are about dead letters")
    kept = None if (stages and "apply" not in stages) or reason else _asked(statuses or ("dead",) * bool(stages), since)
    registry = load_registry(plugin_files)
    loaded = load(file, registry)
    route, name = loaded.config.identity_of(route, name)
    letters = None if statuses else (stages, route, name, reason, None if since is None else parse_since(since))
    if loaded.config.debug:
        raise StartError(f"{loaded.config.name} has `debug: true`: it sends nothing, and so nothing again")
    asked = import_module("router.engine.reprocess.replay").LetterFilter(*letters) if letters else None
    choice = Choice(kept, asked, _chosen(loaded.config, route, name, kept, statuses, send=send))
    session, stop = import_module("router.engine.spark.session"), threading.Event()
    with stopped_by_signals(stop), Watcher(loaded.config.name):
        spark = session.build_session(loaded.config, master)
        try:
            command = _Command(loaded, registry, spark, stop, choice, accept)
            whole = command.send() if send else command.show()
        finally:
            session.stop_session(spark)
    raise SystemExit(int(not whole))


@dataclass
class _Command:
    """One call of `router replay`."""

    loaded: Loaded
    registry: Registry
    spark: SparkSession
    stop: threading.Event
    choice: Choice
    accept: bool = False

    def __post_init__(self) -> None:
        self.config = self.loaded.config
        self.context = reprocess_context(self.loaded, self.spark, self.stop)

    def show(self) -> bool:
        """Print what would be sent, and change nothing."""
        resenders = list(self._resenders(self.context))
        shown = _show_all(resenders, self.choice.kept) if self.choice.kept else False
        letters = self._letters(self.context)
        if letters and (cut_off := letters.cut_off()):
            click.echo(f"{cut_off.name} was cut off; the next replay ends it first")
        begun = letters.begin(self.choice.letters) if letters and self.choice.letters else None
        if letters and begun:
            letters = self._letters(self.context.with_decoder())
            assert letters is not None  # they were chosen
            _show_letters(self.config, letters.show(begun), "what would become of dead letters today")
        elif not shown:
            click.echo("there is nothing to send again")
        return True

    def send(self) -> bool:
        """Send what is chosen; say whether all of what a sink kept was delivered. One replay at a time."""
        locks = import_module("router.engine.start.run_lock")
        whole, shown = True, False
        with ExitStack() as held:
            busy = f"another replay of {self.config.name} is at work; wait for its end, or stop it"
            held.enter_context(locks.locked(self.context.checkpoint, "replays/lock", busy))
            letters = self._letters(self.context)
            cut_off = letters.cut_off() if letters else None
            begun = letters.begin(self.choice.letters) if letters and self.choice.letters and not cut_off else None
            if begun or cut_off:
                self._hold_stream(held, locks)
            context = self.context.with_executors(self.registry, "replay")
            for resender in self._resenders(context):
                assert self.choice.kept is not None  # it chose the sinks
                whole &= _replayed(resender, self.choice.kept)
                shown = True
            if begun or cut_off:
                letters = self._letters(context.with_decoder())
                assert letters is not None  # they were chosen
                self._send_letters(letters)
            elif not shown:
                click.echo("there is nothing to send again")
        return whole

    def _send_letters(self, letters: DeadLetterReplay) -> None:
        if cut_off := letters.cut_off():
            click.echo(f"{cut_off.name} was cut off, and is ended first")
            _show_letters(self.config, letters.send(cut_off), f"what {cut_off.name} has done")
        if begun := letters.begin(self.choice.letters) if self.choice.letters else None:
            _show_letters(self.config, letters.send(begun), f"what {begun.name} has done")

    def _hold_stream(self, held: ExitStack, locks: Any) -> None:
        """Hold the lock of a run: dead letters go into the tables that it writes."""
        try:
            held.enter_context(locks.alone(self.context.checkpoint, self.config.name))
        except RunningError as error:
            what = "and its dead letters go into the tables that it writes"
            ways = "stop it first; or send what sinks keep, which needs no stop, with --status parked or --status dead"
            raise StartError(f"{self.config.name} is running, {what}: {ways}") from error

    def _resenders(self, context: ReprocessContext) -> Iterator[Resender]:
        made: type[Resender] = import_module("router.engine.reprocess.resend").Resender
        for route, name, sink in self.choice.sinks:
            yield made(
                context.config,
                context.spark,
                context.lake,
                context.checkpoint,
                context.stop,
                context.executors,
                route,
                name,
                sink,
                context.folder,
            )

    def _letters(self, context: ReprocessContext) -> DeadLetterReplay | None:
        if self.choice.letters is None:
            return None
        made: type[DeadLetterReplay] = import_module("router.engine.reprocess.replay").DeadLetterReplay
        return made(context, self.accept)


def _show_letters(config: Config, found: list[LetterOutcome], title: str) -> None:
    """Print what becomes of dead letters by stage, route and sink."""
    rows = []
    for look in found:
        route, sink = config.shown_names(look.scope.route or "", look.scope.sink or "")
        places = {**look.places, **({"another dead letter": look.other} if look.other else {})}
        where_to = look.left or ", ".join(f"{place} {count:,}" for place, count in sorted(places.items()))
        rows.append(
            {
                "stage": look.scope.stage,
                "route": route,
                "sink": sink,
                "dead letters": look.rows,
                "taken": look.taken,
                "where to": where_to,
                "stay": look.rows - look.taken,
                "such as": cut(look.reason),
            }
        )
    show_listing(Listing("dead_letters", title, LETTER_FIELDS, rows))


def _asked(statuses: tuple[str, ...], since: str | None) -> ReplayFilter:
    """Return the filter of a replay; a number among the statuses is the answer code of dead rows."""
    words = {status for status in statuses if not status.isdecimal()}
    codes = {int(status) for status in statuses if status.isdecimal()}
    if unknown := sorted(words - {"parked", "dead"}):
        told = f"{unknown[0]!r} is neither `parked` nor `dead`, nor a status of HTTP"
        raise click.BadParameter(told, param_hint="--status")
    chosen = words | ({"dead"} if codes else set()) or {"parked", "dead"}
    asked: ReplayFilter = import_module("router.engine.reprocess.resend").ReplayFilter(
        tuple(sorted(chosen)), tuple(sorted(codes)), None if since is None else parse_since(since)
    )
    return asked


def _chosen(
    config: Config,
    route: str | None,
    name: str | None,
    kept: ReplayFilter | None,
    statuses: tuple[str, ...],
    *,
    send: bool,
) -> list[tuple[str, str, ApplyingSink]]:
    """Return the sinks that keep rows and that the options choose; what is sent goes to one of several."""
    known = [(one[0], one[1]) for one in config.all_sinks()]
    if (route or name) and not any(route in (None, one[0]) and name in (None, one[1]) for one in known):
        shown = ", ".join("/".join(config.shown_names(*names)) for names in known)
        raise click.UsageError(f"there is no such sink; {config.name} has {shown}")
    there = list(import_module("router.engine.reprocess.resend").resending_sinks(config)) if kept else []
    found = [one for one in there if route in (None, one[0]) and name in (None, one[1])]
    names = ", ".join("/".join(config.shown_names(one[0], one[1])) for one in found or there) or "none"
    if statuses and not found:
        raise click.UsageError(f"no such sink keeps rows; {config.name} has {names}")
    if len(found) > 1 and send:
        raise click.UsageError(f"say which with --route and --sink: {names}; or choose dead letters with --stage")
    return found


def _show_all(resenders: list[Resender], asked: ReplayFilter) -> bool:
    """Print what sinks keep; say whether there was anything."""
    found = [(resender, rows) for resender in resenders if (rows := resender.find(asked)) is not None]
    if shown := any(rows.groups for _, rows in found):
        _show(found, "what would be sent")
    for resender in resenders:
        if begun := resender.cut_off():
            click.echo(f"{resender.key}: {begun.name} was cut off; the next replay ends it first")
    return shown


def _replayed(resender: Resender, asked: ReplayFilter) -> bool:
    """Send the chosen rows; say whether all of them were delivered."""
    whole = True
    for begun, found in _replays(resender, asked):
        _show([(resender, found)], f"what is sent by {begun.name}")
        whole &= _tell(resender, begun, found, resender.send(begun, found))
    return whole


def _replays(resender: Resender, asked: ReplayFilter) -> Iterator[tuple[NamedRun[ReplayFilter], ReplayRows]]:
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


def _tell(resender: Resender, begun: NamedRun[ReplayFilter], found: ReplayRows, resent: Resent) -> bool:
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
    rows = []
    for resender, what in found:
        route, sink = resender.config.shown_names(resender.route, resender.name)
        rows += [{"route": route, "sink": sink, **_group_row(group)} for group in what.groups]
    if not rows:
        click.echo("there is nothing to send again")
        return
    show_listing(Listing("rows", title, GROUP_FIELDS, rows))
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


def _group_row(group: ReplayGroup) -> dict[str, Any]:
    return {
        "status": group.status,
        "answer": None if group.code is None else str(group.code),
        "rows": group.rows,
        "calls": group.calls,
        "oldest": datetime.fromtimestamp(group.oldest, timezone.utc),
        "newest": datetime.fromtimestamp(group.newest, timezone.utc),
        "such as": cut(group.reason or ""),
    }


LETTER_FIELDS = (
    ListingField("stage"),
    ListingField("route"),
    ListingField("sink"),
    *numbers("dead letters", "taken"),
    ListingField("where to", "sentence"),
    *numbers("stay"),
    ListingField("such as", "sentence"),
)
GROUP_FIELDS = (
    ListingField("route"),
    ListingField("sink"),
    ListingField("status"),
    *numbers("answer", "rows", "calls"),
    ListingField("oldest"),
    ListingField("newest"),
    ListingField("such as", "sentence"),
)
