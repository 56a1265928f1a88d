"""A task's end of the channel to the driver. Runs on executors, in the one asyncio loop of a task."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from router_rest.channel.protocol import (
    CONNECT_SECONDS,
    MAX_LINE_BYTES,
    MAX_SILENT_TICKS,
    TICK_SECONDS,
    line_of,
    task_tls,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router_rest.channel.protocol import ServerAddress


class TaskEnded(Exception):  # noqa: N818 - what derives from it says what happened
    """The end of a task's work: no more calls may go out from it."""


class Gone(TaskEnded):
    """A driver that is not reached. What other tasks send is not known, so this one sends nothing."""


class DriverListener(Protocol):
    """A user of the channel in a task."""

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Take a message of the driver, if it is meant for this user."""

    def on_gone(self, why: Gone) -> None:
        """End all waits: no message comes any more."""


class DriverChannel:
    """A connection to the driver, on which both sides have proved who they are.

    `welcome` is the first message of the driver.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Mapping[str, Any]) -> None:
        self.welcome = welcome
        self.gone: Gone | None = None
        self._reader = reader
        self._writer = writer
        self._listeners: list[DriverListener] = []
        self._silent_ticks = 0
        self._tasks: list[asyncio.Future[None]] = []

    @classmethod
    async def open(cls, address: ServerAddress, sink: str) -> DriverChannel:
        """Connect to the driver as a task of a sink. Raises Gone."""
        connection = asyncio.open_connection(
            address.host, address.port, limit=MAX_LINE_BYTES, ssl=task_tls(address.certificate)
        )
        try:
            reader, writer = await asyncio.wait_for(connection, CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            raise Gone(f"the driver at {address.host}:{address.port} is not reached: {error}") from error
        # The certificate says that this is the driver's machine; only the answer says that the driver knows the sink.
        try:
            writer.write(line_of({"secret": address.secret.hex(), "limit": address.name, "sink": sink}))
            welcome = json.loads(await asyncio.wait_for(reader.readline(), CONNECT_SECONDS))
            if "refused" in welcome:
                raise Gone(f"sink {sink}: {welcome['refused']}")
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, (OSError, ValueError, TypeError, asyncio.TimeoutError)):
                raise Gone(f"{address.host}:{address.port} is not the driver of this task") from error
            raise
        return cls(reader, writer, welcome)

    def listen(self, listener: DriverListener) -> None:
        """Give a user all messages from now on, and the end of the connection."""
        self._listeners.append(listener)
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._read_messages()), asyncio.ensure_future(self._watch_driver())]

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message, unless the connection is closing."""
        if not self._writer.transport.is_closing():
            self._writer.transport.write(line_of(message))

    async def close(self) -> None:
        """Send what was written, and close the connection."""
        if self.gone is None:
            with suppress(OSError):
                await self._writer.drain()
        self._end(Gone("the connection is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _watch_driver(self) -> None:
        while self._silent_ticks < MAX_SILENT_TICKS:
            await asyncio.sleep(TICK_SECONDS)
            self._silent_ticks += 1
        self._end(Gone(f"the driver has been silent for {MAX_SILENT_TICKS * TICK_SECONDS:.0f} s"))

    async def _read_messages(self) -> None:
        """Read the driver's messages until it is gone."""
        try:
            while line := await self._reader.readline():
                self._silent_ticks = 0
                message = json.loads(line)
                for listener in self._listeners:
                    listener.on_message(message)
        except (OSError, ValueError) as error:
            self._end(Gone(f"the driver is gone: {error}"))
        else:
            self._end(Gone("the driver is gone"))

    def _end(self, why: Gone) -> None:
        if self.gone is None:
            self.gone = why
        for listener in self._listeners:
            listener.on_gone(why)
