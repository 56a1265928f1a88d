"""`router approve`: let tables gain the columns that quarantined rows need."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.cli import config_argument, plugin_option
from router.config.loader import load
from router.errors import printable
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from router.engine.quarantine import Quarantined


@click.command(short_help="Let tables gain the columns that rows wait for.")
@config_argument
@click.option("--route", metavar="NAME", help="Only what waits on this route.")
@click.option("--table", metavar="LAYER.TABLE", help="Only what waits for this table.")
@click.option("--show", is_flag=True, help="Show what waits, and approve nothing.")
@plugin_option
def approve(file: Path, route: str | None, table: str | None, show: bool, plugin_files: tuple[Path, ...]) -> None:
    """Show the quarantined rows of the configuration FILE and how they would change their tables, and approve that.

    Rows are quarantined where a sink says `evolution: quarantine` and their table lacks a column or type of theirs.

    A running stream releases the rows after its current batch, or within seconds while it has none; a stopped one when
    it starts. Rows that come later and need another change wait for another approval. Needs no Spark.
    """
    config = load(file, load_registry(plugin_files)).config
    rows, lakes = import_module("router.engine.quarantine"), import_module("router.delta.lake")
    lake, checkpoint = (lakes.Lake.at(place, config.storage()) for place in (config.lake, config.checkpoint_path()))
    store = import_module("router.engine.checkpoint_store").CheckpointStore(checkpoint)
    found = [
        one
        for one in rows.quarantined(config, lake)
        if route in (None, one.place.route) and table in (None, one.place.table)
    ]
    if not found:
        click.echo(f"no rows of {config.name} wait{_asked(route, table)}")
        return
    approved = {approval.place for approval in rows.approvals(store)}
    _show(found, approved)
    conflicting = [one for one in found if one.change.conflicts]
    if show:
        return
    for one in found:
        if one not in conflicting:
            rows.approve(store, one)
            click.echo(f"approved: {one.place.table}, {one.rows:,} rows of {one.place.route}")
    if conflicting:
        tables = ", ".join(sorted({one.place.table for one in conflicting}))
        raise click.ClickException(
            f"{tables}: the quarantined rows cannot go into it, see above; change the table, or delete these rows"
        )


def _asked(route: str | None, table: str | None) -> str:
    return (f" on route {route}" if route else "") + (f" for {table}" if table else "")


def _show(found: list[Quarantined], approved: set[Any]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in ("table", "route", "sink", "rows", "oldest record", "written with", "would gain"):
        table.add_column(name, overflow="fold", justify="right" if name == "rows" else "left")
    for one in found:
        place, since = one.place, one.since
        versions = escape(printable(", ".join(one.versions)))
        state = "\n(approved)" if place in approved else ""
        oldest = f"{since:%Y-%m-%d %H:%M:%S}" if since else ""
        cells = (place.table, place.route, place.sink, f"{one.rows:,}", oldest, versions, _change(one) + state)
        table.add_row(*cells)
    Console().print(table)


def _change(one: Quarantined) -> str:
    """Return how a table would change: a line per column."""
    shape = import_module("router.delta.schema_diff").shape
    change = one.change
    lines = [f"{column.name} {shape(column.type)}" for column in change.added]
    lines += [f"{column.name}, wider: {shape(column.type)}" for column in change.widened]
    lines += [f"cannot: {why}" for why in change.conflicts.values()]
    return "\n".join(escape(printable(line)) for line in lines or ["nothing: it has all of it now"])
