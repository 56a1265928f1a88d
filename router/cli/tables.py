"""The tables of a configuration: what its ledger says, what one of them is, and how to keep them in shape.

`router ledger`, `router expectations`, `router tables`, `router explain-table`, `router grants`, `router maintain`.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.cli import config_argument, plugin_option
from router.config.loader import load
from router.errors import TableError, printable
from router.registry import load_registry
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.config.models import Config, Maintenance
    from router.table_options import CatalogOptions

SOURCE_COLUMNS = ("batch", "source", "offsets", "read", "decoded", "failed", "bare", "unmatched", "lost", "unknown")
SINK_COLUMNS = (
    *("batch", "route", "sink", "matched", "landed", "refused", "dropped"),
    *("frozen", "quarantined", "released", "applied", "dead", "parked", "backlog", "in_doubt"),
)
TEXTS = {
    *("source", "offsets", "route", "sink", "table", "state", "committer", "why"),
    *("expectation", "otherwise", "trend", "last", "time"),
    *("view", "reads", "into", "when", "way"),
}


@click.command(short_help="Show what became of the records of the last batches.")
@config_argument
@click.option("--batches", default=5, show_default=True, type=click.IntRange(1), help="How many batches.")
@plugin_option
def ledger(file: Path, batches: int, plugin_files: tuple[Path, ...]) -> None:
    """Show the ledger of the configuration FILE: its last batches by source partition, and by route and sink.

    read = decoded + failed + bare; decoded = matched by some route + unmatched; per sink matched = landed + refused +
    dropped + quarantined. A replay moves rows: as many fewer are parked, or dead, as it applied. Needs no Spark.
    """
    loaded = load(file, load_registry(plugin_files))
    reading = import_module("router.engine.ledger")
    rows = reading.last(loaded.config, batches)
    if not rows:
        click.echo(f"{loaded.config.ledger} in {loaded.config.lake} has no batches of {loaded.config.name}")
        return
    show_table("records by source partition", SOURCE_COLUMNS, [_source(row) for row in rows if row["read"] is not None])
    show_table(
        "events by route and sink",
        SINK_COLUMNS,
        [_sink(loaded.config, row) for row in rows if row["route"] is not None],
    )


STATE_COLUMNS = ("table", "state", "rows", "lag", "committer", "why", "quarantine")


@click.command(short_help="List every table with its state.")
@config_argument
@plugin_option
def tables(file: Path, plugin_files: tuple[Path, ...]) -> None:
    """List every table that the configuration FILE has rows in: state, rows, lag, committer and why, quarantined rows.

    A table is `ok`, or it is `behind` (batches that are decided are not in it yet), `blocked` (it cannot be written,
    and its rows wait in the quarantine), `unreadable`, `gone`, or `none` (its first row has yet to come). Lag are the
    rows that it still gets: decided ones, those of a backlog, those of an outbox that its sink has not sent. Tables of
    views are among them, with the view. Needs no Spark. `router verify` holds tables against what went into them.
    """
    config = load(file, load_registry(plugin_files)).config
    found = import_module("router.engine.audit.table_states").table_states(config)
    show_table(f"tables of {config.name}", STATE_COLUMNS, [_state(one) for one in found])


EXPECTATION_COLUMNS = ("of", "expectation", "otherwise", "events", "violated", "share", "trend", "last")
BARS = " ▁▂▃▄▅▆▇█"


@click.command(short_help="Show how often expectations do not hold.")
@config_argument
@click.option("--samples", default=0, show_default=True, type=click.IntRange(0, 1000), help="Newest records of each.")
@plugin_option
def expectations(file: Path, samples: int, plugin_files: tuple[Path, ...]) -> None:
    """Show how often each expectation of the configuration FILE was asked and did not hold, by its ledger.

    Those of views are about the rows that their tables have now, and the trend are the last eight refreshes. For routes
    the trend are the shares of violations in eight parts of equal length of the ledger's time; the highest bar is the
    largest of them. `--samples` lists the newest records that became dead letters: where they are in the source, not
    what they hold. Needs no Spark.
    """
    config = load(file, load_registry(plugin_files)).config
    counted = import_module("router.engine.audit.expectation_counts").expectation_counts(config, samples)
    if not counted:
        click.echo(f"nothing of {config.name} has an expectation")
        return
    show_table(f"expectations of {config.name}", EXPECTATION_COLUMNS, [_expectation(one) for one in counted])
    rows = [_sample(one, row) for one in counted for row in one.samples]
    if rows:
        show_table(f"newest records in {config.dead_letters}", ("of", "expectation", "source", "offset", "time"), rows)


def _expectation(one: Any) -> tuple[str, ...]:
    shares = [violated / events if events else 0.0 for events, violated in one.trend]
    most = max(shares) or 1.0
    bars = "".join(BARS[math.ceil(share / most * (len(BARS) - 1))] for share in shares)
    share = f"{one.violated / one.events:.2%}" if one.events else ""
    last = f"{one.last:%Y-%m-%d %H:%M:%S}" if one.last else ""
    asked = one.expectation
    return one.of, asked.name, asked.otherwise, _number(one.events), _number(one.violated), share, bars, last


def _sample(one: Any, row: dict[str, Any]) -> tuple[str, ...]:
    source, time = f"{row['topic']}/{row['partition']}", f"{row['timestamp']:%Y-%m-%d %H:%M:%S}"
    return one.of, one.expectation.name, source, str(row["offset"]), time


def _state(one: Any) -> tuple[str, ...]:
    counts = _number(one.rows), _number(one.lag or None), one.committer, one.why, _number(one.quarantined or None)
    return one.table, one.state, *counts


def _source(row: dict[str, Any]) -> tuple[str, ...]:
    offsets = "" if row["topic"] is None else f"{row['from_offset']}-{row['to_offset']}"
    place = "" if row["topic"] is None else f"{row['topic']}/{row['partition']}"
    batch = "replay" if row["batch_id"] is None else str(row["batch_id"])
    return (batch, place, offsets, *(_number(row[name]) for name in SOURCE_COLUMNS[3:]))


def _sink(config: Config, row: dict[str, Any]) -> tuple[str, ...]:
    batch = "replay" if row["batch_id"] is None else str(row["batch_id"])
    return (batch, *config.shown_names(row["route"], row["sink"]), *(_number(row[name]) for name in SINK_COLUMNS[3:]))


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def show_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows of texts under their columns; numbers stand to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", justify="left" if name in TEXTS else "right")
    for row in rows:
        table.add_row(*map(_cell, row))
    Console().print(table)


def _cell(text: str) -> str:
    """Return text that rich shows as it is: the name of a file may look like its markup."""
    return escape(printable(text))


@click.command(short_help="Print owner, tags and rights of tables as SQL, for a catalog.")
@config_argument
@click.option("--catalog", metavar="NAME", help="The catalog that the tables are in.")
@plugin_option
def grants(file: Path, catalog: str | None, plugin_files: tuple[Path, ...]) -> None:
    """Print what the configuration FILE says of owners, tags and rights, as SQL for the tables that are there.

    The statements are those of Unity Catalog, to be run in a SQL editor; nothing is changed here. Needs no Spark.
    """
    config = load(file, load_registry(plugin_files)).config
    written = import_module("router.engine.preflight.explain").tables_by_sink(config)
    lake, _ = import_module("router.engine.checkpoint_store").lake_and_checkpoint(config)
    bronze = config.bronze_tables() or ()
    asked: list[tuple[str, CatalogOptions]] = []
    if config.bronze:
        asked = [(table, config.bronze) for table in lake.every_table() if table in bronze]
    for route, name, sink in config.all_sinks():
        if isinstance(sink, (TableSink, MergingSink)):
            asked += [(table, sink) for table, _ in written.get(f"{route}/{name}", ())]
    lines = dict.fromkeys(
        line for table, options in sorted(asked, key=itemgetter(0)) for line in _sql(table, options, catalog)
    )
    click.echo("\n".join(lines) or f"-- {config.name} says nothing of owners, tags and rights of tables that are there")


def _sql(table: str, options: CatalogOptions, catalog: str | None) -> Iterator[str]:
    name = ".".join(map(_quoted, (*filter(None, (catalog,)), *table.split("."))))
    if options.owner:
        yield f"ALTER TABLE {name} SET OWNER TO {_quoted(options.owner)};"
    if options.tags:
        pairs = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in options.tags.items())
        yield f"ALTER TABLE {name} SET TAGS ({pairs});"
    for principal, privileges in options.grants.items():
        yield f"GRANT {', '.join(privileges)} ON TABLE {name} TO {_quoted(principal)};"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


COLUMNS = ("table", "files", "into", "statistics", "deleted", "MB freed", "")


@click.command(short_help="Compact and clean tables.")
@config_argument
@click.option("--tables", "pattern", default="*", metavar="PATTERN", help="Only tables of these names: silver.*")
@click.option("--dry-run", is_flag=True, help="Say what would be done and what it would free.")
@plugin_option
def maintain(file: Path, pattern: str, dry_run: bool, plugin_files: tuple[Path, ...]) -> None:
    """Compact the tables of the configuration FILE, index their logs and delete what nothing refers to, now.

    Each table is treated as `maintenance` says; without it, all of them are, and files are deleted after 168 h. May
    run beside the stream: each waits for the other. Exit code 1: a table could not be maintained.
    """
    config = load(file, load_registry(plugin_files)).config
    made = [_one(*work, dry=dry_run) for work in _work(config, pattern)]
    if not made:
        raise click.ClickException(f"{config.lake} has no table that `maintenance` names and {pattern} fits")
    _show(made, dry=dry_run)
    raise SystemExit(int(any(len(row) < len(COLUMNS) for row in made)))


def _work(config: Config, pattern: str) -> list[tuple[Any, str, Maintenance]]:
    from router.config.models import Maintenance
    from router.engine.checkpoint_store import lake_and_checkpoint
    from router.engine.maintenance import TableMaintenance
    from router.engine.outbox.detached import detached_outboxes

    lake, _ = lake_and_checkpoint(config)
    plans = config.maintenance or (Maintenance(tables="*.*"),)
    care = TableMaintenance(
        lake,
        lambda: import_module("router.engine.spark.session").build_session(config),
        plans,
        detached_outboxes(config),
    )
    tables = [table for table in lake.every_table() if fnmatchcase(table, pattern)]
    return [(care, table, plan) for table in tables if (plan := care.plan(table))]


def _one(care: Any, table: str, plan: Maintenance, *, dry: bool) -> tuple[str, ...]:
    try:
        found = care.maintain(table, plan, dry=dry)
    except TableError as error:
        return table, str(error)
    by = f"by Spark: {found.by_spark}" if found.by_spark else ""
    numbers = found.files, found.into, found.without_statistics, found.deleted
    return table, *map(str, numbers), f"{found.freed / 1e6:,.1f}", by


def _show(rows: list[tuple[str, ...]], *, dry: bool) -> None:
    shown = Table(title="what would be done" if dry else "what was done", title_justify="left", box=SIMPLE_HEAD)
    for name in COLUMNS:
        shown.add_column(name, overflow="fold", justify="left" if name in ("table", "") else "right")
    for row in rows:
        whole = row if len(row) == len(COLUMNS) else (row[0], *[""] * (len(COLUMNS) - 2), row[1])
        shown.add_row(*map(_cell, whole))
    Console().print(shown)


@click.command(short_help="Say what a table is, and who writes it how.")
@config_argument
@click.argument("table", metavar="LAYER.TABLE")
@plugin_option
def explain_table(file: Path, table: str, plugin_files: tuple[Path, ...]) -> None:
    """Print what LAYER.TABLE holds, which sinks of the configuration FILE write it, by which engine and why.

    Also how many rows wait for it, and why. Reads the table's log; Spark is not started.
    """
    config = load(file, load_registry(plugin_files)).config
    lines = import_module("router.engine.preflight.explain").explain(config, table)
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{name:<{width}}  {printable(text)}")
