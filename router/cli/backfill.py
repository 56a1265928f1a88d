"""`router backfill`: reprocess a range of records with today's configuration."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, master_option, plugin_option
from router.cli.documents import json_option, show_json
from router.cli.session import reprocess_context, stream_held_off
from router.config.loader import load_config
from router.config.models import parse_zoned_moment
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.engine.reprocess.backfill import BackfillResult
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.records import RecordRange
    from router.registry import Registry

RANGE_FORMS = 'a time with a zone (2025-01-31T12:00:00Z), or offsets as JSON: {"events": {"0": 1200}}'


@click.command()
@config_argument
@click.option("--from", "begin", required=True, metavar="PLACE", help=f"Where the range begins: {RANGE_FORMS}.")
@click.option("--to", "end", required=True, metavar="PLACE", help="Where it ends; the record there is not taken.")
@master_option
@json_option
@plugin_option
def backfill(
    file: Path, begin: str, end: str, master: str | None, as_json: bool, plugin_files: tuple[Path, ...]
) -> None:
    """Reprocess a range of records, as the configuration FILE routes them today, into tables only.

    They come from bronze, or from the topic if there is no bronze. Tables that keep topic, partition and offset get
    each record once, whatever they have already; others are refused if they have rows of the range. The stream must
    not run. A backfill that was killed is ended first.
    """
    # What the command line says wrong is said before plugins and file are read.
    chosen = _parse_range(begin, end)
    loaded = load_config(file, load_registry(plugin_files))
    # Bronze is read by Spark, a topic by the tasks alone.
    with reprocess_context(loaded, master, by_spark=loaded.config.bronze is not None) as context:
        done = list(_run_backfills(context, loaded.registry, chosen))
    if as_json:
        show_json({"name": loaded.config.name, "backfills": [asdict(backfilled) for backfilled in done]})
    for backfilled in done if not as_json else ():
        click.echo(f"{backfilled.name}: {backfilled.read:,} records")
        for target, rows in sorted(backfilled.rows.items()):
            click.echo(f"  {target}: {rows:,} rows")


def _run_backfills(context: ReprocessContext, registry: Registry, chosen: RecordRange) -> Iterator[BackfillResult]:
    """Run a backfill that was cut off, then the new one; yield what each did."""
    from router.engine.reprocess.backfill import Backfill

    name = context.config.name
    refusal = f"{name} is running, and writes the same tables: stop it first"
    with stream_held_off(context.checkpoint, name, refusal):
        backfill = Backfill(context.with_decoder().with_executors(registry, "backfill"))
        cut_off = backfill.cut_off()
        if cut_off is not None:
            click.echo(f"{cut_off.name} was cut off, and is ended first", err=True)
            yield backfill.run(cut_off)
        yield backfill.run(backfill.begin(chosen))


def _parse_range(begin: str, end: str) -> RecordRange:
    from router.engine.reprocess.records import RecordRange

    first = _parse_place(begin, "--from")
    last = _parse_place(end, "--to")
    if isinstance(first, dict) and isinstance(last, dict):
        return RecordRange(begins=first, ends=last)
    if isinstance(first, dict) or isinstance(last, dict):
        raise click.UsageError("--from and --to are both times, or both offsets")
    return RecordRange(since=first, until=last)


def _parse_place(text: str, option: str) -> float | dict[str, dict[int, int]]:
    """Return a time in seconds since 1970, or offsets by topic and partition."""
    try:
        return parse_zoned_moment(text).timestamp()
    except ValueError:
        pass
    offsets: dict[str, dict[int, int]] = {}
    try:
        for topic, by_partition in json.loads(text).items():
            offsets[str(topic)] = {int(number): int(offset) for number, offset in by_partition.items()}
    except (ValueError, TypeError, AttributeError):
        raise click.BadParameter(f"{text!r} is neither {RANGE_FORMS}", param_hint=option) from None
    return offsets
