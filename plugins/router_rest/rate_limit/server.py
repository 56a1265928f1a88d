"""Serve the coordinators of a driver to its tasks: one thread, one asyncio loop, one port, sealed JSON by the line."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from router_rest.rate_limit.coordinator import Coordinator
from router_rest.rate_limit.protocol import SecureChannel, ServerAddress, TaskReport, nonce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router_rest.rate_limit.protocol import Outlook, Pace

    Credentials = Callable[[str], Mapping[str, Any]]

log = logging.getLogger("router")
TICK = 0.1
"""Seconds between two looks at whether sinks are to stop."""
BEAT = 10
"""Ticks after which tasks hear something in any case, to tell a driver that is silent from one that is gone."""
INTRODUCTION = 10.0
"""Seconds that a stranger has to say who it is."""
STRANGERS = 100
"""Of so many it is told where they come from."""


class LeaseServer:
    """A server of leases, at an address of the driver that executors reach.

    `host` is what executors are report, `bind` what is listened on (default: the host). One daemon thread does all.
    """

    def __init__(self, host: str = "127.0.0.1", *, bind: str | None = None, port: int = 0) -> None:
        self._host, self._bind, self._port = host, bind or host, port
        self._secret = secrets.token_bytes(32)
        self._sinks: dict[str, AdmittedSink] = {}
        self._limits: dict[str, LimitSessions] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="router-leases", daemon=True)
        self._ready = threading.Event()
        self._failed: OSError | None = None
        self._ending = asyncio.Event()
        self._numbers = count(1)
        self._strangers: set[str] = set()

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
    def running(self) -> bool:
        """Say whether tasks are served."""
        return self._thread.is_alive()

    def admit(
        self,
        sink: str,
        limit: str,
        pace: Pace,
        *,
        credentials: Credentials | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> ServerAddress:
        """Let the tasks of a sink in, and return where. Names of sinks are unique in a driver.

        Args:
            credentials: Returns what `LeaseClient.credentials` returns to a task; gets the version that was refused,
                or "". Runs on a thread of its own.
            stop: Says that the sink's tasks are to end; asked ten times a second, on the server's thread.

        Raises:
            ValueError: Another sink states another pace for the same limit.
        """
        with self._lock:
            others = sorted(name for name, one in self._sinks.items() if one.limit == limit and name != sink)
            sessions = self._limits.get(limit)
            if sessions is None:
                self._limits[limit] = LimitSessions(Coordinator(pace))
            elif sessions.coordinator.pace != pace:
                if others:
                    raise ValueError(f"the limit {limit} is stated otherwise by {', '.join(others)}")
                self._limits[limit] = LimitSessions(Coordinator(pace))
                self._ask(lambda: self._succeed(self._limits[limit], sessions))
            self._sinks[sink] = AdmittedSink(limit, credentials, stop)
        return ServerAddress(self._host, self._port, limit, self._secret)

    def dismiss(self, sink: str) -> None:
        """Let no more tasks of a sink in. What its limit has counted is kept."""
        with self._lock:
            self._sinks.pop(sink, None)

    def outlook(self, limit: str) -> Outlook:
        """Say when calls under a limit may go out, and whether the API is out. Raises ConnectionError after the end."""
        found: Outlook = self._ask(self._limits[limit].coordinator.outlook)
        return found

    def totals(self, limit: str) -> Mapping[str, float]:
        """Return what the tasks under a limit have told so far: sent, ok, throttled, failed, timeouts, ..."""
        return dict(self._limits[limit].coordinator.totals)

    def spent(self, limit: str, ago: float, *, calls: int, rows: int = 0) -> None:
        """Count calls that went out so many seconds ago, before this driver was started."""
        windows = self._limits[limit].coordinator.windows
        self._ask(lambda: windows.spent(time.monotonic() - ago, calls, rows))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer to a question that only the server's thread may ask itself."""
        answer: Future[Any] = Future()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_answer, question, answer)
        while not answer.done():
            if not self.running:
                raise ConnectionError("the server of leases has ended: nobody says how many calls may go out")
            wait([answer], TICK)
        return answer.result()

    @staticmethod
    def _succeed(sessions: LimitSessions, before: LimitSessions) -> None:
        """Let a limit that is stated anew know what went out under the old one, whose tasks end."""
        sessions.coordinator.windows.succeed(before.coordinator.windows)
        before.look(before.sinks)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._failed = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._meet, self._bind, self._port, limit=LONGEST)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        watch = asyncio.ensure_future(self._watch())
        await self._ending.wait()
        server.close()
        watch.cancel()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # whoever is just coming in begins a further one
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Look now and then at who is to stop and who is not there any more."""
        for tick in count():
            stopping = frozenset(name for name, sink in list(self._sinks.items()) if self._stops(name, sink))
            for sessions in list(self._limits.values()):
                sessions.look(stopping)
                if tick % BEAT == 0:
                    sessions.beat()
            await asyncio.sleep(TICK)

    @staticmethod
    def _stops(name: str, sink: AdmittedSink) -> bool:
        try:
            return sink.stop is not None and sink.stop()
        except Exception:  # a fault of one sink must not end the leases of all
            log.exception("sink %s: cannot say whether it stops", name)
            return False

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        try:
            met = await asyncio.wait_for(self._introduce(reader, writer), INTRODUCTION)
            if met is not None:
                sessions, session, sink = met
                await sessions.serve(session, sink, reader)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, asyncio.TimeoutError) as error:
            log.debug("a lease ends: %s", type(error).__name__)
        except asyncio.CancelledError:
            pass  # the server stops; asyncio would log what it finds in a handler's task
        finally:
            writer.transport.abort()

    async def _introduce(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[LimitSessions, TaskSession, AdmittedSink] | None:
        """Find out who this is; None: nobody who may come in."""
        own = nonce()
        writer.write(json.dumps({"nonce": own}).encode() + b"\n")
        said = json.loads(await reader.readline())
        channel = SecureChannel(self._secret, "driver", own, str(said["nonce"]))
        try:
            of = channel.open(str(said["sealed"]).encode())
        except ValueError:
            self._refuse(writer)
            return None
        sessions, sink = self._limits.get(of["limit"]), self._sinks.get(of["sink"])
        if sessions is None or sink is None or sink.limit != of["limit"]:
            writer.write(channel.seal({"refused": "the sink is not running"}))
            return None
        session = TaskSession(str(next(self._numbers)), of["sink"], writer, channel)
        session.say({"sized": sessions.coordinator.windows.sized})
        return sessions, session, sink

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        """Say nothing to a stranger, and once who it was."""
        peer = writer.get_extra_info("peername")
        where = str(peer[0]) if peer else "?"
        if where not in self._strangers and len(self._strangers) < STRANGERS:
            self._strangers.add(where)
            log.warning("leases: refused a connection from %s that does not know this driver's secret", where)


def _answer(question: Callable[[], Any], answer: Future[Any]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # whoever asked is told
        answer.set_exception(error)


_lock = threading.Lock()
_servers: dict[tuple[str, str], LeaseServer] = {}


def lease_server(host: str = "127.0.0.1", bind: str = "") -> LeaseServer:
    """Return the server of this process for a host, started: queries of one driver share their limits."""
    with _lock:
        server = _servers.get((host, bind))
        if server is None or not server.running:
            server = _servers[host, bind] = LeaseServer(host, bind=bind or None).start()
        return server


log = logging.getLogger("router")
LONGEST = 1 << 16
"""Bytes of a line."""
UNREAD = 1 << 20
"""Bytes that a task may leave unread."""
SILENT = 30.0
"""Seconds after which a task that says nothing is not there any more."""
BRIEFLY = 0.001
"""Seconds between two deals at least."""


@dataclass(frozen=True)
class AdmittedSink:
    """A sink whose tasks are let in."""

    limit: str
    credentials: Credentials | None
    stop: Callable[[], bool] | None


class TaskSession:
    """One task's connection."""

    def __init__(self, who: str, sink: str, writer: asyncio.StreamWriter, channel: SecureChannel) -> None:
        self.who = who
        self.sink = sink
        self.heard = asyncio.get_running_loop().time()
        self._writer = writer
        self._channel = channel

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a line with the time of this clock; a task that does not read is cut off."""
        transport = self._writer.transport
        if transport.get_write_buffer_size() > UNREAD:
            transport.abort()
        elif not transport.is_closing():
            now = asyncio.get_running_loop().time()
            transport.write(self._channel.seal({**message, "now": now}))

    def open(self, line: bytes) -> Any:
        """Return what a line says. Raises ValueError for a line of somebody else."""
        return self._channel.open(line)

    def end(self) -> None:
        """Close the connection."""
        self._writer.transport.abort()

    async def hand_out(self, number: int, refused: str, credentials: Credentials | None) -> None:
        """Answer a question for credentials. What went wrong with them is told here, not there."""
        try:
            if credentials is None:
                raise LookupError("the sink has no credentials")
            given = await asyncio.get_running_loop().run_in_executor(None, credentials, refused)
        except Exception as error:  # whatever a plugin raises
            log.warning("sink %s: no credentials: %s", self.sink, error)
            self.say({"credentials": number, "failed": type(error).__name__})
            return
        self.say({"credentials": number, "given": dict(given)})


class LimitSessions:
    """A coordinator with the tasks that it serves."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._sessions: dict[str, TaskSession] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, session: TaskSession, sink: AdmittedSink, reader: asyncio.StreamReader) -> None:
        """Listen to a task until it is gone."""
        self._sessions[session.who] = session
        self.coordinator.enter(session.who)
        loop, answers = asyncio.get_running_loop(), set()
        try:
            while line := await reader.readline():
                session.heard = loop.time()
                message = session.open(line)
                if "report" in message:
                    self.coordinator.hear(session.who, TaskReport.read(message["report"]))
                    self._deal_at(session.heard)
                if "credentials" in message:
                    answer = session.hand_out(message["credentials"], message["refused"], sink.credentials)
                    answers.add(task := asyncio.ensure_future(answer))
                    task.add_done_callback(answers.discard)
        finally:
            for task in answers:
                task.cancel()
            del self._sessions[session.who]
            self.coordinator.leave(session.who)
            self._deal_at(loop.time())

    def look(self, stopping: frozenset[str]) -> None:
        """Send the tasks of some sinks away, and forget those that are silent."""
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions.values()):
            if now - session.heard > SILENT:
                session.end()
            elif session.sink in stopping:
                self.coordinator.stop(session.who)
                self._deal_at(now)

    def beat(self) -> None:
        """Let all tasks know that the driver is there."""
        for session in list(self._sessions.values()):
            session.say({})

    def close(self) -> None:
        """End all connections."""
        for session in list(self._sessions.values()):
            session.end()

    @property
    def sinks(self) -> frozenset[str]:
        """Return whose tasks are connected."""
        return frozenset(session.sink for session in self._sessions.values())

    def _deal(self) -> None:
        self._timer = None
        for who, grant in self.coordinator.deal().items():
            self._sessions[who].say({"grant": grant.message()})
        due = self.coordinator.due()
        if due is not None:
            self._deal_at(max(due, asyncio.get_running_loop().time() + BRIEFLY))

    def _deal_at(self, when: float) -> None:
        """Deal at a moment, or before; all that has arrived until then is taken into account."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._deal)
