"""Times in ISO 8601, read alike by every Python."""

from __future__ import annotations

import re
from datetime import datetime

_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")


def parse_moment(text: str) -> datetime:
    """Return a time written as ISO 8601, without a zone if none is written; raise ValueError for any other text.

    Digits behind the microseconds are left out. Python 3.10 reads no Z, and a fraction only of three or six digits.
    """
    with_offset = re.sub(r"[zZ]$", "+00:00", text)
    in_microseconds = _FRACTION.sub(lambda match: f".{match[1][:6]:0<6}", with_offset)
    return datetime.fromisoformat(in_microseconds)
