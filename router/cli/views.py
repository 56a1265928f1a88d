"""`router views`: what the views of a configuration were made of, how they follow changes, and a refresh at once."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from router.cli import (
    accept_option,
    config_argument,
    echo_message,
    master_option,
    plugin_option,
)
from router.cli.documents import json_option
from router.cli.listing import Listing, ListingField, ListOptions, list_options, number_fields, show_list
from router.cli.session import watched_session
from router.cli.values import chosen_names
from router.config.loader import load_config
from router.errors import StartError, ViewError
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.config.models import Config, View
    from router.engine.views.note import Note
    from router.engine.views.refresh import Refresher


@click.command()
@config_argument
@click.argument("patterns", metavar="[VIEW]...", nargs=-1)
@click.option("--refresh", is_flag=True, help="Refresh them now, also those on demand.")
@click.option("--full", is_flag=True, help="With --refresh: compute everything from scratch.")
@click.option("--plan", is_flag=True, help="Show how each follows changes, and why not in a better way (needs Spark).")
@accept_option([("lost-sources", "make views without sources that are gone, unreadable or not written any more")])
@master_option
@list_options
@json_option
@plugin_option
def views(
    file: Path,
    patterns: tuple[str, ...],
    refresh: bool,
    full: bool,
    plan: bool,
    accepted: frozenset[str],
    master: str | None,
    list_options: ListOptions,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show the views of the configuration FILE: what they read and make, and how their last refresh went.

    All of them, or each VIEW and those that a pattern such as 'daily_*' names.

    A refresh may run while the stream runs; if both refresh one view at once, one of the two is refused and the next
    one computes all of it. Exit code 1: a view could not be refreshed; its tables stay as they were.

    If a source of a view is gone or unreadable, the view stays as it was until the source is back or --accept
    lost-sources gives it up. A table that the view's route no longer writes has left the view; a warning names it until
    it is given up as well.
    """
    from router.engine.views.schedule import in_order

    if full and not refresh:
        raise click.UsageError("--full goes with --refresh")
    if (as_json or list_options != ListOptions()) and (refresh or plan or accepted):
        options = "--json, --watch, --sort and --only"
        raise click.UsageError(f"{options} show views: they go without --refresh, --plan and --accept")
    config = load_config(file, load_registry(plugin_files)).config
    in_turn = in_order(config.views)
    names = chosen_names(patterns, [view.name for view in in_turn], f"view of {config.name}")
    chosen = [view for view in in_turn if view.name in names]
    if accepted:
        _give_up_lost_sources(config, chosen)
    if not refresh and not plan:
        nothing = f"{config.name} has no views"
        show_list(config, lambda: [_listing_of(config, chosen)], list_options, as_json=as_json, nothing=nothing)
        return
    with watched_session(config, master, by_spark=True) as spark:
        refresher = refresher_of(config, spark)
        if plan:
            _show_plans(refresher, chosen)
        else:
            _refresh_views(refresher, chosen, full=full)


def _give_up_lost_sources(config: Config, chosen: list[View]) -> None:
    """Let views be made without the sources that they miss. Raises StartError if none misses one."""
    from router.delta.table_cache import TableCache
    from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
    from router.engine.views.note import Note, accept_lost_sources, view_note_path
    from router.engine.views.sources import ViewTables

    lake, checkpoint = lake_and_checkpoint(config)
    store = CheckpointStore(checkpoint)
    cache = TableCache(lake)
    view_tables = ViewTables(config, lake, cache)
    is_lost = False
    for view in chosen:
        note = Note.from_json(store.load(view_note_path(view.name)))
        is_source = view_tables.is_source(view)
        sources = filter(is_source, {*note.sources, *view_tables.table_names(view)})
        lost = {name for name, table in cache.open_readable_tables(sources).items() if note.lacks_source(name, table)}
        lost = lost - {*note.accepted} | {*note.left}
        if lost:
            is_lost = True
            accept_lost_sources(store, view, lost)
            names = ", ".join(sorted(lost))
            click.echo(f"{view.name}: continues without the former rows of {names} at its next refresh")
    if not is_lost:
        names = ", ".join(view.name for view in chosen)
        raise StartError(f"{names}: no source is missing; `router views FILE` shows what views read")


def _listing_of(config: Config, chosen: list[View]) -> Listing:
    from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
    from router.engine.views.note import Note, view_note_path

    _, checkpoint = lake_and_checkpoint(config)
    store = CheckpointStore(checkpoint)
    rows = [_facts_of(view, Note.from_json(store.load(view_note_path(view.name)))) for view in chosen]
    return Listing("views", f"views of {config.name}", VIEW_FIELDS, rows, keys=("view",))


def _facts_of(view: View, note: Note) -> dict[str, Any]:
    """Return the facts about a view; of its last refresh none if there was none."""
    facts: dict[str, Any] = {
        "view": view.name,
        "reads": sources_in_words(view),
        "into": view.into,
        "when": schedule_in_words(view),
        "tables": None,
        "rows": None,
        "violated": note.violation_counts,
        "last": None,
        "way": note.way,
        "why": note.why,
        "seconds": None,
        "left": list(note.left),
        "failed": note.failed,
        "failed_since": None,
    }
    # A view that was never refreshed has no tables yet, which is not the same as none.
    if note.number > 0:
        facts |= {"tables": len(note.targets), "rows": note.rows, "seconds": note.seconds}
    if note.at:
        facts["last"] = datetime.fromisoformat(note.at)
    if note.failed:
        facts["failed_since"] = datetime.fromisoformat(note.failed_since)
    return facts


def _shown_violations(row: dict[str, Any]) -> list[str]:
    return [f"{name} {count:,}" for name, count in sorted(row["violated"].items())]


def _shown_left(row: dict[str, Any]) -> list[str]:
    from router.engine.views.sources import accept_lost

    command = accept_lost(row["view"])
    return [f"{table} has left it: {row['reads']} does not write it; see `{command}`" for table in row["left"]]


def _shown_seconds(row: dict[str, Any]) -> str:
    return "" if row["seconds"] is None else f"{row['seconds']:.1f}"


VIEW_FIELDS = (
    ListingField("view"),
    ListingField("reads"),
    ListingField("into"),
    ListingField("when"),
    *number_fields("tables", "rows"),
    ListingField("violated", shown=_shown_violations),
    ListingField("last", compared=False),
    ListingField("way"),
    ListingField("why", "sentence"),
    ListingField("seconds", "number", shown=_shown_seconds, compared=False),
    ListingField("failed_since", title="fails since"),
    ListingField("failed", "sentence", title="cannot be refreshed"),
    ListingField("left", "sentence", title="warning", shown=_shown_left),
)


def sources_in_words(view: View) -> str:
    """Return in a few words what a view reads."""
    source = view.source
    words = f"view {source.view}"
    if source.tables:
        words = ", ".join(source.tables)
    elif source.route:
        words = f"route {source.route}"
    if source.without:
        words += f" except {', '.join(source.without)}"
    return words


def schedule_in_words(view: View) -> str:
    """Return in a few words when a view is refreshed."""
    if view.on_demand:
        return "on demand"
    if view.after:
        return f"after {view.after}"
    return f"every {view.every or '60 s'}"


def _show_plans(refresher: Refresher, chosen: list[View]) -> None:
    for view in chosen:
        plan = refresher.plan_view(view)
        click.echo(f"{view.name}: {plan.way}: {plan.why}")


def _refresh_views(refresher: Refresher, chosen: list[View], *, full: bool) -> None:
    """Refresh views, each whatever becomes of the others; end with exit code 1 if one could not be."""
    from router.engine.views.note import note_failed_refresh

    has_failed = False
    for view in chosen:
        try:
            refreshed = refresher.refresh_view(view, full=full)
        except ViewError as error:
            note_failed_refresh(refresher.store, view.name, error.what)
            has_failed = True
            echo_message(f"router: {error}", err=True)
            continue
        reason = refreshed.why
        if refreshed.way:
            reason = f"{refreshed.way}: {refreshed.why}"
        counts = f"{len(refreshed.commits)} of {refreshed.tables} tables, {refreshed.rows:,} rows"
        click.echo(f"{view.name}: {counts}, {refreshed.seconds:.1f} s ({reason})")
    raise SystemExit(int(has_failed))


def refresher_of(config: Config, spark: SparkSession) -> Refresher:
    """Return the refresher of a configuration's views, by a Spark that reaches lake and checkpoint."""
    from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
    from router.engine.views.schedule import create_refresher

    lake, checkpoint = lake_and_checkpoint(config)
    return create_refresher(config, spark, lake, CheckpointStore(checkpoint))
