"""The option `results`: where the answer of a bulk API has the result of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import Field, field_validator, model_validator

from router_http.options import SecretOptions
from router_rest.answers.rules import decoded_json, json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

NO_STATUS = "`results` finds no status"
"""How the reason begins of a row whose answer does not say what became of it."""
_SUCCESS_WORDS = frozenset({"ok", "success", "succeeded", "created", "updated", "accepted", "deleted", "true"})


class Unreadable(ValueError):  # noqa: N818 - it says what the answer is
    """An answer in which the results of its rows are not where the configuration says."""


UNKNOWN_STATUS = 0
"""The status of a row of which the answer does not say what became of it."""


@dataclass(frozen=True)
class Result:
    """The result of one row: a status like that of HTTP, or UNKNOWN_STATUS, and the text of the reason.

    `item` is what the answer has about the row.
    """

    status: int
    text: bytes
    item: Any = None


class BulkResults(SecretOptions):
    """Where the answer of a bulk API has the result of each row.

    Without `id` there is one item for each row, in their order; else rows are named by the value that they have at
    `row_id`, or by their position if they have no such field. Paths are names with dots between them; `*` is the only
    field of an object, whatever its name. A row is unknown if no item is about it, or its `status` leads nowhere.
    """

    path: str = Field(default="", description="where the items are in the answer: items; empty: the answer is the list")
    status: str = Field(min_length=1, description="where an item says what became of its row: index.status")
    ok: tuple[str | int | bool, ...] = Field(
        default=(), description="what it says of a row that was taken; default: 200 to 299, true, words such as `ok`"
    )
    id: str | None = Field(
        default=None, min_length=1, description="where an item names its row; default: items are in the order of rows"
    )
    absent_ok: bool = Field(
        default=False, description="rows that no item is about, or one without `status`, were taken; default: parked"
    )
    row_id: str | None = Field(default=None, min_length=1, description="where a row has that name; default: as `id`")
    reason: str | None = Field(default=None, min_length=1, description="where an item says why: error.message")

    @field_validator("path", "status", "id", "row_id", "reason")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path and not all(path.split(".")):
            raise ValueError("a path is names with dots between them: index.status")
        return path

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        if self.row_id is not None and self.id is None:
            raise ValueError("row_id says where rows have what items have in `id`, and no `id` is given")
        return self

    def by_row(self, body: bytes, rows: Sequence[bytes]) -> list[Result]:
        """Return a result for each row; raise Unreadable if the answer has none."""
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Unreadable(f"the answer is not JSON: {error}") from None
        elements = _value_at(answer, self.path)
        if not isinstance(elements, list):
            raise Unreadable(f"there is no list at {self.path or 'the top'} of the answer")
        if self.id is None:
            if len(elements) != len(rows):
                raise Unreadable(f"the answer has {len(elements)} results for {len(rows)} rows")
            return [self._read_result(element) for element in elements]
        # Items may come in any order, and leave rows out: what became of those is not known, unless that means success.
        by_name = {json_text(_value_at(element, self.id)): self._read_result(element) for element in elements}
        missing = Result(UNKNOWN_STATUS, b"of the row, for no item is about it")
        if self.absent_ok:
            missing = Result(200, b"")
        return [by_name.get(name, missing) for name in self._row_names(rows, by_name)]

    def _read_result(self, element: Any) -> Result:
        value = _value_at(element, self.status)
        if value is None:
            if self.absent_ok:
                return Result(200, b"", element)
            return Result(UNKNOWN_STATUS, f"at `{self.status}` of its item".encode(), element)
        status = _parse_status(value, self.ok)
        if status < 300:
            return Result(status, b"", element)
        reason = None if self.reason is None else _value_at(element, self.reason)
        if isinstance(reason, str):
            return Result(status, reason.encode(), element)
        return Result(status, msgspec.json.encode(element), element)

    def _row_names(self, rows: Sequence[bytes], by_name: Mapping[str, Result]) -> list[str]:
        """Return the name of each row; raise Unreadable if an element is about none of them."""
        path = self.row_id or self.id or ""
        values = [_value_at(_decoded_row(row), path) for row in rows]
        names = [json_text(value) for value in values]
        if all(value is None for value in values) and json_text(None) not in by_name:
            names = [str(position) for position in range(len(rows))]
        strange = by_name.keys() - set(names)
        if strange:
            raise Unreadable(f"the answer has results for {len(strange)} rows that were not sent: check `id`")
        return names


def _decoded_row(row: bytes) -> Any:
    """Return the value of a row; an action may stand on a line before it."""
    value = decoded_json(row)
    return decoded_json(row.rpartition(b"\n")[2]) if value is None else value


def _value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path; None if there is none. `*` is the only field of an object."""
    for name in path.split(".") if path else ():
        if not isinstance(value, dict) or (name == "*" and len(value) != 1):
            return None
        value = next(iter(value.values())) if name == "*" else value.get(name)
    return value


def _parse_status(value: Any, ok: Sequence[str | int | bool]) -> int:
    """Return a status like that of HTTP for the value of an element; true is not 1 here."""
    if ok:
        if any(type(value) is type(accepted) and value == accepted for accepted in ok):
            return 200
        return value if type(value) is int and 300 <= value <= 599 else 400
    if value is True:
        return 200
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) == 3:
            return int(value)
        return 200 if value.lower() in _SUCCESS_WORDS else 400
    return value if isinstance(value, int) and 100 <= value <= 599 else 400
