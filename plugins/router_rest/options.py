"""Say how an API is called, as people write it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema, field_validator, model_validator

from router_http.secret import Options
from router_rest.bodies import MEDIA_TYPES, Body, Form, body_of, check_wrap
from router_rest.templates import JsonPiece, parse_json

if TYPE_CHECKING:
    from typing_extensions import Self

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WORDS = {"second": "s", "minute": "min", "hour": "h", "day": "d"}
_DURATION = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)?\s*([a-z]+)\s*")


def seconds(value: Any) -> Any:
    """Return the seconds of `10 s`, `5 min`, `1 h`, `hour`; a number is seconds already."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value)
    unit = _WORDS.get(found[2].removesuffix("s"), found[2]) if found else ""
    if found is None or unit not in _UNITS:
        raise ValueError("write a number and a unit: 500 ms, 10 s, 5 min, 1 h, 1 d")
    return float(found[1] or 1) * _UNITS[unit]


Seconds = Annotated[
    float,
    BeforeValidator(seconds),
    Field(gt=0, le=366 * 86400, allow_inf_nan=False),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
]


class Limit(Options):
    """Be a limit of an API: so many calls, or so many rows, in any span of a length."""

    calls: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="calls, tried again ones too")
    rows: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="rows of these calls")
    per: Seconds = Field(default=1.0, description="second, minute, hour, day, or another span: 10 s")

    @model_validator(mode="after")
    def _limits_one(self) -> Self:
        if (self.calls is None) == (self.rows is None):
            raise ValueError("a limit is one of calls and rows; give each a limit of its own")
        return self

    @property
    def seconds(self) -> float:
        """Return the length of the span."""
        return self.per


class Timeouts(Options):
    """Say how long an attempt may take."""

    connect: Seconds = Field(default=5.0, description="until there is a connection")
    read: Seconds = Field(default=30.0, description="without a byte of the answer")
    total: Seconds = Field(default=60.0, description="until the whole answer is there")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.total < max(self.connect, self.read):
            raise ValueError("total is the longest of the three")
        return self


class Retry(Options):
    """Say how often a call is tried that an API did not take, and may take later."""

    attempts: int = Field(default=5, ge=1, le=100, description="attempts of a call, the first one included")
    elapsed: Seconds = Field(default=300.0, description="no attempt begins later than so long after the first")
    statuses: tuple[int, ...] | None = Field(
        default=None, description="statuses that are tried again, in place of 408, 423, 425, 429 and 5xx but 501"
    )

    @field_validator("statuses")
    @classmethod
    def _failures(cls, statuses: tuple[int, ...] | None) -> tuple[int, ...] | None:
        for status in statuses or ():
            if not 400 <= status <= 599:
                raise ValueError(f"{status} is no failure: statuses are from 400 to 599")
        return statuses


class MaxOutage(Options):
    """Say what becomes of calls when an API stays away."""

    after: Seconds = Field(
        description="how long it was away by then, or failed a call while it took others: 10 min, 2 h"
    )
    then: Literal["wait", "fail", "park"] = Field(
        default="wait", description="`wait` on, `fail` (the stream stops), or `park` the rows for `router rest-replay`"
    )


class Results(Options):
    """Say where the answer of a bulk API tells rows that it took from rows that it did not."""

    path: str = Field(default="", description="where the items are in the answer: items; empty: the answer is the list")
    status: str = Field(min_length=1, description="where an item says what became of its row: index.status")
    ok: tuple[str | int | bool, ...] = Field(
        default=(), description="what it says of a row that was taken; default: 200 to 299, true"
    )
    id: str | None = Field(
        default=None, min_length=1, description="where an item names its row; default: items are in the order of rows"
    )
    row_id: str | None = Field(default=None, min_length=1, description="where a row has that name; default: as `id`")
    reason: str | None = Field(default=None, min_length=1, description="where an item says why: error.message")

    @field_validator("path", "status", "id", "row_id", "reason")
    @classmethod
    def _dotted(cls, path: str | None) -> str | None:
        if path and not all(path.split(".")):
            raise ValueError("a path is names with dots between them: index.status")
        return path

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.row_id is not None and self.id is None:
            raise ValueError("row_id says where rows have what items have in `id`, and no `id` is given")
        return self


class BodyOptions(Options):
    """Say what a body is made of. A bare text is the form."""

    form: Form | None = Field(
        default=None,
        description="`object`: the row alone; `array`: a JSON array; `ndjson`: a line for each row. Default: `object` "
        "for one row per call, else `array`",
    )
    wrap: dict[str, JsonValue] | list[JsonValue] | None = Field(
        default=None, description='JSON around the array, with "$rows" in its place: {events: $rows}'
    )
    template: dict[str, JsonValue] | list[JsonValue] | None = Field(
        default=None,
        description='JSON of a row in place of all its columns: {text: "{event.n} chips", user: "{event.user}"}',
    )
    content_type: str | None = Field(
        default=None,
        pattern=r"^[\x21-\x7e]+/[\x20-\x7e]*[\x21-\x7e]$",
        description="header Content-Type; default: as the form and the encoder say",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        return {"form": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.wrap is not None:
            check_wrap(self.wrap)
            if self.form not in (None, "array"):
                raise ValueError(f"wrap is put around an array, and the form is {self.form}")
        if self.template is not None:
            parse_json(self.template)
        return self

    @property
    def pieces(self) -> tuple[JsonPiece, ...] | None:
        """Return what the template says; None: there is none."""
        return None if self.template is None else parse_json(self.template)

    def form_of(self, rows_per_call: int) -> Form:
        """Return the form of bodies."""
        return self.form or ("object" if rows_per_call == 1 and self.wrap is None else "array")

    def body(self, rows_per_call: int, *, json: bool, compressed: bool) -> Body:
        """Return how bodies are made; `json`: the values are JSON."""
        form = self.form_of(rows_per_call)
        said = self.content_type or (MEDIA_TYPES[form] if json else "application/octet-stream")
        return body_of(form, said, wrap=self.wrap, compressed=compressed)
