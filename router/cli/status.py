"""`router status`: a stream at a glance, for a person in ten lines and for cron by its exit code."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal

from router.cli import config_argument, plugin_option
from router.cli.documents import json_option, show_json
from router.cli.listing import show_sentences, watch_option
from router.cli.page import serve_page
from router.cli.values import read_interval_option
from router.config.loader import load_config
from router.errors import RouterError, join_names, line_of, to_printable
from router.moments import format_age, format_clock
from router.registry import load_registry

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from router.config.models import Config
    from router.engine.status.summary import StreamSummary
    from router.states import Severity

TIME_FIELDS = (
    "since",
    "batch_ended",
    "progress",
    "lag_read",
    "newest_record",
    "quarantined_since",
    "outbox_since",
    "warned",
)
PART_TIMES = {"views": ("refreshed", "checked", "failed_since"), "expectations": ("last",)}
"""Times in each of the parts of a list."""
LAKE_SECONDS = 3.0
"""How long the lake may take to say what old versions cost."""
LONG_STEP_SECONDS = 60.0
"""Seconds after which the headline says since when a step is under way."""
EXIT_CODES: dict[Severity, int] = {"look": 1, "act": 2}
"""Exit codes by the severity of the worst finding."""


@click.command()
@config_argument
@click.option(
    "--max-age",
    metavar="INTERVAL",
    callback=read_interval_option,
    help="Exit with 2 if records wait and the last batch ended longer ago: 5m.",
)
@click.option(
    "--page",
    metavar="HOST:PORT",
    is_flag=False,
    flag_value="",
    help="Show the page of a stream that is down, or runs without `ui`, until Ctrl-C; default: at the address of `ui`.",
)
@watch_option
@json_option
@plugin_option
def status(
    file: Path,
    max_age: timedelta | None,
    page: str | None,
    watch: bool,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show the state of the stream of the configuration FILE.

    A stream with `ui` answers itself. Of any other, and of one that is down, this reads lock, checkpoint, ledger and
    quarantine, and asks the brokers for the lag. Exit code 0: it does its work; 1: it does, and a person should look
    (it waits, a table cannot be written, rows are quarantined, an API is unavailable); 2: it is down, has failed or is
    stuck, or --max-age is over. Needs no Spark.
    """
    from router.engine.status.summary import stream_summary

    config = load_config(file, load_registry(plugin_files)).config
    if page is not None:
        serve_page(config, file, page)
        return
    if watch:
        from router.cli.watch import watch_stream

        watch_stream(config, as_json=as_json, max_age=max_age)
        return
    summary = stream_summary(config, str(file))
    _note_kept_bytes(summary, config)
    now = time.time()
    summary["findings"] = findings_of(summary, max_age, str(file), now)
    if summary["findings"]:  # the first is the worst
        summary["verdict"] = summary["findings"][0]["severity"]
    # Cron knows by the code whether to wake a person: 2 for what is down, whatever else is wrong.
    code = max((EXIT_CODES[finding["severity"]] for finding in summary["findings"]), default=0)
    if as_json:
        show_json(_status_document(summary, code))
    else:
        click.echo(headline_of(summary, now))
        show_sentences([*reason_lines(summary["findings"], summary["verdict"]), *subject_sentences(summary, now)])
    raise SystemExit(code)


def _note_kept_bytes(summary: StreamSummary, config: Config) -> None:
    """Note what old versions cost, unless the lake does not say so in time: a stream that answers is shown at once."""
    from deltalake.exceptions import DeltaError

    from router.delta.kept_versions import kept_bytes
    from router.engine.checkpoint_store import lake_and_checkpoint

    def read_lake() -> None:
        with suppress(RouterError, DeltaError, OSError):
            summary["kept_bytes"] = kept_bytes(lake_and_checkpoint(config)[0])

    thread = threading.Thread(target=read_lake, daemon=True)
    thread.start()
    thread.join(LAKE_SECONDS)


def findings_of(summary: StreamSummary, max_age: timedelta | None, file: str, now: float) -> list[dict[str, Any]]:
    """Return the findings of a stream, first that no batch has ended for too long."""
    from router.engine.status.findings import overdue_findings

    if max_age is None:
        return [*summary["findings"]]
    late = overdue_findings(summary["lag"], summary["batch_ended"], max_age.total_seconds(), file, now)
    return [*map(asdict, late), *summary["findings"]]


def reason_lines(findings: list[dict[str, Any]], verdict: str) -> list[tuple[str, str]]:
    """Return a line for each finding, with its command; without one whether all is well."""
    lines = [line_of(finding["text"], finding["command"]) for finding in findings]
    if not lines:
        lines = ["all is well" if verdict == "well" else "not known yet: no batch has ended"]
    return [("why", to_printable(line)) for line in lines]


def _status_document(summary: StreamSummary, code: int) -> dict[str, Any]:
    why = [finding["text"] for finding in summary["findings"]]
    document: dict[str, Any] = {**summary, "exit_code": code, "why": why}
    for name in TIME_FIELDS:
        document[name] = _as_datetime(document[name])
    for parts, names in PART_TIMES.items():
        for part in document[parts]:
            for name in names:
                # A stream of an older version has not all of them.
                part[name] = _as_datetime(part.get(name))
    return document


def _as_datetime(moment: float | None) -> datetime | None:
    try:
        return None if moment is None else datetime.fromtimestamp(moment, timezone.utc)
    except (OverflowError, ValueError):  # the time of a record may be any
        return None


WARNING_SECONDS = 3600.0
NOT_KNOWN = "not known yet"


def headline_of(summary: StreamSummary, now: float) -> str:
    """Return the name of a stream and what it does."""
    state = summary["state"]
    if summary["since"] is not None and state != "running":
        state = f"{state} for {format_age(summary['since'], now)}"
    if summary["step"]:
        state = f"{state}, {summary['step']}"
        # Of a step that ends soon this would change with each look.
        if summary["progress"] is not None and now - summary["progress"] >= LONG_STEP_SECONDS:
            state = f"{state} since {format_clock(summary['progress'])}"
    return to_printable(f"{summary['name']}: {state}")


def subject_sentences(summary: StreamSummary, now: float) -> list[tuple[str, str]]:
    """Return the sentences on a stream, one for each subject; the subjects are always the same."""
    newest = "-"
    if summary["newest_record"] is not None:
        newest = f"{format_age(summary['newest_record'], now)} old"
    subjects = [
        ("seen by", _witness_sentence(summary)),
        ("last batch", _last_batch_sentence(summary, now)),
        ("lag", _lag_sentence(summary, now)),
        ("newest record", newest),
        ("tables", _tables_sentence(summary)),
        ("dead letters", _dead_letters_sentence(summary)),
        ("quarantine", _quarantine_sentence(summary, now)),
        ("outboxes", _outboxes_sentence(summary, now)),
        ("views", _views_sentence(summary, now)),
        ("fields", _unknown_fields_sentence(summary)),
        ("warning", _warning_sentence(summary, now)),
    ]
    return [(subject, to_printable(sentence)) for subject, sentence in subjects]


def _witness_sentence(summary: StreamSummary) -> str:
    if summary["source"] == "stream":
        return f"the stream, at {summary['address']}"
    return "lake and checkpoint; start with `--ui`, or `ui`, to see what the stream does now"


def _last_batch_sentence(summary: StreamSummary, now: float) -> str:
    if summary["batch"] is None or summary["batch_ended"] is None:
        return "none yet"
    return (
        f"{summary['batch']}, {format_age(summary['batch_ended'], now)} ago, {summary['batch_records'] or 0:,} records"
    )


def _lag_sentence(summary: StreamSummary, now: float) -> str:
    if summary["lag"] is None:
        return "-"
    if summary["lag_read"] is None:
        return f"{summary['lag']:,} records"
    return f"{summary['lag']:,} records, {format_age(summary['lag_read'], now)} ago"


def _tables_sentence(summary: StreamSummary) -> str:
    sentences = []
    if summary["tables"] is not None:
        sentences.append(f"{summary['tables']:,} got rows since the start")
    if summary["kept_bytes"]:
        sentences.append(f"versions before deploys have {decimal(summary['kept_bytes'])} more")
    if summary["blocked"]:
        causes = [f"{table} ({cause})" for table, cause in sorted(summary["blocked"].items())]
        sentences.append(f"cannot be written: {join_names(causes)}; see `router tables FILE`")
    return "; ".join(sentences) or "-"


def _dead_letters_sentence(summary: StreamSummary) -> str:
    since = "in the last batch"
    if summary["source"] == "stream":
        since = "since the start"
    if not summary["dead_letters"]:
        if summary["verdict"] == "unknown":
            return NOT_KNOWN
        return f"none {since}"
    by_cause = ", ".join(f"{count:,} {cause}" for cause, count in sorted(summary["dead_letters"].items()))
    # The table of dead letters has a row for each sink that refused a record: the counts are those of its rows.
    return f"{by_cause} {since}, one for each sink that refuses a record; see `router dead-letters FILE`"


def _quarantine_sentence(summary: StreamSummary, now: float) -> str:
    if not summary["quarantined"]:
        return NOT_KNOWN if summary["verdict"] == "unknown" else "no rows"
    tables = [f"{table} ({rows:,} rows)" for table, rows in sorted(summary["quarantined"].items())]
    since = ""
    if summary["quarantined_since"] is not None:
        since = f"; the oldest record is {format_age(summary['quarantined_since'], now)} old"
    return f"{join_names(tables)}{since}; see `router quarantine list FILE`"


def _unknown_fields_sentence(summary: StreamSummary) -> str:
    if not summary["unknown_fields"]:
        return "-"
    names = join_names([f"{name} ({events:,} events)" for name, events in summary["unknown_fields"].items()])
    change = "add them to the schema of `decode`; one that was inferred is by `router run FILE --refresh-schema`"
    return f"{names}: {change}"


def _warning_sentence(summary: StreamSummary, now: float) -> str:
    """Return the last warning, unless it is so old that it is over: the findings have what is wrong now."""
    if not summary["warning"] or now - summary["warned"] > WARNING_SECONDS:
        return "-"
    return f"{summary['warning']} ({format_age(summary['warned'], now)} ago)"


def _views_sentence(summary: StreamSummary, now: float) -> str:
    """Return which views fail, since when, and why the first of them does."""
    failed = [view for view in summary["views"] if view["failed"]]
    if not failed:
        return "all could be refreshed" if summary["views"] else "-"
    since = failed[0].get("failed_since")
    text = failed[0]["failed"]
    if since is not None:
        text = f"{text} (for {format_age(since, now)})"
    if len(failed) > 1:
        text = f"{text}; and {len(failed) - 1:,} more"
    return f"{text}; see `router views FILE`"


def _outboxes_sentence(summary: StreamSummary, now: float) -> str:
    if not summary["outboxes"]:
        return NOT_KNOWN if summary["verdict"] == "unknown" else "no rows"
    sinks = [f"{sink} ({rows:,} rows)" for sink, rows in sorted(summary["outboxes"].items())]
    since = ""
    if summary["outbox_since"] is not None:
        since = f"; the oldest came {format_age(summary['outbox_since'], now)} ago"
    return f"{join_names(sinks)}{since}"
