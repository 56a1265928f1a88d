"""Server-sent events for the pages that are open: the snapshot, then each of its fields that has changed.

An event is a JSON object of fields of the snapshot, with `now`, the server's time. The first one has all fields. With
5,000 tables the snapshot is half a megabyte, so each field becomes JSON once for all pages, and only if it has changed.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from router.engine.status.findings import find_troubles, verdict
from router.engine.status.snapshot import PartitionStatus
from router.errors import commands_with_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.engine.status.snapshot import StreamSnapshot

PAGES = 20
"""Pages that may be open at a time."""
EVENT_SECONDS = 1.0
"""The least time between two events."""
HEARTBEAT_SECONDS = 10.0
"""After this time a page gets an event without a change, and sees that the stream can still be reached."""
SLOW_SECONDS = 10.0
"""A page that has not taken an event after this time is dropped: it would hold the event in memory."""
_PAUSE_PER_RENDERING_SECOND = 20.0
"""Seconds between two snapshots for each second that one takes to become JSON."""


class SnapshotSource(Protocol):
    """Whatever knows how a stream is: the board of a running one, or the lake of one that is down."""

    def snapshot(self) -> StreamSnapshot:
        """Return the stream as it is now."""


class SnapshotEvents:
    """The events of one server. It lives in the server's event loop."""

    def __init__(
        self, source: SnapshotSource, file: str, stuck_after: float, headers: Mapping[str, str], **constants: Any
    ) -> None:
        self.source = source
        self.file = file
        self.stuck_after = stuck_after
        self.headers = headers
        self._values: dict[str, Any] = {}
        self._texts: dict[str, str] = {name: json.dumps(value) for name, value in constants.items()}
        self._due = 0.0
        self.open_pages = 0
        self._closing = asyncio.Event()

    async def end_all(self, _application: web.Application) -> None:
        """End all events, so that the server can end."""
        self._closing.set()

    async def send_events(self, request: web.Request) -> web.StreamResponse:
        """Send events until the page is closed, or reads too slowly."""
        if self.open_pages >= PAGES:
            headers = {**self.headers, "Retry-After": "10"}
            return web.Response(text=f"{PAGES} pages are open, more are not served\n", status=503, headers=headers)
        response = web.StreamResponse(headers={**self.headers, "Content-Type": "text/event-stream"})
        self.open_pages += 1
        try:
            await response.prepare(request)
            await self._send_changes(request, response)
        except (ConnectionError, asyncio.TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.open_pages -= 1
        return response

    async def _send_changes(self, request: web.Request, response: web.StreamResponse) -> None:
        sent: dict[str, str] = {}
        sent_at = 0.0
        # A page that was closed has no transport any more; a write would notice that with the next change only.
        while not self._closing.is_set() and request.transport is not None:
            changes = {name: text for name, text in self.field_texts().items() if sent.get(name) is not text}
            if changes or time.monotonic() >= sent_at + HEARTBEAT_SECONDS:
                document = ",".join(f'"{name}":{text}' for name, text in changes.items())
                now = json.dumps(time.time())
                comma = "," if document else ""
                event = f'data: {{"now":{now}{comma}{document}}}\n\n'
                await asyncio.wait_for(response.write(event.encode()), SLOW_SECONDS)
                sent.update(changes)
                sent_at = time.monotonic()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closing.wait(), EVENT_SECONDS)

    def field_texts(self) -> Mapping[str, str]:
        """Return each field of the snapshot as JSON; until a field changes its text is the same object."""
        began = time.monotonic()
        if began < self._due:
            return self._texts
        for name, value in status_fields(self.source.snapshot(), self.file, self.stuck_after).items():
            if name not in self._values or self._values[name] != value:
                self._values[name] = value
                self._texts[name] = json.dumps(value, default=document_of)
        # A little less than a page waits, so that each of its looks finds a new snapshot.
        spent = time.monotonic() - began
        self._due = began + max(0.9 * EVENT_SECONDS, _PAUSE_PER_RENDERING_SECOND * spent)
        return self._texts


def status_text(snapshot: StreamSnapshot, file: str, stuck_after: float) -> str:
    """Return a whole snapshot as JSON, with what is wrong: the answer of `/api/status`."""
    document = {**status_fields(snapshot, file, stuck_after), "now": time.time()}
    return json.dumps(document, default=document_of)


def status_fields(snapshot: StreamSnapshot, file: str, stuck_after: float) -> dict[str, Any]:
    """Return the fields of a snapshot, with what follows from them."""
    warnings = []
    for warned in snapshot.warnings:
        warnings.append(replace(warned, message=commands_with_file(warned.message, file)))
    tables = []
    for table in snapshot.tables:
        tables.append(replace(table, blocked=commands_with_file(table.blocked, file)) if table.blocked else table)
    snapshot = replace(snapshot, warnings=tuple(warnings), tables=tuple(tables))
    wrong = find_troubles(snapshot, file, stuck_after, time.time())
    return {
        **vars(snapshot),
        "words": snapshot.words,
        "place": snapshot.place,
        "lag": snapshot.lag,
        "findings": wrong,
        "verdict": verdict(snapshot, wrong),
    }


def document_of(value: Any) -> dict[str, Any]:
    """Return a part of a snapshot for JSON."""
    # `asdict` copies each value, which takes a tenth of a second with 5,000 tables; these are read only.
    if isinstance(value, PartitionStatus):
        return {**vars(value), "lag": value.lag}
    fields: dict[str, Any] = vars(value)
    return fields
