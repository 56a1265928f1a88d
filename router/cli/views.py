"""`router views`: what the views of a configuration were made of, how they follow changes, and a refresh at once."""

from __future__ import annotations

import threading
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option, stopped_by_signals
from router.cli.listing import Listing, ListingField, json_option, numbers, show_json, show_listing
from router.cli.watching import Watcher
from router.config.loader import load
from router.errors import StartError, ViewError, printable
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.config.models import Config, View
    from router.engine.views.note import Note


@click.command(short_help="Show views, how they follow changes, or refresh them now.")
@config_argument
@click.option("--name", "names", multiple=True, help="Only this view; may be given several times.")
@click.option("--refresh", is_flag=True, help="Refresh them now, those on demand too.")
@click.option("--full", is_flag=True, help="With --refresh: compute everything anew.")
@click.option(
    "--plan", is_flag=True, help="Say which way each follows changes, and why not a better one (needs Spark)."
)
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="TABLE",
    help="Make views without this source, which is gone, unreadable or not written any more; may be repeated.",
)
@click.option("--master", help="Spark master of a local run; spark-submit brings its own.")
@json_option
@plugin_option
def views(
    file: Path,
    names: tuple[str, ...],
    refresh: bool,
    full: bool,
    plan: bool,
    accepted: tuple[str, ...],
    master: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show the views of the configuration FILE: what they read and make, and how their last refresh went.

    A refresh may run beside the stream; where both refresh one view at once, one of the two is refused and the next one
    computes all of it. Exit code 1: a view could not be refreshed; its tables stay as they were.

    A view one of whose sources is gone or unreadable stays as it was, until the source is back or --accept names it.
    One that its route does not write any more has left it, and is named in a warning until --accept names it.
    """
    if full and not refresh:
        raise click.UsageError("--full goes with --refresh")
    if as_json and (refresh or plan or accepted):
        raise click.UsageError("--json shows views: it goes without --refresh, --plan and --accept")
    registry = load_registry(plugin_files)
    loaded = load(file, registry)
    config, schedule = loaded.config, import_module("router.engine.views.schedule")
    chosen: list[View] = [view for view in schedule.in_order(config.views) if not names or view.name in names]
    if unknown := set(names) - {view.name for view in chosen}:
        raise StartError(f"{config.name} has no view {', '.join(sorted(unknown))}")
    if accepted:
        _accept(config, chosen, set(accepted))
    if not refresh and not plan:
        _list(config, chosen, as_json=as_json)
        return
    session = import_module("router.engine.spark.session")
    with stopped_by_signals(threading.Event()), Watcher(config.name):
        spark = session.build_session(config, master)
        try:
            if plan:
                _plan(config, spark, chosen)
            else:
                _refresh(config, spark, chosen, full=full)
        finally:
            session.stop_session(spark)


def _accept(config: Config, chosen: list[View], tables: set[str]) -> None:
    """Let views be made without tables. Raises StartError if one is no source of theirs, or is as it was."""
    note_module = import_module("router.engine.views.note")
    sources_module = import_module("router.engine.views.sources")
    cache_module = import_module("router.delta.table_cache")
    stores = import_module("router.engine.checkpoint_store")
    lake, checkpoint = stores.lake_and_checkpoint(config)
    store = stores.CheckpointStore(checkpoint)
    cache = cache_module.TableCache(lake)
    view_tables = sources_module.ViewTables(config, lake, cache)
    readable = cache.readable(tables)

    # Look at everything before the first note is written.
    lost_by_view: list[tuple[View, set[str]]] = []
    for view in chosen:
        note = note_module.Note.of(store.load(note_module.note_path(view.name)))
        is_source = view_tables.is_source(view)
        lost = {table for table in tables if is_source(table) and note.lacks(table, readable[table])}
        lost |= tables & {*note.left}
        if lost:
            lost_by_view.append((view, lost))
    unknown = tables.difference(*(lost for _, lost in lost_by_view))
    if unknown:
        names = ", ".join(sorted(unknown))
        raise StartError(
            f"--accept {names}: no view of {config.name} misses it; `router views FILE` shows what they read"
        )
    for view, lost in lost_by_view:
        note_module.accept_lost(store, view, lost)
        click.echo(f"{view.name}: continues without the former rows of {', '.join(sorted(lost))} at its next refresh")


def _list(config: Config, chosen: list[View], *, as_json: bool) -> None:
    note_module = import_module("router.engine.views.note")
    stores = import_module("router.engine.checkpoint_store")
    store = stores.CheckpointStore(stores.lake_and_checkpoint(config)[1])
    notes = {view.name: note_module.Note.of(store.load(note_module.note_path(view.name))) for view in chosen}
    rows = [_facts(view, notes[view.name]) for view in chosen]
    if as_json:
        show_json({"name": config.name, "views": rows})
        return
    show_listing(Listing("views", f"views of {config.name}", FIELDS, rows))
    for view in chosen:
        note = notes[view.name]
        for table in note.left:
            line = f"{view.name}: {table} has left it: {note.origin} does not write it; see --accept"
            click.echo(printable(line))


def _facts(view: View, note: Note) -> dict[str, Any]:
    """Return what is known of a view; of its last refresh nothing if there was none."""
    made = note.number > 0
    return {
        "view": view.name,
        "reads": read_by(view),
        "into": view.into,
        "when": when(view),
        "tables": len(note.targets) if made else None,
        "rows": note.rows if made else None,
        "violated": note.violated,
        "last": datetime.fromisoformat(note.at) if note.at else None,
        "way": note.way,
        "why": note.why,
        "seconds": note.seconds if made else None,
        "left": list(note.left),
    }


def _shown_violations(row: dict[str, Any]) -> list[str]:
    return [f"{name} {count:,}" for name, count in sorted(row["violated"].items())]


def _shown_seconds(row: dict[str, Any]) -> str:
    return "" if row["seconds"] is None else f"{row['seconds']:.1f}"


FIELDS = (
    ListingField("view"),
    ListingField("reads"),
    ListingField("into"),
    ListingField("when"),
    *numbers("tables", "rows"),
    ListingField("violated", shown=_shown_violations),
    ListingField("last"),
    ListingField("way"),
    ListingField("why", "sentence"),
    ListingField("seconds", "number", shown=_shown_seconds),
)


def read_by(view: View) -> str:
    """Return in a few words what a view reads."""
    source = view.source
    of = f"route {source.route}" if source.route else f"view {source.view}"
    named = ", ".join(source.tables) or of
    left = f" except {', '.join(source.without)}" if source.without else ""
    return f"{named}{left}"


def when(view: View) -> str:
    """Return in a few words when a view is refreshed."""
    return "on demand" if view.on_demand else f"after {view.after}" if view.after else f"every {view.every or '60 s'}"


def _plan(config: Config, spark: SparkSession, chosen: list[View]) -> None:
    refresher = refresher_of(config, spark)
    for view in chosen:
        plan = refresher.plan(view)
        click.echo(f"{view.name}: {plan.way}: {plan.why}")


def _refresh(config: Config, spark: SparkSession, chosen: list[View], *, full: bool) -> None:
    refresher, failed = refresher_of(config, spark), list[ViewError]()
    for view in chosen:
        try:
            done = refresher.refresh(view, full=full)
        except ViewError as error:
            failed.append(error)
            continue
        how = f"{done.way}: {done.why}" if done.way else done.why
        made = f"{len(done.commits)} of {done.tables} tables, {done.rows:,} rows"
        click.echo(f"{view.name}: {made}, {done.seconds:.1f} s ({how})")
    if failed:
        raise failed[0]


def refresher_of(config: Config, spark: SparkSession) -> Any:
    """Return what refreshes the views of a configuration, once lake and checkpoint can be reached."""
    stores = import_module("router.engine.checkpoint_store")
    lake, checkpoint = stores.lake_and_checkpoint(config)
    start = import_module("router.engine.start.checks")
    for place in (lake, checkpoint):
        start.reach(spark, place, by_spark=True)
    schedule = import_module("router.engine.views.schedule")
    return schedule.refresher(config, spark, lake, stores.CheckpointStore(checkpoint))
