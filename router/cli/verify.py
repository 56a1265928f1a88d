"""`router verify`: hold tables against what the router wrote down about them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.config.loader import load
from router.errors import printable
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from router.engine.verify import TableAudit


@click.command(short_help="Hold tables against manifests, ledger and bronze.")
@config_argument
@click.argument("tables", metavar="[LAYER.TABLE]...", nargs=-1)
@click.option("--footers", is_flag=True, help="Open every file, and count its rows.")
@plugin_option
def verify(file: Path, tables: tuple[str, ...], footers: bool, plugin_files: tuple[Path, ...]) -> None:
    """Hold the tables of the configuration FILE, or those named, against manifests, ledger and bronze.

    A line per table says `ok` or what is wrong: batches that it lacks, files that are missing or damaged, rows that are
    not those of the manifest or the ledger, and what others wrote or removed, by version and author. May run beside the
    stream; Spark is not started. Exit code 1: something is wrong.
    """
    config = load(file, load_registry(plugin_files)).config
    engine = import_module("router.engine.verify")
    found: list[TableAudit] = engine.Verification.of(config, footers=footers).audits(tables)
    if absent := sorted(set(tables) - {audit.table for audit in found}):
        raise click.ClickException(f"{config.name} has no rows in {', '.join(absent)}")
    width = max((len(audit.table) for audit in found), default=0)
    for audit in found:
        click.echo(printable(f"{audit.table:<{width}}  {_told(audit)}"))
    raise SystemExit(int(any(audit.problems for audit in found)))


def _told(audit: TableAudit) -> str:
    if audit.problems:
        return "; ".join(audit.problems)
    return f"ok, {audit.rows:,} rows in {audit.files:,} files, version {audit.version}"
