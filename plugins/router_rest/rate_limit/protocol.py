"""What a task and the driver say to each other about calls: reports of how they went, grants of what may go out.

Plain data, with its form as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

from router_rest.rate_limit.sliding_window import RateLimit, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["go", "probe", "hold", "leave"]


@dataclass(frozen=True)
class Pace:
    """The pace at which an API may be called, by all tasks of all sinks that share the limit together.

    `share` is the part of each limit that is used: the rest is for what arrives sooner or later than it was sent.
    """

    limits: tuple[RateLimit, ...] = ()
    in_flight: int = 64
    share: float = 0.98
    longest_pause: float = 300.0
    """Seconds: a longer Retry-After counts as this."""
    retry_share: float = 0.2
    """Retries per call."""
    retry_floor: float = 10.0
    """Retries per second in any case."""

    def __post_init__(self) -> None:
        if self.in_flight < 1 or not 0 < self.share < 1 or not 0 < self.longest_pause < inf:
            raise ValueError("a pace has in_flight of 1 or more, a share between 0 and 1, and a longest pause above 0")


@dataclass(frozen=True)
class TaskReport:
    """What a task saw since its last message, and what it wants."""

    sent: int = 0
    ok: int = 0
    throttled: int = 0
    failed: int = 0
    timeouts: int = 0
    """Of those that failed."""
    lapsed: int = 0
    """Tokens that nobody used."""
    retried: int = 0
    """Of those sent."""
    denied: int = 0
    """Retries that the budget had nothing for."""
    seconds: float = 0.0
    """All attempts that ended, added up."""
    pause: float | None = None
    """Retry-After, seconds."""
    left: tuple[float, float] | None = None
    """What RateLimit headers said: calls left, and the seconds that they are for."""
    received: int = 0
    """Tokens so far, to tell those that are on their way."""
    number: int = 0
    """Of the last cap that was read."""
    out: int = 0
    """Calls in flight."""
    waiting: int = 0
    """Calls that want a token."""
    wants: tuple[tuple[int, int], ...] = ()
    """Tokens to ask for, in order: rows of a call, and how many such calls."""

    def message(self) -> dict[str, Any]:
        """Return this as JSON can hold it, without what is as usual."""
        return {name: value for name, value in vars(self).items() if value}

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> TaskReport:
        """Read a message. What headers said was a stranger's: numbers that are none are left out."""
        left, pause = message.get("left"), message.get("pause")
        numbers = {name: message[name] for name in COUNTS if name in message}
        return cls(
            **numbers,
            seconds=message.get("seconds", 0.0),
            pause=pause if pause is not None and _is_time(pause) else None,
            left=(left[0], left[1]) if left and all(map(_is_time, left)) else None,
            wants=tuple((max(1, rows), many) for rows, many in message.get("wants", ())),
        )


COUNTS = [name for name, one in TaskReport.__dataclass_fields__.items() if one.type == "int"]


def _is_time(value: float) -> bool:
    return isfinite(value) and value >= 0


@dataclass(frozen=True)
class Grant:
    """What one task may do.

    go: use the tokens. probe: the same; the API is out, and this call asks it. hold: drop all tokens. leave: end
    the task, nothing goes out for `again` seconds or so. The times of tokens are those of the driver's clock.
    """

    state: State = "go"
    runs: tuple[Run, ...] = ()
    number: int = 0
    cap: int = 0
    """Calls in flight."""
    retries: int = 0
    """Retries that may be made, beside those that were granted before."""
    again: float = 0.0

    def message(self) -> dict[str, Any]:
        """Return this as JSON can hold it."""
        runs = [[run.first, run.step, run.calls, run.rows, run.lives] for run in self.runs]
        return {**vars(self), "runs": runs}

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Grant:
        """Read a message."""
        return cls(**{**message, "runs": tuple(Run(*run) for run in message["runs"])})


@dataclass(frozen=True)
class Outlook:
    """When a job is worth its start, for the driver."""

    out: bool
    """The API is out."""
    again: float
    """Seconds until something may go out; 0: now."""
    tasks: int
