"""A call with its rows, the reply to it, and the record of all calls.

The record holds of every call when it had arrived whole, what it contained and what became of it. All figures are
counted from the record alone, and are exact: from every call, with no sampling and no steps.
"""

from __future__ import annotations

import gzip
import json
from array import array
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from router_demo.api_server.script import How, Limit

JSON = ("Content-Type", "application/json")
THROTTLED = 429
UNANSWERED = 0
"""The status of a call that got no answer, or one that is no HTTP."""


@dataclass(slots=True)
class Call:
    """A request that had arrived whole at `at`, a monotonic time in seconds.

    `path` is as it was on the wire, `headers` finds a name in either case, `number` is its place in the record.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float
    number: int = -1

    def header(self, name: str) -> str:
        """Return a header, or ""."""
        return self.headers.get(name, "")

    def rows(self, wrapped: str) -> list[Any]:
        """Return the rows of the body; `wrapped` names the list in a body that wraps them."""
        return rows(self.body, self.header("Content-Encoding"), wrapped)


@dataclass(slots=True)
class Reply:
    """How a call is answered: after `seconds`, in the way of `how` (see `script.Failure`).

    `due` is called when its time has come. One that `covers` is sent in place of the answer: the call is still
    processed.
    """

    status: int
    body: bytes = b""
    headers: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    how: How = "answer"
    size: int = 0
    due: Callable[[], None] | None = None
    covers: bool = False


def error(status: int, text: str, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """Return a plain error."""
    return Reply(status, json.dumps({"error": text}).encode(), [JSON, *headers])


def rows(body: bytes, encoding: str, name: str) -> list[Any]:
    """Return the rows of a body, none when it is not JSON; gzip or not.

    A body is an object, an array, an object that wraps a list of rows under `name`, or one object a line.
    """
    try:
        text = gzip.decompress(body) if encoding == "gzip" else body
    except (OSError, EOFError):
        return []
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return _lines(text)  # no JSON as a whole, perhaps one object a line
    if isinstance(content, dict) and isinstance(content.get(name), list):
        content = content[name]
    if isinstance(content, list):
        return content
    return [content]


def value(row: Any, path: str) -> Any:
    """Return what is at a dotted path of a row; None when there is nothing."""
    for step in path.split("."):
        row = row.get(step) if isinstance(row, dict) else None
    return row


def _lines(text: bytes) -> list[Any]:
    try:
        return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except msgspec.DecodeError:
        return []


class Record:
    """All calls since it was made, in the order of their arrival.

    Times are of the machine's monotonic clock, in seconds. A call was processed when its rows took effect, once
    for each time; one that repeats a key was replayed, and took no effect.
    """

    def __init__(self) -> None:
        self.times = array("d")
        self.statuses = array("h")
        self.methods: list[str] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.bodies: list[bytes] = []
        self.encodings: list[str] = []
        self.headers: dict[int, dict[str, str]] = {}
        self.processed = array("B")
        self.replayed = 0
        self.abandoned = 0
        """Calls whose connection ended before their answer."""
        self.connections = 0
        """Connections accepted."""
        self.in_flight = 0
        self.busiest = 0
        """The most calls that were in flight together."""
        self.lag = 0.0
        """The longest that the server itself was held up, in seconds: by so much the time of an arrival may be off."""
        self.tokens = 0
        """Tokens given out."""
        self.rates: dict[str, list[tuple[float, float]]] = {}
        self._units: dict[str, str] = {}
        self._parts: dict[int, tuple[int, ...]] = {}

    def arrive(self, call: Call, key_header: str) -> int:
        """Note a call that is whole, its idempotency key under this name; return its number."""
        self.times.append(call.at)
        self.statuses.append(UNANSWERED)
        self.methods.append(call.method)
        self.paths.append(call.path)
        self.keys.append(call.header(key_header))
        self.bodies.append(call.body)
        self.encodings.append(call.header("Content-Encoding"))
        self.processed.append(0)
        return len(self.times) - 1

    def process(self, number: int, part: tuple[int, ...] | None = None) -> None:
        """Note that a call took effect; with `part` only these of its rows."""
        self.processed[number] = 1
        if part is not None:
            self._parts[number] = part

    def limit(self, at: float, limits: Iterable[Limit]) -> None:
        """Note the limits that hold from now on."""
        limits_by_name = {limit.name: limit for limit in limits}
        for name in self.rates:
            if name not in limits_by_name:
                self.rates[name].append((at, 0.0))
        for name, limit in limits_by_name.items():
            self.rates.setdefault(name, []).append((at, limit.rate))
            self._units[name] = limit.unit

    def stats(self, since: float, until: float, window: float, wrapped: str) -> dict[str, Any]:
        """Return the figures of the calls that arrived from `since` to `until`."""
        all_times = np.array(self.times)
        begin = int(np.searchsorted(all_times, since))
        end = int(np.searchsorted(all_times, until))
        times = all_times[begin:end]
        statuses = np.array(self.statuses[begin:end])
        let_in = statuses != THROTTLED
        counts = Counter(statuses.tolist())
        keys = self.processed_keys(begin, end)
        limit_used = {}
        for name in self.rates:
            limit_used[name] = self._limit_used(name, times=times, let_in=let_in, begin=begin, end=end, wrapped=wrapped)
        return {
            "arrived": len(times),
            "statuses": {str(status): count for status, count in sorted(counts.items())},
            "throttled_share": counts[THROTTLED] / len(times) if len(times) else 0.0,
            "processed": sum(self.processed[begin:end]),
            "processed_keys": len(set(keys)),
            "repeated_keys": len(keys) - len(set(keys)),
            "first": float(times[0]) if len(times) else None,
            "last": float(times[-1]) if len(times) else None,
            "highest": highest(times, window),
            "highest_let_in": highest(times[let_in], window),
            "limit_used": limit_used,
            # From here on since the record was made, whatever the span.
            "replayed": self.replayed,
            "abandoned": self.abandoned,
            "connections": self.connections,
            "in_flight": self.in_flight,
            "busiest": self.busiest,
            "lag": self.lag,
            "tokens": self.tokens,
        }

    def processed_keys(self, begin: int, end: int) -> list[str]:
        """Return the idempotency keys of the calls from number `begin` to before `end` that were processed."""
        keys = []
        for key, is_processed in zip(self.keys[begin:end], self.processed[begin:end], strict=True):
            if is_processed and key:
                keys.append(key)
        return keys

    def counts(self, ids: Sequence[str], wrapped: str, since: float, until: float) -> Counter[tuple[Any, ...]]:
        """Return how often each row was processed, by the values at some dotted paths of it."""
        counts: Counter[tuple[Any, ...]] = Counter()
        for number, at in enumerate(self.times):
            if not self.processed[number] or not since <= at < until:
                continue
            call_rows = self._rows(number, wrapped)
            # Of a call that is answered row by row only some rows took effect.
            taken = self._parts.get(number, range(len(call_rows)))
            for index in taken:
                row_id = tuple(value(call_rows[index], path) for path in ids)
                counts[row_id] += 1
        return counts

    def calls(self, last: int) -> list[dict[str, Any]]:
        """Return the newest calls, oldest first."""
        first = max(0, len(self.times) - last)
        return [self._call(number) for number in range(first, len(self.times))]

    def _call(self, number: int) -> dict[str, Any]:
        body = self.bodies[number]
        return {
            "at": self.times[number],
            "method": self.methods[number],
            "path": self.paths[number],
            "status": self.statuses[number],
            "processed": bool(self.processed[number]),
            "key": self.keys[number],
            "sha256": sha256(body).hexdigest(),
            "body": body.decode("latin-1"),
            "headers": self.headers.get(number, {}),
        }

    def _limit_used(
        self, name: str, *, times: NDArray[np.float64], let_in: NDArray[np.bool_], begin: int, end: int, wrapped: str
    ) -> float | None:
        """Return the share of a limit that was used by the calls from number `begin` to before `end`.

        `times` are those of these calls, `let_in` says which of them were not answered 429.
        """
        weights = None
        if self._units[name] == "rows":
            sizes = [len(self._rows(number, wrapped)) for number in range(begin, end)]
            weights = np.array(sizes, dtype=float)[let_in]
        return used(times[let_in], self.rates[name], weights)

    def _rows(self, number: int, wrapped: str) -> list[Any]:
        return rows(self.bodies[number], self.encodings[number], wrapped)


def highest(times: NDArray[np.float64], seconds: float, weights: NDArray[np.float64] | None = None) -> float:
    """Return the most that came within any `seconds`, wherever they begin; `times` in order, `weights` 1 by default.

    A window reaches from an arrival back, without its far end: two calls exactly `seconds` apart are in no window
    together. The fullest window always ends at some arrival, so that these are all that need to be looked at.
    """
    if not len(times):
        return 0
    if weights is None:
        weights = np.ones(len(times))
    # total[n] is the weight of the first n arrivals, so that a window's weight is a difference of two totals.
    total = np.concatenate([[0.0], np.cumsum(weights)])
    first = np.searchsorted(times, times - seconds, side="right")
    return float(np.max(total[1:] - total[first]))


def used(
    times: NDArray[np.float64], rates: Sequence[tuple[float, float]], weights: NDArray[np.float64] | None = None
) -> float | None:
    """Return the share of a limit that was used between the first and the last of `times`; None for fewer than two.

    `rates` are the limit's changes, as (time, units per second), in order; 0 is no limit, and what came then is left
    out. The first arrival opens the count: n arrivals fill n - 1 gaps.
    """
    if len(times) < 2 or not rates:
        return None
    if weights is None:
        weights = np.ones(len(times))
    # What was allowed: each rate for as long as it held between the first arrival and the last.
    starts = np.array([start for start, _ in rates])
    ends = np.append(starts[1:], np.inf)
    rate_values = np.array([rate for _, rate in rates])
    seconds = np.clip(np.minimum(ends, times[-1]) - np.maximum(starts, times[0]), 0, None)
    allowed = float(np.sum(seconds * rate_values))
    # What came: the arrivals at which a limit held. A place of -1 is before the first one.
    place = np.searchsorted(starts, times, side="right") - 1
    is_limited = (place >= 0) & (rate_values[np.clip(place, 0, None)] > 0)
    limited_weights = weights[is_limited]
    if allowed <= 0 or not len(limited_weights):
        return None
    return float(np.sum(limited_weights[1:])) / allowed
