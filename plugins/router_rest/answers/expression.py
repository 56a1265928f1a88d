"""Evaluate the SQL of an answer rule over JSON values, with Spark's meaning (ANSI mode). Runs anywhere, without Spark.

A value has the type of its JSON: a boolean, a number (whole ones of 64 bits are `bigint`, others `double`), a text. A
text compared with another type is read as that one. Null is contagious but for AND, OR, IN and IS. What would be an
error in Spark (a text that is no number, a list compared with a number) makes the value of the whole expression null,
and so the rule does not hold. AND and OR evaluate no more than they need.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Number = TypeVar("Number", int, float)
Kind = TypeVar("Kind")


class NoValue(Exception):  # noqa: N818 - an answer, no error
    """What would be an error in Spark."""


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": operator.eq,
    "NEQ": operator.ne,
    "LT": operator.lt,
    "LTE": operator.le,
    "GT": operator.gt,
    "GTE": operator.ge,
}
"""Comparisons by the names of sqlglot's nodes."""


@dataclass(frozen=True)
class Operation:
    """One operation: its name, what it is applied to, and a constant where it needs one; pickled to tasks.

    The names are those of sqlglot's nodes, and Path.
    """

    name: str
    operands: tuple[Operation, ...] = ()
    constant: Any = None

    def reads_name(self, name: str) -> bool:
        """Return whether this reads the value of a name, or a part of it."""
        if self.name == "Path":
            return bool(self.constant[0] == name)
        return any(operand.reads_name(name) for operand in self.operands)

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value for JSON values by name; None if it is null or cannot be evaluated."""
        try:
            return self.evaluate(values)
        except (NoValue, ArithmeticError, ValueError):  # the last of NaN, and of texts that are no UTF-8
            return None

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the value for JSON values by name. Raises NoValue or ArithmeticError for an error of Spark."""
        match self.name:
            case "Literal":
                return self.constant
            case "Path":
                value: Any = values
                for step in self.constant:
                    value = _take_step(value, step)
                return value
            case "And" | "Or":
                return self._decide(values, decisive=self.name == "Or")
        operands = [operand.evaluate(values) for operand in self.operands]
        # IS is never null; IN may be true in spite of a null among its items; all else is null if an operand is.
        if self.name == "Is" and (operands[0] is None or self.constant is None):
            return operands[0] is self.constant
        if operands[0] is None:
            return None
        match self.name:
            case "In":
                return _is_among(operands[0], operands[1:])
            case "Is":
                return _compare("EQ", operands[0], self.constant)
            case "Not":
                return not _require(bool, operands[0])
            case "ArraySize":
                return len(_require(list, operands[0]))
        if operands[1] is None:
            return None
        if self.name == "ArrayContains":
            return _contains_item(_require(list, operands[0]), operands[1])
        return _compare(self.name, *operands)

    def _decide(self, values: Mapping[str, Any], *, decisive: bool) -> bool | None:
        """Evaluate operands until one has the value that decides; without it null counts more than the other value."""
        found_null = False
        for operand in self.operands:
            value = operand.evaluate(values)
            if value is not None and _require(bool, value) is decisive:
                return decisive
            found_null = found_null or value is None
        return None if found_null else not decisive


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


def _is_among(wanted: Any, items: Sequence[Any]) -> bool | None:
    present = [item for item in items if item is not None]
    convert = _common_type([wanted, *present])
    # One after the other: an item behind the one that is equal is not read as another type, as in Spark.
    for item in present:
        if _sort_key(convert(item)) == _sort_key(convert(wanted)):
            return True
    return None if len(present) < len(items) else False


def _contains_item(items: Sequence[Any], wanted: Any) -> bool | None:
    present = [item for item in items if item is not None]
    if any(_compare("EQ", item, wanted) for item in present):
        return True
    return None if len(present) < len(items) else False


def _compare(name: str, first: Any, second: Any) -> bool:
    convert = _common_type([first, second])
    return COMPARISONS[name](_sort_key(convert(first)), _sort_key(convert(second)))


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Return the sort key of a value: to Spark all NaN are the same, and larger than any other number."""
    if value != value:  # noqa: PLR0124 - the definition of NaN
        return True, 0.0
    return False, value


# Types: what Spark casts by itself


def _common_type(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return the cast of some values, none of them null, to the type in which Spark compares them."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return str
    if kinds <= {bool, str}:
        return _as_boolean
    if not kinds <= {int, float, str}:
        raise NoValue
    # A whole number of more than 64 bits is a double in Spark.
    if any(isinstance(value, float) or (isinstance(value, int) and not _is_bigint(value)) for value in values):
        return _as_double
    return _as_bigint


_SPARK_SPACES = "".join(map(chr, range(33)))
"""What Spark cuts off a text before it reads it as another type."""
_SIGNED_NANS = frozenset({"+nan", "-nan"})
"""Numbers to Python, and none to Spark."""
_BOOLEAN_WORDS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def _is_bigint(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _read_number(text: str, kind: type[Number]) -> Number:
    """Return the number that a text is. Raises NoValue or ValueError for none."""
    written = text.strip(_SPARK_SPACES)
    if not written.isascii() or "_" in written or written.lower() in _SIGNED_NANS:
        raise NoValue
    return kind(written)


def _as_bigint(value: int | str) -> int:
    number = _read_number(value, int) if isinstance(value, str) else value
    if not _is_bigint(number):
        raise NoValue
    return number


def _as_double(value: float | str) -> float:
    return _read_number(value, float) if isinstance(value, str) else float(value)


def _as_boolean(value: bool | str) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip(_SPARK_SPACES).lower()
    if word not in _BOOLEAN_WORDS:
        raise NoValue
    return _BOOLEAN_WORDS[word]


def _require(kind: type[Kind], value: Any) -> Kind:
    if not isinstance(value, kind):
        raise NoValue
    return value
