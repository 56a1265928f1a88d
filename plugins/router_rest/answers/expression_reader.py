"""Read the SQL of an answer rule: sqlglot parses the text as Spark would, here its tree becomes one of few operations.

In: the text of a condition. Out: the operations that `answer_expression` evaluates. What that cannot evaluate is
refused with its place in the text, so that a rule fails at the start and not when the first answer comes. Runs on the
driver only: tasks get the operations, and need no parser.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, cast

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from router_rest.answers.expression import CASTS, AnswerExpression, Operation, java_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

OPERAND_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("And", "Or", "EQ", "NEQ", "NullSafeEQ", "LT", "LTE", "GT", "GTE"), ("this", "expression")),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "IntDiv", "Mod", "DPipe"), ("this", "expression")),
    **dict.fromkeys(("Contains", "StartsWith", "EndsWith", "ArrayContains"), ("this", "expression")),
    **dict.fromkeys(("Left", "Right"), ("this", "expression")),
    **dict.fromkeys(("Not", "Neg", "Abs", "Ceil", "Floor"), ("this",)),
    **dict.fromkeys(("Lower", "Upper", "Length", "ArraySize", "Paren"), ("this",)),
    **dict.fromkeys(("In", "Coalesce", "Greatest", "Least"), ("this", "expressions")),
    **dict.fromkeys(("Concat", "ConcatWs"), ("expressions",)),
    **dict.fromkeys(("Like", "ILike", "RegexpLike"), ("this", "expression")),
    "Is": ("this", "expression"),
    "Between": ("this", "low", "high"),
    "Case": ("this", "ifs", "default"),
    "If": ("this", "true", "false"),
    "Substring": ("this", "start", "length"),
    "StrPosition": ("this", "substr"),
    "Replace": ("this", "expression", "replacement"),
    "SplitPart": ("this", "delimiter", "part_index"),
    "Round": ("this", "decimals"),
    "Trim": ("this", "position"),
    "TryCast": ("this", "to", "safe"),
}
"""The nodes of sqlglot that become operations, each with its arguments; one that has another argument is refused."""
LEAST_OPERANDS = {"Substring": 3, "If": 3, "Greatest": 2, "Least": 2, "ConcatWs": 2}
KNOWN_FLAGS = frozenset({"safe", "typed", "coalesce", "ignore_nulls", "flatten", "negate", "_type"})
"""Arguments of nodes that say how other databases mean them; `safe` and `negate` are read where they count."""
PREDICATES = frozenset(
    {"EQ", "NEQ", "NullSafeEQ", "LT", "LTE", "GT", "GTE", "In", "Between", "Is", "Like", "ILike", "RegexpLike"}
)
TRUTH_OPERATIONS = PREDICATES | {"And", "Or", "Not", "Contains", "StartsWith", "EndsWith", "ArrayContains", "IsNull"}
"""Operations that are true, false or null."""
NUMBER_OPERATIONS = frozenset(
    {"Add", "Sub", "Mul", "Div", "IntDiv", "Mod", "Neg", "Abs", "Ceil", "Floor", "Round", "Length"}
)
TEXT_OPERATIONS = frozenset(
    {"Lower", "Upper", "Concat", "ConcatWs", "DPipe", "Substring", "Left", "Right", "Replace", "Trim"}
)
NAMED_FUNCTIONS = {
    "isnull": ("IsNull", 1),
    "isnotnull": ("IsNull", 1),
    "cardinality": ("ArraySize", 1),
    "iff": ("If", 3),
}
"""Functions that sqlglot has no nodes for: the operation, and how many operands they have."""
CAST_TYPES = {
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "TEXT": "string",
    "BOOLEAN": "boolean",
}
"""The types of casts by sqlglot's names, as Spark writes them."""
SQL_FUNCTIONS = (
    *("abs", "array_contains", "ceil", "coalesce", "concat", "concat_ws", "contains", "endswith", "floor", "greatest"),
    *("if", "instr", "isnotnull", "isnull", "least", "left", "length", "lower", "ltrim", "nvl", "regexp_like"),
    *("replace", "right", "round", "rtrim", "size", "split_part", "startswith", "substring", "trim", "upper"),
)
"""The functions by the names that people write."""
MAX_SHOWN_CHARS = 40
"""Characters of a part of an expression in a message."""


class AnswerSql(SparkParser):
    """Spark's grammar as sqlglot has it, with two corrections.

    A field called `list` or `array` is a field, also before `[0]`. `||` binds as `+` does.
    """

    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    TERM: ClassVar[dict[Any, Any]] = {**SparkParser.TERM, TokenType.DPIPE: exp.DPipe}


def read_expression(text: str, names: Sequence[str]) -> AnswerExpression:
    """Return the expression that a text is, over values of these names.

    Raises ValueError, which names the place and the part of the text, for what cannot be evaluated.
    """
    dialect = Spark()
    try:
        trees = AnswerSql(dialect=dialect).parse(dialect.tokenize(text), text)
    except ParseError as error:
        raise ValueError(_describe_error(error, text)) from None
    except SqlglotError:
        raise ValueError(f"at character {len(text)}: a text, or a name in backticks, is without its end") from None
    except RecursionError:
        raise ValueError("at character 1: the expression has too many parts inside of each other") from None
    if len(trees) != 1 or trees[0] is None:
        raise ValueError("at character 1: there is not one expression")
    return AnswerExpression(text, _Reader(text, names).read(trees[0]))


def _describe_error(error: ParseError, text: str) -> str:
    """Return in one sentence, with the place, what the parser says."""
    if not error.errors:
        return "at character 1: an expression is expected"
    problem = error.errors[0]
    lines = text.split("\n")
    # `col` is the last character of the token in its line.
    end = sum(len(line) + 1 for line in lines[: problem["line"] - 1]) + problem["col"]
    token = problem["highlight"]
    description = problem["description"]
    if description.startswith("Required keyword"):
        description = "a value is missing, or the function has another number of operands"
    elif description.startswith("The number of provided arguments"):
        description = "the function has another number of operands"
    elif description.startswith("Expecting"):
        description = f"{description.removeprefix('Expecting ')} is expected after this"
    elif description.startswith("Invalid expression"):
        description = "this cannot stand here"
    return f"at character {max(1, end - len(token) + 1)}, {token!r}: {description}"


class _Reader:
    """A reader of the tree that sqlglot makes of a text; `names` are the values that an expression may look at."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text = text
        self.names = names

    def read(self, node: Any) -> Operation:
        """Return a node as an operation. Raises ValueError for one that is not known here."""
        name = type(node).__name__
        match name:
            case "Literal":
                return Operation("Literal", constant=self._read_literal(node))
            case "Boolean":
                return Operation("Literal", constant=bool(node.this))
            case "Null":
                return Operation("Literal")
            case "Column" | "Dot" | "Bracket":
                return Operation("Path", constant=self._read_path(node))
            case "Anonymous":
                return self._named_function(node)
        if name not in OPERAND_NAMES:
            raise self._refuse_node(node)
        # An argument that is not known here would change the meaning silently: LIKE ... ESCAPE, TRIM(LEADING ...).
        for argument, value in node.args.items():
            if value not in (None, False, []) and argument not in OPERAND_NAMES[name] and argument not in KNOWN_FLAGS:
                raise self._error_at(node, f"{argument.replace('_', ' ')} is not known here")
        operation = self._read_operation(name, node)
        if node.args.get("negate"):
            return Operation("Not", (operation,))
        return operation

    def _read_operation(self, name: str, node: Any) -> Operation:
        match name:
            case "Paren":
                return self.read(node.this)
            case "And" | "Or" | "Not":
                return self._read_logical(name, node)
            case "Like" | "ILike" | "RegexpLike":
                return self._read_pattern(name, node)
            case "Is":
                return self._read_is(node)
            case "Case":
                return self._read_case(node)
            case "TryCast":
                return self._read_cast(node)
            case "Trim":
                side = node.args.get("position") or "BOTH"
                return Operation("Trim", (self.read(node.this),), side)
            case "Round":
                return self._read_round(node)
        operands = self._read_operands(name, node)
        if name in PREDICATES:
            self._refuse_chain(node)
        if name == "Between":
            value, low, high = operands
            return Operation("And", (Operation("GTE", (value, low)), Operation("LTE", (value, high))))
        return Operation(name, operands)

    def _read_operands(self, name: str, node: Any) -> tuple[Operation, ...]:
        operands = []
        for argument in OPERAND_NAMES[name]:
            value = node.args.get(argument)
            if isinstance(value, list):
                operands += [self.read(item) for item in value]
            elif value is not None:
                operands.append(self.read(value))
        # sqlglot refuses too many operands of a function, and too few of most.
        if len(operands) < LEAST_OPERANDS.get(name, 1):
            raise self._error_at(node, "the function has another number of operands")
        return tuple(operands)

    def _refuse_chain(self, node: Any) -> None:
        """Refuse `a = b IS NULL`, which Spark and sqlglot read in different ways."""
        for argument in ("this", "expression", "low", "high"):
            if type(node.args.get(argument)).__name__ in PREDICATES:
                raise self._error_at(node, "a comparison of a comparison; put the inner one in brackets")

    def _read_logical(self, name: str, node: Any) -> Operation:
        operands = self._read_operands(name, node)
        for operand in operands:
            kind = _result_kind(operand)
            if kind not in (None, "a truth value"):
                raise self._error_at(node, f"{name.upper()} of {kind}")
        return Operation(name, operands)

    def _read_pattern(self, name: str, node: Any) -> Operation:
        """Return a match with a pattern, which has to be a constant."""
        self._refuse_chain(node)
        word = {"Like": "LIKE", "ILike": "ILIKE", "RegexpLike": "RLIKE"}[name]
        pattern = self.read(node.expression)
        if pattern.name != "Literal" or not isinstance(pattern.constant, str):
            raise self._error_at(node, f"{word} with a pattern that is no constant")
        written = pattern.constant
        if name == "RegexpLike":
            try:
                written = java_pattern(written)
            except ValueError:
                raise self._error_at(node, f"RLIKE with the pattern {written}, which is not known here") from None
        elif re.fullmatch(r"(?:[^\\]|\\[%_\\])*", written, re.DOTALL) is None:
            raise self._error_at(node, f"{word} with the pattern {written}, which Spark refuses")
        return Operation(name, (self.read(node.this),), written)

    def _read_is(self, node: Any) -> Operation:
        self._refuse_chain(node)
        value, other = self.read(node.this), self.read(node.expression)
        if other.name != "Literal" or not (other.constant is None or isinstance(other.constant, bool)):
            raise self._error_at(node, "NULL, TRUE or FALSE is expected after IS")
        if other.constant is None:
            return Operation("IsNull", (value,))
        return Operation("NullSafeEQ", (value, other))

    def _read_case(self, node: Any) -> Operation:
        """Return a CASE: conditions and values in turn, and a last value for all else.

        One with a value compares it in each of its branches.
        """
        operands: list[Operation] = []
        for branch in node.args["ifs"]:
            condition = self.read(branch.this)
            if node.this is not None:
                condition = Operation("EQ", (self.read(node.this), condition))
            operands += [condition, self.read(branch.args["true"])]
        if node.args.get("default") is not None:
            operands.append(self.read(node.args["default"]))
        return Operation("If", tuple(operands))

    def _read_cast(self, node: Any) -> Operation:
        kind = CAST_TYPES.get(node.args["to"].this.name)
        if kind is None or kind not in CASTS:
            raise self._error_at(node, f"a type is expected: {', '.join(CAST_TYPES.values())}")
        # sqlglot reads Spark's CAST as TRY_CAST, which it was before Spark 4; `safe` is set if TRY_CAST was written.
        quiet = bool(node.args.get("safe"))
        return Operation("TryCast" if quiet else "Cast", (self.read(node.this),), kind)

    def _read_round(self, node: Any) -> Operation:
        decimals = 0
        if node.args.get("decimals") is not None:
            operand = self.read(node.args["decimals"])
            sign = 1
            if operand.name == "Neg":
                sign = -1
                operand = operand.operands[0]
            if type(operand.constant) is not int or operand.constant > 300:
                raise self._error_at(node, "the number of digits is a constant")
            decimals = sign * operand.constant
        return Operation("Round", (self.read(node.this),), decimals)

    def _named_function(self, node: Any) -> Operation:
        """Return a function that sqlglot has no node for."""
        name = str(node.this).lower()
        operands = tuple(self.read(item) for item in node.expressions)
        if name not in NAMED_FUNCTIONS:
            raise self._refuse_function(node, name)
        operation, number_of_operands = NAMED_FUNCTIONS[name]
        if len(operands) != number_of_operands:
            raise self._error_at(node, "the function has another number of operands")
        if name == "isnotnull":
            return Operation("Not", (Operation("IsNull", operands),))
        return Operation(operation, operands)

    def _read_literal(self, node: Any) -> Any:
        """Return the value of a constant; a whole number of more than 64 bits is a double."""
        if node.is_string:
            return str(node.this)
        written = str(node.this)
        if written.isdigit() and int(written) < 2**63:
            return int(written)
        try:
            return float(written)
        except ValueError:
            raise self._error_at(node, "no number") from None

    def _read_path(self, node: Any) -> tuple[str | int, ...]:
        """Return the path of a value: the name of the whole one, then names of fields and places in lists."""
        steps = self._read_steps(node)
        if steps[0] not in self.names:
            raise self._error_at(node, f"there is no such value; there are {', '.join(self.names)}")
        return steps

    def _read_steps(self, node: Any) -> tuple[str | int, ...]:
        # sqlglot takes up to four names for a column with its table, and puts a Dot around it for each further one.
        match type(node).__name__:
            case "Identifier":
                return (str(node.this),)
            case "Star":
                return ("*",)
            case "Column":
                steps: tuple[str | int, ...] = ()
                for part in node.parts:
                    steps += self._read_steps(part)
                return steps
            case "Dot":
                return self._read_steps(node.this) + self._read_steps(node.expression)
            case "Bracket" if len(node.expressions) == 1:
                place = node.expressions[0]
                if isinstance(place, exp.Literal) and (place.is_string or str(place.this).isdigit()):
                    return (*self._read_steps(node.this), cast("str | int", self._read_literal(place)))
                raise self._error_at(node, "a name in quotes, or a number from 0, is expected in the brackets")
        raise self._error_at(node, "the name of a field is expected")

    def _refuse_node(self, node: Any) -> ValueError:
        if isinstance(node, exp.Alias):
            return self._error_at(node, "nothing more is expected after the expression")
        if isinstance(node, exp.Func):
            return self._refuse_function(node, node.sql_name().lower())
        return self._error_at(node, f"{type(node).__name__} cannot be evaluated for an answer")

    def _refuse_function(self, node: Any, name: str) -> ValueError:
        hint = f"known are {', '.join(SQL_FUNCTIONS)}"
        near = get_close_matches(name, SQL_FUNCTIONS, 1)
        if near:
            hint = f"did you mean {near[0]}?"
        return self._error_at(node, f"answers have no such function as {name}; {hint}")

    def _error_at(self, node: Any, why: str) -> ValueError:
        """Return an error that names the place and the part of the text."""
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        start = min(starts, default=0)
        written = self.text[start : start + MAX_SHOWN_CHARS]
        return ValueError(f"at character {start + 1}, {written!r}: {why}")


def _result_kind(operation: Operation) -> str | None:
    """Return the kind of value that an operation always gives, in the words of an error; None: it depends."""
    if operation.name == "Literal":
        if operation.constant is None:
            return None
        kinds = {bool: "a truth value", str: "a text"}
        return kinds.get(type(operation.constant), "a number")
    if operation.name in TRUTH_OPERATIONS:
        return "a truth value"
    if operation.name in NUMBER_OPERATIONS:
        return "a number"
    return "a text" if operation.name in TEXT_OPERATIONS else None
