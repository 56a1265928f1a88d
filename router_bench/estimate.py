"""`router bench --estimate`: how many cores, partitions, executors and bytes a rate of events takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from router.cli.documents import show_json
from router.cli.listing import show_sentences
from router.cli.values import parse_number, read_interval_option
from router.engine.preflight.sizing import Load, count_tables, size_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.config.models import Config
    from router.engine.preflight.sizing import Size

SECONDS_BY_SPAN = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "day": 86_400}


def _parse_rate(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Return events a second: 200k/s, 5M/h, 3000."""
    if text is None:
        return None
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


def estimate_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--estimate RATE` and what such an estimate is told."""
    options = [
        click.option(
            "--estimate",
            "rate",
            metavar="RATE",
            callback=_parse_rate,
            help="Measure nothing: compute what so many events need, 200k/s, 5M/h.",
        ),
        click.option(
            "--latency",
            callback=read_interval_option,
            default="10s",
            show_default=True,
            help="With --estimate: from a topic into its table.",
        ),
        click.option(
            *("--bytes", "event_bytes"),
            type=click.IntRange(1),
            default=190,
            show_default=True,
            help="With --estimate: of an event.",
        ),
        click.option(
            "--table-rows",
            callback=_parse_count,
            help="With --estimate: rows of the largest table that is upserted, 5M.",
        ),
        click.option("--spark-rule", is_flag=True, help="With --estimate: a rule needs Spark, as `check --plan` says."),
    ]
    # As decorators they would stand one above the other: the last is applied first.
    for option in reversed(options):
        command = option(command)
    return command


def show_estimate(config: Config, rate: float, tables: int | None, asked: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a configuration needs to take so many events a second, as the options ask."""
    named, open_ended = count_tables(config)
    if tables is None and open_ended:
        click.echo(f"tables are named by data: counted as {named}; give the number by --tables", err=True)
    wanted = Load(
        events_per_second=rate,
        latency_seconds=asked["latency"].total_seconds(),
        tables=tables or named,
        event_bytes=asked["event_bytes"],
        table_rows=asked["table_rows"] or 0,
        spark_rule=asked["spark_rule"],
    )
    needed = size_job(config, wanted)
    if as_json:
        show_json(asdict(needed))
    else:
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
