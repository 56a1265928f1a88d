"""What `router status` shows of a stream: what the stream itself says, or what its lake, checkpoint and topic say.

Without Spark. A stream with a server is asked; of any other, running or not, this reads lock, checkpoint, ledger, notes
of blocked tables and quarantines, and asks the brokers where the topic ends.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import requests
from deltalake.exceptions import DeltaError

from router.config.models import Ui, interval
from router.engine import ledger
from router.engine.checkpoint_store import held_topics, lake_and_checkpoint
from router.engine.quarantine.table import quarantined, waiting_tables
from router.engine.start.checks import Checkpoint, last_manifest
from router.engine.start.run_lock import is_run_active
from router.engine.status.expectations import expectations_of_lake
from router.engine.status.file_reader import quarantine_status, waiting_in_outboxes
from router.engine.status.source_ends import ask_how_far
from router.engine.status.view_notes import views_of_lake
from router.errors import RouterError, first_line, printable

if TYPE_CHECKING:
    from datetime import timedelta

    from router.config.models import Config

_ANSWER_SECONDS = 3.0
"""Time limit for the answer of a stream; it gives one from memory."""


@dataclass
class StreamSummary:
    """A stream at a glance. Times are in seconds since 1970; what is not known is None.

    `source` is `stream` if the stream itself has answered, at `address`, else `lake`. `state` is one of a
    `StreamSnapshot`, or `down`. `dead_letters` are by stage since the start of the stream, or of the last batch by
    what refused them. `committers` has what commits to each table, which only the stream itself reports; `views` and
    `expectations` are those of a `StreamSnapshot`, as JSON has them. `waiting_sinks` says by
    ROUTE/SINK why a sink's batch failed and is tried again. `held_topics` were deleted and created again. `unread` says
    what could not be read, and why.
    """

    name: str
    source: str
    state: str
    cause: str = ""
    since: float | None = None
    address: str | None = None
    step: str = ""
    batch: int | None = None
    batch_ended: float | None = None
    batch_records: int | None = None
    progress: float | None = None
    lag: int | None = None
    lag_read: float | None = None
    newest_record: float | None = None
    tables: int | None = None
    blocked: dict[str, str] = field(default_factory=dict)
    committers: dict[str, str] = field(default_factory=dict)
    views: list[dict[str, Any]] = field(default_factory=list)
    expectations: list[dict[str, Any]] = field(default_factory=list)
    dead_letters: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    quarantined_since: float | None = None
    outboxes: dict[str, int] = field(default_factory=dict)
    outbox_since: float | None = None
    open_circuits: list[str] = field(default_factory=list)
    waiting_sinks: dict[str, str] = field(default_factory=dict)
    warning: str = ""
    held_topics: tuple[str, ...] = ()
    unread: list[str] = field(default_factory=list)

    def is_down(self, config: Config, max_age: timedelta | None, now: float) -> str:
        """Return why the stream does not do its work, empty if it does.

        A stream that drains its source and ends may be down. Without records that wait, no batch is due.
        """
        if self.state == "failed":
            return f"it has failed: {self.cause}"
        if self.state in ("down", "ended") and not config.trigger.once:
            return "it does not run"
        if self.state == "running" and self.progress is not None and config.ui is not None:
            stuck_after = interval(config.ui.stuck_after).total_seconds()
            if now - self.progress > stuck_after:
                return f"it has made no step for {age(self.progress, now)}"
        # An unknown lag counts as one: cron is to hear of a stream of which nothing is known.
        if max_age is not None and self.lag != 0:
            if self.batch_ended is None:
                return "no batch has ended yet"
            if now - self.batch_ended > max_age.total_seconds():
                return f"its last batch ended {age(self.batch_ended, now)} ago"
        return ""

    def troubles(self) -> list[str]:
        """Return what a person should look at, though the stream does its work."""
        troubles: list[str] = []
        if self.state == "waiting":
            troubles.append(f"it waits: {self.cause}")
        if self.held_topics:
            troubles.append(held_topics(self.held_topics))
        if self.blocked:
            troubles.append(f"tables that cannot be written: {len(self.blocked)}")
        if self.quarantined:
            troubles.append(f"{sum(self.quarantined.values()):,} rows are quarantined")
        failed = [view["view"] for view in self.views if view["failed"]]
        if failed:
            troubles.append(f"views that cannot be refreshed: {', '.join(failed)}")
        troubles += [f"the circuit of {sink} is open" for sink in self.open_circuits]
        for sink, cause in self.waiting_sinks.items():
            if sink not in self.open_circuits:
                troubles.append(f"{sink} cannot send: {cause}")
        return troubles + self.unread


def age(moment: float, now: float) -> str:
    """Return how long ago a moment was, in one unit."""
    seconds = max(0.0, now - moment)
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def stream_summary(config: Config) -> StreamSummary:
    """Return what the stream of a configuration says; if it does not answer, what its lake says."""
    return summary_of_server(config) or summary_of_lake(config)


def summary_of_server(config: Config) -> StreamSummary | None:
    """Return what a stream says at its address; None if none of this name answers there."""
    answer = ask_stream(config)
    return None if answer is None else _of_status(answer.status, answer.address)


@dataclass(frozen=True)
class StreamAnswer:
    """What a stream has answered at `/api/status`, and the address that it was asked at."""

    status: dict[str, Any]
    address: str


def ask_stream(config: Config) -> StreamAnswer | None:
    """Ask the stream of a configuration at its address; None if none of this name answers there."""
    ui = config.ui or Ui()
    host, port = ui.host_and_port
    # A server of all addresses is asked at one of this machine.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = as_authority(host, port)
    headers = {"Authorization": f"Bearer {ui.token.get_secret_value()}"} if ui.token else {}
    with requests.Session() as session:
        session.trust_env = False  # a proxy is for other machines
        try:
            answer = session.get(
                f"http://{address}/api/status", headers=headers, timeout=_ANSWER_SECONDS, allow_redirects=False
            )
            status = answer.json() if answer.status_code == 200 else None
        except (requests.RequestException, ValueError):
            return None
    if not isinstance(status, dict) or status.get("query") != config.name:
        return None
    return StreamAnswer(status, address)


def as_authority(host: str, port: int) -> str:
    """Return host and port as they stand in a URL: an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _of_status(status: dict[str, Any], address: str) -> StreamSummary:
    """Return the summary of what `/api/status` answers."""
    summary = StreamSummary(
        status["query"],
        "stream",
        status["state"],
        cause=status["cause"],
        since=status["since"],
        address=address,
        progress=status["progress"],
        lag=status["lag"],
        tables=len(status["tables"]),
        blocked={table["table"]: table["blocked"] for table in status["tables"] if table["blocked"]},
        # A stream of an older version has none of these.
        views=status.get("views", []),
        expectations=status.get("expectations", []),
        held_topics=tuple(status.get("held_topics", ())),
    )
    for table in status["tables"]:
        if table.get("committer") is not None:
            summary.committers[table["table"]] = table["committer"]
    if status["step"]:
        summary.step = f"batch {status['batch']}, {status['step']}"
    if status["batches"]:
        last = status["batches"][0]
        summary.batch = last["batch"]
        summary.batch_ended = last["ended"]
        summary.batch_records = last["read"]
    # The lag is as old as the oldest answer about a partition.
    times = [partition["read"] for partition in status["partitions"] if partition["read"] is not None]
    summary.lag_read = min(times, default=None)
    if status["freshness"] is not None:
        summary.newest_record = status["freshness"]["newest"]
    for letters in status["dead_letters"]:
        stage = letters["stage"]
        summary.dead_letters[stage] = summary.dead_letters.get(stage, 0) + letters["count"]
    for waiting in status["quarantined"]:
        _add_quarantined(summary, waiting["table"], waiting["rows"], waiting["oldest"])
    for sink in status["sinks"]:
        key = f"{sink['route']}/{sink['sink']}"
        if sink["backlog"] > 0:
            summary.outboxes[key] = sink["backlog"]
            summary.outbox_since = _older(summary.outbox_since, sink["oldest"])
        if sink["circuit_open"]:
            summary.open_circuits.append(key)
        if sink.get("waits"):
            summary.waiting_sinks[key] = sink["waits"]
    if status["warnings"]:
        summary.warning = status["warnings"][0]["message"]
    return summary


def summary_of_lake(config: Config) -> StreamSummary:
    """Return what lake, checkpoint and topic say of a stream; what cannot be read is named in `unread`."""
    summary = StreamSummary(config.name, "lake", "down")
    readings = {
        "lock": _read_lock,
        "checkpoint": _read_checkpoint,
        "ledger": _read_ledger,
        "blocked tables": _read_blocked,
        "quarantine": _read_quarantine,
        "views": _read_views,
        "expectations": _read_expectations,
        "topic": _read_topic,
    }
    for subject, read in readings.items():
        # Each by itself: at night the broker may be away and the lake is there, or the other way round.
        try:
            read(config, summary)
        except (OSError, RouterError, DeltaError, ValueError) as error:
            summary.unread.append(f"{subject}: {printable(first_line(error))}")
    return summary


def _read_lock(config: Config, summary: StreamSummary) -> None:
    _, checkpoint = lake_and_checkpoint(config)
    if is_run_active(checkpoint):
        summary.state = "running"


def _read_checkpoint(config: Config, summary: StreamSummary) -> None:
    _, checkpoint = lake_and_checkpoint(config)
    last = Checkpoint.read(checkpoint).last
    summary.batch = last if last >= 0 else None
    manifest = last_manifest(checkpoint)
    if manifest is not None:
        summary.held_topics = manifest.held_topics


def _read_ledger(config: Config, summary: StreamSummary) -> None:
    """Read what became of the last batch of the source, and what waits in outboxes."""
    lake, _ = lake_and_checkpoint(config)
    table = lake.open(config.ledger)
    if table is None:
        return
    # The last batch of the source, and that of each detached sink, whose rows have no `read`.
    rows = ledger.last(config, 1)
    of_source = [row for row in rows if row["read"] is not None and row["batch_id"] is not None]
    if of_source:
        last = max(of_source, key=lambda row: row["finished"])
        of_batch = [row for row in rows if (row["run"], row["batch_id"]) == (last["run"], last["batch_id"])]
        summary.batch = last["batch_id"]
        summary.batch_ended = last["finished"].timestamp()
        summary.batch_records = sum(row["read"] or 0 for row in of_batch)
        counts = {
            "failed": sum(row["failed"] or 0 for row in of_batch),
            "refused": sum(row["refused"] or 0 for row in of_batch),
        }
        if config.unmatched == "dead_letters":
            counts["unmatched"] = sum(row["unmatched"] or 0 for row in of_batch)
        summary.dead_letters = {outcome: count for outcome, count in counts.items() if count}
    for key, arrivals in waiting_in_outboxes(table, config, time.time()).items():
        summary.outboxes[key] = sum(count for _, count in arrivals)
        summary.outbox_since = _older(summary.outbox_since, min(moment for moment, _ in arrivals))


def _read_blocked(config: Config, summary: StreamSummary) -> None:
    summary.blocked.update(waiting_tables(config))


def _read_quarantine(config: Config, summary: StreamSummary) -> None:
    lake, _ = lake_and_checkpoint(config)
    for found in quarantined(config, lake):
        waiting = quarantine_status(found)
        _add_quarantined(summary, waiting.table, waiting.rows, waiting.oldest)


def _read_views(config: Config, summary: StreamSummary) -> None:
    summary.views = [asdict(view) for view in views_of_lake(config)]


def _read_expectations(config: Config, summary: StreamSummary) -> None:
    summary.expectations = [asdict(expectation) for expectation in expectations_of_lake(config)]


def _read_topic(config: Config, summary: StreamSummary) -> None:
    """Ask the brokers how many records are still to be processed."""
    partitions = ask_how_far(config)
    if not partitions:
        return
    # A partition that the topic has no more adds nothing.
    summary.lag = sum(partition.lag or 0 for partition in partitions)
    summary.lag_read = partitions[0].read


def _add_quarantined(summary: StreamSummary, table: str, rows: int, oldest: float | None) -> None:
    summary.quarantined[table] = summary.quarantined.get(table, 0) + rows
    summary.quarantined_since = _older(summary.quarantined_since, oldest)


def _older(first: float | None, second: float | None) -> float | None:
    known = [moment for moment in (first, second) if moment is not None]
    return min(known, default=None)
