"""The messages between a task and the driver about calls: reports of how calls went, and grants of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from router_rest.limits.sliding_window import USED_LIMIT_SHARE, RateLimit, Run

if TYPE_CHECKING:
    from collections.abc import Mapping


MIN_MESSAGE_GAP_SECONDS = 0.01
"""Seconds between two reports of a task at least, and between two changes of the calls in flight that tasks may have:
what happens meanwhile goes with the next message."""

State = Literal["go", "probe", "hold", "leave", "stop"]


@dataclass(frozen=True)
class Pace:
    """The pace at which an API may be called, by all tasks of all sinks that share the limit together.

    `share` is the part of each limit that is used at most; the rest allows for calls that arrive earlier or later than
    planned.
    """

    limits: tuple[RateLimit, ...] = ()
    in_flight: int = 64
    share: float = USED_LIMIT_SHARE
    longest_pause: float = 300.0
    """Seconds: a longer Retry-After counts as this long."""
    retry_share: float = 0.2
    """Retries per call."""
    retry_floor: float = 10.0
    """Retries per second that are allowed in any case."""
    keyed: bool = False
    """The limits are those of each key, not of all calls together."""


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
    delivered: int = 0
    """Rows that were delivered."""
    throttled: int = 0
    partly: int = 0
    """Of those throttled: calls of which some rows were taken."""
    failed: int = 0
    timeouts: int = 0
    """Of those that failed."""
    bad_status: int = 0
    """The status of the last answer to a call that failed; 0: there was none."""
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
    remaining: tuple[float, float] | None = None
    """What RateLimit headers said: calls left, and the seconds that they are for."""
    received: int = 0
    """All tokens so far: the driver knows from it which ones are still on their way."""
    number: int = 0
    """The number of the last grant whose `cap` was read."""
    in_flight: int = 0
    """Calls in flight."""
    waiting: int = 0
    """Calls that wait for a token."""
    wants: tuple[Want, ...] = ()
    """In order."""

    def to_message(self) -> dict[str, Any]:
        """Return this as JSON can hold it, without what is zero or empty."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> TaskReport:
        """Read a message; leave out times from the API's headers that are no finite numbers."""
        remaining = message.get("remaining")
        pause = message.get("pause")
        return replace(
            cls(**message),
            pause=pause if pause is not None and _is_time(pause) else None,
            refused_keys=tuple(message.get("refused_keys", ())),
            remaining=(remaining[0], remaining[1]) if remaining and all(map(_is_time, remaining)) else None,
            wants=tuple(Want(max(1, rows), *more) for rows, *more in message.get("wants", ())),
        )


def _is_time(value: float) -> bool:
    return isfinite(value) and value >= 0


@dataclass(frozen=True)
class Grant:
    """The tokens of one task, and what it has to do.

    `go`: use the tokens. `probe`: the same; the circuit is open, and this call finds out whether the API works again.
    `hold`: drop all tokens. `leave`: end the task, for nothing may be sent for about `retry_after` seconds. `stop`: the
    same, and soon, for the sink stops. The times of tokens are those of the driver's clock.
    """

    state: State = "go"
    runs: tuple[Run, ...] = ()
    number: int = 0
    cap: int = 0
    """Calls in flight."""
    retries: int = 0
    """Further retries, in addition to those that were granted before."""
    retry_after: float = 0.0

    def to_message(self) -> dict[str, Any]:
        """Return this as JSON can hold it."""
        runs = [[run.first, run.step, run.calls, run.rows, run.lives, run.key] for run in self.runs]
        return {**vars(self), "runs": runs}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Grant:
        """Read a message."""
        return cls(**{**message, "runs": tuple(Run(*run) for run in message["runs"])})


@dataclass(frozen=True)
class Outlook:
    """A forecast for the driver: whether it is worth starting a job now."""

    is_open: bool
    """The circuit is open: the API does not work."""
    retry_after: float
    """Seconds until a call may be sent; 0: now."""
    tasks: int
