"""`router preview`: show where real records would go, before anything is written."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, existing_file, master_option, plugin_option
from router.cli.dead_letters import LETTER_GROUP_FIELDS, group_row, shorten_text
from router.cli.documents import json_option, show_json
from router.cli.listing import Listing, ListingField, number_fields, show_listings, show_sentences
from router.cli.saves import runs_at_saves
from router.cli.session import watched_session
from router.cli.values import parse_since
from router.config.loader import load_config
from router.errors import printable
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.config.models import Config
    from router.engine.reprocess.comparison import Comparison
    from router.engine.reprocess.preview import Preview
    from router.engine.reprocess.records import RecordRange
    from router.engine.reprocess.trial_merge import TrialMerge

CHANGES = ("inserted", "updated", "deleted", "late", "refused")
_OFFSETS = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<first>\d+)-(?P<last>\d+)")


@click.command(short_help="Show where real records would go, before anything is written.")
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
    from router.engine.reprocess.comparison import compare
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.preview import RecordChoice
    from router.engine.reprocess.preview import preview as preview_records

    if since is not None and records is not None:
        raise click.UsageError("choose records with --since or with --records")
    choice = RecordChoice(last, _parse_range(since, records), source)
    loaded = load_config(file, load_registry(plugin_files))
    old = load_config(against, load_registry(plugin_files)) if against else None
    stop = threading.Event()
    with watched_session(loaded.config, master, stop, by_spark=True, writes=False) as spark:
        context = ReprocessContext.of(loaded, spark, stop)
        if old is None:
            found = preview_records(context, choice, samples)
        else:
            differences = compare(ReprocessContext.of(old, spark, stop), context, choice, samples)
    if stop.is_set():
        raise click.Abort
    if old is not None:
        document = {"name": loaded.config.name, "equal": differences.is_equal, **_plain(asdict(differences))}
        if as_json:
            show_json(document)
        else:
            _show_differences(loaded.config, differences, whole=whole)
        raise SystemExit(int(not differences.is_equal))
    if as_json:
        show_json({"name": loaded.config.name, **_plain(asdict(found))})
    else:
        _show(loaded.config, found, whole=whole)
    raise SystemExit(int(bool(found.stops)))


def _parse_range(since: str | None, records: str | None) -> RecordRange | None:
    from router.engine.reprocess.records import RecordRange

    if since is not None:
        return RecordRange(since=parse_since(since))
    if records is None:
        return None
    found = _OFFSETS.fullmatch(records)
    if found is None:
        raise click.BadParameter(
            f"{records!r} is not TOPIC/PARTITION/FROM-TO (events/0/100-199)", param_hint="--records"
        )
    partition = int(found["partition"])
    begins, ends = ({found["topic"]: {partition: offset}} for offset in (int(found["first"]), int(found["last"]) + 1))
    return RecordRange(begins=begins, ends=ends)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: bytes as text, and what JSON has no type for, too."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return _text(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="backslashreplace")


def _show(config: Config, found: Preview, *, whole: bool) -> None:
    """Print a preview for people: what is said of the batch, then lists of where its records go."""
    text = _shown_whole if whole else _shown
    show_sentences([(printable(name), printable(sentence)) for name, sentence in _sentences(config, found)])
    tables = []
    samples = []
    for table in found.tables:
        columns = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
        facts = {"table": table.table, "rows": table.rows, "change": table.change, "columns": columns}
        tables.append({**facts, **_row(config, table.target), "merge": _merge_in_words(table.merge)})
        samples += [{"to": table.table, "sample": text(row)} for row in table.samples]
    sinks = []
    for sink in found.sinks:
        sinks.append({**_row(config, sink.sink), "rows": sink.rows})
        # Calls come after the rows of tables, which are listed first.
        samples += [{"to": "/".join(_row(config, sink.sink).values()), "sample": text(call)} for call in sink.calls]
    letters = []
    for number, group in enumerate(found.dead_letters):
        values = [text(_text(sample["value"] or b"")) for sample in group.samples]
        letters.append({**group_row(config, number, group), "value": values[0]})
    listings = [
        Listing("tables", "tables", TABLE_FIELDS, tables),
        Listing("sinks", "sinks", SINK_FIELDS, sinks),
        Listing("dead_letters", "dead letters", LETTER_FIELDS, letters),
        Listing("samples", "samples", SAMPLE_FIELDS, samples),
    ]
    show_listings(config.name, listings)


def _shown_whole(value: str | dict[str, Any]) -> str:
    """Return a value, or the values of a row, as text."""
    return value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)


def _shown(value: str | dict[str, Any]) -> str:
    return shorten_text(_shown_whole(value))


def _show_differences(config: Config, found: Comparison, *, whole: bool) -> None:
    """Print what differs for people: a list for tables, calls, and records that end elsewhere, and samples."""
    text = _shown_whole if whole else _shown
    read = f"{found.read:,} records of {found.place}; nothing was written"
    sentences = [("read", f"{config.name}: {read}; {'nothing differs' if found.is_equal else 'differences:'}")]
    for when, stops in found.stops.items():
        sentences += [(f"the batch would stop {when}", stop) for stop in stops]
    for place, function in found.left_out.items():
        sentences.append((place, f"is not compared: {function} has another value each time"))
    show_sentences([(printable(name), printable(sentence)) for name, sentence in sentences])
    tables: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for table in found.tables:
        changed = ", ".join(f"{name} {rows}" for name, rows in sorted(table.columns.items()))
        types = ", ".join(f"{name} {what}" for name, what in sorted(table.types.items()))
        facts = {"before": table.before, "now": table.now, "only_before": table.only_before, "only_now": table.only_now}
        tables.append({"table": table.table, **facts, "changed": table.changed, "columns": changed, "types": types})
        for row in table.samples:
            for when in ("before", "now"):
                if when in row:
                    of_row = {"to": table.table, "record": row["record"], "when": when}
                    samples.append({**of_row, "sample": text(row[when])})
    for sink, only in found.calls.items():
        for when, of_one in only.items():
            calls += [{"sink": sink, "when": when, "call": text(call)} for call in of_one]
    listings = [
        Listing("tables", "tables and sinks", DIFFERENCE_FIELDS, tables),
        Listing("fates", "records that end elsewhere", FATE_FIELDS, [asdict(fate) for fate in found.fates]),
        Listing("calls", "calls", CALL_FIELDS, calls),
        Listing("samples", "samples", DIFFERING_FIELDS, samples),
    ]
    show_listings(config.name, listings)


def _sentences(config: Config, found: Preview) -> Iterator[tuple[str, str]]:
    """Yield what is said of the batch as a whole, each by its name."""
    yield "read", f"{config.name}: {found.read:,} records of {found.place}; nothing was written"
    for stop in found.stops:
        yield "the batch would stop", stop
    if found.unmatched:
        yield "unmatched", f"{found.unmatched:,} match no route"
    for name, count in found.expectations.items():
        yield name.removeprefix("/"), f"does not hold on {count:,} events"
    for place, cause in found.waiting.items():
        yield place, f"rows would wait: {cause}"


def _merge_in_words(merge: TrialMerge | None) -> str:
    """Return what an upsert would do, and what that was held against if that is not the table."""
    if merge is None:
        return ""
    if merge.unknown:
        return f"cannot be told: {merge.unknown}"
    changes = [f"{merge.counts[name]:,} {name}" for name in CHANGES if merge.counts.get(name)]
    held = f" (version {merge.held_against})" if merge.held_against >= 0 else ""
    lost = "; of an empty table, since its log does not reach back to the first record" if merge.is_lost else ""
    return f"{', '.join(changes) or 'nothing'}{held}{lost}"


def _row(config: Config, target: str) -> dict[str, str]:
    """Return route and sink as people see them; of bronze no route."""
    route, sink = config.shown_names(*target.split("/", 1))
    return {"route": route, "sink": sink}


TABLE_FIELDS = (
    ListingField("table"),
    *number_fields("rows"),
    ListingField("route"),
    ListingField("sink"),
    ListingField("change"),
    ListingField("columns", "sentence"),
    ListingField("merge", "sentence"),
)
SINK_FIELDS = (ListingField("route"), ListingField("sink"), *number_fields("rows"))
LETTER_FIELDS = (
    *(field for field in LETTER_GROUP_FIELDS if field.name in ("count", "stage", "route", "sink", "reason")),
    ListingField("value", "sentence"),
)
DIFFERENCE_FIELDS = (
    ListingField("table"),
    *number_fields("before", "now", "only_before", "only_now", "changed"),
    ListingField("columns", "sentence"),
    ListingField("types", "sentence"),
)
FATE_FIELDS = (
    *number_fields("records"),
    *(ListingField(name) for name in ("before", "now", "record")),
    ListingField("reason", "sentence"),
)
CALL_FIELDS = (ListingField("sink"), ListingField("when"), ListingField("call", "sentence"))
DIFFERING_FIELDS = (
    *(ListingField(name) for name in ("to", "record", "when")),
    ListingField("sample", "sentence"),
)
SAMPLE_FIELDS = (ListingField("to"), ListingField("sample", "sentence"))
