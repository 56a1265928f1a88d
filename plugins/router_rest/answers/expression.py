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
        special = _LAZY_OPERATIONS.get(self.name)
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
        return _VALUE_OPERATIONS[self.name](*operands)


@dataclass(frozen=True)
class AnswerExpression:
    """An SQL expression over an answer, as it was written and as it is evaluated; pickled to tasks."""

    text: str
    operation: Operation

    def reads_name(self, name: str) -> bool:
        """Return whether the expression reads the value of this name, or a part of it."""
        return _reads_name(self.operation, name)

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value for JSON values by name; None if it is null or cannot be evaluated."""
        try:
            return self.operation.evaluate(values)
        except (NoValue, ArithmeticError, ValueError):  # the last of NaN, and of texts that are no UTF-8
            return None


def _reads_name(operation: Operation, name: str) -> bool:
    if operation.name == "Path":
        return bool(operation.constant[0] == name)
    return any(_reads_name(operand, name) for operand in operation.operands)


# Operations that look at their operands themselves


def _literal_value(operation: Operation, values: Mapping[str, Any]) -> Any:
    return operation.constant


def _value_at_path(operation: Operation, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for step in operation.constant:
        value = _take_step(value, step)
    return value


def _take_step(value: Any, step: str | int) -> Any:
    """Return a part of a value; None if there is none. `*` is the only field of an object, whatever its name."""
    if isinstance(step, int):
        if isinstance(value, list) and step < len(value):
            return value[step]
        return None
    if isinstance(value, list):  # the fields of its items, as in Spark
        return [_take_step(item, step) for item in value]
    if not isinstance(value, Mapping) or (step == "*" and len(value) != 1):
        return None
    return next(iter(value.values())) if step == "*" else value.get(step)


def _evaluate_and(operation: Operation, values: Mapping[str, Any]) -> bool | None:
    return _decided_by(False, operation, values)


def _evaluate_or(operation: Operation, values: Mapping[str, Any]) -> bool | None:
    return _decided_by(True, operation, values)


def _decided_by(decisive: bool, operation: Operation, values: Mapping[str, Any]) -> bool | None:
    """Evaluate operands until one has the value that decides; without it null counts more than the other value."""
    found_null = False
    for operand in operation.operands:
        value = _as_truth(operand.evaluate(values))
        if value is decisive:
            return decisive
        found_null = found_null or value is None
    if found_null:
        return None
    return not decisive


def _as_truth(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise NoValue


def _is_null(operation: Operation, values: Mapping[str, Any]) -> bool:
    return operation.operands[0].evaluate(values) is None


def _null_safe_equal(operation: Operation, values: Mapping[str, Any]) -> bool:
    first, second = (operand.evaluate(values) for operand in operation.operands)
    if first is None or second is None:
        return first is None and second is None
    return _is_equal(first, second)


def _evaluate_in(operation: Operation, values: Mapping[str, Any]) -> bool | None:
    wanted, *items = (operand.evaluate(values) for operand in operation.operands)
    if wanted is None:
        return None
    present = [item for item in items if item is not None]
    convert = _common_type([wanted, *present])
    # One after the other: an item behind the one that is equal is not read as another type, as in Spark.
    for item in present:
        if _sort_key(convert(item)) == _sort_key(convert(wanted)):
            return True
    if len(present) < len(items):
        return None
    return False


def _evaluate_if(operation: Operation, values: Mapping[str, Any]) -> Any:
    """Return the value after the first condition that holds; the last of an odd number is for all else."""
    operands = operation.operands
    for position in range(0, len(operands) - 1, 2):
        if _as_truth(operands[position].evaluate(values)):
            return operands[position + 1].evaluate(values)
    if len(operands) % 2:
        return operands[-1].evaluate(values)
    return None


def _evaluate_coalesce(operation: Operation, values: Mapping[str, Any]) -> Any:
    for operand in operation.operands:
        value = operand.evaluate(values)
        if value is not None:
            return value
    return None


def _evaluate_greatest(operation: Operation, values: Mapping[str, Any]) -> Any:
    return max(_present_values(operation, values), key=_sort_key, default=None)


def _evaluate_least(operation: Operation, values: Mapping[str, Any]) -> Any:
    return min(_present_values(operation, values), key=_sort_key, default=None)


def _present_values(operation: Operation, values: Mapping[str, Any]) -> list[Any]:
    """Return the values that are not null, in one type."""
    operands = [operand.evaluate(values) for operand in operation.operands]
    return _alike_values([value for value in operands if value is not None])


def _concat_ws(operation: Operation, values: Mapping[str, Any]) -> str | None:
    separator, *texts = (operand.evaluate(values) for operand in operation.operands)
    if separator is None:
        return None
    return _as_text(separator).join([_as_text(text) for text in texts if text is not None])


def _try_cast(operation: Operation, values: Mapping[str, Any]) -> Any:
    value = operation.operands[0].evaluate(values)  # an error in here stays one
    if value is None:
        return None
    try:
        return CASTS[operation.constant](value)
    except (NoValue, ArithmeticError):
        return None


_LAZY_OPERATIONS: dict[str, Callable[[Operation, Mapping[str, Any]], Any]] = {
    "Literal": _literal_value,
    "Path": _value_at_path,
    "And": _evaluate_and,
    "Or": _evaluate_or,
    "IsNull": _is_null,
    "NullSafeEQ": _null_safe_equal,
    "In": _evaluate_in,
    "If": _evaluate_if,
    "Coalesce": _evaluate_coalesce,
    "Greatest": _evaluate_greatest,
    "Least": _evaluate_least,
    "ConcatWs": _concat_ws,
    "TryCast": _try_cast,
}


# Types: what Spark casts by itself


def _common_type(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the cast of some values, none of them null, to the type in which Spark compares them."""
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return _as_text
    if kinds <= {bool, str}:
        return _as_boolean
    if not kinds <= {int, float, str}:
        raise NoValue
    for value in values:
        if not isinstance(value, str) and isinstance(_as_number(value), float):
            return _as_double
    return _as_bigint


def _alike_values(values: Sequence[Any]) -> list[Any]:
    """Return values, none of them null, in the type in which Spark compares them and computes with them."""
    convert = _common_type(values)
    return [convert(value) for value in values]


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Return the sort key of a number or a text: to Spark all NaN are the same, and larger than any other number."""
    if value != value:  # noqa: PLR0124 - the definition of NaN
        return True, 0.0
    return False, value


def _sort_keys(values: Sequence[Any]) -> list[tuple[bool, Any]]:
    return [_sort_key(value) for value in _alike_values(values)]


def _as_number(value: Any) -> int | float:
    """Return a number as Spark reads it from JSON: a whole one of more than 64 bits is a double."""
    if isinstance(value, str):
        return _as_double(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise NoValue
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


_SPARK_SPACES = "".join(map(chr, range(33)))
"""What Spark cuts off a text before it reads it as another type."""
_WHOLE_PATTERN = re.compile(r"[+-]?[0-9]{1,400}")
_DOUBLE_PATTERN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAMED_DOUBLES = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), math.inf),
    **dict.fromkeys(("-inf", "-infinity"), -math.inf),
    "nan": math.nan,
}
_TRUE_TEXTS = frozenset({"t", "true", "y", "yes", "1"})
_FALSE_TEXTS = frozenset({"f", "false", "n", "no", "0"})


def _as_whole_number(value: Any, *, bits: int) -> int:
    """Return a value as a whole number of so many bits; what is behind the point of a number is cut off."""
    if isinstance(value, str):
        text = value.strip(_SPARK_SPACES)
        if _WHOLE_PATTERN.fullmatch(text) is None:
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


def _as_bigint(value: Any) -> int:
    return _as_whole_number(value, bits=64)


def _as_double(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, str):
        raise NoValue
    text = value.strip(_SPARK_SPACES)
    if _DOUBLE_PATTERN.fullmatch(text):
        return float(text)
    named = _NAMED_DOUBLES.get(text.lower())
    if named is None:
        raise NoValue
    return named


def _as_float(value: Any) -> float:
    return float(ctypes.c_float(_as_double(value)).value)


def _as_boolean(value: Any) -> bool:
    if isinstance(value, (bool, int, float)):
        return value != 0
    if not isinstance(value, str):
        raise NoValue
    word = value.strip(_SPARK_SPACES).lower()
    if word not in _TRUE_TEXTS | _FALSE_TEXTS:
        raise NoValue
    return word in _TRUE_TEXTS


def _as_text(value: Any) -> str:
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
    "int": lambda value: _as_whole_number(value, bits=32),
    "bigint": _as_bigint,
    "float": _as_float,
    "double": _as_double,
    "string": _as_text,
    "boolean": _as_boolean,
}
"""The types of casts."""


def _cast_value(value: Any, kind: str) -> Any:
    return CASTS[kind](value)


# Operations of values, none of which is null


def _is_equal(first: Any, second: Any) -> bool:
    first_key, second_key = _sort_keys([first, second])
    return first_key == second_key


def _is_less(first: Any, second: Any) -> bool:
    first_key, second_key = _sort_keys([first, second])
    return first_key < second_key


def _is_not_true(value: Any) -> bool:
    return not _as_truth(value)


def _add_numbers(first: Any, second: Any) -> int | float:
    left, right = _alike_numbers(first, second)
    return _in_range(left + right)


def _subtract_numbers(first: Any, second: Any) -> int | float:
    left, right = _alike_numbers(first, second)
    return _in_range(left - right)


def _multiply_numbers(first: Any, second: Any) -> int | float:
    left, right = _alike_numbers(first, second)
    return _in_range(left * right)


def _divide_numbers(first: Any, second: Any) -> float:
    left, right = _alike_numbers(first, second)
    return float(left) / float(right)


def _divide_whole(first: Any, second: Any) -> int | float:
    """Divide and cut off what is behind the point, as Java does: Python rounds down."""
    left, right = (_as_bigint(value) for value in _alike_numbers(first, second))
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return _in_range(quotient)


def _division_rest(first: Any, second: Any) -> int | float:
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
        return [_as_double(first), _as_double(second)]
    alike = _alike_values([first, second])
    if any(isinstance(value, bool) for value in alike):
        raise NoValue
    return alike


def _in_range(value: int | float) -> int | float:
    """Return a number that fits its type; raise NoValue for a whole one that has more than 64 bits."""
    return _as_bigint(value) if isinstance(value, int) else value


def _negate_number(value: Any) -> int | float:
    return _in_range(-_as_number(value))


def _absolute_number(value: Any) -> int | float:
    return _in_range(abs(_as_number(value)))


def _round_up(value: Any) -> int:
    return _as_bigint(math.ceil(_as_number(value)))


def _round_down(value: Any) -> int:
    return _as_bigint(math.floor(_as_number(value)))


def _round_half_up(value: Any, decimals: int) -> int | float:
    """Round half away from zero, by the digits that a number is written with."""
    number = _as_number(value)
    if isinstance(number, float) and not math.isfinite(number):
        return number
    with localcontext() as context:
        context.prec = 700  # enough for each digit of the largest and the smallest double
        rounded = Decimal(repr(number)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP)
    if isinstance(number, int):
        return _in_range(int(rounded))
    return float(rounded) + 0.0  # there is no negative zero


def _matches_like(value: Any, pattern: str) -> bool:
    return bool(pc.match_like(pa.scalar(_as_text(value)), pattern).as_py())


def _matches_ilike(value: Any, pattern: str) -> bool:
    return bool(pc.match_like(pa.scalar(_as_text(value).lower()), pattern.lower()).as_py())


def _matches_rlike(value: Any, pattern: str) -> bool:
    return bool(pc.match_substring_regex(pa.scalar(_as_text(value)), pattern).as_py())


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


def _concat_texts(*values: Any) -> str:
    return "".join([_as_text(value) for value in values])


def _take_substring(value: Any, start: Any, length: Any) -> str:
    """Return characters from a position, which counts from 1, or from the end where it is negative."""
    text = _as_text(value)
    position = _as_whole_number(start, bits=32)
    begin = 0
    if position > 0:
        begin = position - 1
    elif position < 0:
        begin = len(text) + position
    end = begin + _as_whole_number(length, bits=32)
    return text[max(begin, 0) : max(end, 0)]


def _take_left(value: Any, length: Any) -> str:
    return _take_substring(value, 1, length)


def _take_right(value: Any, length: Any) -> str:
    text = _as_text(value)
    characters = _as_whole_number(length, bits=32)
    if characters <= 0:
        return ""
    return text[-characters:]


def _contains_text(value: Any, part: Any) -> bool:
    return _as_text(part) in _as_text(value)


def _starts_with(value: Any, part: Any) -> bool:
    return _as_text(value).startswith(_as_text(part))


def _ends_with(value: Any, part: Any) -> bool:
    return _as_text(value).endswith(_as_text(part))


def _find_position(value: Any, part: Any) -> int:
    return _as_text(value).find(_as_text(part)) + 1


def _replace_text(value: Any, part: Any, replacement: Any) -> str:
    if part == "":
        return _as_text(value)
    return _as_text(value).replace(_as_text(part), _as_text(replacement))


def _split_part(value: Any, delimiter: Any, number: Any) -> str:
    """Return a part of a text, which counts from 1, or from the last where it is negative."""
    position = _as_whole_number(number, bits=32)
    if position == 0:
        raise NoValue
    parts = [_as_text(value)]
    if delimiter != "":
        parts = _as_text(value).split(_as_text(delimiter))
    if abs(position) > len(parts):
        return ""
    if position > 0:
        position -= 1
    return parts[position]


def _trim_text(value: Any, side: str) -> str:
    text = _as_text(value)
    if side != "TRAILING":
        text = text.lstrip(" ")
    if side != "LEADING":
        text = text.rstrip(" ")
    return text


def _list_size(value: Any) -> int:
    if not isinstance(value, list):
        raise NoValue
    return len(value)


def _array_contains(items: Any, wanted: Any) -> bool | None:
    if not isinstance(items, list):
        raise NoValue
    present = [item for item in items if item is not None]
    for item in present:
        if _is_equal(item, wanted):
            return True
    if len(present) < len(items):
        return None
    return False


_VALUE_OPERATIONS: dict[str, Callable[..., Any]] = {
    "EQ": _is_equal,
    "NEQ": lambda first, second: not _is_equal(first, second),
    "LT": _is_less,
    "GT": lambda first, second: _is_less(second, first),
    "LTE": lambda first, second: not _is_less(second, first),
    "GTE": lambda first, second: not _is_less(first, second),
    "Not": _is_not_true,
    "Add": _add_numbers,
    "Sub": _subtract_numbers,
    "Mul": _multiply_numbers,
    "Div": _divide_numbers,
    "IntDiv": _divide_whole,
    "Mod": _division_rest,
    "Neg": _negate_number,
    "Abs": _absolute_number,
    "Ceil": _round_up,
    "Floor": _round_down,
    "Round": _round_half_up,
    "Like": _matches_like,
    "ILike": _matches_ilike,
    "RegexpLike": _matches_rlike,
    "Concat": _concat_texts,
    "DPipe": _concat_texts,
    "Lower": lambda value: _as_text(value).lower(),
    "Upper": lambda value: _as_text(value).upper(),
    "Length": lambda value: len(_as_text(value)),
    "Substring": _take_substring,
    "Left": _take_left,
    "Right": _take_right,
    "Contains": _contains_text,
    "StartsWith": _starts_with,
    "EndsWith": _ends_with,
    "StrPosition": _find_position,
    "Replace": _replace_text,
    "SplitPart": _split_part,
    "Trim": _trim_text,
    "ArraySize": _list_size,
    "ArrayContains": _array_contains,
    "Cast": _cast_value,
}
"""Operations that are null if one of their operands is."""
