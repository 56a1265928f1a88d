"""Dates and times in texts, as Spark reads them: `stringToDate` and `stringToTimestamp` of its SparkDateTimeUtils."""

from __future__ import annotations

import re
import zoneinfo
from datetime import date, datetime, time, timedelta, timezone
from functools import cache

SPACE = "".join(map(chr, [*range(33), 127]))
"""What Spark takes off both ends of a text: white space and control characters of ASCII."""
DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?(?P<zone>[^\d.].*)?)?)?"
)
TIME = re.compile(
    rf"(?P<sign>[+-]?)(?P<year>\d{{4,6}})(?:-(?P<month>\d{{1,2}})(?:-(?P<day>\d{{1,2}})(?:[ T]{CLOCK})?)?)?",
    re.ASCII | re.DOTALL,
)
TODAY = re.compile(rf"T{CLOCK}|(?=\d+:){CLOCK.replace('?P<', '?P<_')}", re.ASCII | re.DOTALL)
OFFSET = re.compile(r"([+-])(\d|\d\d(?::\d\d){0,2}|\d\d(?:\d\d){1,2})", re.ASCII)
CENTURIES = 146_097 * 86_400
"""The seconds of 400 years: days of the week and leap years repeat after them, and with them summer times."""
FIRST = -62_135_510_400
SHORT_NAMES = {
    **{"EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney"},
    **{"ART": "Africa/Cairo", "AGT": "America/Argentina/Buenos_Aires", "AST": "America/Anchorage"},
    **{"BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns"},
    **{"CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris"},
    **{"IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia"},
    **{"NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix"},
    **{"PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal"},
    "VST": "Asia/Ho_Chi_Minh",
}
"""The names of three letters that Java knows (ZoneId.SHORT_IDS)."""


def day(text: str) -> int | None:
    """Return the day of a text as a count from 1970-01-01; None where it is no date."""
    found = DATE.fullmatch(text.strip(SPACE))
    return None if found is None else _day(int(found[1] + found[2]), int(found[3] or 1), int(found[4] or 1))


def _day(year: int, month: int, day: int) -> int | None:
    """Count days in the Gregorian calendar, also before it was in use and after the year 9999."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]:
        return None
    year, month = (year - 1, month + 9) if month < 3 else (year, month - 3)  # years that begin in March
    days = year * 365 + year // 4 - year // 100 + year // 400 + (month * 153 + 2) // 5 + day - 719469
    return days if -(2**31) <= days < 2**31 else None


def microseconds(text: str) -> int | None:
    """Return the time of a text in microseconds since 1970 in UTC; None where it is none.

    A text without a zone is in UTC: expressions with another session time zone are left to Spark.
    """
    text = text.strip(SPACE)
    found = TIME.fullmatch(text)
    parts = found.groupdict() if found else _clock(text)
    if parts is None:
        return None
    days = _day(int(f"{parts['sign']}{parts['year']}"), int(parts["month"] or 1), int(parts["day"] or 1))
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    seconds = days * 86400 + hour * 3600 + minute * 60 + second
    offset = _offset((parts["zone"] or "Z").strip(SPACE[:-1]), seconds)
    if offset is None:
        return None
    micros = (seconds - offset) * 1_000_000 + int((parts["fraction"] or "").ljust(6, "0")[:6])
    return micros if -(2**63) <= micros < 2**63 else None


def _clock(text: str) -> dict[str, str | None] | None:
    """Return the parts of a time of day: Spark takes it as one of today."""
    found = TODAY.fullmatch(text)
    if found is None:
        return None
    today = datetime.now(timezone.utc).date()
    parts = {name.removeprefix("_"): part for name, part in found.groupdict().items() if part is not None}
    whole = dict.fromkeys(("hour", "minute", "second", "fraction", "zone"))
    return {"sign": "", "year": f"{today:%Y}", "month": f"{today:%m}", "day": f"{today:%d}", **whole, **parts}


def _offset(zone: str, local: int) -> int | None:
    """Return by how many seconds a zone is ahead of UTC at a local time; None where there is no such zone."""
    zone = re.sub(r"([+-])(\d):", r"\g<1>0\2:", zone, count=1)
    zone = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", zone, count=1)
    zone = SHORT_NAMES.get(zone, zone)
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    fixed = OFFSET.fullmatch(re.sub(r"^(?:UTC|GMT|UT)(?=[+-])", "", zone))
    if fixed is None:
        return _regional(zone, local)
    digits = fixed[2].replace(":", "")
    hour, minute, second = int(digits[:2]), int(digits[2:4] or 0), int(digits[4:] or 0)
    seconds = hour * 3600 + minute * 60 + second
    if seconds > 18 * 3600 or minute > 59 or second > 59:
        return None
    return -seconds if fixed[1] == "-" else seconds


def _regional(name: str, local: int) -> int | None:
    if name not in _regions():
        return None
    if local > CENTURIES:  # Python knows of no year after 9999, and none before 1
        local = local % CENTURIES + CENTURIES
    moment = datetime.combine(date(1970, 1, 1), time()) + timedelta(seconds=max(local, FIRST))
    ahead = moment.replace(tzinfo=zoneinfo.ZoneInfo(name)).utcoffset()
    return None if ahead is None else int(ahead.total_seconds())


@cache
def _regions() -> set[str]:
    return zoneinfo.available_timezones()
