"""The limits of a driver: who may call under which, and the tokens of the tasks that are connected. Runs on the driver.

`LeaseServer` has a coordinator for each limit, and a `TaskServer` to talk to tasks; `LimitSessions` brings the two
together: the reports of tasks to the coordinator, and its grants to tasks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from router import ApiState
from router_rest.channel.protocol import ServerAddress
from router_rest.channel.server import AdmittedSink, TaskServer
from router_rest.limits.coordinator import Coordinator
from router_rest.limits.messages import TaskReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router_rest.channel.server import TaskSession
    from router_rest.limits.messages import Outlook, Pace


class LeaseServer(TaskServer):
    """A server of leases: tokens of the limits that sinks of this driver are under."""

    def __init__(self, host: str = "127.0.0.1", *, bind: str | None = None, port: int = 0) -> None:
        super().__init__(host, bind=bind, port=port)
        self._limits: dict[str, LimitSessions] = {}
        self._lock = threading.Lock()
        self._successes_at_set_aside: dict[str, float] = {}
        self.counted: set[tuple[str, str]] = set()
        """Sinks, or anything else with a name, whose earlier calls are counted, each with its limit."""
        self.counting = threading.Lock()
        """Held while `counted` is read and changed: sinks that share a limit and a table must not count it twice."""

    def admit_sink(
        self,
        sink: str,
        limit: str,
        pace: Pace,
        *,
        credentials: Callable[[str], Mapping[str, Any]] = lambda refused: {},
        stop: Callable[[], bool] | None = None,
    ) -> ServerAddress:
        """Admit the tasks of a sink, and return the address for them. Names of sinks are unique in a driver.

        Args:
            credentials: Returns what tasks get that ask for credentials: see `AdmittedSink`.
            stop: Returns whether the sink's tasks are to end; called ten times a second, on the server's thread.

        Raises:
            ValueError: Another sink states another pace for the same limit.
        """
        # A limit that is stated otherwise begins a new coordinator, which takes over what was counted: a restart with
        # another configuration is no new hour.
        with self._lock:
            others = sorted(name for name, other in self.sinks.items() if other.limit == limit and name != sink)
            former = self._limits.get(limit)
            if former is not None and former.coordinator.pace != pace and others:
                raise ValueError(f"the limit {limit} is stated otherwise by {', '.join(others)}")
            if former is None or former.coordinator.pace != pace:
                self._limits[limit] = LimitSessions(Coordinator(pace))
                self._successes_at_set_aside.pop(limit, None)
            sessions = self._limits[limit]
            if former is not None and former is not sessions:
                self.call_on_loop(lambda: sessions.take_over(former))
            windows = sessions.coordinator.windows
            welcome = {"sized": windows.limits_rows, "keyed": windows.keyed}
            self.sinks[sink] = AdmittedSink(limit, sessions, welcome, stop, credentials)
        return ServerAddress(self._host, self._port, limit, self._certificate, self._secret)

    def dismiss_sink(self, sink: str) -> None:
        """Admit no more tasks of a sink. What its limit has counted is kept."""
        with self._lock:
            self.sinks.pop(sink, None)

    def outlook(self, limit: str) -> Outlook:
        """Return the seconds until a call under a limit may be sent, and the state of its circuit.

        Raises ConnectionError when the server has ended.
        """
        outlook: Outlook = self.call_on_loop(self._limits[limit].coordinator.outlook)
        return outlook

    def limit_state(self, limit: str) -> ApiState | None:
        """Return the circuit of a limit, how much of the limit is used, and the answers; None for one without tasks.

        Raises ConnectionError when the server has ended.
        """
        sessions = self._limits.get(limit)
        if sessions is None:
            return None
        coordinator = sessions.coordinator

        def read_state() -> ApiState:
            used = coordinator.windows.used_share(time.monotonic())
            out = coordinator.outlook().is_open
            delivered = dict(sessions.delivered)
            return ApiState(out, used, coordinator.answers, failure=coordinator.failure, delivered=delivered)

        state: ApiState = self.call_on_loop(read_state)
        return state

    def report_totals(self, limit: str) -> Mapping[str, float]:
        """Return the sums of all reports under a limit so far: sent, ok, throttled, failed, timeouts, ..."""
        return dict(self._limits[limit].coordinator.totals)

    def may_set_aside(self, limit: str) -> bool:
        """Return whether the API has taken a call under a limit since calls that failed alone were last set aside."""
        return self.report_totals(limit)["ok"] > self._successes_at_set_aside.get(limit, -1.0)

    def note_set_aside(self, limit: str) -> None:
        """Note that calls are set aside: in an outage that happens once, and not again before a success."""
        self._successes_at_set_aside[limit] = self.report_totals(limit)["ok"]

    def count_earlier(self, limit: str, calls: Iterable[EarlierCall]) -> None:
        """Count calls that were sent before this driver was started."""
        windows = self._limits[limit].coordinator.windows
        in_order = sorted(calls, reverse=True)

        def count_calls() -> None:
            now = time.monotonic()
            for ago, key, many, rows in in_order:
                windows.of_key(key, now).count_earlier(now - ago, many, rows)

        self.call_on_loop(count_calls)


_lock = threading.Lock()
_servers: dict[tuple[str, str], LeaseServer] = {}


def lease_server(host: str = "127.0.0.1", bind: str = "") -> LeaseServer:
    """Return the server of this process for a host, started: queries of one driver share their limits."""
    with _lock:
        server = _servers.get((host, bind))
        if server is None or not server.is_running:
            server = _servers[host, bind] = LeaseServer(host, bind=bind or None).start()
        return server


def api_state(limit: str) -> ApiState | None:
    """Return the state of the API under a limit, by the servers of this process; None if none has called it."""
    with _lock:
        servers = [server for server in _servers.values() if server.is_running]
    for server in servers:
        try:
            state = server.limit_state(limit)
        except ConnectionError:  # it has just ended
            continue
        if state is not None:
            return state
    return None


class EarlierCall(NamedTuple):
    """A call that was sent, how many seconds ago, under which key; with how many attempts, and rows in all of them."""

    ago: float
    key: str
    attempts: int
    rows: int


@dataclass(eq=False)
class LimitSessions:
    """The coordinator of a limit, and the connections of its tasks."""

    coordinator: Coordinator
    delivered: Counter[str] = field(default_factory=Counter)
    """The rows that tasks of each sink have delivered so far."""
    _sessions: dict[str, TaskSession] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None

    def on_open(self, session: TaskSession) -> None:
        """Let a task take part."""
        self._sessions[session.who] = session
        self.coordinator.add_task(session.who)

    def on_message(self, session: TaskSession, message: Mapping[str, Any]) -> None:
        """Take in the report of a task."""
        if "report" in message:
            report = TaskReport.from_message(message["report"])
            self.coordinator.on_report(session.who, report)
            self.delivered[session.sink] += report.delivered
            self._send_grants_at(session.last_message)

    def on_stop(self, session: TaskSession) -> None:
        """Send a task away with the next grants."""
        self.coordinator.stop_task(session.who)
        self._send_grants_at(session.last_message)

    def on_close(self, session: TaskSession) -> None:
        """Forget a task: others get its share of the calls in flight."""
        del self._sessions[session.who]
        self.coordinator.remove_task(session.who)
        self._send_grants_at(session.last_message)

    def take_over(self, former: LimitSessions) -> None:
        """Take over the counts of the same limit before it was stated anew; its tasks end."""
        self.coordinator.windows.take_over(former.coordinator.windows)
        for session in former._sessions.values():
            former.on_stop(session)

    def _send_grants(self) -> None:
        self._timer = None
        for who, grant in self.coordinator.allocate_grants().items():
            self._sessions[who].send_message({"grant": grant.to_message()})
        due = self.coordinator.next_due()
        if due is not None:
            # A millisecond at least, so that the thread also reads: many reports may make something due at once.
            self._send_grants_at(max(due, asyncio.get_running_loop().time() + 0.001))

    def _send_grants_at(self, when: float) -> None:
        """Send grants at a moment, or earlier if that is due already; reports that arrive until then count."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._send_grants)
