"""What `router status` shows of a stream: what the stream itself says, or what its lake, checkpoint and topic say.

Without Spark. A stream with a server is asked; of any other, running or not, `LakeBoard` reads what it has left.
"""

from __future__ import annotations

import json
import logging
import platform
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import requests

from router.config.models import Ui, parse_interval
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.status.events import status_text
from router.engine.status.lake_board import LakeBoard
from router.engine.status.snapshot import StreamSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from router.config.models import Config
    from router.delta.lake import Lake

log = logging.getLogger("router")
UI_NOTE = "ui.json"
"""The file of a checkpoint in which a run notes where it shows itself."""
_BLANK = vars(StreamSnapshot("", "", "down", since=0.0, started=0.0))
"""Fields that a stream of an older version may not have."""
_STATUS_TIMEOUT_SECONDS = 3.0
"""Time limit for the answer of a stream; it gives one from memory."""


StreamSummary = dict[str, Any]
"""A stream at a glance, as `router status --json` has it. Times are in seconds since 1970; what is not known is None.

`source` is `stream` if the stream itself has answered, at `address`, else `lake`. `dead_letters` are by stage since the
start of the stream, or of the last batch by what refused them. `committers` has what commits to each table, and
`tables` the number of those that got rows: only the stream itself reports both. `waiting_sinks` says by ROUTE/SINK why
a sink's batch failed and is tried again. `kept_bytes` have the files that only versions of former deploys refer to;
`router status` looks, its `--watch` does not. All else is as a `StreamSnapshot` has it.
"""


def stream_summary(config: Config, file: str) -> StreamSummary:
    """Return how the stream of a configuration is at a glance: by what it answers, or by what its lake says.

    `file` is the configuration as a user would type it.
    """
    return summary_of_stream(config) or summary_of_lake(config, file)


def summary_of_stream(config: Config) -> StreamSummary | None:
    """Return the summary of a stream by its own answer; None if it does not answer, or has ended."""
    status = ask_stream(config)
    # A stream that has ended answers for as long as its process lives.
    if status is None or status["state"] == "ended":
        return None
    letters: Counter[str] = Counter()
    for cause in status["dead_letters"]:
        letters[cause["stage"]] += cause["count"]
    return {
        **_summarize_status(status),
        "source": "stream",
        "address": status["address"],
        "tables": len(status["tables"]),
        "dead_letters": dict(letters),
    }


def summary_of_lake(config: Config, file: str) -> StreamSummary:
    """Return the summary of a stream by its lake, checkpoint and topic."""
    board = LakeBoard(config, brief=True)
    board.read_lake()
    stuck_after = parse_interval((config.ui or Ui()).stuck_after).total_seconds()
    status = json.loads(status_text(board.snapshot(), file, stuck_after))
    summary = {**_summarize_status(status), "source": "lake", "address": None, "tables": None, "dead_letters": {}}
    if status["batches"]:
        summary["dead_letters"] = _count_refused(config, status["batches"][0])
    else:
        summary["batch"] = status["batch"]
    return summary


@contextmanager
def noted_address(config: Config, address: tuple[str, int]) -> Iterator[None]:
    """Note beside the lock where a stream shows itself while the block runs: `--ui` may differ from the configuration.

    A start that the lock will refuse does not take the place of the run that is at work.
    """
    checkpoint = lake_and_checkpoint(config)[1]
    note = json.dumps({"address": list(address), "machine": platform.node()}).encode()
    is_written = False
    try:
        before = _noted_address(checkpoint)
        if before in (None, _reachable_address(*address)) or _request_status(config, before) is None:
            checkpoint.write(UI_NOTE, note)
            is_written = True
    except OSError as error:  # storage that is unavailable: the start waits for it
        log.debug("the address of the status is not noted: %s", error)
    try:
        yield
    finally:
        with suppress(OSError):
            if is_written and checkpoint.read(UI_NOTE) == note:
                checkpoint.delete(UI_NOTE)


def _noted_address(checkpoint: Lake) -> str | None:
    """Return where a run has noted that it shows itself, as this machine reaches it; None if none has."""
    try:
        note = json.loads(checkpoint.read(UI_NOTE) or b"")
        host, port = note["address"]
        return _reachable_address(host, int(port), note["machine"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _reachable_address(host: str, port: int, machine: str = "") -> str:
    """Return the address at which a server is asked: one of all addresses by the name of its machine."""
    if host in ("0.0.0.0", "::"):
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}[host]
        host = local if machine in ("", platform.node()) else machine
    return as_authority(host, port)


def ask_stream(config: Config) -> dict[str, Any] | None:
    """Return the status that a configuration's stream answers at `/api/status`, and the `address` that it was asked at.

    It is asked at the address of `ui`, then at the one that its run has noted. None if none of this name answers.
    """
    address = _reachable_address(*(config.ui or Ui()).host_and_port)
    status = _request_status(config, address)
    if status is not None:
        return status
    noted = _noted_address(lake_and_checkpoint(config)[1])
    return None if noted in (None, address) else _request_status(config, noted)


def _request_status(config: Config, address: str | None) -> dict[str, Any] | None:
    ui = config.ui or Ui()
    headers = {"Authorization": f"Bearer {ui.token.get_secret_value()}"} if ui.token else {}
    with requests.Session() as session:
        session.trust_env = False  # a proxy is for other machines
        try:
            answer = session.get(
                f"http://{address}/api/status", headers=headers, timeout=_STATUS_TIMEOUT_SECONDS, allow_redirects=False
            )
            status = answer.json() if answer.status_code == 200 else None
        except (requests.RequestException, ValueError):
            return None
    if not isinstance(status, dict) or status.get("query") != config.name:
        return None
    return {**_BLANK, **status, "address": address}


def as_authority(host: str, port: int) -> str:
    """Return host and port as they stand in a URL: an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _summarize_status(status: Mapping[str, Any]) -> StreamSummary:
    """Return the fields of a summary that a status in the form of `/api/status` has, whoever has reported it."""
    last = status["batches"][0] if status["batches"] else {}
    freshness = status["freshness"] or {}
    sinks = {f"{sink['route']}/{sink['sink']}": sink for sink in status["sinks"]}
    backlogs = {key: sink for key, sink in sinks.items() if sink["backlog"] > 0}
    quarantined: Counter[str] = Counter()
    for waiting in status["quarantined"]:
        quarantined[waiting["table"]] += waiting["rows"]
    return {
        "name": status["query"],
        "state": status["state"],
        "cause": status["cause"],
        # What a lake does not say is 0 there.
        "since": status["since"] or None,
        "step": status.get("place", "") if status["step"] else "",
        "batch": last.get("batch"),
        "batch_ended": last.get("ended"),
        "batch_records": last.get("read"),
        "progress": status["progress"] or None,
        "lag": status["lag"],
        # The lag is as old as the oldest answer about a partition.
        "lag_read": _oldest_time(status["partitions"], "read"),
        "newest_record": freshness.get("newest"),
        "blocked": {table["table"]: table["blocked"] for table in status["tables"] if table["blocked"]},
        "committers": {table["table"]: table["committer"] for table in status["tables"] if table.get("committer")},
        "kept_bytes": None,
        "views": status["views"],
        "expectations": status["expectations"],
        "quarantined": dict(quarantined),
        "quarantined_since": _oldest_time(status["quarantined"], "oldest"),
        "outboxes": {key: sink["backlog"] for key, sink in backlogs.items()},
        "outbox_since": _oldest_time(backlogs.values(), "oldest"),
        "open_circuits": [key for key, sink in sinks.items() if sink["circuit_open"]],
        "waiting_sinks": {key: sink["waits"] for key, sink in sinks.items() if sink.get("waits")},
        "warning": status["warnings"][0]["message"] if status["warnings"] else "",
        "warned": status["warnings"][0]["at"] if status["warnings"] else None,
        "unknown_fields": status["unknown_fields"],
        "held_topics": status["held_topics"],
        "unread": [f"{subject}: {cause}" for subject, cause in status["unread"].items()],
        "findings": status.get("findings", []),
        "verdict": status.get("verdict", "unknown"),
    }


def _count_refused(config: Config, batch: dict[str, Any]) -> dict[str, int]:
    """Return the dead letters of a batch by what refused them; the ledger knows no stages."""
    counts = {"failed": batch["failed"]}
    if config.unmatched == "dead_letters":
        counts["unmatched"] = batch["unmatched"]
    counts["refused"] = batch["dead_letters"] - sum(counts.values())
    return {outcome: count for outcome, count in counts.items() if count}


def _oldest_time(parts: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Return the first of the times of a name that are known."""
    return min((part[name] for part in parts if part[name] is not None), default=None)
