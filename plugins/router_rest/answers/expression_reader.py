"""Read the SQL of an answer rule: sqlglot parses the text as Spark would, here its tree becomes one of few operations.

In: the text of a condition. Out: the operations that `expression` evaluates. What that cannot evaluate is refused with
its place in the text, so that a rule fails at the start and not when the first answer comes. Runs on the driver only:
tasks get the operations, and need no parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser

from router_rest.answers.expression import COMPARISONS, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

OPERAND_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("And", "Or", "Is", "ArrayContains", *COMPARISONS), ("this", "expression")),
    **dict.fromkeys(("Not", "Neg", "ArraySize", "Paren"), ("this",)),
    "In": ("this", "expressions"),
    "Between": ("this", "low", "high"),
}
"""The nodes of sqlglot that become operations, each with its arguments; one that has another argument is refused."""
KNOWN_FLAGS = frozenset({"safe", "typed", "negate", "_type"})
"""Arguments of nodes that say how other databases mean them; `negate` is read where it counts."""
PREDICATES = frozenset({"In", "Between", "Is", *COMPARISONS})
KNOWN_SQL = "there are AND, OR, NOT, comparisons, IN, BETWEEN, IS NULL, array_contains and size"
MAX_SHOWN_CHARS = 40
"""Characters of a part of an expression in a message."""


class AnswerSql(SparkParser):
    """Spark's grammar as sqlglot has it, but a field called `list` or `array` is a field, also before `[0]`."""

    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}


def read_expression(text: str, names: Sequence[str]) -> Operation:
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
    return _Reader(text, names).read(trees[0])


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
        if name not in OPERAND_NAMES:
            raise self._refuse_node(node)
        # An argument that is not known here would change the meaning silently: IN (SELECT ...).
        for argument, value in node.args.items():
            if value not in (None, False, []) and argument not in OPERAND_NAMES[name] and argument not in KNOWN_FLAGS:
                raise self._error_at(node, f"{argument.replace('_', ' ')} is not known here")
        operation = self._read_operation(name, node)
        return Operation("Not", (operation,)) if node.args.get("negate") else operation

    def _read_operation(self, name: str, node: Any) -> Operation:
        operands: list[Operation] = []
        for argument in OPERAND_NAMES[name]:
            value = node.args[argument]
            operands += [self.read(item) for item in (value if isinstance(value, list) else [value])]
        # Spark and sqlglot read `a = b IS NULL` in different ways.
        if name in PREDICATES and PREDICATES & {type(value).__name__ for value in node.args.values()}:
            raise self._error_at(node, "a comparison of a comparison; put the inner one in brackets")
        match name, operands:
            case "Paren", [inner]:
                return inner
            case "Neg", [Operation(name="Literal", constant=int() | float() as number)]:
                return Operation("Literal", constant=-number)
            case "Neg", _:
                raise self._refuse_node(node)
            case "Between", [value, low, high]:
                return Operation("And", (Operation("GTE", (value, low)), Operation("LTE", (value, high))))
            case "Is", [value, Operation(name="Literal", constant=None | bool() as constant)]:
                return Operation("Is", (value,), constant)
            case "Is", _:
                raise self._error_at(node, "NULL, TRUE or FALSE is expected after IS")
            case (("And" | "Or" | "Not"), _):
                for operand in operands:
                    self._refuse_no_truth(node, operand)
        return Operation(name, tuple(operands))

    def _refuse_no_truth(self, node: Any, operand: Operation) -> None:
        """Refuse what is true or false for no answer. Null may be either."""
        is_constant = operand.name == "Literal" and not isinstance(operand.constant, bool | None)
        if is_constant or operand.name == "ArraySize":
            kind = "a text" if isinstance(operand.constant, str) else "a number"
            raise self._error_at(node, f"{type(node).__name__.upper()} of {kind}")

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
        word = type(node).__name__
        if isinstance(node, exp.Func):
            word = str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name().lower()
        return self._error_at(node, f"answers know no {word}: {KNOWN_SQL}")

    def _error_at(self, node: Any, why: str) -> ValueError:
        """Return an error that names the place and the part of the text."""
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        start = min(starts, default=0)
        written = self.text[start : start + MAX_SHOWN_CHARS]
        return ValueError(f"at character {start + 1}, {written!r}: {why}")
