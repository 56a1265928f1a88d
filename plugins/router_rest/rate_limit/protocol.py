"""The messages between a task and the driver about calls, and the encryption that protects them.

Reports of how calls went and grants of tokens are plain data, with their form as JSON. They travel through a secure
channel: both sides know a secret, which neither sends, and each draws a random text for the connection. The keys are
derived from all three: whoever seals a message with them knows the secret, and what somebody overheard on one
connection is of no use on another.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from router_rest.rate_limit.sliding_window import RateLimit, Run

if TYPE_CHECKING:
    from collections.abc import Mapping


State = Literal["go", "probe", "hold", "leave"]


@dataclass(frozen=True)
class Pace:
    """The pace at which an API may be called, by all tasks of all sinks that share the limit together.

    `share` is the part of each limit that is used at most; the rest allows for calls that arrive earlier or later than
    planned.
    """

    limits: tuple[RateLimit, ...] = ()
    in_flight: int = 64
    share: float = 0.98
    longest_pause: float = 300.0
    """Seconds: a longer Retry-After counts as this long."""
    retry_share: float = 0.2
    """Retries per call."""
    retry_floor: float = 10.0
    """Retries per second that are allowed in any case."""
    keyed: bool = False
    """The limits are those of each key, not of all calls together."""

    def __post_init__(self) -> None:
        if self.in_flight < 1 or not 0 < self.share < 1 or not 0 < self.longest_pause < inf:
            raise ValueError("a pace has in_flight of 1 or more, a share between 0 and 1, and a longest pause above 0")


class Want(NamedTuple):
    """Tokens that a task asks for: for calls of so many rows, how many such calls, and for which key."""

    rows: int
    calls: int
    key: str = ""


@dataclass(frozen=True)
class TaskReport:
    """The results of a task's calls since its last report, and the tokens that it asks for."""

    sent: int = 0
    ok: int = 0
    throttled: int = 0
    partly: int = 0
    """Of those throttled: calls of which some rows were taken."""
    failed: int = 0
    timeouts: int = 0
    """Of those that failed."""
    lapsed: int = 0
    """Tokens that expired unused."""
    retried: int = 0
    """Of those sent."""
    denied: int = 0
    """Retries that the budget did not allow."""
    seconds: float = 0.0
    """The time of all attempts that ended, added up."""
    pause: float | None = None
    """Retry-After, seconds."""
    asking: int = 0
    """Answers with a Retry-After."""
    refused_keys: tuple[int, ...] = ()
    """Some of the keys whose calls were refused, each as a number."""
    left: tuple[float, float] | None = None
    """What RateLimit headers said: calls left, and the seconds that they are for."""
    received: int = 0
    """All tokens so far: the driver knows from it which ones are still on their way."""
    number: int = 0
    """The number of the last grant whose `cap` was read."""
    out: int = 0
    """Calls in flight."""
    waiting: int = 0
    """Calls that wait for a token."""
    wants: tuple[Want, ...] = ()
    """In order."""

    def message(self) -> dict[str, Any]:
        """Return this as JSON can hold it, without what is zero or empty."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> TaskReport:
        """Read a message; leave out times from the API's headers that are no finite numbers."""
        left = message.get("left")
        pause = message.get("pause")
        numbers = {name: message[name] for name in COUNTS if name in message}
        return cls(
            **numbers,
            seconds=message.get("seconds", 0.0),
            pause=pause if pause is not None and _is_time(pause) else None,
            refused_keys=tuple(message.get("refused_keys", ())),
            left=(left[0], left[1]) if left and all(map(_is_time, left)) else None,
            wants=tuple(Want(max(1, rows), *more) for rows, *more in message.get("wants", ())),
        )


COUNTS = [name for name, one in TaskReport.__dataclass_fields__.items() if one.type == "int"]


def _is_time(value: float) -> bool:
    return isfinite(value) and value >= 0


@dataclass(frozen=True)
class Grant:
    """The tokens of one task, and what it has to do.

    `go`: use the tokens. `probe`: the same; the circuit is open, and this call finds out whether the API works again.
    `hold`: drop all tokens. `leave`: end the task, for nothing may be sent for about `again` seconds. The times of
    tokens are those of the driver's clock.
    """

    state: State = "go"
    runs: tuple[Run, ...] = ()
    number: int = 0
    cap: int = 0
    """Calls in flight."""
    retries: int = 0
    """Further retries, beside those that were granted before."""
    again: float = 0.0

    def message(self) -> dict[str, Any]:
        """Return this as JSON can hold it."""
        runs = [[run.first, run.step, run.calls, run.rows, run.lives, run.key] for run in self.runs]
        return {**vars(self), "runs": runs}

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Grant:
        """Read a message."""
        return cls(**{**message, "runs": tuple(Run(*run) for run in message["runs"])})


@dataclass(frozen=True)
class Outlook:
    """A forecast for the driver: whether it is worth starting a job now."""

    out: bool
    """The circuit is open: the API does not work."""
    again: float
    """Seconds until a call may be sent; 0: now."""
    tasks: int


KEY = 32
"""Bytes of a key."""
COUNT = 12
"""Bytes of the number of a message, which is its nonce (RFC 8439, 2.8)."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of the server of a limit; it is pickled to tasks. The secret is shown nowhere."""

    host: str
    port: int
    name: str
    secret: bytes = field(repr=False)


def nonce() -> str:
    """Return a random text."""
    return secrets.token_hex(16)


class SecureChannel:
    """One side of an encrypted connection: it seals own messages and opens those of the other side, all and in order.

    ChaCha20-Poly1305 with a key for each connection and direction, by HKDF (RFC 5869). The nonce of a message is its
    number, so that a message that is repeated, left out, sent back or altered is refused.
    """

    def __init__(self, secret: bytes, side: Literal["driver", "task"], *texts: str) -> None:
        keys = HKDF(SHA256(), 2 * KEY, json.dumps(texts).encode(), b"router leases").derive(secret)
        of_driver, of_task = ChaCha20Poly1305(keys[:KEY]), ChaCha20Poly1305(keys[KEY:])
        self._own, self._other = (of_driver, of_task) if side == "driver" else (of_task, of_driver)
        self._sealed = self._opened = 0

    def seal(self, value: Any) -> bytes:
        """Return a JSON value as the next line."""
        hidden = self._own.encrypt(self._sealed.to_bytes(COUNT, "big"), json.dumps(value).encode(), None)
        self._sealed += 1
        return base64.b64encode(hidden) + b"\n"

    def open(self, line: bytes) -> Any:
        """Return the value of the next line. Raises ValueError for a line that the other side did not send here."""
        try:
            plain = self._other.decrypt(self._opened.to_bytes(COUNT, "big"), base64.b64decode(line), None)
        except (InvalidTag, ValueError):
            raise ValueError("not sealed by the other side as its next message") from None
        self._opened += 1
        return json.loads(plain)
