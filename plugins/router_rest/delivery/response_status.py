"""What a response means: what is to be done about a call, by its status, and about each row, by a bulk API's answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Action(Enum):
    """What is to be done about a call."""

    DONE = "it is delivered"
    AGAIN = "send it again later, with the same key"
    LOGIN = "get new credentials and send it again; if they are refused as well, wait"
    REFUSED = "one of its rows, or all, will never be taken"
    SPLIT = "it is too large: send it in two"
    WRONG = "no call can succeed until somebody changes a setting"


AGAIN = frozenset({408, 423, 425, 429, *range(500, 600)} - {501})
"""The server did not get all of it, has too much to do, or is out of order."""
REFUSED = frozenset({400, 406, 409, 416, 422, 424, 451})
OF_THE_URL = frozenset({403, 404, 410, 414})
"""A verdict on the URL: on the row where its values make it, else on the configuration."""
NOT_DONE = frozenset({501, 503})
"""A server that fails so has not done what it was asked to; of every other failure of its own nobody knows."""


def action_for(status: int, *, keyed: bool, url_of_data: bool = False, again: frozenset[int] | None = None) -> Action:
    """Return what an answer of this status means.

    `keyed`: calls carry an idempotency key, so that 409 says that the first attempt is still running; else it is a
    conflict, which another attempt does not solve. `again` are the statuses that are tried again in place of the usual;
    the others of these say that it is the row.
    """
    if 200 <= status < 300:
        return Action.DONE
    if status in (AGAIN if again is None else again) or (keyed and status == 409):
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


_SUCCESS = frozenset({"ok", "success", "succeeded", "created", "updated", "accepted", "deleted", "true"})
_NOTHING = object()


class Unreadable(ValueError):  # noqa: N818 - it says what the answer is
    """An answer that says nothing of its rows, in the way that is configured."""


@dataclass(frozen=True)
class Result:
    """What an API says of one row: a status as of HTTP, and the text of it."""

    status: int
    text: bytes


@dataclass(frozen=True)
class BulkResults:
    """The places of results in an answer.

    `path` leads to a list (empty: the answer is one); `status` leads, within an element, to what became of the row: one
    of `ok` where these are given, else a status as of HTTP, true or false, or a word such as `created`; where it leads
    nowhere, or to null, the row was taken. `id` leads to what names the row, which is the value that the row has at
    `row_id`, or a position among the rows where rows have no such field; without `id` there is one element for each
    row, in their order. Rows that no element is about were taken. `reason` leads to why a row was not. Paths are names
    with dots; `*` is the only field of an object, whatever its name.
    """

    path: str
    status: str
    ok: tuple[str | int | bool, ...] = ()
    id: str | None = None
    row_id: str | None = None
    reason: str | None = None

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
        return [found.get(name, _TAKEN) for name in self._names(rows, found)]

    def _result(self, element: Any) -> Result:
        status = _status(_at(element, self.status), self.ok)
        if status < 300:
            return Result(status, b"")
        why = _NOTHING if self.reason is None else _at(element, self.reason)
        return Result(status, why.encode() if isinstance(why, str) else msgspec.json.encode(element))

    def _names(self, rows: Sequence[bytes], found: Mapping[str, Result]) -> list[str]:
        """Return what names each row; raise Unreadable when an element is about none of them."""
        values = [_at(_decoded(row), self.row_id or self.id or "") for row in rows]
        nameless = all(value is _NOTHING for value in values)
        names = [str(at) for at in range(len(rows))] if nameless else [_name(value) for value in values]
        strange = found.keys() - set(names)
        if strange:
            raise Unreadable(f"the answer has results for {len(strange)} rows that were not sent: check `id`")
        return names


_TAKEN = Result(200, b"")


def _decoded(row: bytes) -> Any:
    try:
        return msgspec.json.decode(row)
    except (msgspec.DecodeError, RecursionError):
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
    """Return a status as of HTTP for what an element says; true is no 1 here."""
    if ok:
        if any(type(value) is type(one) and value == one for one in ok):
            return 200
        return value if type(value) is int and 300 <= value <= 599 else 400
    if value is _NOTHING or value is None or value is True:
        return 200
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) == 3:
            return int(value)
        return 200 if value.lower() in _SUCCESS else 400
    return value if isinstance(value, int) and 100 <= value <= 599 else 400
