"""The tables of a configuration: what its ledger says, what one of them is, and how to keep them in shape.

`router ledger`, `router expectations`, `router tables`, `router maintain`.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from router.api.columns import quote_identifier, sql_text
from router.api.sinks import LakeSink
from router.cli import config_argument, plugin_option
from router.cli.documents import json_option, show_json
from router.cli.listing import (
    Listing,
    ListingField,
    ListOptions,
    list_options,
    number_fields,
    show_list,
    show_listings,
    show_sentences,
)
from router.cli.progress import progress_line
from router.cli.session import session_on_lake
from router.cli.values import chosen_names, parse_since
from router.config.loader import load_config
from router.counts import COUNTS, count_names
from router.errors import StartError, TableError
from router.own_names import OWN_LAYERS
from router.registry import load_registry
from router.states import TABLE_STATES
from router.table_names import is_name, matches_any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.api.table_options import CatalogOptions
    from router.config.models import Config, Maintenance
    from router.engine.audit.expectation_counts import ExpectationCounts
    from router.engine.maintenance import TableMaintenance

LINE_OF_LOG = 200
"""Columns of a line that `maintain` prints into the log of a job: why a table could not be maintained may be long."""
OFFSETS_OF_SOURCE = ("topic", "partition", "from_offset", "to_offset")
COUNTS_OF_SINK = (*count_names("route"), *count_names("sink"))


@click.command(
    epilog="; ".join(count.equation for count in COUNTS if count.parts and count.scope != "batch"),
)
@config_argument
@click.option("--batches", default=5, show_default=True, type=click.IntRange(1), help="How many batches.")
@list_options
@json_option
@plugin_option
def ledger(file: Path, batches: int, list_options: ListOptions, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """Show the ledger of the configuration FILE: its last batches by source partition, and by route and sink.

    A replay moves rows: as many fewer are parked, or dead, as it applied. The sums below hold for each batch,
    that of `landed` for outboxes, over all batches. Needs no Spark.
    """
    from router.engine.ledger import read_last_batches

    config = load_config(file, load_registry(plugin_files)).config

    def read_ledger() -> list[Listing]:
        rows = read_last_batches(config, batches)
        # The ledger has rows of both kinds: those of the source have no route, those of sinks no partition.
        sources = [_source_row(row) for row in rows if row["read"] is not None]
        sinks = [_sink_row(config, row) for row in rows if row["route"] is not None]
        return [
            Listing("sources", "records by source partition", SOURCE_FIELDS, sources),
            Listing("sinks", "events by route and sink", SINK_FIELDS, sinks),
        ]

    nothing = f"{config.ledger} in {config.lake} has no batches of {config.name}"
    show_list(config, read_ledger, list_options, as_json=as_json, nothing=nothing)


def _source_row(row: dict[str, Any]) -> dict[str, Any]:
    counts = {name: row[name] for name in (*OFFSETS_OF_SOURCE, *count_names("source"))}
    counts["unknown_fields"] = dict(row["unknown_fields"] or [])
    return {"batch": row["batch_id"], "run": row["run"], **counts, **_batch_facts(row)}


def _sink_row(config: Config, row: dict[str, Any]) -> dict[str, Any]:
    route, sink = config.shown_names(row["route"], row["sink"])
    counts = {name: row[name] for name in COUNTS_OF_SINK}
    return {"batch": row["batch_id"], "run": row["run"], "route": route, "sink": sink, **counts, **_batch_facts(row)}


def _batch_facts(row: dict[str, Any]) -> dict[str, Any]:
    violated = dict(row["violated"] or [])
    return {"violated": violated, "configuration": row["configuration"], "finished": row["finished"]}


def _shown_batch(row: dict[str, Any]) -> str:
    return "replay" if row["batch"] is None else str(row["batch"])


def _shown_place(row: dict[str, Any]) -> str:
    if row["topic"] is None:
        return ""
    return f"{row['topic']}/{row['partition']}"


def _shown_offsets(row: dict[str, Any]) -> str:
    if row["topic"] is None:
        return ""
    return f"{row['from_offset']}-{row['to_offset']}"


SOURCE_FIELDS = (
    ListingField("batch", "number", shown=_shown_batch),
    ListingField("source", shown=_shown_place),
    ListingField("offsets", shown=_shown_offsets),
    *number_fields(*count_names("source")),
)
SINK_FIELDS = (
    ListingField("batch", "number", shown=_shown_batch),
    ListingField("route"),
    ListingField("sink"),
    *number_fields(*COUNTS_OF_SINK),
)


@click.command(
    epilog="\b\n" + "\n".join(f"{state:<10}  {condition.meaning}" for state, condition in TABLE_STATES.items()),
)
@config_argument
@click.argument("patterns", metavar="[TABLE]...", nargs=-1)
@click.option("--grants", is_flag=True, help="Print owner, tags and rights of the tables as SQL, for a catalog.")
@click.option("--catalog", metavar="NAME", help="With --grants: the catalog that the tables are in.")
@click.option("--as-of", metavar="BATCH|TIME", help="The version that each had after a batch, or at a time.")
@list_options
@json_option
@plugin_option
def tables(
    file: Path,
    patterns: tuple[str, ...],
    grants: bool,
    catalog: str | None,
    as_of: str | None,
    list_options: ListOptions,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """List every table that the configuration FILE has rows in, or those that a pattern such as 'silver.*' names.

    That is state (see below), rows, lag, committer and why, quarantined rows. Lag are the rows that a table still gets:
    decided ones, those of a backlog, those of an outbox that its sink has not sent. Tables of views are among them,
    with the view. Needs no Spark. `router verify` compares tables with what went into them.

    Of one TABLE this prints what it holds, which sinks write it, by which engine and why, and how many rows wait for
    it. The statements of --grants are those of Unity Catalog, to be run in a SQL editor.

    With --as-of every table of the lake, without outboxes and quarantines that are not named, has the version that it
    had when a batch of the newest run with this number had ended, or at a time with a zone. Exit code 1: the log or the
    files of one do not reach back so far.
    """
    from router.engine.audit.table_states import table_states
    from router.engine.preflight.explain import explain_table

    config = load_config(file, load_registry(plugin_files)).config
    if grants and (as_json or list_options != ListOptions()):
        raise click.UsageError("--grants prints SQL: it goes without --json, --watch, --sort and --only")
    if as_of and (grants or list_options.watch):
        raise click.UsageError("--as-of shows one moment: it goes without --watch and --grants")
    if catalog and not grants:
        raise click.UsageError("--catalog goes with --grants")
    if grants:
        click.echo("\n".join(_grant_statements(config, patterns, catalog)))
        return
    if as_of is not None:
        rows = _rows_as_of(config, as_of, patterns)
        listing = Listing("tables", f"tables of {config.lake} as of {as_of}", AS_OF_FIELDS, rows)
        nothing = "no table existed then"
        show_listings(config.name, list_options.choose_rows([listing]), as_json=as_json, nothing=nothing)
        raise SystemExit(int(any(row["why"] for row in rows)))
    if len(patterns) == 1 and is_name(patterns[0]) and list_options == ListOptions():
        facts = explain_table(config, patterns[0])
        if as_json:
            lines = [{"fact": name, "text": text} for name, text in facts]
            show_json({"name": config.name, "table": patterns[0], "facts": lines})
        else:
            show_sentences(facts)
        return

    def read_states() -> list[Listing]:
        rows = [asdict(state) for state in table_states(config)]
        names = chosen_names(patterns, [row["table"] for row in rows], f"table of {config.name}")
        rows = [row for row in rows if row["table"] in names]
        return [Listing("tables", f"tables of {config.name}", STATE_FIELDS, rows, keys=("table",))]

    show_list(config, read_states, list_options, as_json=as_json)


def _rows_as_of(config: Config, as_of: str, patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return a row for each table that existed at a moment, and for each of which that cannot be told."""
    from router.engine.audit.as_of import LakeMoment, rows_in, versions_at
    from router.engine.checkpoint_store import lake_and_checkpoint

    lake, _ = lake_and_checkpoint(config)
    if as_of.isdecimal():
        moment = LakeMoment.of_batches(lake, config.ledger, {config.name: int(as_of)})
    else:
        moment = LakeMoment(int(parse_since(as_of, "--as-of") * 1000))
    # Rows in outboxes and quarantines are on their way: whoever wants to see them names them.
    all_tables = [table for table in lake.every_table() if patterns or not table.startswith(OWN_LAYERS)]
    names = chosen_names(patterns, all_tables, f"table of {config.lake}")
    versions, faults = versions_at(lake, moment, names)
    rows: list[dict[str, Any]] = []
    for table in names:
        if table in faults:
            rows.append({"table": table, "version": None, "rows": None, "why": faults[table]})
        elif table in versions:
            count = rows_in(lake, versions[table])
            rows.append({"table": table, "version": versions[table].version, "rows": count, "why": ""})
    return rows


AS_OF_FIELDS = (
    ListingField("table"),
    ListingField("version", "number", counted=False),
    *number_fields("rows"),
    ListingField("why", "sentence"),
)


def _shown_lag(row: dict[str, Any]) -> int | None:
    return row["lag"] or None


def _shown_quarantined(row: dict[str, Any]) -> int | None:
    return row["quarantined"] or None


def _shown_why(row: dict[str, Any]) -> str | None:
    """Return why a table is as it is; nothing for what is true of nearly every table."""
    from router.engine.audit.table_states import USUAL

    return None if (row["committer"], row["why"]) == USUAL else row["why"]


STATE_FIELDS = (
    ListingField("table"),
    ListingField("state"),
    ListingField("rows", "number"),
    ListingField("lag", "number", shown=_shown_lag),
    ListingField("committer"),
    ListingField("why", "sentence", shown=_shown_why),
    ListingField("quarantined", "number", "quarantine", shown=_shown_quarantined),
)
_TREND_BARS = " ▁▂▃▄▅▆▇█"


@click.command()
@config_argument
@click.option("--samples", default=0, show_default=True, type=click.IntRange(0, 1000), help="Newest records of each.")
@json_option
@plugin_option
def expectations(file: Path, samples: int, as_json: bool, plugin_files: tuple[Path, ...]) -> None:
    """Show how often each expectation of the configuration FILE was checked and did not hold, from its ledger.

    Those of views are about the rows that their tables have now; their trend is the last eight refreshes. For routes
    the trend is the share of violations in eight parts of equal length of the ledger's time; the highest bar is the
    largest of them. `--samples` lists the newest records that became dead letters, by their place in the source and
    without content. Needs no Spark.
    """
    from router.engine.audit.expectation_counts import expectation_counts

    config = load_config(file, load_registry(plugin_files)).config
    rows = [_expectation_row(counts) for counts in expectation_counts(config, samples)]
    if as_json:
        show_json({"name": config.name, "expectations": rows})
        return
    newest = []
    for row in rows:
        newest += [{**row, **sample} for sample in row["samples"]]
    listings = [
        Listing("expectations", f"expectations of {config.name}", EXPECTATION_FIELDS, rows),
        Listing("samples", f"newest records in {config.dead_letters}", VIOLATION_FIELDS, newest),
    ]
    show_listings(config.name, listings, as_json=False, nothing=f"nothing of {config.name} has an expectation")


def _expectation_row(counts: ExpectationCounts) -> dict[str, Any]:
    return {
        "of": counts.of,
        "expectation": counts.expectation.name,
        "otherwise": counts.expectation.otherwise,
        "events": counts.events,
        "violated": counts.violated,
        "share": counts.violated / counts.events if counts.events else None,
        "trend": counts.trend,
        "last": counts.last,
        "samples": counts.samples,
    }


def _shown_share(row: dict[str, Any]) -> str:
    return "" if row["share"] is None else f"{row['share']:.2%}"


def _shown_trend(row: dict[str, Any]) -> str:
    """Return a bar for each period; the highest is that of the period with the largest share."""
    shares = []
    for events, violated in row["trend"]:
        shares.append(violated / events if events else 0.0)
    # Without a violation all bars are the lowest one, a space.
    largest = max(shares) or 1.0
    return "".join(_TREND_BARS[math.ceil(share / largest * (len(_TREND_BARS) - 1))] for share in shares)


EXPECTATION_FIELDS = (
    ListingField("of"),
    ListingField("expectation"),
    ListingField("otherwise"),
    *number_fields("events", "violated"),
    ListingField("share", "number", shown=_shown_share),
    ListingField("trend", shown=_shown_trend),
    ListingField("last"),
)
VIOLATION_FIELDS = (
    ListingField("of"),
    ListingField("expectation"),
    ListingField("source", shown=_shown_place),
    ListingField("offset", "number", counted=False),
    ListingField("timestamp", title="time"),
)


def _grant_statements(config: Config, patterns: tuple[str, ...], catalog: str | None) -> list[str]:
    """Return owners, tags and rights of tables that exist as SQL, or a comment that there are none."""
    # Two sinks that write one table may give it the same rights: a dict keeps each line once, in order.
    lines: dict[str, None] = {}
    by_table = sorted(_catalog_options(config), key=itemgetter(0))
    chosen = chosen_names(patterns, [table for table, _ in by_table], f"table of {config.name} with such options")
    for table, options in by_table:
        if table in chosen:
            lines |= dict.fromkeys(_statements_for(table, options, catalog))
    return list(lines) or [f"-- {config.name} sets no owners, tags or rights of existing tables"]


def _catalog_options(config: Config) -> Iterator[tuple[str, CatalogOptions]]:
    """Yield the tables that are there, each with the options of what writes it."""
    from router.engine.checkpoint_store import lake_and_checkpoint
    from router.engine.preflight.explain import tables_by_sink

    if config.bronze:
        lake, _ = lake_and_checkpoint(config)
        bronze_tables = config.bronze_tables() or ()
        for table in lake.every_table():
            if table in bronze_tables:
                yield table, config.bronze
    written = tables_by_sink(config)
    for route, name, sink in config.all_sinks():
        if isinstance(sink, LakeSink):
            for table, _ in written.get(f"{route}/{name}", ()):
                yield table, sink


def _statements_for(table: str, options: CatalogOptions, catalog: str | None) -> Iterator[str]:
    """Yield the statements for one table."""
    parts = table.split(".")
    if catalog:
        parts.insert(0, catalog)
    name = ".".join(quote_identifier(part) for part in parts)
    if options.owner:
        yield f"ALTER TABLE {name} SET OWNER TO {quote_identifier(options.owner)};"
    if options.tags:
        pairs = ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in options.tags.items())
        yield f"ALTER TABLE {name} SET TAGS ({pairs});"
    for principal, privileges in options.grants.items():
        yield f"GRANT {', '.join(privileges)} ON TABLE {name} TO {quote_identifier(principal)};"


@click.command()
@config_argument
@click.argument("patterns", metavar="[TABLE]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Show what would be done and how many bytes it would free.")
@json_option
@plugin_option
def maintain(
    file: Path, patterns: tuple[str, ...], dry_run: bool, as_json: bool, plugin_files: tuple[Path, ...]
) -> None:
    """Compact the tables of the configuration FILE, index their logs and delete unreferenced files, now.

    All of them, or each TABLE and those that a pattern such as 'silver.*' names.

    Each table is maintained as `maintenance` says; without it, all of them, and files are deleted after 168 h. May
    run while the stream runs: each waits for the other. Exit code 1: a table could not be maintained.
    """
    from router.config.models import Maintenance, parse_interval
    from router.engine.audit.deploy_history import deploys_of
    from router.engine.checkpoint_store import lake_and_checkpoint
    from router.engine.maintenance import TableMaintenance
    from router.engine.outbox.detached import detached_outboxes

    config = load_config(file, load_registry(plugin_files)).config
    lake, _ = lake_and_checkpoint(config)
    plans = config.maintenance or (Maintenance(tables="*.*"),)
    rows = []
    with ExitStack() as sessions:

        @cache
        def start_spark() -> SparkSession:
            return sessions.enter_context(session_on_lake(config))

        # Spark is started for the first table that needs it, if any does.
        maintenance = TableMaintenance(
            lake,
            start_spark,
            plans,
            detached_outboxes(config),
            views=config.views,
            keep=parse_interval(config.history.keep),
            read_deploys=partial(deploys_of, config),
        )
        tell = sessions.enter_context(progress_line(config.name, "tables"))
        tables = [*lake.every_table()]
        for done, table in enumerate(tables):
            tell(done, len(tables))
            plan = maintenance.plan_for(table)
            if plan and (not patterns or matches_any(table, patterns)):
                rows.append(_maintain_table(maintenance, table, plan, dry=dry_run))
    if not rows:
        fitting = f" and {' '.join(patterns)} fits" if patterns else ""
        raise StartError(f"{config.lake} has no table that `maintenance` names{fitting}")
    listing = Listing("tables", "what would be done" if dry_run else "what was done", MAINTAIN_FIELDS, rows)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = LINE_OF_LOG
    show_listings(config.name, [listing], as_json=as_json, console=console)
    raise SystemExit(int(any(row["files"] is None for row in rows)))


def _maintain_table(maintenance: TableMaintenance, table: str, plan: Maintenance, *, dry: bool) -> dict[str, Any]:
    """Maintain one table; return what was done as a row, whose counts are None if it could not be."""
    try:
        result = maintenance.maintain_table(table, plan, dry=dry)
    except TableError as error:
        # One table does not keep the others from being maintained; the command ends with 1.
        counts = dict.fromkeys(("files", "into", "statistics", "deleted", "megabytes"))
        return {"table": table, **counts, "note": str(error)}
    by_spark = f"by Spark: {result.by_spark}" if result.by_spark else ""
    return {
        "table": table,
        "files": result.files,
        "into": result.into,
        "statistics": result.without_statistics,
        "deleted": result.deleted,
        "megabytes": f"{result.freed / 1e6:,.1f}",
        "note": f"cannot be joined: {result.refused}" if result.refused else by_spark,
    }


MAINTAIN_FIELDS = (
    ListingField("table"),
    *number_fields("files", "into", "statistics", "deleted"),
    ListingField("megabytes", "number", "MB freed"),
    ListingField("note", "sentence"),
)
