"""`router ledger`: the last batches of a configuration, and whether they balance."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from router.cli.invocation import config_argument, plugin_option
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("batch", "source", "offsets", "read", "decoded", "failed", "bare", "unmatched", "lost")
SINK_COLUMNS = (
    *("batch", "route", "sink", "matched", "landed", "refused", "dropped"),
    *("frozen", "quarantined", "released", "applied", "dead", "parked", "pending", "in_doubt"),
)


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
    _show("records by source partition", COLUMNS, [_source(row) for row in rows if row["read"] is not None])
    _show("events by route and sink", SINK_COLUMNS, [_sink(row) for row in rows if row["route"] is not None])


def _source(row: dict[str, Any]) -> tuple[str, ...]:
    offsets = "" if row["topic"] is None else f"{row['from_offset']}-{row['to_offset']}"
    place = "" if row["topic"] is None else f"{row['topic']}/{row['partition']}"
    return (str(row["batch_id"]), place, offsets, *(_number(row[name]) for name in COLUMNS[3:]))


def _sink(row: dict[str, Any]) -> tuple[str, ...]:
    batch = "replay" if row["batch_id"] is None else str(row["batch_id"])
    return (batch, row["route"], row["sink"], *(_number(row[name]) for name in SINK_COLUMNS[3:]))


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in columns:
        table.add_column(
            name, overflow="fold", justify="left" if name in ("source", "offsets", "route", "sink") else "right"
        )
    for row in rows:
        table.add_row(*row)
    Console().print(table)
