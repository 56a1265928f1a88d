"""Serve the authorities of a driver to its tasks: a thread with one asyncio loop and one port, JSON by the line."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from router_rest.authority import Authority
from router_rest.desk import LONGEST, Desk, Session, Sink
from router_rest.handshake import Address, Seal, nonce, proof

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router_rest.desk import Credentials
    from router_rest.terms import Outlook, Pace

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
    """Serve leases at an address of the driver that executors reach.

    `host` is what executors are told, `bind` what is listened on (default: the host). One daemon thread does all.
    """

    def __init__(self, host: str = "127.0.0.1", *, bind: str | None = None, port: int = 0) -> None:
        self._host, self._bind, self._port = host, bind or host, port
        self._token = secrets.token_bytes(32)
        self._sinks: dict[str, Sink] = {}
        self._desks: dict[str, Desk] = {}
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
    ) -> Address:
        """Let the tasks of a sink in, and return where. Names of sinks are unique in a driver.

        Args:
            credentials: Returns what `Lease.credentials` hands out; gets the version that was refused, or "". Runs on
                a thread of its own.
            stop: Says that the sink's tasks are to end; asked ten times a second, on the server's thread.

        Raises:
            ValueError: Another sink states another pace for the same limit.
        """
        with self._lock:
            others = sorted(name for name, one in self._sinks.items() if one.limit == limit and name != sink)
            desk = self._desks.get(limit)
            if desk is None:
                self._desks[limit] = Desk(Authority(pace))
            elif desk.authority.pace != pace:
                if others:
                    raise ValueError(f"the limit {limit} is stated otherwise by {', '.join(others)}")
                self._desks[limit] = Desk(Authority(pace))
                self._ask(lambda: self._succeed(self._desks[limit], desk))
            self._sinks[sink] = Sink(limit, credentials, stop)
        return Address(self._host, self._port, limit, self._token)

    def dismiss(self, sink: str) -> None:
        """Let no more tasks of a sink in. What its limit has counted is kept."""
        with self._lock:
            self._sinks.pop(sink, None)

    def outlook(self, limit: str) -> Outlook:
        """Say when calls under a limit may go out, and whether the API is out. Raises ConnectionError after the end."""
        found: Outlook = self._ask(self._desks[limit].authority.outlook)
        return found

    def totals(self, limit: str) -> Mapping[str, float]:
        """Return what the tasks under a limit have told so far: sent, ok, throttled, failed, timeouts, ..."""
        return dict(self._desks[limit].authority.totals)

    def spent(self, limit: str, ago: float, *, calls: int, rows: int = 0) -> None:
        """Count calls that went out so many seconds ago, before this driver was started."""
        timeline = self._desks[limit].authority.timeline
        self._ask(lambda: timeline.spent(time.monotonic() - ago, calls, rows))

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
    def _succeed(desk: Desk, before: Desk) -> None:
        """Let a limit that is stated anew know what went out under the old one, whose tasks end."""
        desk.authority.timeline.succeed(before.authority.timeline)
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
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Look now and then at who is to stop and who is not there any more."""
        for tick in count():
            stopping = frozenset(name for name, sink in list(self._sinks.items()) if self._stops(name, sink))
            for desk in list(self._desks.values()):
                desk.look(stopping)
                if tick % BEAT == 0:
                    desk.beat()
            await asyncio.sleep(TICK)

    @staticmethod
    def _stops(name: str, sink: Sink) -> bool:
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
                desk, session, sink = met
                await desk.serve(session, sink, reader)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, asyncio.TimeoutError) as error:
            log.debug("a lease ends: %s", type(error).__name__)
        except asyncio.CancelledError:
            pass  # the server stops; asyncio would log what it finds in a handler's task
        finally:
            writer.transport.abort()

    async def _introduce(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Desk, Session, Sink] | None:
        """Find out who this is; None: nobody who may come in."""
        own = nonce()
        writer.write(json.dumps({"nonce": own}).encode() + b"\n")
        said = json.loads(await reader.readline())
        texts = own, *(str(said[name]) for name in ("nonce", "limit", "sink"))
        if not hmac.compare_digest(proof(self._token, "task", *texts), str(said["proof"])):
            self._refuse(writer)
            return None
        desk, sink = self._desks.get(said["limit"]), self._sinks.get(said["sink"])
        if desk is None or sink is None or sink.limit != said["limit"]:
            writer.write(json.dumps({"refused": "the sink is not running"}).encode() + b"\n")
            return None
        session = Session(str(next(self._numbers)), said["sink"], writer, Seal(self._token, *texts))
        session.say({"proof": proof(self._token, "driver", *texts), "sized": desk.authority.timeline.sized})
        return desk, session, sink

    def _refuse(self, writer: asyncio.StreamWriter) -> None:
        """Say nothing to a stranger, and once who it was."""
        peer = writer.get_extra_info("peername")
        where = str(peer[0]) if peer else "?"
        if where not in self._strangers and len(self._strangers) < STRANGERS:
            self._strangers.add(where)
            log.warning("leases: refused a connection from %s that does not know this driver's token", where)


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
