"""Evaluate the SQL of an answer rule over JSON values, with Spark's meaning (ANSI mode). Runs anywhere, without Spark.

A value has the type of its JSON: a boolean, a number (whole ones of 64 bits are `bigint`, others `double`), a text. A
text compared with another type is read as that one. Null is contagious but for AND, OR, IN and the functions about
null. What would be an error in Spark (a division by zero, a text that is no number, a list compared with a number)
makes the value of the whole expression null, and so the rule does not hold. AND, OR, CASE, IF and COALESCE evaluate no
more than they need.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class NoValue(Exception):  # noqa: N818 - an answer, no error
    """What would be an error in Spark."""


@dataclass(frozen=True)
class Operation:
    """One operation: its name, what it is applied to, and a constant where it needs one; pickled to tasks.

    The names are those of sqlglot's nodes, and Path, IsNull and Cast.
    """

    name: str
    operands: tuple[Operation, ...] = ()
    constant: Any = None

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the value for JSON values by name. Raises NoValue or ArithmeticError for an error of Spark."""
        special = _SPECIAL.get(self.name)
        if special is not None:
            return special(self, values)
        operands = []
        for operand in self.operands:
            value = operand.evaluate(values)
            if value is None:
                return None
            operands.append(value)
        if self.constant is not None:
            operands.append(self.constant)
        return _OF_VALUES[self.name](*operands)


@dataclass(frozen=True)
class AnswerExpression:
    """An SQL expression over an answer, as it was written and as it is evaluated; pickled to tasks."""

    text: str
    operation: Operation

    def reads(self, name: str) -> bool:
        """Return whether the expression reads the value of this name, or a part of it."""
        return _reads(self.operation, name)

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value for JSON values by name; None if it is null or cannot be evaluated."""
        try:
            return self.operation.evaluate(values)
        except (NoValue, ArithmeticError, ValueError):  # the last of NaN, and of texts that are no UTF-8
            return None


def _reads(operation: Operation, name: str) -> bool:
    if operation.name == "Path":
        return bool(operation.constant[0] == name)
    return any(_reads(operand, name) for operand in operation.operands)


# Operations that look at their operands themselves


def _literal(operation: Operation, values: Mapping[str, Any]) -> Any:
    return operation.constant


def _path(operation: Operation, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for step in operation.constant:
        value = _step(value, step)
    return value


def _step(value: Any, step: str | int) -> Any:
    """Return a part of a value; None if there is none. `*` is the only field of an object, whatever its name."""
    if isinstance(step, int):
        if isinstance(value, list) and step < len(value):
            return value[step]
        return None
    if isinstance(value, list):  # the fields of its items, as in Spark
        return [_step(item, step) for item in value]
    if not isinstance(value, Mapping) or (step == "*" and len(value) != 1):
        return None
    return next(iter(value.values())) if step == "*" else value.get(step)


def _and(operation: Operation, values: Mapping[str, Any]) -> bool | None:
    return _decided_by(False, operation, values)


def _or(operation: Operation, values: Mapping[str, Any]) -> bool | None:
    return _decided_by(True, operation, values)


def _decided_by(decisive: bool, operation: Operation, values: Mapping[str, Any]) -> bool | None:
    """Evaluate operands until one has the value that decides; without it null counts more than the other value."""
    found_null = False
    for operand in operation.operands:
        value = _truth(operand.evaluate(values))
        if value is decisive:
            return decisive
        found_null = found_null or value is None
    if found_null:
        return None
    return not decisive


def _truth(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise NoValue


def _is_null(operation: Operation, values: Mapping[str, Any]) -> bool:
    return operation.operands[0].evaluate(values) is None


def _null_safe_equal(operation: Operation, values: Mapping[str, Any]) -> bool:
    first, second = (operand.evaluate(values) for operand in operation.operands)
    if first is None or second is None:
        return first is None and second is None
    return _equal(first, second)


def _in(operation: Operation, values: Mapping[str, Any]) -> bool | None:
    wanted, *items = (operand.evaluate(values) for operand in operation.operands)
    if wanted is None:
        return None
    present = [item for item in items if item is not None]
    convert = _common_type([wanted, *present])
    # One after the other: an item behind the one that is equal is not read as another type, as in Spark.
    for item in present:
        if _key(convert(item)) == _key(convert(wanted)):
            return True
    if len(present) < len(items):
        return None
    return False


def _if(operation: Operation, values: Mapping[str, Any]) -> Any:
    """Return the value after the first condition that holds; the last of an odd number is for all else."""
    operands = operation.operands
    for position in range(0, len(operands) - 1, 2):
        if _truth(operands[position].evaluate(values)):
            return operands[position + 1].evaluate(values)
    if len(operands) % 2:
        return operands[-1].evaluate(values)
    return None


def _coalesce(operation: Operation, values: Mapping[str, Any]) -> Any:
    for operand in operation.operands:
        value = operand.evaluate(values)
        if value is not None:
            return value
    return None


def _greatest(operation: Operation, values: Mapping[str, Any]) -> Any:
    return max(_present(operation, values), key=_key, default=None)


def _least(operation: Operation, values: Mapping[str, Any]) -> Any:
    return min(_present(operation, values), key=_key, default=None)


def _present(operation: Operation, values: Mapping[str, Any]) -> list[Any]:
    """Return the values that are not null, in one type."""
    operands = [operand.evaluate(values) for operand in operation.operands]
    return _alike([value for value in operands if value is not None])


def _concat_ws(operation: Operation, values: Mapping[str, Any]) -> str | None:
    separator, *texts = (operand.evaluate(values) for operand in operation.operands)
    if separator is None:
        return None
    return _text(separator).join([_text(text) for text in texts if text is not None])


def _try_cast(operation: Operation, values: Mapping[str, Any]) -> Any:
    value = operation.operands[0].evaluate(values)  # an error in here stays one
    if value is None:
        return None
    try:
        return CASTS[operation.constant](value)
    except (NoValue, ArithmeticError):
        return None


_SPECIAL: dict[str, Callable[[Operation, Mapping[str, Any]], Any]] = {
    "Literal": _literal,
    "Path": _path,
    "And": _and,
    "Or": _or,
    "IsNull": _is_null,
    "NullSafeEQ": _null_safe_equal,
    "In": _in,
    "If": _if,
    "Coalesce": _coalesce,
    "Greatest": _greatest,
    "Least": _least,
    "ConcatWs": _concat_ws,
    "TryCast": _try_cast,
}


# Types: what Spark casts by itself


def _common_type(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return what makes each of some values, none of them null, one of the type in which Spark compares them."""
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return _text
    if kinds <= {bool, str}:
        return _boolean
    if not kinds <= {int, float, str}:
        raise NoValue
    for value in values:
        if not isinstance(value, str) and isinstance(_number(value), float):
            return _double
    return _bigint


def _alike(values: Sequence[Any]) -> list[Any]:
    """Return values, none of them null, in the type in which Spark compares them and computes with them."""
    convert = _common_type(values)
    return [convert(value) for value in values]


def _key(value: Any) -> tuple[bool, Any]:
    """Return what sorts a number or a text: to Spark all NaN are the same, and larger than any other number."""
    if value != value:  # noqa: PLR0124 - the definition of NaN
        return True, 0.0
    return False, value


def _keys(values: Sequence[Any]) -> list[tuple[bool, Any]]:
    return [_key(value) for value in _alike(values)]


def _number(value: Any) -> int | float:
    """Return a number as Spark reads it from JSON: a whole one of more than 64 bits is a double."""
    if isinstance(value, str):
        return _double(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NoValue
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


_SPACES = "".join(map(chr, range(33)))
"""What Spark cuts off a text before it reads it as another type."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAMED_DOUBLES = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), math.inf),
    **dict.fromkeys(("-inf", "-infinity"), -math.inf),
    "nan": math.nan,
}
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})


def _whole(value: Any, *, bits: int) -> int:
    """Return a value as a whole number of so many bits; what is behind the point of a number is cut off."""
    if isinstance(value, str):
        text = value.strip(_SPACES)
        if _WHOLE.fullmatch(text) is None:
            raise NoValue
        number = int(text)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise NoValue
        number = math.trunc(value)
    elif isinstance(value, int):
        number = int(value)
    else:
        raise NoValue
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise NoValue
    return number


def _bigint(value: Any) -> int:
    return _whole(value, bits=64)


def _double(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str):
        raise NoValue
    text = value.strip(_SPACES)
    if _DOUBLE.fullmatch(text):
        return float(text)
    named = _NAMED_DOUBLES.get(text.lower())
    if named is None:
        raise NoValue
    return named


def _float(value: Any) -> float:
    return float(ctypes.c_float(_double(value)).value)


def _boolean(value: Any) -> bool:
    if isinstance(value, (bool, int, float)):
        return value != 0
    if not isinstance(value, str):
        raise NoValue
    word = value.strip(_SPACES).lower()
    if word not in _TRUE | _FALSE:
        raise NoValue
    return word in _TRUE


def _text(value: Any) -> str:
    """Return a value as Spark writes it; objects and lists have no text here."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _text_of_double(value)
    raise NoValue


def _text_of_double(value: float) -> str:
    """Return a double as Java writes it: 5.0, 1.0E7, NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f")
    # One digit before the point, at least one behind it: 1.25E-5.
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"


CASTS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: _whole(value, bits=32),
    "bigint": _bigint,
    "float": _float,
    "double": _double,
    "string": _text,
    "boolean": _boolean,
}
"""The types of casts."""


def _cast(value: Any, kind: str) -> Any:
    return CASTS[kind](value)


# Operations of values, none of which is null


def _equal(first: Any, second: Any) -> bool:
    first_key, second_key = _keys([first, second])
    return first_key == second_key


def _less(first: Any, second: Any) -> bool:
    first_key, second_key = _keys([first, second])
    return first_key < second_key


def _not(value: Any) -> bool:
    return not _truth(value)


def _add(first: Any, second: Any) -> int | float:
    left, right = _alike_numbers(first, second)
    return _in_range(left + right)


def _subtract(first: Any, second: Any) -> int | float:
    left, right = _alike_numbers(first, second)
    return _in_range(left - right)


def _multiply(first: Any, second: Any) -> int | float:
    left, right = _alike_numbers(first, second)
    return _in_range(left * right)


def _divide(first: Any, second: Any) -> float:
    left, right = _alike_numbers(first, second)
    return float(left) / float(right)


def _divide_whole(first: Any, second: Any) -> int | float:
    """Divide and cut off what is behind the point, as Java does: Python rounds down."""
    left, right = (_bigint(value) for value in _alike_numbers(first, second))
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return _in_range(quotient)


def _remainder(first: Any, second: Any) -> int | float:
    """Return the rest of a division, with the sign of what is divided, as in Java."""
    left, right = _alike_numbers(first, second)
    if right == 0:
        raise ZeroDivisionError
    if isinstance(left, float):
        return math.fmod(left, right)
    rest = abs(int(left)) % abs(int(right))
    if left < 0:
        rest = -rest
    return rest


def _alike_numbers(first: Any, second: Any) -> list[Any]:
    """Return two numbers in one type. Two texts are doubles, as in Spark."""
    if isinstance(first, str) and isinstance(second, str):
        return [_double(first), _double(second)]
    alike = _alike([first, second])
    if any(isinstance(value, bool) for value in alike):
        raise NoValue
    return alike


def _in_range(value: int | float) -> int | float:
    """Return a number that fits its type; raise NoValue for a whole one that has more than 64 bits."""
    return _bigint(value) if isinstance(value, int) else value


def _negative(value: Any) -> int | float:
    return _in_range(-_number(value))


def _absolute(value: Any) -> int | float:
    return _in_range(abs(_number(value)))


def _ceiling(value: Any) -> int:
    return _bigint(math.ceil(_number(value)))


def _floor(value: Any) -> int:
    return _bigint(math.floor(_number(value)))


def _round(value: Any, decimals: int) -> int | float:
    """Round half away from zero, by the digits that a number is written with."""
    number = _number(value)
    if isinstance(number, float) and not math.isfinite(number):
        return number
    with localcontext() as context:
        context.prec = 700  # enough for each digit of the largest and the smallest double
        rounded = Decimal(repr(number)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP)
    if isinstance(number, int):
        return _in_range(int(rounded))
    return float(rounded) + 0.0  # there is no negative zero


def _like(value: Any, pattern: str) -> bool:
    return bool(pc.match_like(pa.scalar(_text(value)), pattern).as_py())


def _ilike(value: Any, pattern: str) -> bool:
    return bool(pc.match_like(pa.scalar(_text(value).lower()), pattern.lower()).as_py())


def _rlike(value: Any, pattern: str) -> bool:
    return bool(pc.match_substring_regex(pa.scalar(_text(value)), pattern).as_py())


_LINE_END = r"[\n\r\x{85}\x{2028}\x{2029}]"
_REGEX_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<list>\[\^?(?:\\.|[^\]\\\[&])+\])|(?P<group>\((?:\?:|(?!\?)))|(?P<end>\$(?=\||$))|(?P<dot>\.)"
    r"|(?P<plain>[^\\\[($.])",
    re.DOTALL,
)
_REGEX_ESCAPES = frozenset("dDwWsStnrf")
"""Letters after a backslash that mean the same to Java and to RE2; what is no letter and no digit stands for itself."""

_JAVA_SPACES = {r"\s": r"[\s\x0b]", r"\S": r"[^\s\x0b]"}
"""The vertical tab is a space in Java, and none in RE2."""
_LISTED_JAVA_SPACES = {r"\s": r"\s\x0b"}
"""The same in a list; `\\S` cannot be written there without the vertical tab."""


def java_pattern(pattern: str) -> str:
    """Return a regular expression of Java as RE2 writes it, which needs linear time whatever an API answers.

    Raises ValueError for what RE2 does not know, or could mean otherwise: references, looking ahead or back, possessive
    quantifiers, flags, sets inside of sets.
    """
    translated = []
    position = 0
    while position < len(pattern):
        token = _REGEX_TOKEN.match(pattern, position)
        if token is None:
            raise ValueError(pattern)
        for escaped in re.findall(r"\\(.)", token[0], re.DOTALL):
            if (escaped.isalnum() or ord(escaped) > 127) and escaped not in _REGEX_ESCAPES:
                raise ValueError(pattern)
        if token["dot"]:
            translated.append(_LINE_END.replace("[", "[^"))
        elif token["end"]:  # it also stands before the end of a last line
            translated.append(rf"(?:\r\n|{_LINE_END})?\z")
        elif token["list"]:
            listed = re.sub(
                r"\\.", lambda escape: _LISTED_JAVA_SPACES.get(escape[0], escape[0]), token[0], flags=re.DOTALL
            )
            translated.append(listed)
        else:
            translated.append(_JAVA_SPACES.get(token[0], token[0]))
        position = token.end()
    of_re2 = "".join(translated)
    try:
        pc.match_substring_regex(pa.scalar(""), of_re2)
    except pa.ArrowInvalid:
        raise ValueError(pattern) from None
    return of_re2


def _concat(*values: Any) -> str:
    return "".join([_text(value) for value in values])


def _substring(value: Any, start: Any, length: Any) -> str:
    """Return characters from a position, which counts from 1, or from the end where it is negative."""
    text = _text(value)
    position = _whole(start, bits=32)
    begin = 0
    if position > 0:
        begin = position - 1
    elif position < 0:
        begin = len(text) + position
    end = begin + _whole(length, bits=32)
    return text[max(begin, 0) : max(end, 0)]


def _left(value: Any, length: Any) -> str:
    return _substring(value, 1, length)


def _right(value: Any, length: Any) -> str:
    text = _text(value)
    characters = _whole(length, bits=32)
    if characters <= 0:
        return ""
    return text[-characters:]


def _contains(value: Any, part: Any) -> bool:
    return _text(part) in _text(value)


def _starts_with(value: Any, part: Any) -> bool:
    return _text(value).startswith(_text(part))


def _ends_with(value: Any, part: Any) -> bool:
    return _text(value).endswith(_text(part))


def _position(value: Any, part: Any) -> int:
    return _text(value).find(_text(part)) + 1


def _replace(value: Any, part: Any, replacement: Any) -> str:
    if part == "":
        return _text(value)
    return _text(value).replace(_text(part), _text(replacement))


def _split_part(value: Any, delimiter: Any, number: Any) -> str:
    """Return a part of a text, which counts from 1, or from the last where it is negative."""
    position = _whole(number, bits=32)
    if position == 0:
        raise NoValue
    parts = [_text(value)]
    if delimiter != "":
        parts = _text(value).split(_text(delimiter))
    if abs(position) > len(parts):
        return ""
    if position > 0:
        position -= 1
    return parts[position]


def _trim(value: Any, side: str) -> str:
    text = _text(value)
    if side != "TRAILING":
        text = text.lstrip(" ")
    if side != "LEADING":
        text = text.rstrip(" ")
    return text


def _size(value: Any) -> int:
    if not isinstance(value, list):
        raise NoValue
    return len(value)


def _array_contains(items: Any, wanted: Any) -> bool | None:
    if not isinstance(items, list):
        raise NoValue
    present = [item for item in items if item is not None]
    for item in present:
        if _equal(item, wanted):
            return True
    if len(present) < len(items):
        return None
    return False


_OF_VALUES: dict[str, Callable[..., Any]] = {
    "EQ": _equal,
    "NEQ": lambda first, second: not _equal(first, second),
    "LT": _less,
    "GT": lambda first, second: _less(second, first),
    "LTE": lambda first, second: not _less(second, first),
    "GTE": lambda first, second: not _less(first, second),
    "Not": _not,
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "IntDiv": _divide_whole,
    "Mod": _remainder,
    "Neg": _negative,
    "Abs": _absolute,
    "Ceil": _ceiling,
    "Floor": _floor,
    "Round": _round,
    "Like": _like,
    "ILike": _ilike,
    "RegexpLike": _rlike,
    "Concat": _concat,
    "DPipe": _concat,
    "Lower": lambda value: _text(value).lower(),
    "Upper": lambda value: _text(value).upper(),
    "Length": lambda value: len(_text(value)),
    "Substring": _substring,
    "Left": _left,
    "Right": _right,
    "Contains": _contains,
    "StartsWith": _starts_with,
    "EndsWith": _ends_with,
    "StrPosition": _position,
    "Replace": _replace,
    "SplitPart": _split_part,
    "Trim": _trim,
    "ArraySize": _size,
    "ArrayContains": _array_contains,
    "Cast": _cast,
}
"""Operations that are null if one of their operands is."""
