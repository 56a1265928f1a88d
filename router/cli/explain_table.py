"""`router explain-table`: one table of a configuration, which engine writes it and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from router.cli.options import config_argument, plugin_option
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Say what a table is, and who writes it how.")
@config_argument
@click.argument("table", metavar="LAYER.TABLE")
@plugin_option
def explain_table(file: Path, table: str, plugin_files: tuple[Path, ...]) -> None:
    """Print what LAYER.TABLE holds, which sinks of the configuration FILE write it, by which engine and why.

    Also how many rows wait for it, and why. Reads the table's log; Spark is not started.
    """
    config = load(file, load_registry(plugin_files)).config
    lines = import_module("router.engine.explain").explain(config, table)
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{name:<{width}}  {text}")
