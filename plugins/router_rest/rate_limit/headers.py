"""What an API says of its limits in headers: when to come again, and how many calls are left.

Retry-After: RFC 9110, 10.2.3. RateLimit: draft-ietf-httpapi-ratelimit-headers-11, and what APIs sent before there was
a draft. All of it is a hint, and of a stranger: what cannot be read counts as not said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST = 3600.0
"""Seconds that an API can make us wait, whatever it says: a limit may well be one of an hour."""
_MOST = 1024
"""Characters of a header that are looked at."""
_NUMBER = re.compile(r"\d{1,30}(\.\d{0,9})?")
_PARAMETER = re.compile(r'\s*;\s*([a-z*][a-z0-9_.*-]*)(?:=("[^"\\]*"|[^";,\s]+))?')
_MEMBER = re.compile(rf'\s*"(?P<name>[^"\\]*)"(?P<parameters>(?:{_PARAMETER.pattern})*)\s*')
_PAIR = re.compile(r"(limit|remaining|reset)\s*=\s*(\d{1,15})")
_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
_OLDER = (
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
)
_EPOCH = 1e9
"""From here on a reset is a time since 1970 and no number of seconds; a thousand times later, one in milliseconds."""


@dataclass(frozen=True)
class Remaining:
    """The `calls` that an API still takes within the next `seconds`."""

    calls: float
    seconds: float


def pause(headers: Mapping[str, str], now: float) -> float | None:
    """Return after how many seconds an API wants to be called again; None where it does not say so.

    Never less than it said, but LONGEST at most. `now` is the time since 1970; names are in whichever case when
    `headers` are, as those of `requests`.
    """
    said = headers.get("retry-after")
    seconds = None if said is None or len(said) > _MOST else _after(said.strip(), headers, now)
    if seconds is None:
        given = (_number(headers.get(name)) for name in _MILLISECONDS)
        seconds = next((one / 1000 for one in given if one is not None), None)
    return None if seconds is None else min(max(seconds, 0.0), LONGEST)


def left(headers: Mapping[str, str], now: float) -> Remaining | None:
    """Return how many calls an API still takes until when, by the tightest of its policies; None: it does not say."""
    found = [*_drafted(headers), *_older(headers, now)]
    return min(found, key=lambda one: one.calls / max(one.seconds, 1.0), default=None)


def _after(said: str, headers: Mapping[str, str], now: float) -> float | None:
    seconds = _number(said)
    if seconds is not None:
        return seconds
    date = _date(said)
    if date is None:
        return None
    its_now = _date(headers.get("date", ""))  # by its own clock, where it shows one: ours may be another
    return date - (now if its_now is None else its_now)


def _number(said: str | None) -> float | None:
    return float(said) if said is not None and _NUMBER.fullmatch(said.strip()) else None


def _date(said: str) -> float | None:
    """Return the time of an HTTP-date in any of its three forms."""
    if len(said) > 64:
        return None
    try:
        found: datetime = parsedate_to_datetime(said)
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _drafted(headers: Mapping[str, str]) -> Iterator[Remaining]:
    """Yield what `RateLimit: "name";r=50;t=30` says, for every policy that counts calls."""
    said = headers.get("ratelimit", "")[:_MOST]
    if not said:
        return
    pairs = dict(_PAIR.findall(said))
    if "remaining" in pairs and "reset" in pairs:  # the form of draft 7
        yield Remaining(float(pairs["remaining"]), min(float(pairs["reset"]), LONGEST))
        return
    policies = dict(_members(headers.get("ratelimit-policy", "")[:_MOST]))
    for name, parameters in _members(said):
        policy = policies.get(name, {})
        calls, seconds = _number(parameters.get("r")), _number(parameters.get("t", policy.get("w")))
        if calls is None or seconds is None or policy.get("qu", '"requests"') != '"requests"':
            continue
        yield Remaining(calls, min(seconds, LONGEST))


def _members(said: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the members of a list of strings with parameters (RFC 9651); nothing of one that is malformed."""
    found, position = [], 0
    while position < len(said):
        member = _MEMBER.match(said, position)
        if member is None or said[member.end() : member.end() + 1] not in {"", ","}:
            return
        found.append((member["name"], dict(_PARAMETER.findall(member["parameters"]))))
        position = member.end() + 1
    yield from found


def _older(headers: Mapping[str, str], now: float) -> Iterator[Remaining]:
    for remaining, reset in _OLDER:
        calls = _number(headers.get(remaining))
        seconds = None if calls is None else _number(headers.get(reset))
        if calls is None or seconds is None:
            continue
        if seconds >= _EPOCH:
            seconds = max(seconds / (1000 if seconds >= _EPOCH * 1000 else 1) - now, 0.0)
        yield Remaining(calls, min(seconds, LONGEST))
