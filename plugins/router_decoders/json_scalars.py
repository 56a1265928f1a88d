"""Read texts as times and decimals: what fits and what does not, said once for both steps of decoding JSON.

| form of a timestamp | is |
|---|---|
| `2026-11-21T10:00:00.123456789`, blank in place of the T | the date and time, of which six decimals are kept |
| shorter: `2026-11-21T10:00`, `2026-11-21 10`, `2026-11-21` | zero for what is missing |
| behind the seconds `Z`, `+02:00`, `+0200`, `+2`, `UTC+2`, `Europe/Berlin`, `PST` | the zone; else the session's |

In the hour that a zone leaves out the clock has gone on already; in the hour that comes twice it is the first one.
These are the forms of Spark's cast from a text to a timestamp, but those that begin with a time or a year alone.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

DAY = r"([0-9]{4})-([0-9]{2})-([0-9]{1,2})"
TIME = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?"
DATES = re.compile(DAY.replace("1,2", "2"))
TIMESTAMPS = re.compile(rf"{DAY}(?:[T ]{TIME})?", re.DOTALL)
OFFSET = re.compile(r"([+-])([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2}))?)?|([+-])([0-9]{2})([0-9]{2})([0-9]{2})?")
BLANKS = " \t\r\n"
UNIVERSAL = ("UTC", "GMT", "UT")
LAST_OFFSET = dt.timedelta(hours=18)
ABBREVIATIONS = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
"""What Java's ZoneId.SHORT_IDS says that abbreviations mean, and with it Spark."""

DECIMALS = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,9})?")
EXACT = Context(prec=38, rounding=ROUND_HALF_UP)


def read_time(text: str, kind: str, zone: str) -> dt.date | None:
    """Return a text as a date, a timestamp in UTC or a timestamp without zone; None where it does not fit.

    `kind` is the name of one of `json_types.TIMES`, `zone` that of the session's time zone.
    """
    try:
        return _date(text) if kind == "date" else _timestamp(text, kind, zone)
    except (ValueError, OverflowError):  # no such day or hour; a year beyond 1 to 9999
        return None


def _date(text: str) -> dt.date | None:
    found = DATES.fullmatch(text)
    return dt.date(*map(int, found.groups())) if found else None


def _timestamp(text: str, kind: str, zone: str) -> dt.datetime | None:
    found = TIMESTAMPS.fullmatch(text.rstrip(BLANKS))
    if found is None:
        return None
    *parts, decimals, named = found.groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    micros = int(f"{decimals or '':0<6}"[:6])
    time = dt.datetime(year, month, day, hour, minute, second, micros)  # noqa: DTZ001 - its zone comes next
    if kind == "timestamp_ntz":
        return None if named else time
    known = zone_of(named.strip(BLANKS) if named else zone)
    return time.replace(tzinfo=known).astimezone(dt.timezone.utc) if known else None


@lru_cache(maxsize=1024)
def zone_of(name: str) -> dt.tzinfo | None:
    """Return the zone of a name or an offset; None where there is none."""
    if name == "Z" or name in UNIVERSAL:
        return dt.timezone.utc
    prefix = next((one for one in UNIVERSAL if name.startswith(one)), "")
    found = OFFSET.fullmatch(ABBREVIATIONS.get(name, name).removeprefix(prefix))
    if found is not None:
        sign, *parts = [part for part in found.groups() if part is not None]
        return _fixed(sign, [int(part) for part in parts])
    return _region(ABBREVIATIONS.get(name, name))


def _fixed(sign: str, parts: list[int]) -> dt.tzinfo | None:
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if offset > LAST_OFFSET or max(minutes, seconds) > 59:
        return None
    return dt.timezone(offset if sign == "+" else -offset)


def _region(name: str) -> dt.tzinfo | None:
    # what a machine calls its own zone is another one elsewhere
    return ZoneInfo(name) if name in _regions() and name not in ("localtime", "Factory") else None


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    return frozenset(available_timezones())


def read_decimal(text: str, digits: tuple[int, int]) -> Decimal | None:
    """Return a number, rounded half up to the scale; None where it is none or has too many digits before the point."""
    if not DECIMALS.fullmatch(text):
        return None
    precision, scale = digits
    try:
        found = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=EXACT)
    except InvalidOperation:  # more than 38 digits
        return None
    return found if found.adjusted() < precision - scale or not found else None
