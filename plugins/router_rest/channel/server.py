"""The driver's end of the channel: one thread, one asyncio loop and one port serve all tasks of all sinks, over TLS."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from router import StartError
from router_rest.channel.protocol import (
    CONNECT_SECONDS,
    MAX_LINE_BYTES,
    MAX_SILENT_TICKS,
    TICK_SECONDS,
    TICKS_PER_HEARTBEAT,
    line_of,
    server_tls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

log = logging.getLogger("router")


class TaskSession:
    """The connection of one task."""

    def __init__(self, who: str, sink: str, writer: asyncio.StreamWriter) -> None:
        self.who = who
        self.sink = sink
        self.last_message = asyncio.get_running_loop().time()
        self._writer = writer

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message with the time of this clock; disconnect a task that does not read."""
        transport = self._writer.transport
        try:
            unread = transport.get_write_buffer_size()
        except AttributeError:  # before Python 3.11, of a TLS connection that is lost: it must not end what is dealt
            return
        if unread > MAX_LINE_BYTES:
            transport.abort()
        elif not transport.is_closing():
            now = asyncio.get_running_loop().time()
            transport.write(line_of({**message, "now": now}))

    def close_connection(self) -> None:
        """Close the connection."""
        self._writer.transport.abort()


class TaskListener(Protocol):
    """The user of the channel on the driver that gets all messages. All is called on the server's thread."""

    def on_open(self, session: TaskSession) -> None:
        """Begin to serve a task."""

    def on_message(self, session: TaskSession, message: Mapping[str, Any]) -> None:
        """Take a message of a task."""

    def on_stop(self, session: TaskSession) -> None:
        """Send a task away, for its sink stops; called again until it is gone."""

    def on_close(self, session: TaskSession) -> None:
        """Stop serving a task: it has disconnected."""


@dataclass(frozen=True)
class AdmittedSink:
    """A sink whose tasks may speak, under the name of its limit; and who listens to them.

    `welcome` is the first message to a task. `stop` returns whether the sink's tasks are to end. `credentials` returns
    what tasks get that ask; it is given the version that was refused, or "". It may ask a token server, so it runs on
    a thread of its own.
    """

    limit: str
    listener: TaskListener
    welcome: Mapping[str, Any] = field(default_factory=dict)
    stop: Callable[[], bool] | None = None
    credentials: Callable[[str], Mapping[str, Any]] = lambda refused: {}


async def serve_task(session: TaskSession, sink: AdmittedSink, reader: asyncio.StreamReader) -> None:
    """Give the listener the messages of a task, and the task credentials, until it disconnects."""
    answers: set[asyncio.Task[None]] = set()
    sink.listener.on_open(session)
    try:
        while line := await reader.readline():
            session.last_message = asyncio.get_running_loop().time()
            message = json.loads(line)
            if "credentials" in message:
                answer = asyncio.create_task(_send_credentials(session, sink, **message))
                answers.add(answer)
                answer.add_done_callback(answers.discard)
            sink.listener.on_message(session, message)
    finally:
        for answer in answers:
            answer.cancel()
        sink.listener.on_close(session)


async def _send_credentials(session: TaskSession, sink: AdmittedSink, credentials: int, refused: str) -> None:
    """Answer a task. What is wrong with credentials is logged here, for the message may hold a secret."""
    try:
        given = await asyncio.to_thread(sink.credentials, refused)
        session.send_message({"credentials": credentials, "given": dict(given)})
    except Exception as error:  # whatever a plugin raises; a StartError is the router's, and quotes no secret
        log.warning("sink %s: no credentials: %s", session.sink, error)
        failure = {"wrong": str(error)} if isinstance(error, StartError) else {"failed": type(error).__name__}
        session.send_message({"credentials": credentials, **failure})


class TaskServer:
    """A server at an address of the driver that executors reach.

    `host` is the address that executors get, `bind` the one that it listens on (default: the same). One daemon thread
    does all the work.
    """

    def __init__(self, host: str = "127.0.0.1", *, bind: str | None = None, port: int = 0) -> None:
        self.sinks: dict[str, AdmittedSink] = {}
        """The sinks that are admitted, by name."""
        self._host = host
        self._bind = bind or host
        self._port = port
        self._secret = secrets.token_bytes(32)
        self._tls, self._certificate = server_tls()
        self._sessions: dict[TaskSession, AdmittedSink] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="router-leases", daemon=True)
        self._ready = threading.Event()
        self._failed: OSError | None = None
        self._ending = asyncio.Event()
        self._numbers = count(1)
        self._refused_hosts: set[str] = set()

    def start(self) -> Self:
        """Listen. Raises OSError when the address is not one of this machine."""
        self._thread.start()
        self._ready.wait()
        if self._failed is not None:
            raise self._failed
        return self

    def stop(self) -> None:
        """End every connection: tasks find that the driver is gone."""
        if self.is_running:
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()

    @property
    def is_running(self) -> bool:
        """Say whether tasks are served."""
        return self._thread.is_alive()

    def call_on_loop(self, question: Callable[[], Any]) -> Any:
        """Call a function on the server's thread, which alone calls listeners; return its result.

        Raises ConnectionError when the server has ended.
        """
        answer: Future[Any] = Future()

        def answer_question() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # it is raised where the question was asked
                answer.set_exception(error)

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(answer_question)
        while not answer.done():
            if not self.is_running:
                raise ConnectionError("the server of leases has ended: how many calls may be sent is unknown")
            wait([answer], TICK_SECONDS)
        return answer.result()

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
            # Tasks send some thousand wants at most, and nothing is known of whoever connects.
            limit=MAX_LINE_BYTES // 16,
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
        """Check every tick which tasks are to stop and which are gone, until cancelled."""
        for tick in count():
            stopping = {name for name, sink in list(self.sinks.items()) if _is_stopping(name, sink)}
            now = asyncio.get_running_loop().time()
            for session, sink in list(self._sessions.items()):
                # A task may wait for a core for longer than the driver, which is one process of many threads.
                if now - session.last_message > 3 * MAX_SILENT_TICKS * TICK_SECONDS:
                    session.close_connection()
                elif session.sink in stopping:
                    sink.listener.on_stop(session)
                if tick % TICKS_PER_HEARTBEAT == 0:
                    session.send_message({})
            await asyncio.sleep(TICK_SECONDS)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends, if it comes from a task of this driver."""
        session = None
        try:
            session = await asyncio.wait_for(self._identify_task(reader, writer), CONNECT_SECONDS)
            if session is not None:
                await serve_task(session, self._sessions[session], reader)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, asyncio.TimeoutError) as error:
            log.debug("a lease ends: %s", type(error).__name__)
        except asyncio.CancelledError:
            pass  # the server stops; asyncio would log what it finds in a handler's task
        finally:
            if session is not None:
                del self._sessions[session]
            writer.transport.abort()

    async def _identify_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> TaskSession | None:
        """Find out which task of which sink has connected; None: it may not be served."""
        # A stranger gets no answer, for it needs none; a task whose sink has ended does, and says so in its report.
        introduction = json.loads(await reader.readline())
        secret = bytes.fromhex(introduction["secret"])
        if not hmac.compare_digest(secret, self._secret):
            self._log_refused(writer)
            return None
        sink = self.sinks.get(introduction["sink"])
        if sink is None or sink.limit != introduction["limit"]:
            writer.write(line_of({"refused": "the sink is not running"}))
            return None
        session = TaskSession(str(next(self._numbers)), introduction["sink"], writer)
        session.send_message(sink.welcome)
        self._sessions[session] = sink
        return session

    def _log_refused(self, writer: asyncio.StreamWriter, most_logged: int = 100) -> None:
        """Log once from where a client connected that does not know the secret; send nothing."""
        peer = writer.get_extra_info("peername")
        host = str(peer[0]) if peer else "?"
        if host not in self._refused_hosts and len(self._refused_hosts) < most_logged:
            self._refused_hosts.add(host)
            log.warning("leases: refused a connection from %s that does not know this driver's secret", host)


def _is_stopping(name: str, sink: AdmittedSink) -> bool:
    try:
        return sink.stop is not None and sink.stop()
    except Exception:  # a fault of one sink must not end the leases of all
        log.exception("sink %s: cannot say whether it stops", name)
        return False
