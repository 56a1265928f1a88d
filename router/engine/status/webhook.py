"""Send a message when a stream gets into trouble and when it is out of it: `on_failure: {webhook: URL}`.

A thread looks at the board once a second and sends one POST for what has changed since the last one. It waits for the
receiver in place of the stream: one that is slow or away delays no batch, and gets the changes of meanwhile as one.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

import requests

from router.engine.status.background import BackgroundThread
from router.engine.status.findings import find_troubles
from router.errors import first_line, join_names, line_of, to_printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config
    from router.engine.status.board import StatusBoard
    from router.engine.status.findings import StreamFinding
    from router.engine.status.snapshot import StreamSnapshot
    from router.states import Event

    Reported = Literal["waiting", "sink", "blocked", "failed"]

log = logging.getLogger("router")
_FINDINGS_LOOK_SECONDS = 1.0
POST_SECONDS = 5.0
"""Time limit to connect to the receiver, and for its answer."""
RECOVERED_SECONDS = 60.0
"""How long a stream that waited must run until it counts as recovered, if it finishes no batch."""
NAMED_TABLES = 20
"""Tables that one POST names; of more it has the number."""
EVENT_OF: dict[Reported, Event] = {"waiting": "waiting", "sink": "waiting", "blocked": "blocked"}
"""Events by the kind of the findings that they are about."""


@contextmanager
def failures_reported(config: Config, board: StatusBoard, file: str = "FILE") -> Iterator[None]:
    """Report the changes of a stream while the block runs, and the error that ends it; of a debugging run nothing.

    `file` is the configuration as a user would type it.
    """
    if config.on_failure is None or config.debug:
        yield
        return
    with FailureWebhook(config.on_failure.webhook.get_secret_value(), board, file) as webhook:
        try:
            yield
        except Exception as error:  # and not what ends a stream by order, such as Ctrl-C
            webhook.error = error
            raise


class FailureWebhook(BackgroundThread):
    """The address that hears of the changes of one stream, and the thread that sends them. Use it as a context.

    At its end it reports `error`, if one ends the stream, within the time limit of a POST.
    """

    # The POST of a change may be under way, and that of the error follows it.
    closing_seconds = 2 * (POST_SECONDS + _FINDINGS_LOOK_SECONDS)

    def __init__(self, url: str, board: StatusBoard, file: str) -> None:
        super().__init__("webhook")
        self.error: Exception | None = None
        self._url = url
        self._board = board
        self._file = file
        self._finished = 0
        """Finished batches when the wait that was reported began."""
        self._reported: dict[Reported, dict[str, str]] = {kind: {} for kind in EVENT_OF}
        """Troubles that were reported, as `_troubles_to_report` has them."""
        self._seen: dict[tuple[Reported, str], float] = {}
        """When each of them was last seen."""
        self._fails = False

    def _run(self) -> None:
        while not self._ended.wait(_FINDINGS_LOOK_SECONDS):
            self._report_changes(self._board.snapshot())
        snapshot = self._board.snapshot()
        self._report_changes(snapshot, ends=True)
        if self.error is not None:
            cause = to_printable(first_line(self.error))
            self._send_report(replace(snapshot, state="failed", cause=cause), "failed", "stopped", {"": cause})

    def _report_changes(self, snapshot: StreamSnapshot, *, ends: bool = False) -> None:
        """Report the troubles that are new, and those that are over; `ends`: it is the last look."""
        for kind, troubles in _troubles_to_report(snapshot, self._file).items():
            reported = self._reported[kind]
            new = {name: cause for name, cause in troubles.items() if name not in reported}
            over: dict[str, str] = {}
            for name in reported.keys() - troubles.keys():
                if self._is_over(kind, name, snapshot, ends=ends):
                    over[name] = reported.pop(name)
            reported |= new
            self._seen |= dict.fromkeys([(kind, name) for name in troubles], time.time())
            if new:
                self._send_report(snapshot, kind, EVENT_OF[kind], new)
            if new and kind == "waiting":
                self._finished = snapshot.finished
            if over:
                self._send_report(snapshot, kind, "recovered", over)

    def _is_over(self, kind: Reported, name: str, snapshot: StreamSnapshot, *, ends: bool) -> bool:
        """Say whether something that is well now is likely to stay so."""
        if kind == "blocked":
            return True
        was_well_for_long = time.time() - self._seen[kind, name] >= RECOVERED_SECONDS
        if kind == "sink":
            # An API that comes and goes closes its circuit for moments.
            return ends or was_well_for_long
        # Each try runs for a moment. One has come through when it finishes a batch; with an idle source, after a while.
        return snapshot.state == "running" and (snapshot.finished > self._finished or was_well_for_long)

    def _send_report(self, snapshot: StreamSnapshot, kind: Reported, event: Event, troubles: Mapping[str, str]) -> None:
        """Send one POST. It is not tried again: the next change has its own."""
        message = message_of(snapshot, kind, event, troubles, self._file)
        try:
            # Redirects would take the message elsewhere, and the body of the answer is not needed.
            answer = requests.post(self._url, json=message, timeout=POST_SECONDS, allow_redirects=False, stream=True)
            answer.close()
            failure = "" if answer.status_code < 300 else f"it answered {answer.status_code}"
        except (OSError, ValueError) as error:  # those of requests are of the first kind, of a strange address of both
            # Not its text, which has the address: that is a secret.
            failure = type(error).__name__
        if failure and not self._fails:
            what = "%s: the webhook of `on_failure` did not get `%s`: %s; the stream continues"
            log.warning(what, snapshot.query, event, failure)
        self._fails = bool(failure)


def _troubles_to_report(snapshot: StreamSnapshot, file: str) -> dict[Reported, dict[str, str]]:
    """Return the troubles that are reported: by kind, name -> cause. The stream itself has an empty name."""
    troubles: dict[Reported, dict[str, str]] = {"waiting": {}, "sink": {}, "blocked": snapshot.blocked_tables}
    for finding in find_troubles(snapshot, file, math.inf, time.time()):
        if finding.kind == "waiting":
            troubles["waiting"][""] = finding.text
        if finding.kind == "sink":
            troubles["sink"] |= {place.removeprefix("sink/"): finding.text for place in finding.places}
    return troubles


_OVER: dict[Reported, str] = {
    "waiting": "it no longer waits",
    "sink": "sinks that can send again",
    "blocked": "tables that can be written again",
}
"""What is over, by the kind of the trouble."""


def message_of(
    snapshot: StreamSnapshot, kind: Reported, event: Event, troubles: Mapping[str, str], file: str
) -> dict[str, Any]:
    """Return the message to send: fields for programs, and `text` for a chat that shows that.

    `text` has the findings about the troubles, with their commands; of those that are over it has the names, and why
    the first of them was there.
    """
    names = sorted(troubles)
    found: list[StreamFinding] = []
    if event != "recovered":
        about = {f"sink/{name}" for name in names}
        for finding in find_troubles(snapshot, file, math.inf, time.time()):
            if finding.kind == kind and about.issuperset(finding.places):
                found.append(finding)
    tables: dict[str, str] = {}
    cause = join_names([finding.text for finding in found])
    if kind == "blocked":
        tables = {to_printable(name): troubles[name] for name in names[:NAMED_TABLES]}
    if event == "recovered":
        over = ": ".join(filter(None, (_OVER[kind], join_names(names))))
        cause = f"{over}. Before: {troubles[names[0]]}"
    elif kind in ("waiting", "failed"):
        cause = snapshot.cause
    text = join_names([line_of(finding.text, finding.command) for finding in found]) or cause or join_names(names)
    return {
        "query": snapshot.query,
        "event": event,
        "cause": cause,
        "tables": tables,
        "tables_count": len(troubles) if kind == "blocked" else 0,
        "findings": [asdict(finding) for finding in found],
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "text": f"{snapshot.query}: {event}: {text}".removesuffix(": "),
    }
