"""A task's end of the channel to the driver. Runs on executors, in the one asyncio loop of a task."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from router import StartError
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

    from typing_extensions import Self

    from router_rest.channel.protocol import ServerAddress


class TaskEnded(Exception):  # noqa: N818 - what derives from it says what happened
    """The end of a task's work: no more calls may go out from it."""


class Gone(TaskEnded):
    """A driver that is not reached. What other tasks send is not known, so this one sends nothing."""


class DriverChannel:
    """A connection to the driver, on which both sides have proved who they are.

    `welcome` is the first message of the driver.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Mapping[str, Any]) -> None:
        self.welcome = welcome
        self.gone: Gone | None = None
        self._reader = reader
        self._writer = writer
        self._questions = count()
        self._answers: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        """The questions that are not answered yet."""
        self._silent_ticks = 0
        self._tasks = [asyncio.ensure_future(self._read_messages()), asyncio.ensure_future(self._watch_driver())]

    @classmethod
    async def open(cls, address: ServerAddress, sink: str) -> Self:
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

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Take a message of the driver."""

    def on_end(self, why: TaskEnded) -> None:
        """End all waits: no message comes any more."""

    async def fetch_credentials(self, refused: str = "") -> Mapping[str, Any]:
        """Return the sink's credentials from the driver; `refused` is the version that the API did not take.

        Raises:
            Gone: The driver is not reached.
            LookupError: The driver has none; its log says why.
            StartError: There will be none until a configuration is changed.
        """
        if self.gone is not None:
            raise self.gone
        number = next(self._questions)
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self.send_message({"credentials": number, "refused": refused})
        try:
            message = await answer
        finally:
            del self._answers[number]
        if "wrong" in message:
            raise StartError(message["wrong"])
        if "failed" in message:
            raise LookupError(f"the driver has no credentials: {message['failed']}")
        given: Mapping[str, Any] = message["given"]
        return given

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
                answer = self._answers.get(message.get("credentials", -1))
                if answer is not None and not answer.done():
                    answer.set_result(message)
                self.on_message(message)
        except (OSError, ValueError) as error:
            self._end(Gone(f"the driver is gone: {error}"))
        else:
            self._end(Gone("the driver is gone"))

    def _end(self, why: Gone) -> None:
        if self.gone is None:
            self.gone = why
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(why)
        self.on_end(why)
