"""Times as files and people write them: ISO 8601, read alike by every Python, and ages."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")


def parse_moment(text: str) -> datetime:
    """Return a time written as ISO 8601, without a zone if none is written; raise ValueError for any other text.

    Digits behind the microseconds are left out. Python 3.10 reads no Z, and a fraction only of three or six digits.
    """
    with_offset = re.sub(r"[zZ]$", "+00:00", text)
    in_microseconds = _FRACTION.sub(lambda match: f".{match[1][:6]:0<6}", with_offset)
    return datetime.fromisoformat(in_microseconds)


def format_age(moment: float, now: float) -> str:
    """Return how long ago a moment was, in one unit."""
    seconds = max(0.0, now - moment)
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_clock(moment: float) -> str:
    """Return the time of day of a moment, in seconds since 1970."""
    return f"{datetime.fromtimestamp(moment, timezone.utc):%H:%M:%S} UTC"
