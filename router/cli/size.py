"""`router size`: how many cores, partitions, executors and bytes a rate of events takes."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from router.engine.preflight.sizing import Size

UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
SPANS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "day": 86_400}


def _number(text: str) -> float | None:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*", text)
    return float(found[1]) * UNITS[found[2].lower()] if found else None


def _rate(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """Return events a second: 200k/s, 5M/h, 3000."""
    amount, _, span = text.partition("/")
    number, seconds = _number(amount), SPANS.get(span.strip() or "s")
    if not number or seconds is None:
        raise click.BadParameter(f"{text!r} is no rate: 200k/s, 5M/h, 1M/day")
    return number / seconds


def _latency(ctx: click.Context, param: click.Parameter, text: str) -> float:
    from router.config.models import interval

    try:
        return interval(re.sub(r"(?<=\d)(?=[a-z])", " ", text)).total_seconds()
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


def _count(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    number = None if text is None else _number(text)
    if text is not None and number is None:
        raise click.BadParameter(f"{text!r} is no number: 5000000, 5M")
    return None if number is None else int(number)


@click.command(short_help="Say how many cores, files and requests a rate takes.")
@config_argument
@click.option("--rate", callback=_rate, required=True, help="Events: 200k/s, 5M/h.")
@click.option("--latency", callback=_latency, default="10s", show_default=True, help="From a topic into its table.")
@click.option("--tables", type=click.IntRange(1), help="Tables that a batch touches; default: those FILE names.")
@click.option("--bytes", "event_bytes", type=click.IntRange(1), default=190, show_default=True, help="Of an event.")
@click.option("--table-rows", callback=_count, help="Rows of the largest table that is upserted: 5M.")
@click.option("--spark-rule", is_flag=True, help="A rule needs Spark, as `router check --plan` says.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; bytes and seconds.")
@plugin_option
def size(
    file: Path,
    rate: float,
    latency: float,
    tables: int | None,
    event_bytes: int,
    table_rows: int | None,
    spark_rule: bool,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Compute what the configuration FILE needs to take --rate events and have them in their tables within --latency.

    From measured constants, as docs/how-to/size.md says: to plan with, within a quarter or so. `router bench` measures
    your records on your machine. Starts no Spark.
    """
    from router.engine.preflight.sizing import Load, tables_of
    from router.engine.preflight.sizing import size as sized

    config = load(file, load_registry(plugin_files)).config
    named, open_ended = tables_of(config)
    if tables is None and open_ended:
        click.echo(f"tables are named by data: counted as {named}; say how many by --tables", err=True)
    found = sized(config, Load(rate, latency, tables or named, event_bytes, table_rows or 0, spark_rule))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
        return
    lines = _lines(found)
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        click.echo(f"{name:<{width}}  {text}")


def _lines(found: Size) -> list[tuple[str, str]]:
    executors = (
        f"{found.executors} of {found.executor_cores} cores, and a driver" if found.executors else "none: one machine"
    )
    lines = [
        ("cores", f"{found.cores:,} for {found.decoded_as}"),
        ("partitions", f"{found.partitions:,} at least, one for each core"),
        ("executors", executors),
        (
            "batches",
            f"one every {found.batch_seconds:g} s with {found.rows_per_batch:,} rows, {found.batches_per_day:,} a day",
        ),
        (
            "memory",
            f"driver {_bytes(found.driver_memory)}, {_bytes(found.worker_memory)} for each core beside the JVM's heap",
        ),
        (
            "merges",
            f"{_bytes(found.merge_memory)} of it while a table is merged" if found.merge_memory else "none counted",
        ),
        ("files", f"{found.files_per_day:,} a day before maintenance joins them"),
        ("requests", f"{found.requests_per_day:,} a day, if the lake is in an object store"),
        ("stored", f"{_bytes(found.stored_per_day)} a day"),
    ]
    return lines + [("because", text) for text in found.cost_drivers]


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"
