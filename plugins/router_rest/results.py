"""Find out what a bulk API says of every row: one answer, and in it one result for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SUCCESS = frozenset({"ok", "success", "succeeded", "created", "updated", "accepted", "deleted", "true"})
_NOTHING = object()


class Unreadable(ValueError):  # noqa: N818 - it says what the answer is
    """Say why an answer tells nothing of its rows, in the way that is configured."""


@dataclass(frozen=True)
class Result:
    """Be what an API says of one row: a status as of HTTP, and the text of it."""

    status: int
    text: bytes


@dataclass(frozen=True)
class Results:
    """Say where results stand in an answer.

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
            told = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(f"the answer is not JSON: {error}") from None
        elements = _at(told, self.path)
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
