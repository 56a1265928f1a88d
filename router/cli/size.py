"""`router size`: how many cores, partitions, executors and bytes a rate of events takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.cli.listing import show_sentences
from router.cli.values import parse_interval, parse_number
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from router.engine.preflight.sizing import Size

SECONDS_BY_SPAN = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "day": 86_400}


def _parse_rate(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """Return events a second: 200k/s, 5M/h, 3000."""
    amount, _, span = text.partition("/")
    number = parse_number(amount)
    seconds = SECONDS_BY_SPAN.get(span.strip() or "s")
    if not number or seconds is None:
        raise click.BadParameter(f"{text!r} is no rate: 200k/s, 5M/h, 1M/day")
    return number / seconds


def _parse_count(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    number = parse_number(text)
    if number is None:
        raise click.BadParameter(f"{text!r} is no number: 5000000, 5M")
    return int(number)


@click.command(short_help="Compute the cores, files and requests that a rate needs.")
@config_argument
@click.option("--rate", callback=_parse_rate, required=True, help="Events: 200k/s, 5M/h.")
@click.option(
    "--latency", callback=parse_interval, default="10s", show_default=True, help="From a topic into its table."
)
@click.option("--tables", type=click.IntRange(1), help="Tables that a batch touches; default: those FILE names.")
@click.option("--bytes", "event_bytes", type=click.IntRange(1), default=190, show_default=True, help="Of an event.")
@click.option("--table-rows", callback=_parse_count, help="Rows of the largest table that is upserted: 5M.")
@click.option("--spark-rule", is_flag=True, help="A rule needs Spark, as `router check --plan` says.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object; bytes and seconds.")
@plugin_option
def size(
    file: Path,
    rate: float,
    latency: timedelta,
    tables: int | None,
    event_bytes: int,
    table_rows: int | None,
    spark_rule: bool,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Compute what the configuration FILE needs to take --rate events and have them in their tables within --latency.

    An estimate from measured constants (docs/how-to/size.md), right within about a quarter. `router bench` measures
    your records on your machine. Starts no Spark.
    """
    from router.engine.preflight.sizing import Load, count_tables
    from router.engine.preflight.sizing import size as compute_size

    config = load(file, load_registry(plugin_files)).config
    named, open_ended = count_tables(config)
    if tables is None and open_ended:
        click.echo(f"tables are named by data: counted as {named}; give the number by --tables", err=True)
    wanted = Load(
        events_per_second=rate,
        latency_seconds=latency.total_seconds(),
        tables=tables or named,
        event_bytes=event_bytes,
        table_rows=table_rows or 0,
        spark_rule=spark_rule,
    )
    needed = compute_size(config, wanted)
    if as_json:
        click.echo(json.dumps(asdict(needed), indent=2))
        return
    show_sentences(_lines(needed))


def _lines(needed: Size) -> list[tuple[str, str]]:
    executors = "none: one machine"
    if needed.executors:
        executors = f"{needed.executors} of {needed.executor_cores} cores, and a driver"
    batches = f"one every {needed.batch_seconds:g} s with {needed.rows_per_batch:,} rows"
    of_core = f"{_bytes(needed.worker_memory)} for each core, in addition to the JVM's heap"
    merges = "none counted"
    if needed.merge_memory:
        merges = f"{_bytes(needed.merge_memory)} of it while a table is merged"
    lines = [
        ("cores", f"{needed.cores:,} for {needed.decoded_as}"),
        ("partitions", f"{needed.partitions:,} at least, one for each core"),
        ("executors", executors),
        ("batches", f"{batches}, {needed.batches_per_day:,} a day"),
        ("memory", f"driver {_bytes(needed.driver_memory)}, {of_core}"),
        ("merges", merges),
        ("files", f"{needed.files_per_day:,} a day before maintenance joins them"),
        ("requests", f"{needed.requests_per_day:,} a day, if the lake is in an object store"),
        ("stored", f"{_bytes(needed.stored_per_day)} a day"),
    ]
    return lines + [("because", text) for text in needed.cost_drivers]


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            digits = 0 if number >= 10 or unit == "B" else 1
            return f"{number:,.{digits}f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"
