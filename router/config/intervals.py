"""Read intervals and times as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_LONG_FORMS = {
    "ms": ("millisecond", "milliseconds"),
    "s": ("sec", "second", "seconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
}
_UNITS = {word: unit for unit, words in _LONG_FORMS.items() for word in (unit, *words)}


def interval(text: str) -> timedelta:
    """Return the length of `10 s`, `5 min`, `500 ms` or `1 h`; raise ValueError for anything else and for zero."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)\s*", text)
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        raise ValueError("is not an interval; write a number and a unit: 500 ms, 10 s, 5 min, 1 h")
    return timedelta(seconds=float(match[1]) * _SECONDS[_UNITS[match[2]]])


def moment(text: str) -> datetime:
    """Return a time written as ISO 8601; raise ValueError when it is not one or has no time zone."""
    try:
        found = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))  # Python 3.10 does not know the Z
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError("is not a time with a zone; write ISO 8601: 2025-01-31T12:00:00Z")
    return found
