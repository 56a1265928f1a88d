"""`router quarantine` and `router approve`: what becomes of rows whose table does not take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option
from router.cli.listing import Listing, ListingField, json_option, numbers, show_json, show_listings
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.config.models import Config
    from router.engine.quarantine.table import Quarantined


def waiting_rows(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose rows which wait, and these rows as its first argument."""

    @config_argument
    @click.option("--route", metavar="NAME", help="Only what waits on this route.")
    @click.option("--table", metavar="LAYER.TABLE", help="Only what waits for this table.")
    @plugin_option
    @wraps(command)
    def chosen(
        file: Path, route: str | None, table: str | None, plugin_files: tuple[Path, ...], **options: bool
    ) -> None:
        command(_Waiting.read(file, plugin_files, route, table), **options)

    return chosen


@click.command(short_help="Let tables gain the columns that rows wait for.")
@waiting_rows
@click.option("--show", is_flag=True, help="Show what waits, and approve nothing.")
def approve(waiting: _Waiting, show: bool) -> None:
    """Show the quarantined rows of the configuration FILE and how they would change their tables, and approve that.

    Rows are quarantined where a sink says `evolution: quarantine` and their table lacks a column or type of theirs.

    A running stream releases the rows after its current batch, or within seconds while it has none; a stopped one when
    it starts. Rows that come later and need another change wait for another approval. Needs no Spark.
    """
    found = [one for one in waiting.rows if one.cause is None]
    if not waiting.shown(found) or show:
        return
    waiting.approve(found)


@click.group(short_help="Show, release or discard rows whose table does not take them.")
def quarantine() -> None:
    """Show, release or discard rows that wait: their table cannot be written or may not take them, or an expectation
    with `otherwise: quarantine` does not hold for them.

    A running stream carries it out after its current batch, or within seconds while it has none; a stopped one when it
    starts. Needs no Spark.
    """


@quarantine.command("list")
@waiting_rows
@json_option
def show(waiting: _Waiting, as_json: bool) -> None:
    """Show the rows of the configuration FILE that wait, by table, and why."""
    if as_json:
        show_json({"name": waiting.config.name, "quarantined": waiting.facts(waiting.rows)})
    else:
        waiting.shown(waiting.rows)


@quarantine.command()
@waiting_rows
def release(waiting: _Waiting) -> None:
    """Give rows to their tables: now instead of at the next try, with the columns that they need, and though an
    expectation does not hold for them."""
    if not waiting.shown(waiting.rows):
        return
    for one in (one for one in waiting.rows if one.kind == "unblock"):
        waiting.module.try_now(waiting.store, one)
        click.echo(f"tried next: {one.place.table}, {one.rows:,} rows of {waiting.route_of(one)}")
    waiting.approve([one for one in waiting.rows if one.kind != "unblock"])


@quarantine.command()
@waiting_rows
@click.option("--yes", is_flag=True, help="Do not ask.")
def discard(waiting: _Waiting, yes: bool) -> None:
    """Make rows that wait dead letters, counted in the ledger as refused."""
    if not waiting.shown(waiting.rows):
        return
    if not yes:
        click.confirm("Make these rows dead letters?", abort=True)
    for one in waiting.rows:
        waiting.module.approve(waiting.store, one, discard=True)
        click.echo(f"discarded: {one.rows:,} rows for {one.place.table}")


@dataclass(frozen=True)
class _Waiting:
    """The quarantined rows that a command is about."""

    config: Config
    module: Any
    store: Any
    rows: list[Quarantined]
    about: str

    @classmethod
    def read(cls, file: Path, plugin_files: tuple[Path, ...], route: str | None, table: str | None) -> _Waiting:
        config = load(file, load_registry(plugin_files)).config
        module = import_module("router.engine.quarantine.table")
        stores = import_module("router.engine.checkpoint_store")
        lake, checkpoint = stores.lake_and_checkpoint(config)
        store = stores.CheckpointStore(checkpoint)
        identity, _ = config.identity_of(route, None)
        found = [
            one
            for one in module.quarantined(config, lake)
            if identity in (None, one.place.route) and table in (None, one.place.table)
        ]
        return cls(config, module, store, found, f"{config.name}{{}}{_asked(route, table)}")

    def shown(self, found: list[Quarantined]) -> bool:
        """Print rows; say whether there are any."""
        title = "would gain" if all(one.cause is None for one in found) else "why"
        fields = (*FIELDS, ListingField("reason", "sentence", title, shown=_shown_reason))
        nothing = f"no rows of {self.about.format(' wait')}"
        show_listings(self.config.name, [Listing("quarantined", "", fields, self.facts(found))], nothing=nothing)
        return bool(found)

    def facts(self, found: list[Quarantined]) -> list[dict[str, Any]]:
        """Return what is known of rows that wait."""
        approved = {(pending.place, pending.kind) for pending in self.module.pending_releases(self.store)}
        return [_facts(self.config, one, (one.place, one.kind) in approved) for one in found]

    def route_of(self, found: Quarantined) -> str:
        """Return the name of the route that people see."""
        return self.config.shown_names(found.place.route, found.place.sink)[0]

    def approve(self, found: list[Quarantined]) -> None:
        """Approve what can be; name what cannot."""
        conflicting = [one for one in found if one.change.conflicts]
        for one in found:
            if one not in conflicting:
                self.module.approve(self.store, one)
                click.echo(f"approved: {one.place.table}, {one.rows:,} rows of {self.route_of(one)}")
        if conflicting:
            tables = ", ".join(sorted({one.place.table for one in conflicting}))
            raise click.ClickException(
                f"{tables}: the quarantined rows cannot go into it, see above; change the table, or "
                "`router quarantine discard` these rows"
            )


def _asked(route: str | None, table: str | None) -> str:
    return (f" on route {route}" if route else "") + (f" for {table}" if table else "")


def _facts(config: Config, one: Quarantined, approved: bool) -> dict[str, Any]:
    route, sink = config.shown_names(one.place.route, one.place.sink)
    return {
        "table": one.place.table,
        "route": route,
        "sink": sink,
        "rows": one.rows,
        "oldest": one.since,
        "written_with": list(one.versions),
        "waits_for": WAITS_FOR[one.kind],
        "reason": _why(one),
        "approved": approved,
    }


def _shown_versions(row: dict[str, Any]) -> str:
    return ", ".join(row["written_with"])


def _shown_reason(row: dict[str, Any]) -> list[str]:
    return [*row["reason"], "(approved)"] if row["approved"] else row["reason"]


WAITS_FOR = {"release": "approval", "unblock": "table", "held": "release"}
"""What rows of each kind wait for, in JSON."""
FIELDS = (
    ListingField("table"),
    ListingField("route"),
    ListingField("sink"),
    *numbers("rows"),
    ListingField("oldest", title="oldest record"),
    ListingField("written_with", "sentence", "written with", shown=_shown_versions),
)


def _why(one: Quarantined) -> list[str]:
    """Return why rows wait: what is wrong with their table, or how they would change it, a line per column."""
    if one.cause is not None:
        return [one.cause]
    shape = import_module("router.delta.schema_diff").shape
    change = one.change
    lines = [f"{column.name} {shape(column.type)}" for column in change.added]
    lines += [f"{column.name}, wider: {shape(column.type)}" for column in change.widened]
    lines += [f"cannot: {why}" for why in change.conflicts.values()]
    return lines or ["nothing: it has all of it now"]
