"""Limit a server: what is let through, and what its headers say about it."""

from __future__ import annotations

import math
import time
from email.utils import formatdate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_demo.api_server.script import Limit, RetryAfter

YEAR = 365 * 24 * 3600


class Bucket:
    """Hold the tokens of one limit; times are monotonic seconds."""

    def __init__(self, limit: Limit, now: float | None = None) -> None:
        self.limit = limit
        self._full = limit.rate * limit.window if limit.window else limit.burst
        self._tokens = self._full
        self._since = time.monotonic() if now is None else now

    def becomes(self, limit: Limit, now: float | None = None) -> Bucket:
        """Return the bucket under another limit: what was used up stays used up."""
        changed = Bucket(limit, now)
        self._fill(changed._since)
        changed._tokens = min(changed._full, self._tokens)
        if limit.window:
            changed._since = self._since
        return changed

    def wait(self, units: float, now: float) -> float:
        """Return the seconds until so many tokens are there; 0 when they are."""
        self._fill(now)
        lacking = min(units, self._full) - self._tokens
        if lacking <= 1e-9:  # what rounding leaves over is no token that lacks
            return 0.0
        return self._since + self.limit.window - now if self.limit.window else lacking / self.limit.rate

    def take(self, units: float) -> None:
        """Take tokens; more than there can ever be are owed."""
        self._tokens -= units

    def headers(self, now: float) -> list[tuple[str, str]]:
        """Return the headers that tell this limit."""
        self._fill(now)
        seconds = self.limit.window or 1.0
        reset = math.ceil(self._since + seconds - now) if self.limit.window else 1
        left = math.floor(max(0.0, self._tokens) + (0 if self.limit.window else self.limit.rate))
        quota = math.floor(self.limit.rate * seconds)
        return _told(self.limit, quota, left, reset, math.ceil(seconds))

    def _fill(self, now: float) -> None:
        if not self.limit.window:
            self._tokens = min(self._full, self._tokens + (now - self._since) * self.limit.rate)
            self._since = now
        elif now >= self._since + self.limit.window:
            self._since += (now - self._since) // self.limit.window * self.limit.window
            self._tokens = self._full


def retry_after(form: RetryAfter, wait: float) -> list[tuple[str, str]]:
    """Return a Retry-After header that tells so many seconds, in one of its forms."""
    whole = math.ceil(wait)
    texts = {
        "seconds": str(whole),
        "date": formatdate(math.ceil(time.time() + wait), usegmt=True),
        "absurd": str(YEAR),
        "malformed": "in a while",
    }
    return [("Retry-After", texts[form])] if form in texts else []


def _told(limit: Limit, quota: int, left: int, reset: int, seconds: int) -> list[tuple[str, str]]:
    if limit.told == "draft":
        policy = f'"{limit.name}";q={quota};w={seconds}'
        return [("RateLimit-Policy", policy), ("RateLimit", f'"{limit.name}";r={left};t={reset}')]
    prefix = "RateLimit" if limit.told == "three" else "X-RateLimit"
    last = reset + math.floor(time.time()) if limit.told == "x_epoch" else reset
    named = (("Limit", quota), ("Remaining", left), ("Reset", last))
    return [(f"{prefix}-{name}", str(number)) for name, number in named] if limit.told else []
