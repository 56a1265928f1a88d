"""`router trace`: what happened to one record."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.cli.documents import json_option
from router.cli.listing import Listing, ListingField, show_listings
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


@click.command()
@config_argument
@click.argument("place", metavar="TOPIC/PARTITION/OFFSET")
@json_option
@plugin_option
def trace(
    file: Path,
    place: str,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show what happened to the record of the configuration FILE at TOPIC/PARTITION/OFFSET.

    Each line says how that is known: `read` in a table or a log, `derived` from something that is written there, or
    `unknown`, and why. Of a table without the coordinates of records it shows the record's batches, and no row. May
    run while the stream runs. Needs no Spark. Exit code 1: there is no such record.
    """
    from router.engine.audit.record_trace import RecordTrace

    loaded = load_config(file, load_registry(plugin_files))
    traced = RecordTrace(loaded, _parse_place(place))
    lines = list(traced.lines())
    listing = Listing("lines", f"record {traced.place}", LINE_FIELDS, [asdict(line) for line in lines])
    show_listings(loaded.config.name, [listing], as_json=as_json)
    raise SystemExit(int(not traced.is_found))


def _parse_place(text: str) -> TracedPlace:
    """Return the place that is written as TOPIC/PARTITION/OFFSET; a topic may be a path, or empty, as a partition."""
    from router.engine.audit.record_search import TracedPlace

    match = re.fullmatch(r"(.*)/(\d*)/(\d+)", text, re.DOTALL)
    if match is None:
        raise click.BadParameter(f"{text!r} is not TOPIC/PARTITION/OFFSET (events/0/100)", param_hint="PLACE")
    topic, partition, offset = match.groups()
    return TracedPlace(topic or None, int(partition) if partition else None, int(offset))
