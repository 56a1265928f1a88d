"""Find out what a bulk API says of every row: one answer, and in it one result for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SUCCESS = frozenset({"ok", "success", "succeeded", "created", "updated", "accepted", "deleted", "true"})
_NOTHING = object()


class Unreadable(ValueError):
    """Say why an answer tells nothing of its rows, in the way that is configured."""


@dataclass(frozen=True)
class Result:
    """Be what an API says of one row: a status as of HTTP, and the text of it."""

    status: int
    text: bytes


@dataclass(frozen=True)
class Results:
    """Say where results stand in an answer.

    `path` leads to a list (empty: the answer is one); `status` leads, within an element, to a status as of HTTP, to
    true or false, or to a word such as `created`; where it leads nowhere, or to null, the row was taken. `id` leads to
    what names the row, which is the value that the row has in `row`, or a position among the rows where rows have no
    such field; without `id` there is one element for each row, in their order. Rows that no element is about were
    taken. Paths are names with dots; `*` is the only field of an object, whatever its name.
    """

    path: str
    status: str
    id: str | None = None
    row: str | None = None

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
        return [found.pop(name, _TAKEN) for name in self._names(rows, found)]

    def _result(self, element: Any) -> Result:
        status = _status(_at(element, self.status))
        return Result(status, b"" if status < 300 else msgspec.json.encode(element))

    def _names(self, rows: Sequence[bytes], found: Mapping[str, Result]) -> list[str]:
        """Return what names each row; raise Unreadable when an element is about none of them."""
        field = self.row or str(self.id).rsplit(".", 1)[-1]
        values = [_at(_decoded(row), field) for row in rows]
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


def _status(value: Any) -> int:
    if value is _NOTHING or value is None or value is True:
        return 200
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) == 3:
            return int(value)
        return 200 if value.lower() in _SUCCESS else 400
    return value if isinstance(value, int) and 100 <= value <= 599 else 400
