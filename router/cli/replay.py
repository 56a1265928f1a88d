"""`router replay`: show what would become of dead letters and parked rows today, and send them again."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from router.cli import accept_option, config_argument, master_option, plugin_option
from router.cli.dead_letters import letter_options, shorten_text
from router.cli.documents import json_option, show_json
from router.cli.listing import Listing, ListingField, number_fields, show_listing
from router.cli.session import reprocess_context, stream_held_off
from router.cli.values import parse_since
from router.config.loader import load_config
from router.errors import StartError
from router.registry import load_registry
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.api.sinks import ApplyingSink, Resent, Sink
    from router.config.models import Config
    from router.engine.audit.dead_letters import DeadLetterFilter
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.replay import DeadLetterOutcome, DeadLetterReplay
    from router.engine.reprocess.resend import ReplayFilter, ReplayGroup, ReplayRows, Resender
    from router.engine.reprocess.run import NamedRun
    from router.registry import Registry


@dataclass(frozen=True)
class ReplayChoice:
    """What the options choose: rows that sinks keep, and dead letters; None for none of a kind."""

    rows: ReplayFilter | None
    letters: DeadLetterFilter | None
    sinks: list[tuple[str, str, ApplyingSink]]


@click.command()
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
@accept_option([("other-order", "also into tables that depend on the order of their records")])
@master_option
@json_option
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
    accepted: frozenset[str],
    master: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show what would become of the dead letters of the configuration FILE today; with --send, send them again.

    Their records are processed by today's FILE, for the route and sink that refused them. What would be the same dead
    letter again stays as it is; the others are marked and never taken again. Rows that a
    sink parked, or an API refused, are sent again with the idempotency keys that they had, also while the stream runs.
    Exit code 1: not all of what was sent was delivered.
    """
    from router.engine.audit.dead_letters import DeadLetterFilter

    if statuses and (stages or reason):
        raise click.UsageError("--status is about rows that a sink keeps, --stage and --reason are about dead letters")
    seconds = None if since is None else parse_since(since)
    rows = _row_filter(stages, reason, statuses, seconds)
    loaded = load_config(file, load_registry(plugin_files))
    config = loaded.config
    route, name = config.identity_of(route, name)
    letters = None
    if not statuses:
        letters = DeadLetterFilter(stages, route, name, reason, seconds)
    if config.debug:
        raise StartError(f"{config.name} has `debug: true`: it sends nothing")
    sinks = _choose_sinks(config, route, name, rows, statuses, send=send)
    choice = ReplayChoice(rows, letters, sinks)
    output = _Output(as_json)

    with reprocess_context(loaded, master, by_spark=True) as context:
        command = _Command(context, loaded.registry, choice, "other-order" in accepted, output)
        if send:
            is_delivered = command.send_choice()
        else:
            command.show_choice()
            is_delivered = True
    output.print_document(config.name)
    raise SystemExit(int(not is_delivered))


def _row_filter(
    stages: tuple[str, ...], reason: str | None, statuses: tuple[str, ...], since: float | None
) -> ReplayFilter | None:
    """Return which of the rows that sinks keep are sent; None if the options choose dead letters only.

    A number among the statuses is the answer code of dead rows.
    """
    from router.engine.reprocess.resend import ReplayFilter

    # Of the stages only `apply` has rows that a sink keeps; those that are also dead letters have the status `dead`.
    if reason or (stages and Stage.APPLY not in stages):
        return None
    if stages and not statuses:
        statuses = ("dead",)
    words = {status for status in statuses if not status.isdecimal()}
    codes = {int(status) for status in statuses if status.isdecimal()}
    unknown = sorted(words - {"parked", "dead"})
    if unknown:
        message = f"{unknown[0]!r} is neither `parked` nor `dead`, nor a status of HTTP"
        raise click.BadParameter(message, param_hint="--status")
    if codes:
        words.add("dead")
    return ReplayFilter(tuple(sorted(words or {"parked", "dead"})), tuple(sorted(codes)), since)


def _choose_sinks(
    config: Config,
    route: str | None,
    name: str | None,
    rows: ReplayFilter | None,
    statuses: tuple[str, ...],
    *,
    send: bool,
) -> list[tuple[str, str, ApplyingSink]]:
    """Return the sinks that keep rows and that the options choose; what is sent goes to one of several."""
    from router.engine.reprocess.resend import resending_sinks

    # A misspelt name is an error, also if no sink keeps rows.
    every = list(config.all_sinks())
    if (route or name) and not any(_is_chosen(sink, route, name) for sink in every):
        shown = ", ".join(_shown_key(config, sink) for sink in every)
        raise click.UsageError(f"there is no such sink; {config.name} has {shown}")
    keeping = list(resending_sinks(config)) if rows else []
    chosen = [sink for sink in keeping if _is_chosen(sink, route, name)]
    names = ", ".join(_shown_key(config, sink) for sink in chosen or keeping) or "none"
    if statuses and not chosen:
        raise click.UsageError(f"no such sink keeps rows; {config.name} has {names}")
    if len(chosen) > 1 and send:
        raise click.UsageError(f"say which with --route and --sink: {names}; or choose dead letters with --stage")
    return chosen


def _is_chosen(sink: tuple[str, str, Sink], route: str | None, name: str | None) -> bool:
    """Say whether a sink, of which route and name come first, is of this route and has this name, if any."""
    return route in (None, sink[0]) and name in (None, sink[1])


def _shown_key(config: Config, sink: tuple[str, str, Sink]) -> str:
    return "/".join(config.shown_names(sink[0], sink[1]))


class _Output:
    """What the command prints: lists and lines as they come, or one document at its end."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.document: dict[str, list[dict[str, Any]]] = {"dead_letters": [], "rows": [], "sent": []}

    def print_list(self, listing: Listing) -> None:
        """Print a list."""
        self.document[listing.name] += listing.rows
        if not self.as_json:
            show_listing(listing)

    def print_line(self, line: str) -> None:
        """Print a line, which is no part of the document."""
        click.echo(line, err=self.as_json)

    def print_document(self, name: str) -> None:
        """Print the document about a configuration."""
        if self.as_json:
            show_json({"name": name, **self.document})


@dataclass
class _Command:
    """One call of `router replay`."""

    context: ReprocessContext
    registry: Registry
    choice: ReplayChoice
    accept: bool
    output: _Output

    def show_choice(self) -> None:
        """Print what would be sent, and change nothing."""
        is_shown = False
        if self.choice.rows is not None:
            is_shown = _show_all(self.output, list(self._make_resenders(self.context)), self.choice.rows)
        if self.choice.letters:
            letters = self._letter_replay(self.context)
            cut_off = letters.cut_off()
            if cut_off:
                self.output.print_line(f"{cut_off.name} was cut off; the next replay ends it first")
            replay = letters.begin(self.choice.letters)
            if replay:
                # Decoder and registry are asked only if there is a letter to decode.
                outcomes = self._letter_replay(self.context.with_decoder()).show(replay)
                _show_letters(self.output, self.context.config, outcomes, "what would become of dead letters today")
                is_shown = True
        if not is_shown:
            self.output.print_line("there is nothing to send again")

    def send_choice(self) -> bool:
        """Send what is chosen; say whether all of what a sink kept was delivered. One replay at a time."""
        from router.engine.start.run_lock import hold_file_lock

        name = self.context.config.name
        is_delivered = True
        with ExitStack() as locks:
            busy = f"another replay of {name} is at work; wait for its end, or stop it"
            locks.enter_context(hold_file_lock(self.context.checkpoint, "replays/lock", busy))
            # Rows that sinks keep can be sent while the stream runs; dead letters go into the tables that it writes.
            letters = self._letters_to_send()
            if letters:
                refusal = (
                    f"{name} is running, and its dead letters go into the tables that it writes: stop it first; or "
                    "send what sinks keep, which needs no stop, with --status parked or --status dead"
                )
                locks.enter_context(stream_held_off(self.context.checkpoint, name, refusal))
            context = self.context.with_executors(self.registry, "replay")
            if self.choice.rows is not None:
                for resender in self._make_resenders(context):
                    is_delivered &= _send_rows(self.output, resender, self.choice.rows)
            if letters:
                self._send_letters(context.with_decoder(), letters)
            elif not self.choice.sinks:
                self.output.print_line("there is nothing to send again")
        return is_delivered

    def _letters_to_send(self) -> DeadLetterFilter | None:
        """Return which dead letters are chosen; None if there are none, and no replay of any was cut off."""
        chosen = self.choice.letters
        if chosen is None:
            return None
        letters = self._letter_replay(self.context)
        if letters.cut_off() or letters.begin(chosen):
            return chosen
        return None

    def _send_letters(self, context: ReprocessContext, chosen: DeadLetterFilter) -> None:
        """Send the dead letters of a replay that was cut off, then the chosen ones."""
        letters = self._letter_replay(context)
        cut_off = letters.cut_off()
        if cut_off:
            self.output.print_line(f"{cut_off.name} was cut off, and is ended first")
            _show_letters(self.output, context.config, letters.send(cut_off), f"what {cut_off.name} has done")
        replay = letters.begin(chosen)
        if replay:
            _show_letters(self.output, context.config, letters.send(replay), f"what {replay.name} has done")

    def _letter_replay(self, context: ReprocessContext) -> DeadLetterReplay:
        from router.engine.reprocess.replay import DeadLetterReplay

        return DeadLetterReplay(context, self.accept)

    def _make_resenders(self, context: ReprocessContext) -> Iterator[Resender]:
        from router.engine.reprocess.resend import Resender

        for route, name, sink in self.choice.sinks:
            yield Resender(
                config=context.config,
                spark=context.spark,
                lake=context.lake,
                checkpoint=context.checkpoint,
                stop=context.stop,
                executors=context.executors,
                route=route,
                name=name,
                sink=sink,
                folder=context.folder,
            )


def _show_letters(output: _Output, config: Config, outcomes: list[DeadLetterOutcome], title: str) -> None:
    """Print what becomes of dead letters by stage, route and sink."""
    rows = []
    for outcome in outcomes:
        route, sink = config.shown_names(outcome.scope.route or "", outcome.scope.sink or "")
        counts = dict(outcome.places)
        if outcome.other:
            counts["another dead letter"] = outcome.other
        targets = ", ".join(f"{target} {count:,}" for target, count in sorted(counts.items()))
        rows.append(
            {
                "stage": outcome.scope.stage,
                "route": route,
                "sink": sink,
                "dead_letters": outcome.rows,
                "taken": outcome.taken,
                "where_to": outcome.obstacle or targets,
                "stay": outcome.rows - outcome.taken,
                "such_as": shorten_text(outcome.reason),
            }
        )
    output.print_list(Listing("dead_letters", title, LETTER_FIELDS, rows))


def _show_all(output: _Output, resenders: list[Resender], chosen: ReplayFilter) -> bool:
    """Print what sinks keep; say whether there was anything."""
    by_resender = []
    for resender in resenders:
        rows = resender.find(chosen)
        if rows is not None:
            by_resender.append((resender, rows))
    # A sink that has sent everything is not worth a line; one that was cut off is.
    has_rows = any(rows.groups for _, rows in by_resender)
    if has_rows:
        _show_rows(output, by_resender, "what would be sent")
    for resender in resenders:
        cut_off = resender.cut_off()
        if cut_off:
            output.print_line(f"{resender.key}: {cut_off.name} was cut off; the next replay ends it first")
    return has_rows


def _send_rows(output: _Output, resender: Resender, chosen: ReplayFilter) -> bool:
    """Send the chosen rows; say whether all of them were delivered."""
    is_delivered = True
    for run, rows in _runs_to_send(output, resender, chosen):
        _show_rows(output, [(resender, rows)], f"what is sent by {run.name}")
        is_delivered &= _show_sent(output, resender, run, rows, resender.send(run, rows))
    return is_delivered


def _runs_to_send(
    output: _Output, resender: Resender, chosen: ReplayFilter
) -> Iterator[tuple[NamedRun[ReplayFilter], ReplayRows]]:
    """Yield a replay that was killed before, and then the new one."""
    cut_off = resender.cut_off()
    if cut_off:
        output.print_line(f"{resender.key}: {cut_off.name} was cut off, and is ended first")
        yield cut_off, resender.resume(cut_off)
    if resender.stop.is_set():
        return
    run, rows = resender.begin(chosen)
    if rows is not None and rows.rows:
        yield run, rows
        return
    # Nothing to send, or only rows that are gone.
    _show_rows(output, [(resender, rows)] if rows is not None else [], "what would be sent")


def _show_sent(
    output: _Output, resender: Resender, run: NamedRun[ReplayFilter], rows: ReplayRows, resent: Resent
) -> bool:
    """Print what a replay did; say whether all rows were delivered."""
    delivered = resent.count_now("delivered")
    not_sent = rows.rows - sum(resent.moved.values())
    counts = {
        "delivered": delivered,
        "dead": resent.count_now("dead"),
        "parked": resent.count_now("parked"),
        "not sent": not_sent,
    }
    outcome = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing"
    if resent.in_doubt:
        outcome += f"; {resent.in_doubt:,} in doubt: an attempt ended without an answer, so the API may have them twice"
    if not_sent:
        outcome += f": {resent.left or 'it was stopped'}"
    output.print_line(f"{resender.key}: {run.name}: {outcome}")
    route, sink = resender.config.shown_names(resender.route, resender.name)
    facts = {"replay": run.name, "route": route, "sink": sink, "in_doubt": resent.in_doubt}
    output.document["sent"].append({**facts, **{name.replace(" ", "_"): count for name, count in counts.items()}})
    return delivered == rows.rows


def _show_rows(output: _Output, by_resender: list[tuple[Resender, ReplayRows]], title: str) -> None:
    """Print rows by route, sink, status and answer code, and where those are that cannot be sent."""
    lines = []
    for resender, rows in by_resender:
        route, sink = resender.config.shown_names(resender.route, resender.name)
        lines += [{"route": route, "sink": sink, **_group_row(group)} for group in rows.groups]
    if not lines:
        output.print_line("there is nothing to send again")
        return
    output.print_list(Listing("rows", title, KEPT_ROW_FIELDS, lines))
    for resender, rows in by_resender:
        if rows.gone:
            _show_gone(output, resender, rows.gone)


def _show_gone(output: _Output, resender: Resender, gone: int) -> None:
    config = resender.config
    bronze = "there is no `bronze` that has their records"
    if config.bronze:
        bronze = f"{config.bronze.table} has their records"
    output.print_line(
        f"{gone:,} more rows are not in {resender.outbox} any more (outbox_retention: {config.outbox_retention}) and "
        f"cannot be sent; {bronze}, and {config.dead_letters} the rows of those that are dead"
    )


def _group_row(group: ReplayGroup) -> dict[str, Any]:
    return {
        "status": group.status,
        "answer": None if group.code is None else str(group.code),
        "rows": group.rows,
        "calls": group.calls,
        "oldest": datetime.fromtimestamp(group.oldest, timezone.utc),
        "newest": datetime.fromtimestamp(group.newest, timezone.utc),
        "such_as": shorten_text(group.reason or ""),
    }


LETTER_FIELDS = (
    ListingField("stage"),
    ListingField("route"),
    ListingField("sink"),
    ListingField("dead_letters", "number", "dead letters"),
    *number_fields("taken"),
    ListingField("where_to", "sentence", "where to"),
    *number_fields("stay"),
    ListingField("such_as", "sentence", "such as"),
)
KEPT_ROW_FIELDS = (
    ListingField("route"),
    ListingField("sink"),
    ListingField("status"),
    *number_fields("answer", "rows", "calls"),
    ListingField("oldest"),
    ListingField("newest"),
    ListingField("such_as", "sentence", "such as"),
)
