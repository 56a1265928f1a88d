"""Send a message when a stream gets into trouble and when it is out of it: `on_failure: {webhook: URL}`.

A thread looks at the board once a second and sends one POST for what has changed since the last one. It waits for the
receiver in place of the stream: one that is slow or away delays no batch, and gets the changes of meanwhile as one.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

import requests

from router.engine.status.findings import join_names
from router.errors import first_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config
    from router.engine.status.board import StatusBoard

    Event = Literal["waiting", "recovered", "blocked", "stopped"]

log = logging.getLogger("router")
_LOOK_SECONDS = 1.0
POST_SECONDS = 5.0
"""Time limit to connect to the receiver, and for its answer."""
RECOVERED_SECONDS = 60.0
"""How long a stream that waited must run until it counts as recovered, if it finishes no batch."""
NAMED_TABLES = 20
"""Tables that one POST names; of more it has the number."""


@contextmanager
def failures_reported(config: Config, board: StatusBoard) -> Iterator[None]:
    """Report the changes of a stream while the block runs, and the error that ends it; of a debugging run nothing."""
    if config.on_failure is None or config.debug:
        yield
        return
    webhook = FailureWebhook(config.on_failure.webhook.get_secret_value(), config.name, board)
    webhook.start()
    try:
        yield
    except Exception as error:
        webhook.stop(error)
        raise
    except BaseException:  # by order, such as Ctrl-C
        webhook.stop()
        raise
    webhook.stop()


class FailureWebhook:
    """The address that hears of the changes of one stream, and the thread that sends them."""

    def __init__(self, url: str, query: str, board: StatusBoard) -> None:
        self._url = url
        self._query = query
        self._board = board
        self._is_waiting = False
        self._finished = 0
        """Finished batches when the wait that was reported began."""
        self._blocked: Mapping[str, str] = {}
        self._waiting_sinks: dict[str, float] = {}
        """Sinks (ROUTE/SINK) whose wait was reported, each with the time when it was last seen to wait."""
        self._fails = False
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Report from now on."""
        self._thread.start()

    def stop(self, error: BaseException | None = None) -> None:
        """Report the error that ends the stream, if one does, and end the thread: within the time limit of a POST."""
        self._error = error
        self._ended.set()
        # The POST of a change may be under way, and that of the error follows it.
        self._thread.join(2 * (POST_SECONDS + _LOOK_SECONDS))

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._look()
        self._look(ends=True)
        if self._error is not None:
            self._report("stopped", first_line(self._error))

    def _look(self, *, ends: bool = False) -> None:
        """Report what has changed since the last look; `ends`: it is the last one."""
        state = self._board.state()
        if state.name == "waiting" and not self._is_waiting:
            self._is_waiting = True
            self._finished = state.finished
            self._report("waiting", state.cause)
        # Each try runs for a moment. One has come through when it finishes a batch; with an idle source, after a while.
        came_through = state.finished > self._finished or time.time() - state.since > RECOVERED_SECONDS
        if self._is_waiting and state.name == "running" and came_through:
            self._is_waiting = False
            self._report("recovered", "")

        self._look_at_sinks(state.waiting_sinks, ends=ends)

        blocked = {table: cause for table, cause in state.blocked.items() if table not in self._blocked}
        released = {table: cause for table, cause in self._blocked.items() if table not in state.blocked}
        self._blocked = state.blocked
        if blocked:
            self._report("blocked", "tables cannot be written, their rows wait", blocked)
        if released:
            self._report("recovered", "", released)

    def _look_at_sinks(self, waiting_sinks: Mapping[str, str], *, ends: bool) -> None:
        """Report sinks that cannot send any more, and those that can again."""
        now = time.time()
        new = [sink for sink in waiting_sinks if sink not in self._waiting_sinks]
        for sink in waiting_sinks:
            self._waiting_sinks[sink] = now
        if new:
            why = waiting_sinks[new[0]]
            self._report("waiting", f"sinks that cannot send: {join_names(new)}; their rows stay in the outbox: {why}")

        # An API that comes and goes closes its circuit for moments: only one that stays well has recovered.
        well_before = now if ends else now - RECOVERED_SECONDS
        recovered: list[str] = []
        for sink, seen_waiting in self._waiting_sinks.items():
            if sink not in waiting_sinks and seen_waiting <= well_before:
                recovered.append(sink)
        for sink in recovered:
            del self._waiting_sinks[sink]
        if recovered:
            self._report("recovered", f"sinks that can send again: {join_names(recovered)}")

    def _report(self, event: Event, cause: str, tables: Mapping[str, str] | None = None) -> None:
        """Send one POST. It is not tried again: the next change has its own."""
        message = message_of(self._query, event, cause, tables or {})
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
            log.warning(what, self._query, event, failure)
        self._fails = bool(failure)


def message_of(query: str, event: Event, cause: str, tables: Mapping[str, str]) -> dict[str, Any]:
    """Return what is sent: fields for programs, and `text` for a chat that shows that."""
    named: dict[str, str] = {}
    for table in sorted(tables)[:NAMED_TABLES]:
        named[printable(table)] = printable(tables[table])
    text = f"{query}: {event}"
    if tables:
        more = f" and {len(tables) - len(named)} more" if len(tables) > len(named) else ""
        text = f"{text}: {', '.join(named)}{more}"
    if cause:
        text = f"{text}: {printable(cause)}"
    return {
        "query": query,
        "event": event,
        "cause": printable(cause),
        "tables": named,
        "tables_count": len(tables),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "text": text,
    }
