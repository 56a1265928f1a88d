"""What a response means: what becomes of a call and of each row, and when the API wants to be called again.

The status says what becomes of a call, the results of a bulk API what becomes of each row; headers say how long to
pause, and how many calls are left.

Retry-After: RFC 9110, 10.2.3. RateLimit: draft-ietf-httpapi-ratelimit-headers-11, and what APIs sent before there was
a draft. Headers are hints, and may hold anything: one that cannot be read is ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from router_rest.delivery.answer_rules import AnswerDecision


class Action(Enum):
    """The next step for a call."""

    DONE = "it is delivered"
    AGAIN = "send it again later, with the same key"
    LOGIN = "get new credentials and send it again; if they are refused as well, wait"
    REFUSED = "one of its rows, or all, will never be taken"
    SPLIT = "it is too large: send it in two"
    WRONG = "no call can succeed until somebody changes a setting"
    LATER = "nobody can read what the API says: leave it for the next round"
    PARK = "the API says nothing of the rows: park them, in doubt"
    DEAD = "a rule says that its rows will never be taken"
    SET_ASIDE = "a rule says to park its rows"


AGAIN = frozenset({408, 423, 425, 429, *range(500, 600)} - {501})
"""The server did not get the whole call, has too much to do, or is out of order."""
REFUSED = frozenset({400, 406, 409, 416, 422, 424, 451})
OF_THE_URL = frozenset({403, 404, 410, 414})
"""Statuses about the URL: the row is wrong where its values make the URL, else the configuration is."""
GONE = frozenset({404, 410})
"""Statuses by which a DELETE that may have arrived before is done: nothing is there any more (RFC 9110, 9.2.2)."""
NOT_DONE = frozenset({501, 503})
"""Failures of a server that has not processed the call; after every other 5xx nobody knows."""


OF_NO_CALL = frozenset({401, 408, 425, 502, 503, 504})
"""Answers about the server, what stands before it, or the login, which say nothing of the call."""


def action_for(status: int, *, doubt: bool, url_of_data: bool = False, again: frozenset[int] | None = None) -> Action:
    """Return what an answer of this status means.

    `doubt`: the rows may have arrived before, so 409 says that this is so, or that the first attempt is still running;
    else it is a conflict, which another attempt does not solve. `again` are the statuses after which a call is sent
    again, in place of AGAIN; a status of AGAIN that is not among them says that the row is wrong.
    """
    if 200 <= status < 300:
        return Action.DONE
    if status in (AGAIN if again is None else again) or (doubt and status == 409):
        return Action.AGAIN
    if status in REFUSED or status in AGAIN or (url_of_data and status in OF_THE_URL):
        return Action.REFUSED
    return {401: Action.LOGIN, 413: Action.SPLIT}.get(status, Action.WRONG)


def throttles(status: int, paused: bool) -> bool:
    """Return whether an answer says that there were too many calls; `paused`: it says when to come again."""
    return status == 429 or (status == 503 and paused)


def doubtful(status: int) -> bool:
    """Return whether a failed call may have been processed in spite of its status."""
    return status >= 500 and status not in NOT_DONE


NO_STATUS = "`results` finds no status"
"""How the reason begins of a row whose answer does not say what became of it."""
_SUCCESS = frozenset({"ok", "success", "succeeded", "created", "updated", "accepted", "deleted", "true"})
_NOTHING = object()


class Unreadable(ValueError):  # noqa: N818 - it says what the answer is
    """An answer in which the results of its rows are not where the configuration says."""


UNKNOWN = 0
"""The status of a row of which the answer does not say what became of it."""


@dataclass(frozen=True)
class Result:
    """The result of one row: a status like that of HTTP, or UNKNOWN, and the text of the reason.

    `item` is what the answer has about the row, `decision` what a rule says of it.
    """

    status: int
    text: bytes
    item: Any = None
    decision: AnswerDecision | None = None


@dataclass(frozen=True)
class BulkResults:
    """Where the results of rows are in an answer.

    `path` leads to a list (empty: the answer itself is the list). Within an element `status` leads to what became of
    the row: one of `ok` where these are given, else a status like that of HTTP, true or false, or a word such as
    `created`; where it leads nowhere, or to null, nobody knows what
    became of it; so of rows without an element: with `absent_ok` both were taken. `id` leads to the name of the row,
    which is the value that the row has at `row_id`, or its position among the rows where rows have no such field;
    without `id` there is one element for each row, in their order. `reason` leads to why a row was
    not. Paths are names with dots between them; `*` is the only field of an object, whatever its name.
    """

    path: str
    status: str
    ok: tuple[str | int | bool, ...] = ()
    id: str | None = None
    row_id: str | None = None
    reason: str | None = None
    absent_ok: bool = False

    def by_row(self, body: bytes, rows: Sequence[bytes]) -> list[Result]:
        """Return a result for each row; raise Unreadable where the answer has none."""
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(f"the answer is not JSON: {error}") from None
        elements = _at(answer, self.path)
        if not isinstance(elements, list):
            raise Unreadable(f"there is no list at {self.path or 'the top'} of the answer")
        if self.id is None:
            if len(elements) != len(rows):
                raise Unreadable(f"the answer has {len(elements)} results for {len(rows)} rows")
            return [self._result(element) for element in elements]
        found = {_name(_at(element, self.id)): self._result(element) for element in elements}
        missing = _TAKEN if self.absent_ok else Result(UNKNOWN, b"of the row, for no item is about it")
        return [found.get(name, missing) for name in self._names(rows, found)]

    def _result(self, element: Any) -> Result:
        said = _at(element, self.status)
        if said is _NOTHING or said is None:
            unknown = b"" if self.absent_ok else f"at `{self.status}` of its item".encode()
            return Result(200 if self.absent_ok else UNKNOWN, unknown, element)
        status = _status(said, self.ok)
        if status < 300:
            return Result(status, b"", element)
        why = _NOTHING if self.reason is None else _at(element, self.reason)
        return Result(status, why.encode() if isinstance(why, str) else msgspec.json.encode(element), element)

    def _names(self, rows: Sequence[bytes], found: Mapping[str, Result]) -> list[str]:
        """Return the name of each row; raise Unreadable when an element is about none of them."""
        values = [_at(_decoded(row), self.row_id or self.id or "") for row in rows]
        nameless = all(value is _NOTHING for value in values)
        names = [str(at) for at in range(len(rows))] if nameless else [_name(value) for value in values]
        strange = found.keys() - set(names)
        if strange:
            raise Unreadable(f"the answer has results for {len(strange)} rows that were not sent: check `id`")
        return names


_TAKEN = Result(200, b"")


def _decoded(row: bytes) -> Any:
    for text in (row, row.rpartition(b"\n")[2]):  # an action may stand on a line before that of the row
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            continue
    return None


def _at(value: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        if not isinstance(value, dict) or (name == "*" and len(value) != 1):
            return _NOTHING
        value = next(iter(value.values())) if name == "*" else value.get(name, _NOTHING)
    return value


def _name(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(None if value is _NOTHING else value).decode()


def _status(value: Any, ok: Sequence[str | int | bool]) -> int:
    """Return a status like that of HTTP for the value of an element; true is not 1 here."""
    if ok:
        if any(type(value) is type(one) and value == one for one in ok):
            return 200
        return value if type(value) is int and 300 <= value <= 599 else 400
    if value is True:
        return 200
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) == 3:
            return int(value)
        return 200 if value.lower() in _SUCCESS else 400
    return value if isinstance(value, int) and 100 <= value <= 599 else 400


LONGEST_PAUSE = 3600.0
"""Seconds of a pause at most, whatever an API says: it may have a limit of an hour."""
_MOST_OF_HEADER = 1024
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
"""From here on a reset is no duration but a time since 1970, in seconds; a thousand times later, in milliseconds."""


@dataclass(frozen=True)
class Remaining:
    """The `calls` that an API still takes within the next `seconds`."""

    calls: float
    seconds: float


def pause(headers: Mapping[str, str], now: float) -> float | None:
    """Return after how many seconds an API wants to be called again; None where it does not say.

    Never less than it says, but LONGEST_PAUSE at most. `now` is in seconds since 1970. `headers` find names in any
    case, as those of `requests` do.
    """
    said = headers.get("retry-after")
    seconds = None if said is None or len(said) > _MOST_OF_HEADER else _after(said.strip(), headers, now)
    if seconds is None:
        given = (_number(headers.get(name)) for name in _MILLISECONDS)
        seconds = next((one / 1000 for one in given if one is not None), None)
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_PAUSE)


def left(headers: Mapping[str, str], now: float) -> Remaining | None:
    """Return the calls that an API still takes and for how long, by its tightest policy; None: it does not say."""
    found = [*_drafted(headers), *_older(headers, now)]
    return min(found, key=lambda one: one.calls / max(one.seconds, 1.0), default=None)


def _after(said: str, headers: Mapping[str, str], now: float) -> float | None:
    seconds = _number(said)
    if seconds is not None:
        return seconds
    date = _date(said)
    if date is None:
        return None
    its_now = _date(headers.get("date", ""))  # by the clock of the API where it says the time: ours may differ
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
    said = headers.get("ratelimit", "")[:_MOST_OF_HEADER]
    if not said:
        return
    pairs = dict(_PAIR.findall(said))
    if "remaining" in pairs and "reset" in pairs:  # the form of draft 7
        yield Remaining(float(pairs["remaining"]), min(float(pairs["reset"]), LONGEST_PAUSE))
        return
    policies = dict(_members(headers.get("ratelimit-policy", "")[:_MOST_OF_HEADER]))
    for name, parameters in _members(said):
        policy = policies.get(name, {})
        calls, seconds = _number(parameters.get("r")), _number(parameters.get("t", policy.get("w")))
        if calls is None or seconds is None or policy.get("qu", '"requests"') != '"requests"':
            continue
        yield Remaining(calls, min(seconds, LONGEST_PAUSE))


def _members(said: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the members of a list of strings with parameters (RFC 9651); nothing of a malformed list."""
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
        yield Remaining(calls, min(seconds, LONGEST_PAUSE))
