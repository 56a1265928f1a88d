"""`router preview`: show where real records would go, before anything is written."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, existing_file, master_option, plugin_option
from router.cli.dead_letters import LETTER_GROUP_FIELDS, group_row, shorten_text
from router.cli.documents import json_option, show_json
from router.cli.listing import Listing, ListingField, number_fields, show_listings, show_sentences
from router.cli.saves import runs_at_saves
from router.cli.session import reprocess_context, start_jvm_early
from router.cli.values import parse_since
from router.config.loader import load_config
from router.errors import StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.engine.reprocess.comparison import Comparison
    from router.engine.reprocess.preview import Preview
    from router.engine.reprocess.records import RecordRange

_EMPTY_SAMPLE = {"record": "", "before": "", "now": ""}
"""A sample of which only one side is there."""
MERGE_COUNTS = ("inserted", "updated", "deleted", "late", "refused")


@click.command()
@config_argument
@click.option("--last", default=1000, show_default=True, type=click.IntRange(1), help="About so many of the newest.")
@click.option("--since", metavar="TIME", help="All since a time with a zone, or a length of time ago (2 h).")
@click.option("--records", metavar="TOPIC/PARTITION/FROM-TO", help="Those of a partition with these offsets.")
@click.option(
    "--source",
    type=click.Choice(["auto", "bronze", "topic"]),
    default="auto",
    show_default=True,
    help="Where records are read: auto is bronze, if there is any, or else the source.",
)
@click.option("--against", metavar="OLD", type=existing_file, help="Show what differs from the configuration OLD.")
@click.option("--samples", default=2, show_default=True, type=click.IntRange(0, 100), help="Rows and calls of each.")
@click.option("--values", "whole", is_flag=True, help="Show values of any length, which are cut otherwise.")
@master_option
@json_option
@plugin_option
@runs_at_saves
def preview(
    file: Path,
    last: int,
    since: str | None,
    records: str | None,
    source: Any,
    against: Path | None,
    samples: int,
    whole: bool,
    master: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show where real records would go by the configuration FILE as it is now. Nothing is written or sent.

    The records go through all steps of a batch, against the tables as they are. Registry and lookups are read. The
    stream may run meanwhile. Exit code 1: the batch would stop.

    With --against the same records go through OLD as well, and what differs is shown. Exit code 1: something does.
    """
    start_jvm_early(file, master)
    from router.engine.reprocess.comparison import compare
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.preview import RecordChoice, preview_records

    if since is not None and records is not None:
        raise click.UsageError("choose records with --since or with --records")
    choice = RecordChoice(last, _parse_range(since, records), source)
    loaded = load_config(file, load_registry(plugin_files))
    old = load_config(against, load_registry(plugin_files)) if against else None
    if old is not None:
        _refuse_other_versions(old, loaded.config)
    with reprocess_context(loaded, master, by_spark=True, writes=False) as context:
        if old is None:
            found: Any = preview_records(context, choice, samples)
        else:
            found = compare(ReprocessContext.of(old, context.spark, context.stop), context, choice, samples)
    if context.stop.is_set():
        raise click.Abort
    if as_json:
        show_json({"name": loaded.config.name, **asdict(found)}, _value_as_text)
    else:
        show = _show_differences if old else _show
        show(loaded.config, found, partial(_value_in_words, whole=whole))
    raise SystemExit(int(not found.equal if old else bool(found.stops)))


def _refuse_other_versions(old: Loaded, config: Config) -> None:
    """Raise StartError if a configuration has run with other versions than are here: they may differ, too."""
    from router.engine.audit.deploy_history import deploys_of

    here = old.registry.versions(old.config)
    ran = {deploy.configuration: deploy.versions for deploy in deploys_of(config)}.get(old.fingerprint, here)
    if ran != here:
        raise StartError(f"{old.path.name} has run with {', '.join(ran)}, and here is {', '.join(here)}")


def _parse_range(since: str | None, records: str | None) -> RecordRange | None:
    from router.engine.reprocess.records import RecordRange

    if since is not None:
        return RecordRange(since=parse_since(since))
    if records is None:
        return None
    found = re.fullmatch(r"(.+)/(\d+)/(\d+)-(\d+)", records)
    if found is None:
        raise click.BadParameter(
            f"{records!r} is not TOPIC/PARTITION/FROM-TO (events/0/100-199)", param_hint="--records"
        )
    topic, partition, first, last = found.groups()
    return RecordRange(begins={topic: {int(partition): int(first)}}, ends={topic: {int(partition): int(last) + 1}})


def _value_as_text(value: Any) -> str:
    """Return a value that JSON has no type for as it is written: a time has the zone that it has."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _value_in_words(value: Any, *, whole: bool) -> str:
    """Return the values of a row, or a record, as text; cut to what is shown of data if it is not to be `whole`."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_value_as_text)
    return text if whole else shorten_text(text)


def _show(config: Config, found: Preview, text: Callable[[Any], str]) -> None:
    """Print a preview for people: what is said of the batch, then lists of where its records go."""
    sentences = [("read", f"{config.name}: {found.read:,} records of {found.place}; nothing was written")]
    sentences += [("the batch would stop", stop) for stop in found.stops]
    if found.unmatched:
        sentences.append(("unmatched", f"{found.unmatched:,} match no route"))
    for name, count in found.expectations.items():
        sentences.append((name.removeprefix("/"), f"does not hold on {count:,} events"))
    sentences += [(place, f"rows would wait: {cause}") for place, cause in found.waiting.items()]
    tables = [asdict(table) | _shown_names(config, table.target) for table in found.tables]
    sinks = [asdict(sink) | _shown_names(config, sink.sink) for sink in found.sinks]
    views = [asdict(view) for view in found.views]
    samples = []
    for row in [*tables, *views]:
        samples += [{"to": row["table"], "sample": text(sample)} for sample in row["samples"]]
    for row in sinks:
        samples += [{"to": f"{row['route']}/{row['sink']}", "sample": text(call)} for call in row["calls"]]
    letters = []
    for number, group in enumerate(found.dead_letters):
        value = _value_as_text(group.samples[0]["value"] or b"")
        letters.append({**group_row(config, number, group), "value": text(value)})
    show_sentences(sentences)
    show_listings(
        config.name,
        [
            Listing("tables", "tables", TABLE_FIELDS, tables),
            Listing("views", "views of these records alone", VIEW_FIELDS, views),
            Listing("sinks", "sinks", SINK_FIELDS, sinks),
            Listing("dead_letters", "dead letters", LETTER_FIELDS, letters),
            Listing("samples", "samples", SAMPLE_FIELDS, samples),
        ],
    )


def _show_differences(config: Config, found: Comparison, text: Callable[[Any], str]) -> None:
    """Print what differs for people: a list for tables, one for records that end elsewhere, and samples."""
    read = f"{found.read:,} records of {found.place}; nothing was written"
    sentences = [("read", f"{config.name}: {read}; {'nothing differs' if found.equal else 'differences:'}")]
    for when, stops in found.stops.items():
        sentences += [(f"the batch would stop {when}", stop) for stop in stops]
    for place, function in found.left_out.items():
        sentences.append((place, f"is not compared: {function} has another value each time"))
    samples = []
    for table in found.tables:
        for sample in table.samples:
            samples.append({"to": table.table, **_EMPTY_SAMPLE, **{name: text(sample[name]) for name in sample}})
    for sink, only in found.calls.items():
        samples += [{"to": sink, **_EMPTY_SAMPLE, when: text(call)} for when in only for call in only[when]]
    show_sentences(sentences)
    show_listings(
        config.name,
        [
            Listing("tables", "tables and sinks", DIFFERENCE_FIELDS, [asdict(table) for table in found.tables]),
            Listing("fates", "records that end elsewhere", FATE_FIELDS, [asdict(fate) for fate in found.fates]),
            Listing("samples", "samples", DIFFERING_FIELDS, samples),
        ],
    )


def _merge_in_words(row: dict[str, Any]) -> str:
    """Return the changes that an upsert would make, in words, and the version of the table that it was tried on."""
    merge = row["merge"]
    if merge is None:
        return ""
    if merge["unknown"]:
        return f"cannot be told: {merge['unknown']}"
    changes = [f"{merge['counts'][name]:,} {name}" for name in MERGE_COUNTS if merge["counts"].get(name)]
    held = f" (version {merge['held_against']})" if merge["held_against"] >= 0 else ""
    lost = "; of an empty table, since its log does not reach back to the first record" if merge["is_lost"] else ""
    return f"{', '.join(changes) or 'nothing'}{held}{lost}"


def _shown_names(config: Config, target: str) -> dict[str, str]:
    """Return route and sink as people see them; of bronze no route."""
    return dict(zip(("route", "sink"), config.shown_names(*target.split("/", 1)), strict=True))


def _pairs_field(name: str) -> ListingField:
    """Return a field for a dictionary."""
    return ListingField(
        name, "sentence", shown=lambda row: ", ".join(f"{key} {value}" for key, value in row[name].items())
    )


TABLE_FIELDS = (
    ListingField("table"),
    *number_fields("rows"),
    ListingField("route"),
    ListingField("sink"),
    ListingField("change"),
    _pairs_field("columns"),
    ListingField("merge", "sentence", shown=_merge_in_words),
)
VIEW_FIELDS = (*(field for field in TABLE_FIELDS if field.name in ("table", "rows", "change", "columns")),)
SINK_FIELDS = (ListingField("route"), ListingField("sink"), *number_fields("rows"))
LETTER_FIELDS = (
    *(field for field in LETTER_GROUP_FIELDS if field.name in ("count", "stage", "route", "sink", "reason")),
    ListingField("value", "sentence"),
)
SAMPLE_FIELDS = (ListingField("to"), ListingField("sample", "sentence"))
DIFFERENCE_FIELDS = (
    ListingField("table"),
    *number_fields("before", "now", "only_before", "only_now", "changed"),
    _pairs_field("columns"),
    _pairs_field("types"),
)
FATE_FIELDS = (
    *number_fields("records"),
    *(ListingField(name) for name in ("before", "now", "record")),
    ListingField("reason", "sentence"),
)
DIFFERING_FIELDS = (
    *(ListingField(name) for name in ("to", "record")),
    *(ListingField(name, "sentence") for name in ("before", "now")),
)
