"""Connect the tasks of a driver with the coordinators of their limits.

One thread, one asyncio loop and one port serve all tasks, over TLS. A message is a line of JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import threading
import time
from collections import Counter
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from router import ApiState, StartError
from router_rest.limits.coordinator import Coordinator
from router_rest.limits.messages import (
    CONNECT_SECONDS,
    TICK_SECONDS,
    TICKS_PER_HEARTBEAT,
    ServerAddress,
    TaskReport,
    line_of,
    server_tls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from router_rest.limits.messages import Outlook, Pace

    Credentials = Callable[[str], Mapping[str, Any]]

log = logging.getLogger("router")
MAX_REFUSED_HOSTS_LOGGED = 100
"""Hosts whose refused connections are logged, one line each."""
MAX_TASK_LINE_BYTES = 1 << 16
"""Bytes of a line."""
MAX_UNREAD_BYTES = 1 << 20
"""Bytes that a task may leave unread."""
MAX_TASK_SILENCE_SECONDS = 30.0
"""Seconds without a message, after which a task counts as gone."""
MIN_GRANT_GAP_SECONDS = 0.001
"""Seconds between two deals at least."""


class LeaseServer:
    """A server of leases, at an address of the driver that executors reach.

    `host` is the address that executors get, `bind` the one that it listens on (default: the same). One daemon thread
    does all the work.
    """

    def __init__(self, host: str = "127.0.0.1", *, bind: str | None = None, port: int = 0) -> None:
        self._host = host
        self._bind = bind or host
        self._port = port
        self._secret = secrets.token_bytes(32)
        self._tls, self._certificate = server_tls()
        self._sinks: dict[str, AdmittedSink] = {}
        self._limits: dict[str, LimitSessions] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="router-leases", daemon=True)
        self._ready = threading.Event()
        self._failed: OSError | None = None
        self._ending = asyncio.Event()
        self._numbers = count(1)
        self._refused: set[str] = set()
        self._set_aside: dict[str, float] = {}
        self._counted: set[tuple[str, str]] = set()
        self.counting = threading.Lock()
        """Held while receipts are read and counted: sinks that share a limit and a table must not count it twice."""

    def start(self) -> LeaseServer:
        """Listen. Raises OSError when the address is not one of this machine."""
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def stop(self) -> None:
        """End every lease: tasks find that the driver is gone."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    @property
    def is_running(self) -> bool:
        """Say whether tasks are served."""
        return self._thread.is_alive()

    def admit_sink(
        self,
        sink: str,
        limit: str,
        pace: Pace,
        *,
        credentials: Credentials | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> ServerAddress:
        """Admit the tasks of a sink, and return the address for them. Names of sinks are unique in a driver.

        Args:
            credentials: Returns what `LeaseClient.fetch_credentials` returns to a task; gets the version that was
                refused, or "". Runs on a thread of its own.
            stop: Returns whether the sink's tasks are to end; called ten times a second, on the server's thread.

        Raises:
            ValueError: Another sink states another pace for the same limit.
        """
        with self._lock:
            others = sorted(name for name, other in self._sinks.items() if other.limit == limit and name != sink)
            sessions = self._limits.get(limit)
            if sessions is None:
                self._limits[limit] = LimitSessions(Coordinator(pace))
            elif sessions.coordinator.pace != pace:
                if others:
                    raise ValueError(f"the limit {limit} is stated otherwise by {', '.join(others)}")
                self._limits[limit] = LimitSessions(Coordinator(pace))
                self._set_aside.pop(limit, None)
                self._call_on_loop(lambda: self._hand_over_counts(self._limits[limit], sessions))
            self._sinks[sink] = AdmittedSink(limit, credentials, stop)
        return ServerAddress(self._host, self._port, limit, self._certificate, self._secret)

    def is_counted(self, sink: str, limit: str) -> bool:
        """Return whether the earlier calls of a sink, or of anything else with this name, are counted under a limit."""
        with self._lock:
            return (sink, limit) in self._counted

    def mark_counted(self, sink: str, limit: str) -> None:
        """Say that earlier calls are counted: after `count_earlier`, for reading receipts may fail."""
        with self._lock:
            self._counted.add((sink, limit))

    def dismiss_sink(self, sink: str) -> None:
        """Admit no more tasks of a sink. What its limit has counted is kept."""
        with self._lock:
            self._sinks.pop(sink, None)

    def outlook(self, limit: str) -> Outlook:
        """Return the seconds until a call under a limit may be sent, and the state of its circuit.

        Raises ConnectionError when the server has ended.
        """
        outlook: Outlook = self._call_on_loop(self._limits[limit].coordinator.outlook)
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

        state: ApiState = self._call_on_loop(read_state)
        return state

    def report_totals(self, limit: str) -> Mapping[str, float]:
        """Return the sums of all reports under a limit so far: sent, ok, throttled, failed, timeouts, ..."""
        return dict(self._limits[limit].coordinator.totals)

    def may_set_aside(self, limit: str) -> bool:
        """Return whether the API has taken a call under a limit since calls that failed alone were last set aside."""
        return self.report_totals(limit)["ok"] > self._set_aside.get(limit, -1.0)

    def note_set_aside(self, limit: str) -> None:
        """Note that calls are set aside: in an outage that happens once, and not again before a success."""
        self._set_aside[limit] = self.report_totals(limit)["ok"]

    def count_earlier(self, limit: str, calls: Iterable[EarlierCall]) -> None:
        """Count calls that were sent before this driver was started."""
        windows = self._limits[limit].coordinator.windows
        in_order = sorted(calls, reverse=True)

        def count_calls() -> None:
            now = time.monotonic()
            for ago, key, many, rows in in_order:
                windows.of_key(key, now).count_earlier(now - ago, many, rows)

        self._call_on_loop(count_calls)

    def _call_on_loop(self, question: Callable[[], Any]) -> Any:
        """Call a function on the server's thread, which alone may use the coordinators; return its result."""
        answer: Future[Any] = Future()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_answer_question, question, answer)
        while not answer.done():
            if not self.is_running:
                raise ConnectionError("the server of leases has ended: how many calls may be sent is unknown")
            wait([answer], TICK_SECONDS)
        return answer.result()

    @staticmethod
    def _hand_over_counts(sessions: LimitSessions, before: LimitSessions) -> None:
        """Hand the counts of a limit on to the same limit restated; the tasks of the old one end."""
        sessions.coordinator.windows.take_over(before.coordinator.windows)
        before.check_tasks(before.sinks)

    def _run_loop(self) -> None:
        try:
            self._loop.run_until_complete(self._serve_tasks())
        except OSError as error:
            self._failed = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve_tasks(self) -> None:
        server = await asyncio.start_server(
            self._serve_connection,
            self._bind,
            self._port,
            limit=MAX_TASK_LINE_BYTES,
            ssl=self._tls,
            ssl_handshake_timeout=CONNECT_SECONDS,
        )
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        watch = asyncio.ensure_future(self._watch_tasks())
        await self._ending.wait()
        server.close()
        watch.cancel()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # whoever is just coming in begins a further one
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_tasks(self) -> None:
        """Check every TICK_SECONDS which tasks are to stop and which are gone, until cancelled."""
        for tick in count():
            stopping = frozenset(name for name, sink in list(self._sinks.items()) if self._is_stopping(name, sink))
            for sessions in list(self._limits.values()):
                sessions.check_tasks(stopping)
                if tick % TICKS_PER_HEARTBEAT == 0:
                    sessions.send_heartbeat()
            await asyncio.sleep(TICK_SECONDS)

    @staticmethod
    def _is_stopping(name: str, sink: AdmittedSink) -> bool:
        try:
            return sink.stop is not None and sink.stop()
        except Exception:  # a fault of one sink must not end the leases of all
            log.exception("sink %s: cannot say whether it stops", name)
            return False

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends, if it comes from a task of this driver."""
        try:
            met = await asyncio.wait_for(self._identify_task(reader, writer), CONNECT_SECONDS)
            if met is not None:
                sessions, session, sink = met
                await sessions.serve_task(session, sink, reader)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, asyncio.TimeoutError) as error:
            log.debug("a lease ends: %s", type(error).__name__)
        except asyncio.CancelledError:
            pass  # the server stops; asyncio would log what it finds in a handler's task
        finally:
            writer.transport.abort()

    async def _identify_task(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[LimitSessions, TaskSession, AdmittedSink] | None:
        """Find out which task of which sink has connected; None: it may not be served."""
        introduction = json.loads(await reader.readline())
        secret = bytes.fromhex(introduction["secret"])
        if not hmac.compare_digest(secret, self._secret):
            self._log_refused(writer)
            return None
        limit = introduction["limit"]
        sessions = self._limits.get(limit)
        sink = self._sinks.get(introduction["sink"])
        if sessions is None or sink is None or sink.limit != limit:
            writer.write(line_of({"refused": "the sink is not running"}))
            return None
        session = TaskSession(str(next(self._numbers)), introduction["sink"], writer)
        windows = sessions.coordinator.windows
        session.send_message({"sized": windows.limits_rows, "keyed": windows.keyed})
        return sessions, session, sink

    def _log_refused(self, writer: asyncio.StreamWriter) -> None:
        """Log once from where a client connected that does not know the secret; send nothing."""
        peer = writer.get_extra_info("peername")
        where = str(peer[0]) if peer else "?"
        if where not in self._refused and len(self._refused) < MAX_REFUSED_HOSTS_LOGGED:
            self._refused.add(where)
            log.warning("leases: refused a connection from %s that does not know this driver's secret", where)


def _answer_question(question: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # it is raised where the question was asked
        answer.set_exception(error)


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


@dataclass(frozen=True)
class AdmittedSink:
    """A sink whose tasks are admitted."""

    limit: str
    credentials: Credentials | None
    stop: Callable[[], bool] | None


class TaskSession:
    """The connection of one task."""

    def __init__(self, who: str, sink: str, writer: asyncio.StreamWriter) -> None:
        self.who = who
        self.sink = sink
        self.heard = asyncio.get_running_loop().time()
        self._writer = writer

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message with the time of this clock; disconnect a task that does not read."""
        transport = self._writer.transport
        try:
            unread = transport.get_write_buffer_size()
        except AttributeError:  # before Python 3.11, of a TLS connection that is lost: it must not end what is dealt
            return
        if unread > MAX_UNREAD_BYTES:
            transport.abort()
        elif not transport.is_closing():
            now = asyncio.get_running_loop().time()
            transport.write(line_of({**message, "now": now}))

    def close_connection(self) -> None:
        """Close the connection."""
        self._writer.transport.abort()

    async def send_credentials(self, number: int, refused: str, credentials: Credentials | None) -> None:
        """Send a task credentials. What is wrong with them is logged here, for the message may hold a secret."""
        try:
            if credentials is None:
                raise LookupError("the sink has no credentials")
            given = await asyncio.get_running_loop().run_in_executor(None, credentials, refused)
        except Exception as error:  # whatever a plugin raises; a StartError is the router's, and quotes no secret
            log.warning("sink %s: no credentials: %s", self.sink, error)
            failure = {"wrong": str(error)} if isinstance(error, StartError) else {"failed": type(error).__name__}
            self.send_message({"credentials": number, **failure})
            return
        self.send_message({"credentials": number, "given": dict(given)})


class LimitSessions:
    """The coordinator of a limit, and the connections of its tasks."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.delivered: Counter[str] = Counter()
        """The rows that tasks of each sink have delivered so far."""
        self._sessions: dict[str, TaskSession] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def serve_task(self, session: TaskSession, sink: AdmittedSink, reader: asyncio.StreamReader) -> None:
        """Read the messages of a task until it disconnects."""
        self._sessions[session.who] = session
        self.coordinator.add_task(session.who)
        loop = asyncio.get_running_loop()
        answers = set()
        try:
            while line := await reader.readline():
                session.heard = loop.time()
                message = json.loads(line)
                if "report" in message:
                    report = TaskReport.from_message(message["report"])
                    self.coordinator.on_report(session.who, report)
                    self.delivered[session.sink] += report.delivered
                    self._send_grants_at(session.heard)
                if "credentials" in message:
                    answer = session.send_credentials(message["credentials"], message["refused"], sink.credentials)
                    answers.add(task := asyncio.ensure_future(answer))
                    task.add_done_callback(answers.discard)
        finally:
            for task in answers:
                task.cancel()
            del self._sessions[session.who]
            self.coordinator.remove_task(session.who)
            # Other tasks get its share of the calls in flight.
            self._send_grants_at(loop.time())

    def check_tasks(self, stopping: frozenset[str]) -> None:
        """Send the tasks of sinks that stop away, and disconnect tasks that are silent."""
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions.values()):
            if now - session.heard > MAX_TASK_SILENCE_SECONDS:
                session.close_connection()
            elif session.sink in stopping:
                self.coordinator.stop_task(session.who)
                self._send_grants_at(now)

    def send_heartbeat(self) -> None:
        """Send all tasks a sign of life."""
        for session in list(self._sessions.values()):
            session.send_message({})

    @property
    def sinks(self) -> frozenset[str]:
        """Return the sinks whose tasks are connected."""
        return frozenset(session.sink for session in self._sessions.values())

    def _send_grants(self) -> None:
        self._timer = None
        for who, grant in self.coordinator.allocate_grants().items():
            self._sessions[who].send_message({"grant": grant.to_message()})
        due = self.coordinator.next_due()
        if due is not None:
            self._send_grants_at(max(due, asyncio.get_running_loop().time() + MIN_GRANT_GAP_SECONDS))

    def _send_grants_at(self, when: float) -> None:
        """Deal at a moment, or earlier where that is due already; reports that arrive until then count."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._send_grants)
