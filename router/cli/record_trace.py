"""`router trace`: what happened to one record."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, master_option, plugin_option
from router.cli.documents import json_option
from router.cli.listing import Listing, ListingField, show_listings
from router.cli.session import reprocess_context
from router.cli.values import parse_since
from router.config.loader import load_config
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from router.engine.audit.record_search import TracedPlace

LINE_FIELDS = (
    ListingField("about"),
    ListingField("known"),
    ListingField("text", "sentence", "what"),
    ListingField("origin", "sentence", "by"),
)
PLACE_FIELDS = (ListingField("place", title="record"),)
_STARTS_SPARK = "this starts Spark"


@click.command()
@config_argument
@click.argument("place", metavar="[TOPIC/PARTITION/OFFSET]", required=False)
@click.option("--today", is_flag=True, help="Also show what FILE would do with it as it is now (starts Spark).")
@click.option("--then", is_flag=True, help="Also show what the configuration of its batch does with it (starts Spark).")
@click.option("--key", metavar="KEY", help="Find the records of bronze with this key.")
@click.option("--where", metavar="SQL", help="Find the records whose event this holds for (starts Spark).")
@click.option("--since", metavar="TIME", help="Of those since a time with a zone, or a length of time ago (2 h).")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Of about so many of the newest.")
@master_option
@json_option
@plugin_option
def trace(
    file: Path,
    place: str | None,
    today: bool,
    then: bool,
    key: str | None,
    where: str | None,
    since: str | None,
    last: int | None,
    master: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show what happened to the record of the configuration FILE at TOPIC/PARTITION/OFFSET.

    Each line says how that is known: `read` in a table or a log, `derived` from something that is written there, or
    `unknown`, and why. Of a table without the coordinates of records it shows the record's batches, and no row. May
    run while the stream runs. Exit code 1: there is no such record.

    With --key or --where it prints the places of records, of those that --since or --last bounds; trace one then.
    """
    if [place, key, where].count(None) != 2:
        raise click.UsageError("give the place of one record, or find records with --key or with --where")
    if [since, last].count(None) != (1 if place is None else 2):
        raise click.UsageError("--key and --where need a bound, --since or --last; the place of a record has none")
    from router.engine.audit.record_trace import RecordTrace
    from router.engine.reprocess.preview import RecordChoice
    from router.engine.reprocess.record_trial import find_by_condition, find_by_key, judge_record
    from router.engine.reprocess.records import RecordRange

    loaded = load_config(file, load_registry(plugin_files))
    if place is None:
        seconds = None if since is None else parse_since(since)
        if where is None:
            places = find_by_key(loaded.config, os.fsencode(str(key)), seconds, last)
        else:
            choice = RecordChoice(last or 1, None if seconds is None else RecordRange(since=seconds))
            click.echo(_STARTS_SPARK, err=True)
            with reprocess_context(loaded, master, by_spark=True, writes=False) as context:
                places = find_by_condition(context, choice, where)
        records = Listing("records", "", PLACE_FIELDS, [{"place": str(found)} for found in places])
        show_listings(loaded.config.name, [records], as_json=as_json, nothing="there is no such record")
        raise SystemExit(int(not places))

    traced = RecordTrace(loaded, _parse_place(place))
    lines = list(traced.lines())
    judges = {"a trial of FILE as it is now": loaded} if today and traced.is_found else {}
    if then and traced.is_found:
        number, deploy = traced.deploy()
        judge = load_config(file, load_registry(plugin_files), text=deploy.text)
        versions = judge.registry.versions(judge.config)
        origin = f"a trial of deploy {number}"
        if deploy.versions != versions:
            origin += f", which ran with {', '.join(deploy.versions)}; here is {', '.join(versions)}"
        judges[origin] = judge
    for origin, judge in judges.items():
        click.echo(_STARTS_SPARK, err=True)
        with reprocess_context(judge, master, by_spark=True, writes=False) as context:
            lines += judge_record(context, traced.place, origin)
    listing = Listing("lines", f"record {traced.place}", LINE_FIELDS, [asdict(line) for line in lines])
    show_listings(loaded.config.name, [listing], as_json=as_json)
    raise SystemExit(int(not traced.is_found))


def _parse_place(text: str) -> TracedPlace:
    """Return the place that is written as TOPIC/PARTITION/OFFSET; a topic may be a path, or empty, as a partition."""
    from router.engine.audit.record_search import TracedPlace

    match = re.fullmatch(r"(.*)/(\d{0,9})/(\d{1,18})", text, re.DOTALL)
    if match is None:
        raise click.BadParameter(f"{text!r} is not TOPIC/PARTITION/OFFSET (events/0/100)", param_hint="PLACE")
    topic, partition, offset = match.groups()
    return TracedPlace(topic or None, int(partition) if partition else None, int(offset))
