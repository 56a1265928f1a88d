"""Decode one JSON text in full: its event, or the reason why it has none.

This is the second step of `json_arrow`, for rows that msgspec does not take as they are: of texts that are no JSON, of
values that do not fit, and of those that fit in another way (a number in a string field, a name with a quotation mark).
It is what JSON means here; the first step is only allowed to be quicker.

| what | means |
|---|---|
| RFC 8259 in UTF-8 | JSON |
| more than 999 levels, a number of more than 1000 digits, a key of more than 50,000 characters | beyond a limit |
| a text of more than 20 million characters for a string | beyond a limit |
| an integer without `.` and `e`, in the range of its type | a whole number |
| a number, also where it is rounded; beyond the type's range it does not fit | double, float |
| a number, or a text that is one | decimal |
| base64 with its padding, blanks passed over | binary |
| anything; what is no text as its JSON text, numbers as they are written | string |
| half of a surrogate pair | a question mark |

Which fields of a record do not fit is told by name, as far as they stand in structs only; a value inside of an array or
map is told by the name of that one.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from router_decoders.json_types import INTEGERS, SCALARS, TIMES, Shape, read_decimal, read_time, struct_class

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

LEVELS = 999
DIGITS = 1000
KEY = 50_000
LONGEST = 20_000_000
"""Characters of a text, at most."""
SHORT = 1000
"""Bytes that hold neither too many levels nor too many digits."""
SHALLOW = 200
"""Brackets that Python's stack has room for in any case."""
BLANKS = " \t\r\n"
BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
"""Texts, so that the brackets in them are passed over, and brackets."""
CLOSING = {"[": "]", "{": "}"}
BEYOND_FLOAT = 2.0**128 - 2.0**103
"""The smallest number that is rounded to infinity in 32 bits."""

TOO_DEEP = f"value is nested more than {LEVELS} levels deep"
TOO_MANY_DIGITS = f"value has a number of more than {DIGITS} digits"
TOO_LONG_NAME = f"value has a field name of more than {KEY} characters"
TOO_LONG_TEXT = f"value has a text of more than {LONGEST} characters"
NULL, EMPTY = "value is null", "value is empty"
NOT_UTF8, NOT_JSON = "value is not UTF-8", "value is not JSON"
MORE_TEXT, MISFIT = "value has text after the object", "does not fit the schema"

Order = tuple[tuple[int, int], ...]
"""The place of a field in the schema; its struct's own fields come before those of structs inside."""


class Number(str):
    """A number as it is written."""

    __slots__ = ()

    @property
    def is_whole(self) -> bool:
        """Say whether it is written as an integer."""
        return self.removeprefix("-").isdigit()


class Object(list[tuple[str, Any]]):
    """The keys and values of an object as they are written, those that come twice, too."""

    __slots__ = ()


class MistypedError(ValueError):
    """A value of another JSON type than its field's."""


class LimitError(ValueError):
    """JSON beyond a limit of the decoder; its text is the reason."""


class DecodedRow(NamedTuple):
    """A row's object for the columns, its unknown keys, and the value they come from; or why it is no event."""

    event: Any = None
    unknown: dict[str, str | None] | None = None
    reason: str | None = None
    value: Object | None = None


class Misfits:
    """What of a row does not fit: fields with a value beyond their type, and those with a value of another type."""

    def __init__(self) -> None:
        self.found = False
        self.beyond: set[tuple[Order, str]] = set()
        self.mistyped: set[tuple[Order, str]] = set()

    def reason(self, value: Object) -> str:
        """Return the reason with the names of fields. Of an object with a key that comes twice no value is named."""
        mistyped = [] if _has_twice(value) else sorted(self.mistyped)
        names = ", ".join(name for _, name in [*sorted(self.beyond), *mistyped])
        return f"{MISFIT}: {names}".rstrip(": ")


@dataclass(frozen=True)
class FieldPath:
    """Where a value stands: the name of its field and the field's order; `inside` an array or a map of that field."""

    name: str = ""
    order: Order = ()
    inside: bool = False

    def of_field(self, at: int, name: str) -> FieldPath:
        """Return the place of a struct's field."""
        if self.inside:
            return self
        outer = tuple((1, step) for _, step in self.order)
        return FieldPath(f"{self.name}.{name}" if self.name else name, (*outer, (0, at)))

    def of_element(self) -> FieldPath:
        """Return the place of what an array or map holds."""
        return FieldPath(self.name, self.order, inside=True)


Read = Callable[[Any, Misfits], Any]
"""A function that returns a JSON value, not null, in the form that columns take; it raises MistypedError."""


class RowDecoder:
    """A decoder of any text to the objects of one shape. `zone` is the session's time zone."""

    def __init__(self, shape: Shape, zone: str, rescue: bool = False) -> None:
        self._read = _reader(shape, zone, FieldPath())
        self._known = frozenset(name for name, _ in shape.fields) if rescue else None

    def decode(self, text: bytes | None) -> DecodedRow:
        """Return what a text is decoded to. Never raises for any bytes."""
        if text is None:
            return DecodedRow(reason=NULL)
        if not text.strip(BLANKS.encode()):
            return DecodedRow(reason=EMPTY)
        try:
            chars = text.decode()
        except UnicodeDecodeError:
            return DecodedRow(reason=NOT_UTF8)
        try:
            depth = _depth(chars)
            if not depth:
                return self._decode(chars)
            with _room_for(depth):
                return self._decode(chars)
        except ValueError as error:
            return DecodedRow(reason=str(error) if isinstance(error, LimitError) else NOT_JSON)

    def _decode(self, text: str) -> DecodedRow:
        value, more = _parse(text)
        if type(value) is not Object:
            return DecodedRow(reason=f"value is {'an array' if isinstance(value, list) else 'a scalar'}, not an object")
        if more:
            return DecodedRow(reason=MORE_TEXT)
        misfits = Misfits()
        event = self._read(value, misfits)
        if misfits.found:
            return DecodedRow(reason=misfits.reason(value))
        return DecodedRow(event, None if self._known is None else _unknown(value, self._known), value=value)


# JSON texts


def _parse(text: str) -> tuple[Any, bool]:
    """Return the first value of a text, and whether anything but blanks follows it; raise ValueError for no JSON."""
    scanner = SCANNER if len(text) <= SHORT else LONG_SCANNER
    begin = len(text) - len(text.lstrip(BLANKS))
    value, end = scanner.raw_decode(text, begin)
    follows = text[end : end + 1]
    goes_on = type(value) not in (Object, list, str) and follows and follows not in BLANKS
    if goes_on:
        raise ValueError("a number or word that goes on")
    return value, bool(follows) and bool(text[end:].strip(BLANKS))


def _refuse(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity


def _limited_number(text: str) -> Number:
    if sum(map(str.isdigit, text)) > DIGITS:
        raise LimitError(TOO_MANY_DIGITS)
    return Number(text)


def _limited_object(pairs: list[tuple[str, Any]]) -> Object:
    if any(len(key) > KEY for key, _ in pairs):
        raise LimitError(TOO_LONG_NAME)
    return Object(pairs)


SCANNER = json.JSONDecoder(object_pairs_hook=Object, parse_float=Number, parse_int=Number, parse_constant=_refuse)
LONG_SCANNER = json.JSONDecoder(
    object_pairs_hook=_limited_object, parse_float=_limited_number, parse_int=_limited_number, parse_constant=_refuse
)


def _depth(text: str) -> int:
    """Return how deep a text is nested, as far as it needs room.

    Raises LimitError if that is too deep, ValueError if the text is no JSON before it is.
    """
    if text.count("[") + text.count("{") <= SHALLOW:
        return 0
    closing: list[str] = []
    deepest = 0
    for found in BRACKETS.finditer(text):
        bracket = found[0]
        if bracket in CLOSING:
            closing.append(CLOSING[bracket])
            deepest = max(deepest, len(closing))
        elif bracket in ("]", "}"):
            is_open = bool(closing) and closing.pop() == bracket
            if not is_open or not closing:
                break  # the value ends here, or is no JSON: the parser reads no further
        if deepest > LEVELS:
            _check_ends(text, found.start(), closing)
            raise LimitError(TOO_DEEP)
    return deepest


def _check_ends(text: str, place: int, closing: list[str]) -> None:
    """Raise ValueError if a text is no JSON before a place that is nested too deep, or is cut off at its end.

    `closing` are the brackets that close what is open there. What is deeper is not looked at.
    """
    if not text.rstrip(BLANKS).endswith(closing[0]):
        raise ValueError("the text is cut off")
    outer = closing[:-1]
    with _room_for(len(outer)):
        _parse(f"{text[:place]}0{''.join(reversed(outer))}")


@contextmanager
def _room_for(depth: int) -> Iterator[None]:
    """Let Python's stack hold so many levels; its limit counts those of the C parser, too."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 5 * depth)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def json_text(value: Any) -> str | None:
    """Return what a string field holds of a value: a text itself, anything else as JSON without blanks."""
    if value is None:
        return None
    return _clean(value) if type(value) is str else _written(value)


def json_text_of(text: bytes) -> str | None:
    """Return what a string field holds of a value that is given as JSON; simple texts are not parsed."""
    chars = text.decode()
    escaped = "\\" in chars
    if chars[0] not in '"[{' or (chars[0] == '"' and not escaped):
        return None if chars == "null" else chars.strip('"')
    depth = _depth(chars)
    if not escaped and not depth:
        return msgspec.json.format(text, indent=-1).decode()
    with _room_for(depth):
        return json_text(_parse(chars)[0])


def _written(value: Any) -> str:
    if isinstance(value, Object):
        return "{" + ",".join([f"{_quoted(key)}:{_written(one)}" for key, one in value]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    return _quoted(value) if isinstance(value, str) else {None: "null", True: "true", False: "false"}[value]


def _quoted(text: str) -> str:
    return json.dumps(_clean(text), ensure_ascii=False)


def _clean(text: str) -> str:
    """Return a text with question marks in place of halves of surrogate pairs."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _has_twice(value: Any) -> bool:
    if isinstance(value, Object):
        return len(dict(value)) < len(value) or any(_has_twice(one) for _, one in value)
    return isinstance(value, list) and any(map(_has_twice, value))


def _unknown(value: Object, known: Container[str]) -> dict[str, str | None] | None:
    """Return the top-level keys that a schema does not know, sorted, with their last values; None without any."""
    found = {_clean(key): one for key, one in value if key not in known}
    return {key: json_text(found[key]) for key in sorted(found)} or None


# Values by type


def _reader(shape: Shape, zone: str, place: FieldPath) -> Read:
    """Return what reads the values of a type."""
    if shape.kind == "struct":
        return _struct(shape, zone, place)
    if shape.kind in ("array", "map"):
        inner = _reader(shape.inner, zone, place.of_element())
        return partial(_list, inner) if shape.kind == "array" else partial(_map, inner, place)
    return _scalar(shape, zone, place)


def _scalar(shape: Shape, zone: str, place: FieldPath) -> Read:
    if shape.kind in TIMES:
        told = None if shape.kind == "timestamp_ntz" else place
        return partial(_fitting, lambda text: read_time(text, shape.kind, zone), told)
    if shape.kind in INTEGERS:
        return partial(_integer, 2 ** (SCALARS[shape.kind].bit_width - 1))
    if shape.kind in ("double", "float"):
        return partial(_float, BEYOND_FLOAT if shape.kind == "float" else math.inf, place)
    if shape.kind == "string":
        return partial(_string, place)
    return partial(_decimal, shape.digits) if shape.kind == "decimal" else OTHERS[shape.kind]


def _struct(shape: Shape, zone: str, place: FieldPath) -> Read:
    names = [name for name, _ in shape.fields]
    places = [place.of_field(at, name) for at, name in enumerate(names)]
    readers = [_reader(child, zone, places[at]) for at, (_, child) in enumerate(shape.fields)]
    known = {name: at for at, name in enumerate(names)}
    late = frozenset(at for at, (_, child) in enumerate(shape.fields) if child.kind in (*TIMES, "decimal", "map"))
    variants = frozenset(at for at, (_, child) in enumerate(shape.fields) if child.kind == "variant")
    make = struct_class(shape)

    def read(value: Any, misfits: Misfits) -> Any:
        if type(value) is not Object:
            raise MistypedError
        values: list[Any] = [None] * len(names)
        pairs = [(at, one) for key, one in value if (at := known.get(key)) is not None]
        last = dict(pairs)
        for at, one in pairs:
            if at in late and one is not last[at]:
                continue  # of a time, a decimal and a map the last one counts alone
            try:
                values[at] = None if one is None and at not in variants else readers[at](one, misfits)
            except MistypedError:
                misfits.found = True
                if not place.inside:
                    misfits.mistyped.add((places[at].order, places[at].name))
        return make(*values)

    return read


def _list(element: Read, value: Any, misfits: Misfits) -> list[Any]:
    if type(value) is not list:
        raise MistypedError
    return [None if one is None else element(one, misfits) for one in value]


def _map(read: Read, place: FieldPath, value: Any, misfits: Misfits) -> dict[str, Any]:
    if type(value) is not Object:
        raise MistypedError
    found = {_clean(key): None if one is None else read(one, misfits) for key, one in value}
    if len(found) < len(value):
        _beyond(place, misfits)
    return found


def _beyond(place: FieldPath, misfits: Misfits) -> None:
    misfits.found = True
    misfits.beyond.add((place.order, place.name))


def _fitting(read: Callable[[str], Any], place: FieldPath | None, value: Any, misfits: Misfits) -> str:
    """Return the text of a time, which is read again with its column; without a place, a wrong one is mistyped."""
    text = _clean(value) if type(value) is str else _written(value)
    if read(text) is None:
        if place is None:
            raise MistypedError
        _beyond(place, misfits)
    return text


def _integer(limit: int, value: Any, _: Misfits) -> int:
    if type(value) is not Number or not value.is_whole or not -limit <= (found := int(value)) < limit:
        raise MistypedError
    return found


def _float(beyond: float, place: FieldPath, value: Any, misfits: Misfits) -> float:
    if type(value) is not Number:
        raise MistypedError
    found = float(value) if not value.is_whole or len(value) > 300 else float(int(value))  # -0 is the integer 0
    if abs(found) >= beyond:
        _beyond(place, misfits)
    return found


def _decimal(digits: tuple[int, int], value: Any, _: Misfits) -> str:
    if not isinstance(value, str) or read_decimal(value, digits) is None:
        raise MistypedError
    return str(value)


def _boolean(value: Any, _: Misfits) -> bool:
    if type(value) is not bool:
        raise MistypedError
    return value


def _string(place: FieldPath, value: Any, _: Misfits) -> str:
    text = _clean(value) if type(value) is str else _written(value)
    if len(text) > LONGEST:
        raise LimitError(f"{TOO_LONG_TEXT}: {place.name}")
    return text


def _binary(value: Any, _: Misfits) -> bytes:
    if type(value) is not str:
        raise MistypedError
    text = value.translate(dict.fromkeys(map(ord, BLANKS)))
    if not BASE64.fullmatch(text):
        raise MistypedError
    return base64.b64decode(text)


def _variant(value: Any, _: Misfits) -> str:
    if _has_twice(value):
        raise MistypedError
    return _written(value)


OTHERS: dict[str, Read] = {
    "boolean": _boolean,
    "binary": _binary,
    "variant": _variant,
    "void": lambda _, __: None,
}
