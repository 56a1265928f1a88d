"""What `router status` shows of a stream: what the stream itself says, or what its lake, checkpoint and topic say.

Without Spark. A stream with a server is asked; of any other, running or not, `LakeBoard` reads what it has left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests

from router.config.models import Ui, interval
from router.engine.status.events import status_text
from router.engine.status.findings import StreamFinding
from router.engine.status.lake_board import LakeBoard

if TYPE_CHECKING:
    from router.config.models import Config

_ANSWER_SECONDS = 3.0
"""Time limit for the answer of a stream; it gives one from memory."""


@dataclass
class StreamSummary:
    """A stream at a glance. Times are in seconds since 1970; what is not known is None.

    `source` is `stream` if the stream itself has answered, at `address`, else `lake`. `state` is one of a
    `StreamSnapshot`. `dead_letters` are by stage since the start of the stream, or of the last batch by
    what refused them. `committers` has what commits to each table, which only the stream itself reports; `views` and
    `expectations` are those of a `StreamSnapshot`, as JSON has them. `waiting_sinks` says by
    ROUTE/SINK why a sink's batch failed and is tried again. `held_topics` were deleted and created again. `unread` says
    what could not be read, and why; `findings` what is wrong.
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
    findings: list[StreamFinding] = field(default_factory=list)


def age(moment: float, now: float) -> str:
    """Return how long ago a moment was, in one unit."""
    seconds = max(0.0, now - moment)
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def stream_summary(config: Config, file: str) -> StreamSummary:
    """Return how the stream of a configuration is: what it answers, or what its lake says.

    `file` is the configuration as a user would type it.
    """
    answer = ask_stream(config)
    # A stream that has ended answers for as long as its process lives.
    if answer is not None and answer.status["state"] != "ended":
        return _summary(config, answer.status, answer.address)
    board = LakeBoard(config, brief=True)
    board.read()
    stuck_after = interval((config.ui or Ui()).stuck_after).total_seconds()
    return _summary(config, json.loads(status_text(board.snapshot(), file, stuck_after)), None)


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


def _summary(config: Config, status: dict[str, Any], address: str | None) -> StreamSummary:
    """Return the summary of a status in the form of `/api/status`; without an address it is that of a lake."""
    summary = StreamSummary(
        status["query"],
        "lake" if address is None else "stream",
        status["state"],
        cause=status["cause"],
        # What a lake does not say is 0 there.
        since=status["since"] or None,
        address=address,
        progress=status["progress"] or None,
        lag=status["lag"],
        blocked={table["table"]: table["blocked"] for table in status["tables"] if table["blocked"]},
        views=status["views"],
        expectations=status["expectations"],
        held_topics=tuple(status["held_topics"]),
        unread=[f"{subject}: {cause}" for subject, cause in status["unread"].items()],
    )
    for finding in status["findings"]:
        summary.findings.append(StreamFinding(**finding))
    for table in status["tables"]:
        if table["committer"] is not None:
            summary.committers[table["table"]] = table["committer"]
    if status["step"]:
        summary.step = f"batch {status['batch']}, {status['step']}"
    last = status["batches"][0] if status["batches"] else None
    if last is not None:
        summary.batch = last["batch"]
        summary.batch_ended = last["ended"]
        summary.batch_records = last["read"]
    # The lag is as old as the oldest answer about a partition.
    times = [partition["read"] for partition in status["partitions"] if partition["read"] is not None]
    summary.lag_read = min(times, default=None)
    if status["freshness"] is not None:
        summary.newest_record = status["freshness"]["newest"]
    if address is not None:
        summary.tables = len(status["tables"])
        for letters in status["dead_letters"]:
            stage = letters["stage"]
            summary.dead_letters[stage] = summary.dead_letters.get(stage, 0) + letters["count"]
    elif last is not None:
        summary.dead_letters = _refused(config, last)
    else:
        summary.batch = status["batch"]
    for waiting in status["quarantined"]:
        table = waiting["table"]
        summary.quarantined[table] = summary.quarantined.get(table, 0) + waiting["rows"]
        summary.quarantined_since = _older(summary.quarantined_since, waiting["oldest"])
    for sink in status["sinks"]:
        key = f"{sink['route']}/{sink['sink']}"
        if sink["backlog"] > 0:
            summary.outboxes[key] = sink["backlog"]
            summary.outbox_since = _older(summary.outbox_since, sink["oldest"])
        if sink["circuit_open"]:
            summary.open_circuits.append(key)
        if sink["waits"]:
            summary.waiting_sinks[key] = sink["waits"]
    if status["warnings"]:
        summary.warning = status["warnings"][0]["message"]
    return summary


def _refused(config: Config, batch: dict[str, Any]) -> dict[str, int]:
    """Return the dead letters of a batch by what refused them; the ledger knows no stages."""
    counts = {"failed": batch["failed"]}
    if config.unmatched == "dead_letters":
        counts["unmatched"] = batch["unmatched"]
    counts["refused"] = batch["dead_letters"] - sum(counts.values())
    return {outcome: count for outcome, count in counts.items() if count}


def _older(first: float | None, second: float | None) -> float | None:
    known = [moment for moment in (first, second) if moment is not None]
    return min(known, default=None)
