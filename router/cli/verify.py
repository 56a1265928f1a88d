"""Compare tables with what the router recorded, and rebuild them: `router verify`, `router rebuild`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from router.cli import accept_option, config_argument, echo_message, master_option, plugin_option
from router.cli.documents import json_option, show_json
from router.cli.listing import show_sentences
from router.cli.progress import progress_line
from router.cli.session import reprocess_context, watched_session
from router.cli.views import refresher_of
from router.config.loader import load_config
from router.errors import StartError, ViewError, to_printable
from router.registry import load_registry
from router.table_names import matches_any

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.models import Config
    from router.engine.audit.verify import TableAudit
    from router.engine.reprocess.repair_target import Repaired


@click.command()
@config_argument
@click.argument("patterns", metavar="[TABLE]...", nargs=-1)
@click.option("--contents", is_flag=True, help="Read every file: count its rows, and find values that readers refuse.")
@click.option(
    "--recompute",
    is_flag=True,
    help="Run the query of each view again, over the same source versions, and compare its tables (needs Spark).",
)
@click.option("--master", help="With --recompute: Spark master of a local run; spark-submit brings its own.")
@json_option
@plugin_option
def verify(
    file: Path,
    patterns: tuple[str, ...],
    contents: bool,
    recompute: bool,
    master: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Compare the tables of the configuration FILE with manifests, ledger and bronze.

    All of them, or each TABLE and those that a pattern such as 'silver.*' names.

    A line per table says `ok` or what is wrong: batches that it lacks, files that are missing or damaged, rows that are
    not those of the manifest or the ledger, and what others wrote or removed, by version and author. A table of a view
    is compared with how the view left it, and with --recompute with its query. May run while the stream runs; Spark is
    started for --recompute only. Exit code 1: something is wrong.
    """
    from router.engine.audit.verify import verify_tables

    config = load_config(file, load_registry(plugin_files)).config
    with progress_line(config.name, "tables") as tell:
        audits = verify_tables(config, patterns, contents=contents, tell=tell)
    absent = [pattern for pattern in patterns if not any(matches_any(audit.table, (pattern,)) for audit in audits)]
    if absent:
        raise StartError(f"{config.name} has no rows in {', '.join(absent)}; `router tables FILE` lists its tables")

    # Adds to the audits, and audits of tables that only the query of a view makes.
    notes: list[str] = []
    if recompute:
        notes = _recompute_views(config, audits, patterns, master)
    if as_json:
        show_json({"name": config.name, "tables": [_facts_of(audit) for audit in audits], "not_compared": notes})
    else:
        for note in notes:
            click.echo(to_printable(note))
        show_sentences([(audit.table, _verdict_on(audit)) for audit in audits])
    raise SystemExit(int(any(audit.problems for audit in audits)))


def _recompute_views(
    config: Config, listed: list[TableAudit], chosen: tuple[str, ...], master: str | None
) -> list[str]:
    """Add to audits where tables of views are not what their query gives; return which views cannot be compared."""
    from router.engine.audit.verify import TableAudit
    from router.engine.views.note import tables_by_view
    from router.engine.views.recompute import find_differences

    audits = {audit.table: audit for audit in listed}
    tables_of_views = tables_by_view(config)
    notes: list[str] = []
    with watched_session(config, master, by_spark=True) as spark:
        refresher = refresher_of(config, spark)
        for view in config.views:
            if chosen and not any(matches_any(table, chosen) for table, _ in tables_of_views[view.name]):
                continue
            try:
                by_table = find_differences(refresher, view)
            except ViewError as error:
                notes.append(f"not compared with its query: {error}")
                continue
            for table, difference in by_table.items():
                # A table that the query makes and the lake does not have was not in the audit.
                if table not in audits and not chosen:
                    audits[table] = TableAudit(table)
                    listed.append(audits[table])
                if table in audits:
                    audits[table].wrong.append(difference)
    return notes


def _facts_of(audit: TableAudit) -> dict[str, Any]:
    return {
        "table": audit.table,
        "ok": not audit.problems,
        "problems": audit.problems,
        "rows": audit.rows,
        "files": audit.files,
        "version": audit.version if audit.version >= 0 else None,
    }


def _verdict_on(audit: TableAudit) -> str:
    if audit.problems:
        return "; ".join(audit.problems)
    return f"ok, {audit.rows:,} rows in {audit.files:,} files, version {audit.version}"


@click.command()
@config_argument
@click.argument("patterns", metavar="TABLE...", nargs=-1, required=True)
@click.option(
    *("--from", "origin"),
    type=click.Choice(["bronze", "earliest"]),
    default="bronze",
    show_default=True,
    help="Take the records from bronze, or read the topic from its earliest record on.",
)
@click.option("--full", is_flag=True, help="Give each table the columns of today's configuration, and no others.")
@accept_option([("foreign-changes", "changes by others are undone: deleted rows restored, added rows deleted")])
@master_option
@json_option
@plugin_option
def rebuild(
    file: Path,
    patterns: tuple[str, ...],
    origin: str,
    full: bool,
    accepted: frozenset[str],
    master: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Rebuild each TABLE, or all that a pattern such as 'silver.*' names, as FILE routes their records today.

    For a table that was dropped, was put back from an older copy, has lost files or has a damaged log, and for tables
    that look as an older configuration made them. One commit replaces the content of each; the stream may run
    meanwhile. A log that cannot be read is moved below `_replaced/` in the lake, with the files that it named.

    Refused before anything changes if others have changed a table (unless --accept foreign-changes is given), if a
    pattern fits a table with `reset: never`, and if bronze, or the topic, does not reach back to the first record. Exit
    code 1: a table is as it was, and a line gives the reason.
    """
    from router.engine.reprocess.refresh import Refresh

    loaded = load_config(file, load_registry(plugin_files))
    # Bronze is read by Spark, a topic by the tasks alone.
    with reprocess_context(loaded, master, by_spark=origin == "bronze") as context:
        prepared = context.with_decoder().with_executors(loaded.registry, "rebuild")
        accept = "foreign-changes" in accepted
        refreshed = Refresh(prepared, patterns, full=full, topic=origin == "earliest", accept=accept).run()
    if as_json:
        failed = {table: str(error) for table, error in refreshed.failed.items()}
        tables = [asdict(repaired) for repaired in refreshed.done]
        show_json({"name": loaded.config.name, "tables": tables, "refused": refreshed.refused, "failed": failed})
    else:
        for repaired in refreshed.done:
            _print_repaired(repaired)
        if refreshed.refused:
            click.echo(f"{refreshed.refused:,} rows do not fit into a table")
        for table, error in refreshed.failed.items():
            echo_message(f"{table} is as it was: {error}")
    raise SystemExit(int(bool(refreshed.failed)))


def _print_repaired(repaired: Repaired) -> None:
    line = f"{repaired.table}: {repaired.rows:,} rows of batches up to {repaired.until}"
    if repaired.later:
        line += f", {repaired.later:,} of later batches"
    line += f", version {repaired.version}"
    if repaired.refused:
        line += f"; {repaired.refused:,} rows do not fit into it"
    click.echo(line)
    if repaired.moved:
        click.echo(f"its former log and files are in {repaired.moved}")
