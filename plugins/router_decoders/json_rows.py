"""Decode one JSON text in full: its event, or the reason why it has none.

This is the second step of `json_arrow`, for rows that msgspec does not take as they are: of texts that are no JSON, of
values that do not fit, and of those that fit in another way (a number in a string field, a name with a quotation mark).
This module defines what JSON means here; the first step is only allowed to be quicker.

| what | means |
|---|---|
| RFC 8259 in UTF-8, a byte order mark passed over | JSON |
| more than 999 levels, a number of more than 1000 digits, a key of more than 50,000 characters | beyond a limit |
| a text of more than 20 million characters for a string | beyond a limit |
| an integer without `.` and `e`, in the range of its type | a whole number |
| a number, also where it is rounded; beyond the type's range it does not fit | double, float |
| a number, or a text that is one | decimal |
| base64 with its padding, blanks passed over | binary |
| anything; what is no text as its JSON text, numbers as they are written | string |
| half of a surrogate pair | a question mark |

The reason names the fields of a record that do not fit, if they are in structs only; a value inside an array or a map
is named by that field.
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

from router_decoders.json_types import (
    ARROW_TYPES,
    INTEGER_KINDS,
    TIME_KINDS,
    Shape,
    read_decimal,
    read_time,
    struct_class,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

MAX_LEVELS = 999
MAX_DIGITS = 1000
MAX_NAME_CHARACTERS = 50_000
MAX_TEXT_CHARACTERS = 20_000_000
"""Characters of a text, at most."""
HARMLESS_BYTES = 1000
"""Bytes that hold neither too many levels nor too many digits."""
SHALLOW_BRACKETS = 200
"""Brackets that Python's stack has room for in any case."""
BLANKS = " \t\r\n"
BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
TEXTS_AND_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
"""Texts, so that the brackets in them are passed over, and brackets."""
CLOSING_BRACKETS = {"[": "]", "{": "}"}
BEYOND_FLOAT = 2.0**128 - 2.0**103
"""The smallest number that is rounded to infinity in 32 bits."""

TOO_DEEP = f"value is nested more than {MAX_LEVELS} levels deep"
TOO_MANY_DIGITS = f"value has a number of more than {MAX_DIGITS} digits"
TOO_LONG_NAME = f"value has a field name of more than {MAX_NAME_CHARACTERS} characters"
TOO_LONG_TEXT = f"value has a text of more than {MAX_TEXT_CHARACTERS} characters"
NULL_VALUE = "value is null"
EMPTY_VALUE = "value is empty"
NOT_UTF8 = "value is not UTF-8"
NOT_JSON = "value is not JSON"
MORE_TEXT = "value has text after the object"
MISFIT = "does not fit the schema"

Order = tuple[tuple[int, int], ...]
"""The place of a field in the schema; its struct's own fields come before those of structs inside."""


class Number(str):
    """A number as it is written."""

    __slots__ = ()

    @property
    def is_whole(self) -> bool:
        """Return whether it is written as an integer."""
        return self.removeprefix("-").isdigit()


class Object(list[tuple[str, Any]]):
    """The keys and values of an object as they are written, also those that come twice."""

    __slots__ = ()


class MistypedError(ValueError):
    """A value of another JSON type than its field's."""


class LimitError(ValueError):
    """JSON beyond a limit of the decoder; its text is the reason."""


class DecodedRow(NamedTuple):
    """A row's object for the columns, its unknown keys, and the value they come from; or the reason for no event."""

    event: Any = None
    unknown: dict[str, str | None] | None = None
    reason: str | None = None
    value: Object | None = None


class Misfits:
    """The fields of a row that do not fit: those with a value beyond their type, and those with one of another type."""

    def __init__(self) -> None:
        self.any = False
        self.beyond: set[tuple[Order, str]] = set()
        self.mistyped: set[tuple[Order, str]] = set()

    def reason_for(self, value: Object) -> str:
        """Return the reason with the names of fields. If a key comes twice, no field with another type is named."""
        fields = sorted(self.beyond)
        if not _has_twice(value):
            fields += sorted(self.mistyped)
        names = ", ".join(name for _, name in fields)
        return f"{MISFIT}: {names}".rstrip(": ")


@dataclass(frozen=True)
class FieldPath:
    """The place of a value: the name of its field and the field's order; `inside` an array or a map of that field."""

    name: str = ""
    order: Order = ()
    inside: bool = False

    def of_field(self, number: int, name: str) -> FieldPath:
        """Return the place of a struct's field."""
        if self.inside:
            return self
        if self.name:
            name = f"{self.name}.{name}"
        # 0 stands for the field itself and 1 for a struct around it: so a struct's own fields come before those inside.
        outer = tuple((1, step) for _, step in self.order)
        return FieldPath(name, (*outer, (0, number)))

    def of_element(self) -> FieldPath:
        """Return the place of the values in an array or a map."""
        return FieldPath(self.name, self.order, inside=True)


Read = Callable[[Any, Misfits], Any]
"""A function that returns a JSON value, not null, in the form that columns take; it raises MistypedError."""


class RowDecoder:
    """A decoder of any text to the objects of one shape. `zone` is the session's time zone."""

    def __init__(self, shape: Shape, zone: str, rescue: bool = False) -> None:
        self._read = _make_reader(shape, zone, FieldPath())
        self._rescue = rescue
        self._field_names = frozenset(name for name, _ in shape.fields)

    def decode(self, text: bytes | None) -> DecodedRow:
        """Return the event of a text, or the reason for none. Never raises for any bytes."""
        if text is None:
            return DecodedRow(reason=NULL_VALUE)
        try:
            # A byte order mark is passed over, as RFC 8259, 8.1 lets a parser do.
            chars = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            return DecodedRow(reason=NOT_UTF8)
        if not chars.strip(BLANKS):
            return DecodedRow(reason=EMPTY_VALUE)
        try:
            depth = _nesting_depth(chars)
            if not depth:
                return self._decode_text(chars)
            # Only deep texts need more than Python's usual stack.
            with _room_for(depth):
                return self._decode_text(chars)
        except LimitError as error:
            return DecodedRow(reason=str(error))
        except ValueError:
            return DecodedRow(reason=NOT_JSON)

    def _decode_text(self, text: str) -> DecodedRow:
        value, more = _parse_value(text)
        if type(value) is not Object:
            kind = "an array" if isinstance(value, list) else "a scalar"
            return DecodedRow(reason=f"value is {kind}, not an object")
        if more:
            return DecodedRow(reason=MORE_TEXT)
        misfits = Misfits()
        event = self._read(value, misfits)
        if misfits.any:
            return DecodedRow(reason=misfits.reason_for(value))
        unknown = None
        if self._rescue:
            unknown = _unknown_keys(value, self._field_names)
        return DecodedRow(event, unknown, value=value)


# JSON texts


def _parse_value(text: str) -> tuple[Any, bool]:
    """Return the first value of a text, and whether anything but blanks follows it; raise ValueError for no JSON."""
    scanner = SCANNER if len(text) <= HARMLESS_BYTES else LONG_SCANNER
    begin = len(text) - len(text.lstrip(BLANKS))
    value, end = scanner.raw_decode(text, begin)
    follows = text[end : end + 1]
    if follows and follows not in BLANKS and type(value) not in (Object, list, str):
        raise ValueError("a number or word with text directly behind it")
    # Nearly always nothing follows: then the rest of the text is not copied.
    has_more = bool(follows) and bool(text[end:].strip(BLANKS))
    return value, has_more


def _refuse_constant(word: str) -> None:
    raise ValueError(word)  # NaN and Infinity


def _limited_number(text: str) -> Number:
    if sum(map(str.isdigit, text)) > MAX_DIGITS:
        raise LimitError(TOO_MANY_DIGITS)
    return Number(text)


def _limited_object(pairs: list[tuple[str, Any]]) -> Object:
    if any(len(key) > MAX_NAME_CHARACTERS for key, _ in pairs):
        raise LimitError(TOO_LONG_NAME)
    return Object(pairs)


SCANNER = json.JSONDecoder(
    object_pairs_hook=Object, parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
)
LONG_SCANNER = json.JSONDecoder(
    object_pairs_hook=_limited_object,
    parse_float=_limited_number,
    parse_int=_limited_number,
    parse_constant=_refuse_constant,
)


def _nesting_depth(text: str) -> int:
    """Return how deep a text is nested, as far as it needs room.

    Raises LimitError if that is too deep, ValueError if the text is no JSON before it is.
    """
    if text.count("[") + text.count("{") <= SHALLOW_BRACKETS:
        return 0
    closing: list[str] = []
    deepest = 0
    for match in TEXTS_AND_BRACKETS.finditer(text):
        bracket = match[0]
        if bracket in CLOSING_BRACKETS:
            closing.append(CLOSING_BRACKETS[bracket])
            deepest = max(deepest, len(closing))
        elif bracket in ("]", "}"):
            is_open = bool(closing) and closing.pop() == bracket
            if not is_open or not closing:
                break  # the value ends here, or is no JSON: the parser reads no further
        if deepest > MAX_LEVELS:
            _check_ends(text, match.start(), closing)
            raise LimitError(TOO_DEEP)
    return deepest


def _check_ends(text: str, place: int, closing: list[str]) -> None:
    """Raise ValueError if a text is no JSON before a place that is nested too deep, or is cut off at its end.

    `closing` are the brackets that close the open ones there. Deeper values are not looked at.
    """
    if not text.rstrip(BLANKS).endswith(closing[0]):
        raise ValueError("the text is cut off")
    outer = closing[:-1]
    with _room_for(len(outer)):
        _parse_value(f"{text[:place]}0{''.join(reversed(outer))}")


@contextmanager
def _room_for(depth: int) -> Iterator[None]:
    """Let Python's stack hold so many levels; its limit also counts those of the C parser."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 5 * depth)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def json_text(value: Any) -> str | None:
    """Return a value as a string field has it: a text itself, anything else as JSON without blanks."""
    if value is None:
        return None
    return _text_of(value)


def _text_of(value: Any) -> str:
    """Return a text itself, and anything else as JSON without blanks."""
    if type(value) is str:
        return _replace_surrogates(value)
    return _write_json(value)


def json_text_of(text: bytes) -> str | None:
    """Return a value in JSON as a string field has it; simple texts are not parsed."""
    chars = text.decode()
    if chars == "null":
        return None
    if chars[0] not in '"[{':  # a number, true or false
        return chars
    has_escapes = "\\" in chars
    if chars[0] == '"' and not has_escapes:
        return chars.strip('"')
    depth = _nesting_depth(chars)
    if not has_escapes and not depth:
        return msgspec.json.format(text, indent=-1).decode()
    with _room_for(depth):
        value, _ = _parse_value(chars)
        return json_text(value)


def _write_json(value: Any) -> str:
    if isinstance(value, Object):
        members = [f"{_quote_text(key)}:{_write_json(child)}" for key, child in value]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write_json, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return _quote_text(value)
    return JSON_WORDS[value]


JSON_WORDS = {None: "null", True: "true", False: "false"}


def _quote_text(text: str) -> str:
    return json.dumps(_replace_surrogates(text), ensure_ascii=False)


def _replace_surrogates(text: str) -> str:
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
        return len(dict(value)) < len(value) or any(_has_twice(child) for _, child in value)
    return isinstance(value, list) and any(map(_has_twice, value))


def _unknown_keys(value: Object, field_names: Container[str]) -> dict[str, str | None] | None:
    """Return the top-level keys that a schema does not know, sorted, with their last values; None without any."""
    last_values = {_replace_surrogates(key): child for key, child in value if key not in field_names}
    return {key: json_text(last_values[key]) for key in sorted(last_values)} or None


# Values by type


def _make_reader(shape: Shape, zone: str, place: FieldPath) -> Read:
    """Return the function that reads the values of a type."""
    if shape.kind == "struct":
        return _struct_reader(shape, zone, place)
    if shape.kind == "array":
        return partial(_read_list, _make_reader(shape.inner, zone, place.of_element()))
    if shape.kind == "map":
        return partial(_read_map, _make_reader(shape.inner, zone, place.of_element()), place)
    return _scalar_reader(shape, zone, place)


def _scalar_reader(shape: Shape, zone: str, place: FieldPath) -> Read:
    if shape.kind in TIME_KINDS:
        named_place = None if shape.kind == "timestamp_ntz" else place
        return partial(_read_time_text, lambda text: read_time(text, shape.kind, zone), named_place)
    if shape.kind in INTEGER_KINDS:
        return partial(_read_integer, 2 ** (ARROW_TYPES[shape.kind].bit_width - 1))
    if shape.kind == "float":
        return partial(_read_float, BEYOND_FLOAT, place)
    if shape.kind == "double":
        return partial(_read_float, math.inf, place)
    if shape.kind == "string":
        return partial(_read_string, place)
    if shape.kind == "decimal":
        return partial(_read_decimal, shape.digits)
    return SCALAR_READERS[shape.kind]


def _struct_reader(shape: Shape, zone: str, place: FieldPath) -> Read:
    places = []
    readers = []
    numbers: dict[str, int] = {}
    last_only: set[int] = set()
    variants: set[int] = set()
    for number, (name, child) in enumerate(shape.fields):
        field_place = place.of_field(number, name)
        places.append(field_place)
        readers.append(_make_reader(child, zone, field_place))
        numbers[name] = number
        if child.kind in (*TIME_KINDS, "decimal", "map"):
            last_only.add(number)
        if child.kind == "variant":
            variants.add(number)
    make = struct_class(shape)

    def read_struct(value: Any, misfits: Misfits) -> Any:
        if type(value) is not Object:
            raise MistypedError
        values: list[Any] = [None] * len(readers)
        pairs = [(numbers[key], child) for key, child in value if key in numbers]
        last = dict(pairs)
        for number, child in pairs:
            # Of a time, a decimal and a map that come twice only the last one must fit.
            if number in last_only and child is not last[number]:
                continue
            # JSON's null is a value of a variant; any other field is null then.
            if child is None and number not in variants:
                values[number] = None
                continue
            try:
                values[number] = readers[number](child, misfits)
            except MistypedError:
                misfits.any = True
                if not place.inside:
                    misfits.mistyped.add((places[number].order, places[number].name))
        return make(*values)

    return read_struct


def _read_list(element: Read, value: Any, misfits: Misfits) -> list[Any]:
    if type(value) is not list:
        raise MistypedError
    return [None if child is None else element(child, misfits) for child in value]


def _read_map(read: Read, place: FieldPath, value: Any, misfits: Misfits) -> dict[str, Any]:
    if type(value) is not Object:
        raise MistypedError
    entries = {}
    for key, child in value:
        entries[_replace_surrogates(key)] = None if child is None else read(child, misfits)
    if len(entries) < len(value):
        _add_beyond(place, misfits)
    return entries


def _add_beyond(place: FieldPath, misfits: Misfits) -> None:
    misfits.any = True
    misfits.beyond.add((place.order, place.name))


def _read_time_text(read: Callable[[str], Any], place: FieldPath | None, value: Any, misfits: Misfits) -> str:
    """Return the text of a time, which is read again with its column; without a place, a wrong one is mistyped."""
    text = _text_of(value)
    if read(text) is None:
        if place is None:
            raise MistypedError
        _add_beyond(place, misfits)
    return text


def _read_integer(limit: int, value: Any, _: Misfits) -> int:
    if type(value) is not Number or not value.is_whole:
        raise MistypedError
    number = int(value)
    if not -limit <= number < limit:
        raise MistypedError
    return number


def _read_float(beyond: float, place: FieldPath, value: Any, misfits: Misfits) -> float:
    if type(value) is not Number:
        raise MistypedError
    number = float(value)
    if number == 0 and value.is_whole:
        number = 0.0  # -0 is the integer 0
    if abs(number) >= beyond:
        _add_beyond(place, misfits)
    return number


def _read_decimal(digits: tuple[int, int], value: Any, _: Misfits) -> str:
    if not isinstance(value, str) or read_decimal(value, digits) is None:
        raise MistypedError
    return str(value)


def _read_boolean(value: Any, _: Misfits) -> bool:
    if type(value) is not bool:
        raise MistypedError
    return value


def _read_string(place: FieldPath, value: Any, _: Misfits) -> str:
    text = _text_of(value)
    if len(text) > MAX_TEXT_CHARACTERS:
        raise LimitError(f"{TOO_LONG_TEXT}: {place.name}")
    return text


def _read_binary(value: Any, _: Misfits) -> bytes:
    if type(value) is not str:
        raise MistypedError
    text = value.translate(dict.fromkeys(map(ord, BLANKS)))
    if not BASE64.fullmatch(text):
        raise MistypedError
    return base64.b64decode(text)


def _read_variant(value: Any, _: Misfits) -> str:
    if _has_twice(value):
        raise MistypedError
    return _write_json(value)


SCALAR_READERS: dict[str, Read] = {
    "boolean": _read_boolean,
    "binary": _read_binary,
    "variant": _read_variant,
    "void": lambda _, __: None,
}
