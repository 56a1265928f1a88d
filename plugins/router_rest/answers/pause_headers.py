"""When an API wants to be called again, and how many calls it still takes, by the headers of an answer.

Retry-After: RFC 9110, 10.2.3. RateLimit: draft-ietf-httpapi-ratelimit-headers-11, and what APIs sent before there was
a draft. Headers are hints, and may hold anything: one that cannot be read is ignored.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_RETRY_AFTER_SECONDS = 3600.0
"""Seconds of a pause at most, whatever an API says: it may have a limit of an hour."""
_MAX_HEADER_CHARS = 1024
"""Characters of a header that are looked at."""
_NUMBER_PATTERN = re.compile(r"\d{1,30}(\.\d{0,9})?")
_PARAMETER_PATTERN = re.compile(r'\s*;\s*([a-z*][a-z0-9_.*-]*)(?:=("[^"\\]*"|[^";,\s]+))?')
_MEMBER_PATTERN = re.compile(rf'\s*"(?P<name>[^"\\]*)"(?P<parameters>(?:{_PARAMETER_PATTERN.pattern})*)\s*')
_PAIR_PATTERN = re.compile(r"(limit|remaining|reset)\s*=\s*(\d{1,15})")
_MILLISECOND_HEADERS = ("retry-after-ms", "x-ms-retry-after-ms")
_OLDER_HEADERS = (
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset-after"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
)
_MIN_EPOCH_SECONDS = 1e9
"""From here on a reset is no duration but a time since 1970, in seconds; a thousand times later, in milliseconds."""


class Remaining(NamedTuple):
    """The `calls` that an API still takes within the next `seconds`."""

    calls: float
    seconds: float


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds after which an API wants to be called again; None if it names none.

    Never less than it says, but MAX_RETRY_AFTER_SECONDS at most. `now` is in seconds since 1970. `headers` find names
    in any case, as those of `requests` do.
    """
    seconds = None
    header = headers.get("retry-after")
    if header is not None and len(header) <= _MAX_HEADER_CHARS:
        seconds = _seconds_until(header.strip(), headers, now)
    for name in _MILLISECOND_HEADERS:
        milliseconds = _parse_number(headers.get(name))
        if seconds is None and milliseconds is not None:
            seconds = milliseconds / 1000
    return None if seconds is None else min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def calls_left(headers: Mapping[str, str], now: float) -> Remaining | None:
    """Return the calls that an API still takes and for how long, by its tightest policy; None if it does not say."""
    policies = [*_read_draft_policies(headers), *_read_older_policies(headers, now)]
    return min(policies, key=lambda remaining: remaining.calls / max(remaining.seconds, 1.0), default=None)


def _seconds_until(retry_after: str, headers: Mapping[str, str], now: float) -> float | None:
    seconds = _parse_number(retry_after)
    if seconds is not None:
        return seconds
    date = _parse_http_date(retry_after)
    if date is None:
        return None
    # By the clock of the API if it says the time: ours may differ.
    time_of_api = _parse_http_date(headers.get("date", ""))
    return date - (now if time_of_api is None else time_of_api)


def _parse_number(text: str | None) -> float | None:
    if text is None or _NUMBER_PATTERN.fullmatch(text.strip()) is None:
        return None
    return float(text)


def _parse_http_date(text: str) -> float | None:
    """Return the time of an HTTP-date in any of its three forms."""
    if len(text) > 64:
        return None
    try:
        date: datetime = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=timezone.utc)
        return date.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _read_draft_policies(headers: Mapping[str, str]) -> Iterator[Remaining]:
    """Yield the calls left by `RateLimit: "name";r=50;t=30`, for every policy that counts calls."""
    header = headers.get("ratelimit", "")[:_MAX_HEADER_CHARS]
    if not header:
        return
    pairs = dict(_PAIR_PATTERN.findall(header))
    if "remaining" in pairs and "reset" in pairs:  # the form of draft 7
        yield Remaining(float(pairs["remaining"]), min(float(pairs["reset"]), MAX_RETRY_AFTER_SECONDS))
        return
    policies = dict(_parse_members(headers.get("ratelimit-policy", "")[:_MAX_HEADER_CHARS]))
    for name, parameters in _parse_members(header):
        policy = policies.get(name, {})
        calls = _parse_number(parameters.get("r"))
        seconds = _parse_number(parameters.get("t", policy.get("w")))
        if calls is None or seconds is None or policy.get("qu", '"requests"') != '"requests"':
            continue
        yield Remaining(calls, min(seconds, MAX_RETRY_AFTER_SECONDS))


def _parse_members(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the members of a list of strings with parameters (RFC 9651); nothing of a malformed list."""
    members = []
    position = 0
    while position < len(header):
        member = _MEMBER_PATTERN.match(header, position)
        if member is None or header[member.end() : member.end() + 1] not in {"", ","}:
            return
        members.append((member["name"], dict(_PARAMETER_PATTERN.findall(member["parameters"]))))
        position = member.end() + 1
    yield from members


def _read_older_policies(headers: Mapping[str, str], now: float) -> Iterator[Remaining]:
    for remaining, reset in _OLDER_HEADERS:
        calls = _parse_number(headers.get(remaining))
        seconds = _parse_number(headers.get(reset))
        if calls is None or seconds is None:
            continue
        if seconds >= _MIN_EPOCH_SECONDS * 1000:
            seconds = max(seconds / 1000 - now, 0.0)
        elif seconds >= _MIN_EPOCH_SECONDS:
            seconds = max(seconds - now, 0.0)
        yield Remaining(calls, min(seconds, MAX_RETRY_AFTER_SECONDS))
