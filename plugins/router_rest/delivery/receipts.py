"""Receipts: what became of each row. Tasks write them in parts, and the next attempt at the batch reads them.

A part may have notes about the attempt that wrote it:

| note | says |
|---|---|
| `attempt` | the name of the attempt: one run of one task |
| `reserved` | ranges of rows whose calls may go out from now on |
| `ended` | the attempt came to its end: of its ranges only the rows in `doubtful` may have arrived without a receipt |
| `doubtful` | offsets of rows that were sent, with an unknown result |
| `waits` | rows that the API has told to wait, and until when, in seconds since 1970 |

A note is a file of the lake, so rows are reserved for a second and more at a time. Which of them were sent is in
the `CallLog` of the attempt, which only its own machine has.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import tempfile
import time
import uuid
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from router import raw_arrow_schema
from router_rest.answers.pause_headers import MAX_RETRY_AFTER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from router import Parts
    from router_rest.delivery.batcher import Call

Place: TypeAlias = tuple[str | None, int]
"""Topic and partition of the source."""
# As types, not as text: of a task's end msgspec cannot resolve a text inside of `list` with Python 3.10.
Range: TypeAlias = tuple[str | None, int, int, int]
"""Topic, partition, first and last offset."""
Status = Literal["delivered", "dead", "parked"]

RECEIPT_SCHEMA = pa.schema(
    [
        ("query", pa.string()),
        ("route", pa.string()),
        ("sink", pa.string()),
        ("batch_id", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("status", pa.string()),
        ("http_status", pa.int32()),
        ("attempts", pa.int32()),
        ("latency_ms", pa.float64()),
        ("response", pa.string()),
        ("response_sha256", pa.string()),
        ("call_id", pa.string()),
        ("idempotency_key", pa.string()),
        ("reason", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("in_doubt", pa.bool_()),
        ("replay", pa.string()),
        ("limit_name", pa.string()),
        ("limit_key", pa.string()),
    ]
)
"""`status`: delivered, dead (never to be sent again by itself) or parked. `latency_ms`: of the last attempt.
`call_id` is the call in which the row was sent; for a parked row the one in which it would have been sent, and perhaps
was, where that is in doubt. `in_doubt`: the row may have arrived in an earlier attempt as well. `replay` names the
replay in which the row was sent again; it has no `batch_id` then. `limit_name` is the limit that the call
counted under, `limit_key` the key in it, where each has its own.
"""
PLACE_COLUMNS = ("topic", "partition", "offset")
RECEIPT_EXCERPT_BYTES = 2048
"""Bytes of a response that a receipt keeps."""
MAX_REASON_CHARS = 500


@dataclass(frozen=True)
class Owner:
    """The batch of a sink, or the replay of rows from many batches, that receipts belong to."""

    query: str
    route: str
    sink: str
    batch: int | None
    replay: str | None = None
    limit: str | None = None
    """The name of the limit that its calls count under."""

    @property
    def name(self) -> str:
        """Return the sink's own name, which is the same for all batches."""
        return f"{self.query}/{self.route}/{self.sink}"


@dataclass
class Settled:
    """Rows that get a receipt now, and the answer that decided it.

    `at` is in seconds since 1970; `id` names the call in which they were sent, which may have had more rows.
    """

    call: Call
    status: Status
    at: float
    http_status: int | None = None
    seconds: float | None = None
    response: bytes = b""
    id: str | None = None
    key: str | None = None
    reason: str | None = None


def make_receipts(owner: Owner, settled: Sequence[Settled]) -> pa.Table:
    """Return the receipts of rows: the columns of RECEIPT_SCHEMA."""
    # What is the same for the rows of a call is made once for the call, and then taken for each of its rows.
    calls = pa.Table.from_pylist([_of_call(each) for each in settled], RECEIPT_SCHEMA)
    rows_of_calls = [len(each.call) for each in settled]
    rows = calls.take(pa.array(np.repeat(np.arange(len(settled)), rows_of_calls)))
    offsets: list[int] = []
    in_doubt: list[bool] = []
    for each in settled:
        offsets += each.call.offsets
        in_doubt += [offset in each.call.doubtful for offset in each.call.offsets]
    own_columns = {"offset": pa.array(offsets, pa.int64()), "in_doubt": pa.array(in_doubt, pa.bool_())}
    of_owner = {
        "query": owner.query,
        "route": owner.route,
        "sink": owner.sink,
        "batch_id": owner.batch,
        "replay": owner.replay,
        "limit_name": owner.limit,
    }
    for name, value in of_owner.items():
        own_columns[name] = pa.repeat(pa.scalar(value, RECEIPT_SCHEMA.field(name).type), len(offsets))
    columns = [own_columns.get(name, rows[name]) for name in RECEIPT_SCHEMA.names]
    return pa.Table.from_arrays(columns, schema=RECEIPT_SCHEMA)


def _of_call(settled: Settled) -> dict[str, Any]:
    """Return the values that all receipts of a call share."""
    call = settled.call
    receipt: dict[str, Any] = {
        "topic": call.topic,
        "partition": call.partition,
        "status": settled.status,
        "http_status": settled.http_status,
        "attempts": call.attempts,
        "call_id": settled.id,
        "idempotency_key": settled.key,
        "reason": settled.reason and settled.reason[:MAX_REASON_CHARS],
        "at": int(settled.at * 1_000_000),
        "limit_key": call.limit or None,
    }
    if settled.seconds is not None:
        receipt["latency_ms"] = settled.seconds * 1000
    if settled.response:
        receipt["response"] = settled.response[:RECEIPT_EXCERPT_BYTES].decode(errors="replace")
        receipt["response_sha256"] = hashlib.sha256(settled.response).hexdigest()
    return receipt


@dataclass(frozen=True)
class KnownReceipts:
    """The rows of a batch that have a receipt, and the others that may have arrived. Runs anywhere.

    Both by topic and partition; `doubtful` as ranges, in order and apart. `waits` are rows that the API has told to
    wait, by topic, partition and offset, each with the time until when, which is not over.
    """

    done: Mapping[Place, np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=dict)
    doubtful: Mapping[Place, Sequence[tuple[int, int]]] = field(default_factory=dict)
    waits: Mapping[tuple[str | None, int, int], float] = field(default_factory=dict)

    @classmethod
    def from_parts(cls, parts: Parts) -> KnownReceipts:
        """Read what earlier attempts at the batch left."""
        done: dict[Place, list[Any]] = {}
        reserved: dict[str, list[Range]] = {}
        ended: set[str] = set()
        doubtful: list[Range] = []
        waits: dict[tuple[str | None, int, int], float] = {}
        for notes, rows in parts.read(PLACE_COLUMNS):
            for place in rows.group_by(["topic", "partition"]).aggregate([("offset", "list")]).to_pylist():
                offsets = np.array(place["offset_list"], np.int64)
                done.setdefault((place["topic"], place["partition"]), []).append(offsets)
            reserved.setdefault(notes.get("attempt", ""), []).extend(ranges_in(notes.get("reserved")))
            for *row, until in json.loads(notes.get("waits", "[]")):
                # Much longer than the longest pause: the clock was set back. Those of two machines differ a little.
                if 0 < until - time.time() <= 2 * MAX_RETRY_AFTER_SECONDS:
                    waits[tuple(row)] = until
            if "ended" in notes:
                ended.add(notes["attempt"])
                doubtful += ranges_in(notes.get("doubtful"))
        offsets_done = {place: np.unique(np.concatenate(parts_of)) for place, parts_of in done.items()}
        for attempt, ranges in reserved.items():
            if not ranges or attempt in ended:
                continue
            # Of an attempt that was cut off its log says which calls went out; without it all may have.
            begun = CallLog.read_ranges(attempt)
            doubtful += ranges if begun is None else _subtract_done(offsets_done, begun)
        return cls(offsets_done, merge_ranges(doubtful), waits)

    def find_open(self, place: Place, offsets: Any) -> Any:
        """Return, for each offset of a source partition, whether the row has no receipt."""
        return np.isin(offsets, self.done.get(place, ()), invert=True, kind="sort")

    def open_rows(self, call: Call) -> Call:
        """Return a call of the rows without a receipt, with those that may have arrived, and whether it is held."""
        place = call.topic, call.partition
        if place in self.done:
            open_positions = np.flatnonzero(self.find_open(place, call.offsets)).tolist()
            if len(open_positions) < len(call):
                call = call.select_rows(open_positions)
        if place in self.doubtful:
            call.doubtful = offsets_within(self.doubtful[place], call.offsets)
        if self.waits:
            call.held = any((*place, offset) in self.waits for offset in call.offsets)
        return call


def offsets_within(ranges: Sequence[tuple[int, int]], offsets: Iterable[int]) -> frozenset[int]:
    """Return the offsets that are in one of some ranges of one place, which are in order and apart."""
    inside = set()
    for offset in offsets:
        # The last range that begins at the offset or before it.
        number = bisect_right(ranges, (offset, inf)) - 1
        if number >= 0 and offset <= ranges[number][1]:
            inside.add(offset)
    return frozenset(inside)


def merge_ranges(ranges: Iterable[Range]) -> dict[Place, list[tuple[int, int]]]:
    """Return ranges by place, in order; those that touch are one."""
    merged: dict[Place, list[tuple[int, int]]] = {}
    for topic, partition, first, last in sorted(ranges, key=lambda written: written[2:]):
        of_place = merged.setdefault((topic, partition), [])
        if of_place and first <= of_place[-1][1] + 1:
            of_place[-1] = (of_place[-1][0], max(last, of_place[-1][1]))
        else:
            of_place.append((first, last))
    return merged


def note_of(ranges: Iterable[Range]) -> str:
    """Return ranges as the text of a note."""
    return json.dumps([*ranges])


def ranges_of(place: Place, offsets: Iterable[int]) -> list[Range]:
    """Return offsets as ranges; consecutive ones are one range."""
    ranges: list[Range] = []
    for offset in sorted(offsets):
        if ranges and ranges[-1][3] == offset - 1:
            ranges[-1] = (*place, ranges[-1][2], offset)
        else:
            ranges.append((*place, offset, offset))
    return ranges


def ranges_in(note: str | None) -> list[Range]:
    """Return the ranges in the text of a note."""
    return [tuple(written) for written in json.loads(note or "[]")]


def _subtract_done(done: Mapping[Place, Any], ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield ranges without the rows that have a receipt."""
    for place, ranges_of_place in merge_ranges(ranges).items():
        offsets = np.concatenate([np.arange(first, last + 1) for first, last in ranges_of_place])
        yield from ranges_of(place, np.setdiff1d(offsets, done.get(place, offsets[:0])).tolist())


class CallLog:
    """The calls that an attempt has begun: a file that outlives the process that writes it, and not the machine.

    It is there until the attempt ends, and locked for as long as more may be written. The name has the machine's start
    in it, for what was not on disk before that is lost. Of an attempt that was killed it is there until the batch is
    done: `remove_call_logs` removes it then. On other machines than the driver's it stays for CALL_LOG_KEPT_SECONDS.
    """

    def __init__(self, attempt: str) -> None:
        self._path = _log_folder() / f"{_log_prefix()}{attempt}"
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def note_call(self, call: Call) -> None:
        """Note a call that is about to be sent."""
        ranges = ranges_of((call.topic, call.partition), call.offsets)
        os.write(self._file, note_of(ranges).encode() + b"\n")

    def close(self, *, keep: bool) -> None:
        """Write nothing more; without `keep` the file is removed."""
        try:
            if not keep:
                self._path.unlink(missing_ok=True)
        finally:
            os.close(self._file)

    @staticmethod
    def read_ranges(attempt: str) -> list[Range] | None:
        """Return the rows of the calls that an attempt has begun; None: it is not known, or not yet all of them."""
        ranges: list[Range] = []
        try:
            with (_log_folder() / f"{_log_prefix()}{attempt}").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                for line in file:
                    ranges += ranges_in(line.decode())
        except (OSError, ValueError):  # of another machine; still written to; broken off
            return None
        return ranges


_CALL_LOG_PREFIX = "event-router-"
"""How the names of call logs begin."""


def _log_folder() -> Path:
    return Path(tempfile.gettempdir())


def _log_prefix() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{_CALL_LOG_PREFIX}{boot}-"


CALL_LOG_KEPT_SECONDS = 7 * 86_400.0
"""Seconds after which a call log is not needed any more: its batch was sent again, or given up, long ago."""


def remove_call_logs(parts: Parts) -> None:
    """Remove the logs of the attempts at a batch that is done."""
    try:
        prefix = _log_prefix()
    except OSError:  # a system without it has no logs
        return
    logs = {path.name.removeprefix(prefix): path for path in _log_folder().glob(f"{prefix}*")}
    if not logs:  # nothing was killed: the parts need not be read
        return
    for attempt in {notes.get("attempt", "") for notes, _ in parts.read([])}:
        if attempt in logs:
            _remove_unless_written(logs[attempt])


def remove_old_call_logs() -> None:
    """Remove the logs from before this machine's start, and those that were not read for CALL_LOG_KEPT_SECONDS."""
    prefix = _log_prefix()
    oldest = time.time() - CALL_LOG_KEPT_SECONDS
    for path in _log_folder().glob(f"{_CALL_LOG_PREFIX}*"):
        with suppress(OSError):  # removed meanwhile
            if not path.name.startswith(prefix) or path.stat().st_mtime < oldest:
                _remove_unless_written(path)


def _remove_unless_written(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:  # removed meanwhile; of another user; still written to
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()


PART_PAUSE_SECONDS = 1.0
"""Seconds between two parts: calls that a killed worker sent since the last part are in doubt."""


@dataclass
class ReceiptWriter:
    """The receipts of one task, written about every second; belongs to one event loop.

    Answers are landed in `responses`, if they are to be, before their receipts are written.
    """

    parts: Parts
    owner: Owner
    responses: Parts | None = None
    attempt: str = field(default_factory=lambda: str(uuid.uuid4()))
    rate: float = 0.0
    size: int = 0
    """Bytes of rows and answers that are to be written."""
    waits: list[tuple[str | None, int, int, float]] = field(default_factory=list)
    """Rows that the API has told to wait, and until when: they are written with the next part."""
    _settled: list[Settled] = field(default_factory=list)
    _reserved: list[Range] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "journal"))
    _last: float = field(default_factory=time.monotonic)
    _opened: bool = False
    _log: CallLog | None = None

    def add_receipt(self, settled: Settled) -> None:
        """Note a receipt; it is written with the next part."""
        self._settled.append(settled)
        self.size += len(settled.response) + sum(map(len, settled.call.rows))

    async def reserve_ranges(self, ranges: Iterable[Range]) -> None:
        """Write down that calls of these rows may be sent; they may be once this returns."""
        if not self._opened:
            self._opened = True
            with suppress(OSError):  # without it all that is reserved is in doubt after a crash
                remove_old_call_logs()
                self._log = CallLog(self.attempt)
        self._reserved.extend(ranges)
        await self.flush()

    def begin_call(self, call: Call) -> None:
        """Note that a call is sent now."""
        try:
            if self._log is not None:
                self._log.note_call(call)
        except OSError:  # the disk is full
            self.close(keep=False)

    def close(self, *, keep: bool = True) -> None:
        """Note no more calls; without `keep` those that were begun are not needed any more."""
        log = self._log
        self._log = None
        if log is not None:
            log.close(keep=keep)

    async def keep_writing(self) -> None:
        """Write a part every second while there is something to write; ends by being cancelled."""
        while True:
            await asyncio.sleep(PART_PAUSE_SECONDS)
            if self._settled or self.waits:
                await self.flush()

    async def flush(self, **more: str) -> None:
        """Write the receipts, ranges and waits that have been noted as one part, with `more` notes."""
        async with self._lock:
            # What comes while this part is written belongs to the next one.
            settled = self._settled
            notes = {"attempt": self.attempt, "reserved": note_of(self._reserved), "waits": json.dumps(self.waits)}
            self._settled = []
            self._reserved = []
            self.waits.clear()
            self.size = 0
            self._measure_rate(settled)
            await self._write_part(settled, notes | more)

    async def write_last(self, unsure: Iterable[tuple[str | None, int, Iterable[int]]]) -> None:
        """Write the last part, when all calls have ended; `unsure` are rows without a receipt that may have arrived."""
        ranges: list[Range] = []
        for topic, partition, offsets in unsure:
            ranges += ranges_of((topic, partition), offsets)
        await self.flush(ended="yes", doubtful=note_of(ranges))
        self._thread.shutdown()
        self.close(keep=False)

    async def _write_part(self, settled: list[Settled], notes: dict[str, str]) -> None:
        """Write a part; when cancelled meanwhile, wait until it is written, or its receipts would be lost."""
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write_blocking, settled, notes)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    def _write_blocking(self, settled: list[Settled], notes: dict[str, str]) -> None:
        if self.responses is not None and settled:
            write_responses(self.responses, settled)
        table: pa.Table = make_receipts(self.owner, settled)
        self.parts.write(table, notes)

    def _measure_rate(self, settled: list[Settled]) -> None:
        now = time.monotonic()
        rows = sum(len(each.call) for each in settled)
        self.rate = rows / max(now - self._last, 0.001)
        self._last = now


RECORD_SCHEMA = raw_arrow_schema()
"""The columns of a raw record. `key` is the id of the call; `topic`, `partition` and `offset` are the event's."""


def write_responses(parts: Parts, settled: Sequence[Settled]) -> None:
    """Write the records of delivered calls, `{"event": ..., "response": ...}`, as one part of their table.

    An event or a response that is not JSON becomes a text. Each row of a call has the whole response.
    """
    rows = []
    for each in settled:
        if each.status != "delivered":
            continue
        response = _as_json(each.response)
        for offset, row in zip(each.call.offsets, each.call.rows, strict=True):
            rows.append(
                {
                    "key": (each.id or "").encode(),
                    "value": b'{"event":%b,"response":%b}' % (_as_json(row), response),
                    "topic": each.call.topic,
                    "partition": each.call.partition,
                    "offset": offset,
                    "timestamp": int(each.at * 1_000_000),
                }
            )
    parts.write(pa.Table.from_pylist(rows, RECORD_SCHEMA))


def _as_json(text: bytes) -> bytes:
    """Return JSON as it is, and anything else as a JSON string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        if not text:
            return b"null"
        return json.dumps(text.decode(errors="replace")).encode()
    return text
