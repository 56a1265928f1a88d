"""`router quarantine`: what becomes of rows whose table does not take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, echo_message, plugin_option
from router.cli.documents import json_option, show_json
from router.cli.listing import Listing, ListingField, ListOptions, list_options, number_fields, show_list, show_listings
from router.config.loader import load_config
from router.errors import StartError
from router.registry import load_registry
from router.table_names import matches_any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.config.models import Config
    from router.engine.checkpoint_store import CheckpointStore
    from router.engine.quarantine.table import Place, Quarantined


def waiting_rows(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose rows which wait, and these rows as its first argument."""

    @config_argument
    @click.option("--route", metavar="NAME", help="Only what waits on this route.")
    @click.argument("patterns", metavar="[TABLE]...", nargs=-1)
    @plugin_option
    @wraps(command)
    def with_waiting_rows(
        file: Path, patterns: tuple[str, ...], route: str | None, plugin_files: tuple[Path, ...], **options: Any
    ) -> None:
        config = load_config(file, load_registry(plugin_files)).config
        command(_Waiting.read_waiting(config, route, patterns), **options)

    return with_waiting_rows


@click.group()
def quarantine() -> None:
    """Show, approve, release or discard quarantined rows.

    Their table cannot be written or may not take them, or an expectation with `otherwise: quarantine` does not hold
    for them.

    A running stream carries it out after its current batch, or within seconds while it has none; a stopped one when it
    starts. Needs no Spark.
    """


@quarantine.command("list")
@waiting_rows
@list_options
@json_option
def list_rows(waiting: _Waiting, list_options: ListOptions, as_json: bool) -> None:
    """Show the rows of the configuration FILE that wait, by table, and why."""

    def read_rows() -> list[Listing]:
        # Those that stand above were read a moment ago: only who watches needs them again.
        now = _Waiting.read_waiting(waiting.config, waiting.route, waiting.patterns) if list_options.watch else waiting
        return [now.listing_of(now.rows)]

    show_list(waiting.config, read_rows, list_options, as_json=as_json, nothing=waiting.line_without_rows)


@quarantine.command(short_help="Approve the new columns that rows need.")
@waiting_rows
@click.option("--show", is_flag=True, help="Show what waits, and approve nothing.")
@json_option
def approve(waiting: _Waiting, show: bool, as_json: bool) -> None:
    """Show the quarantined rows of the configuration FILE and how they would change their tables, and approve that.

    Rows are quarantined if their sink has `evolution: quarantine` and their table lacks a column or type of theirs.

    A running stream releases the rows after its current batch, or within seconds while it has none; a stopped one when
    it starts. Rows that come later and need another change wait for another approval. Needs no Spark.
    """
    waits_for_approval = [quarantined for quarantined in waiting.rows if quarantined.cause is None]
    deciding = _Deciding(waiting, waits_for_approval, as_json)
    if not show:
        deciding.approve_rows(waits_for_approval)
    deciding.print_end()


@quarantine.command()
@waiting_rows
@json_option
def release(waiting: _Waiting, as_json: bool) -> None:
    """Give rows to their tables: now instead of at the next try, with the columns that they need, and though an
    expectation does not hold for them."""
    from router.engine.quarantine.table import try_now

    deciding = _Deciding(waiting, waiting.rows, as_json)
    # Rows of a blocked table need no approval: the stream tries its release by itself, only later.
    needs_approval = []
    for quarantined in waiting.rows:
        if quarantined.kind != "unblock":
            needs_approval.append(quarantined)
            continue
        try_now(waiting.store, quarantined.place)
        deciding.note_decision("tried next", quarantined.place, quarantined.rows)
    for place in waiting.blocked_without_rows:
        try_now(waiting.store, place)
        deciding.note_decision("tried next", place, 0)
    deciding.approve_rows(needs_approval)
    deciding.print_end()


@quarantine.command()
@waiting_rows
@click.option("--yes", is_flag=True, help="Do not ask; needed with --json.")
@json_option
def discard(waiting: _Waiting, yes: bool, as_json: bool) -> None:
    """Make rows that wait dead letters, counted in the ledger as refused.

    Of this, `release` and `approve` the last one counts, until a stream has begun to carry out another.
    """
    from router.engine.quarantine.table import write_approval

    if as_json and not yes:
        raise click.UsageError("--json asks nothing: it needs --yes")
    deciding = _Deciding(waiting, waiting.rows, as_json)
    if waiting.rows and not yes:
        click.confirm("Make these rows dead letters?", abort=True)
    for quarantined in waiting.rows:
        write_approval(waiting.store, quarantined, discard=True)
        deciding.note_decision("will be dead letters", quarantined.place, quarantined.rows)
    deciding.print_end()


@dataclass(frozen=True)
class _Waiting:
    """The quarantined rows that a command is about, of a route and for tables if these are named.

    `blocked_without_rows`: tables that cannot be written, and have no rows in the quarantine.
    """

    config: Config
    store: CheckpointStore
    rows: list[Quarantined]
    blocked_without_rows: list[Place]
    route: str | None
    patterns: tuple[str, ...]

    @classmethod
    def read_waiting(cls, config: Config, route: str | None, patterns: tuple[str, ...]) -> _Waiting:
        """Read what waits, of a route if one is named, and for the tables that match a pattern if there are any."""
        from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
        from router.engine.quarantine.table import list_quarantined, pending_releases

        lake, checkpoint = lake_and_checkpoint(config)
        store = CheckpointStore(checkpoint)
        identity, _ = config.identity_of(route, None)

        def is_chosen(place: Place) -> bool:
            return identity in (None, place.route) and (not patterns or matches_any(place.table, patterns))

        chosen = [rows for rows in list_quarantined(config, lake) if is_chosen(rows.place)]
        with_rows = {rows.place for rows in chosen}
        blocked = [note.place for note in pending_releases(store, "blocked") if is_chosen(note.place)]
        without_rows = [place for place in blocked if place not in with_rows]
        return cls(config, store, chosen, without_rows, route, patterns)

    @property
    def line_without_rows(self) -> str:
        """Return the line that people see if no rows wait."""
        line = f"no rows of {self.config.name} wait"
        if self.route:
            line += f" on route {self.route}"
        if self.patterns:
            line += f" for {', '.join(self.patterns)}"
        return line

    def listing_of(self, rows: list[Quarantined]) -> Listing:
        """Return rows as they are printed."""
        # Rows that wait for an approval have no cause: their reason are the columns that their table lacks.
        has_cause = any(quarantined.cause is not None for quarantined in rows)
        title = "why" if has_cause else "would gain"
        fields = (*WAITING_FIELDS, ListingField("reason", "sentence", title, shown=_shown_reason))
        keys = ("table", "route", "sink", "waits_for")
        return Listing("quarantined", "", fields, self.facts_of(rows), keys)

    def facts_of(self, rows: list[Quarantined]) -> list[dict[str, Any]]:
        """Return the facts about quarantined rows."""
        from router.engine.quarantine.table import WAITS_FOR, pending_releases

        approved = {(pending.place, pending.kind) for pending in pending_releases(self.store)}
        facts = []
        for quarantined in rows:
            place = quarantined.place
            route, sink = self.config.shown_names(place.route, place.sink)
            facts.append(
                {
                    "table": place.table,
                    "route": route,
                    "sink": sink,
                    "rows": quarantined.rows,
                    "oldest": quarantined.since,
                    "written_with": list(quarantined.versions),
                    "waits_for": WAITS_FOR[quarantined.kind],
                    "reason": _reasons_of(quarantined),
                    "approved": (place, quarantined.kind) in approved,
                }
            )
        return facts


class _Deciding:
    """A decision about rows that wait, as it is printed: the rows, then a line for each table.

    With `as_json` one document has both: `quarantined` and `decided`.
    """

    def __init__(self, waiting: _Waiting, rows: list[Quarantined], as_json: bool) -> None:
        self.waiting = waiting
        self.as_json = as_json
        self.listing = waiting.listing_of(rows)
        self.decided: list[dict[str, Any]] = []
        self.conflicting: list[Quarantined] = []
        if not as_json:
            show_listings(waiting.config.name, [self.listing], nothing=waiting.line_without_rows)

    def note_decision(self, decision: str, place: Place, rows: int) -> None:
        """Print what was decided for the rows of a table, under the names that people see."""
        route, sink = self.waiting.config.shown_names(place.route, place.sink)
        if not self.as_json:
            what = f"{rows:,} rows of {route}" if rows else "no rows wait for it"
            click.echo(f"{decision}: {place.table}, {what}")
        self.decided.append({"table": place.table, "route": route, "sink": sink, "rows": rows, "decision": decision})

    def approve_rows(self, rows: list[Quarantined]) -> None:
        """Approve what can be; remember what cannot."""
        from router.engine.quarantine.table import write_approval

        for quarantined in rows:
            if quarantined.change.conflicts:
                self.conflicting.append(quarantined)
                continue
            write_approval(self.waiting.store, quarantined)
            self.note_decision("approved", quarantined.place, quarantined.rows)

    def print_end(self) -> None:
        """Print the document, and name rows that cannot be approved: exit code 1, or 2 if none could."""
        if self.as_json:
            show_json({"name": self.waiting.config.name, "quarantined": self.listing.rows, "decided": self.decided})
        conflicting = self.conflicting
        if not conflicting:
            return
        tables = ", ".join(sorted({quarantined.place.table for quarantined in conflicting}))
        refusal = (
            f"{tables}: the quarantined rows cannot go into it, see above; change the table, or `router quarantine "
            "discard FILE` these rows"
        )
        if not any(decided["decision"] == "approved" for decided in self.decided):
            raise StartError(refusal)
        echo_message(f"router: {refusal}", err=True)
        raise SystemExit(1)


def _shown_versions(row: dict[str, Any]) -> str:
    return ", ".join(row["written_with"])


def _shown_reason(row: dict[str, Any]) -> list[str]:
    lines: list[str] = row["reason"]
    return [*lines, "(approved)"] if row["approved"] else lines


WAITING_FIELDS = (
    ListingField("table"),
    ListingField("route"),
    ListingField("sink"),
    *number_fields("rows"),
    ListingField("oldest", title="oldest record", compared=False),
    ListingField("written_with", "sentence", "written with", shown=_shown_versions),
)


def _reasons_of(quarantined: Quarantined) -> list[str]:
    """Return why rows wait: what is wrong with their table, or how they would change it, a line per column."""
    from router.delta.schema_diff import type_shape

    if quarantined.cause is not None:
        return [quarantined.cause]
    change = quarantined.change
    lines = [f"{column.name} {type_shape(column.type)}" for column in change.added]
    lines += [f"{column.name}, wider: {type_shape(column.type)}" for column in change.widened]
    lines += [f"cannot: {conflict}" for conflict in change.conflicts.values()]
    return lines or ["nothing: it has all of it now"]
