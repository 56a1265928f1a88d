"""Serve the tasks of one limit: who is connected, what each has said, when to tell them more. Runs on the driver."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router_rest.terms import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router_rest.authority import Authority
    from router_rest.handshake import Seal

    Credentials = Callable[[str], Mapping[str, Any]]

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
class Sink:
    """Be a sink whose tasks are let in."""

    limit: str
    credentials: Credentials | None
    stop: Callable[[], bool] | None


class Session:
    """Be one task's connection."""

    def __init__(self, who: str, sink: str, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self.who = who
        self.sink = sink
        self.heard = asyncio.get_running_loop().time()
        self._writer = writer
        self._seal = seal

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a line with the time of this clock; a task that does not read is cut off."""
        transport = self._writer.transport
        if transport.get_write_buffer_size() > UNREAD:
            transport.abort()
        elif not transport.is_closing():
            now = asyncio.get_running_loop().time()
            transport.write(json.dumps({**message, "now": now}).encode() + b"\n")

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
        self.say({"credentials": number, "sealed": self._seal.close(dict(given))})


class Desk:
    """Be an authority with the tasks that it serves."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self._sessions: dict[str, Session] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, session: Session, sink: Sink, reader: asyncio.StreamReader) -> None:
        """Listen to a task until it is gone."""
        self._sessions[session.who] = session
        self.authority.enter(session.who)
        loop, answers = asyncio.get_running_loop(), set()
        try:
            while line := await reader.readline():
                session.heard = loop.time()
                message = json.loads(line)
                if "told" in message:
                    self.authority.hear(session.who, Told.read(message["told"]))
                    self._deal_at(session.heard)
                if "credentials" in message:
                    answer = session.hand_out(message["credentials"], message["refused"], sink.credentials)
                    answers.add(task := asyncio.ensure_future(answer))
                    task.add_done_callback(answers.discard)
        finally:
            for task in answers:
                task.cancel()
            del self._sessions[session.who]
            self.authority.leave(session.who)
            self._deal_at(loop.time())

    def look(self, stopping: frozenset[str]) -> None:
        """Send the tasks of some sinks away, and forget those that are silent."""
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions.values()):
            if now - session.heard > SILENT:
                session.end()
            elif session.sink in stopping:
                self.authority.stop(session.who)
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
        for who, grant in self.authority.deal().items():
            self._sessions[who].say({"grant": grant.message()})
        due = self.authority.due()
        if due is not None:
            self._deal_at(max(due, asyncio.get_running_loop().time() + BRIEFLY))

    def _deal_at(self, when: float) -> None:
        """Deal at a moment, or before; all that has arrived until then is taken into account."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._deal)
