"""Read the text of an SQL expression over named values, without Spark: a tree whose types are not known yet.

What is no expression, or has a function that is not among FUNCTIONS, is refused with its place in the text.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from router.engine.expressions.tree import NUMBERS, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

Path = tuple[str | int, ...]
"""Where a value is: the name of the whole one, then names of fields and places in lists."""


TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?!\w)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<name>[A-Za-z_]\w*)
    |(?P<quoted>`[^`]+`)
    |(?P<sign><=>|<=|>=|<>|!=|==|\|\||[-+*/%<>=().,\[\]])
    |(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}
COMPARED = {
    "=": "EqualTo",
    "==": "EqualTo",
    "<=>": "EqualNullSafe",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
}
MATCHED = {"like": "Like", "ilike": "ILike", "rlike": "RLike", "regexp": "RLike"}
SUMS = {"+": "Add", "-": "Subtract", "||": "Concat"}
PRODUCTS = {"*": "Multiply", "/": "Divide", "%": "Remainder", "div": "IntegralDivide"}
TYPES = {
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("bigint", "long"), "long"),
    **{name: name for name in ("float", "double", "string", "boolean", "date", "timestamp")},
}
FUNCTIONS: dict[str, tuple[str, int, int]] = {
    **dict.fromkeys(("lower", "lcase"), ("Lower", 1, 1)),
    **dict.fromkeys(("upper", "ucase"), ("Upper", 1, 1)),
    **dict.fromkeys(("length", "char_length", "len"), ("Length", 1, 1)),
    "trim": ("StringTrim", 1, 1),
    "ltrim": ("StringTrimLeft", 1, 1),
    "rtrim": ("StringTrimRight", 1, 1),
    **dict.fromkeys(("substring", "substr"), ("Substring", 3, 3)),
    "left": ("Left", 2, 2),
    "right": ("Right", 2, 2),
    "contains": ("Contains", 2, 2),
    "startswith": ("StartsWith", 2, 2),
    "endswith": ("EndsWith", 2, 2),
    "instr": ("StringInstr", 2, 2),
    "replace": ("StringReplace", 3, 3),
    "split_part": ("SplitPart", 3, 3),
    "regexp_like": ("RLike", 2, 2),
    "concat": ("Concat", 1, 99),
    "concat_ws": ("ConcatWs", 2, 99),
    "coalesce": ("Coalesce", 1, 99),
    **dict.fromkeys(("nvl", "ifnull"), ("Coalesce", 2, 2)),
    **dict.fromkeys(("if", "iff"), ("If", 3, 3)),
    "isnull": ("IsNull", 1, 1),
    "isnotnull": ("IsNotNull", 1, 1),
    **dict.fromkeys(("size", "array_size", "cardinality"), ("Size", 1, 1)),
    "array_contains": ("ArrayContains", 2, 2),
    "abs": ("Abs", 1, 1),
    **dict.fromkeys(("ceil", "ceiling"), ("Ceil", 1, 1)),
    "floor": ("Floor", 1, 1),
    "round": ("Round", 1, 2),
    "greatest": ("Greatest", 2, 99),
    "least": ("Least", 2, 99),
}
"""Functions by the names that people write: the operation, and how many operands it has at least and at most."""


def literal(value: Any) -> Node:
    """Return a constant: whole numbers are `long`, others `double`."""
    kinds = {bool: "boolean", int: "long", float: "double", str: "string"}
    return Node("literal", kinds.get(type(value), "void"), with_=value)


class ExpressionReader:
    """A reader of one expression, by the precedence of its operators; `paths` collects the values that it reads."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text, self.names = text, names
        self.paths: dict[Path, int] = {}
        self.at = 0
        self._read()

    def whole(self) -> Node:
        """Return the tree of the whole text."""
        found = self._or()
        if self.what != "end":
            raise self._refused("nothing more is expected")
        return found

    # tokens

    def _read(self) -> None:
        """Read the next token: `what` it is, and its text as it is `written`."""
        found = TOKEN.match(self.text, self.at)
        if found is None:
            self.start = self.at + len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
            self.written = self.text[self.start]
            raise self._refused("no expression has this character, or a text without its end")
        self.what, self.written = str(found.lastgroup), found[str(found.lastgroup)]
        self.start, self.at = found.start(str(found.lastgroup)), found.end()

    def _taken(self, *words: str) -> str | None:
        """Return the token, in small letters, and go on where it is one of these words or signs; else None."""
        word = self.written.lower()
        if self.what not in ("name", "sign") or word not in words:
            return None
        self._read()
        return word

    def _need(self, word: str) -> None:
        if self._taken(word) is None:
            raise self._refused(f"{word.upper()} is expected")

    def _refused(self, why: str) -> ValueError:
        return ValueError(f"at character {self.start + 1}, {self.written or 'the end'!r}: {why}")

    # operators, those that bind least first

    def _or(self) -> Node:
        found = self._and()
        while self._taken("or"):
            found = Node("Or", None, (found, self._and()))
        return found

    def _and(self) -> Node:
        found = self._not()
        while self._taken("and"):
            found = Node("And", None, (found, self._not()))
        return found

    def _not(self) -> Node:
        return Node("Not", None, (self._not(),)) if self._taken("not") else self._compared()

    def _compared(self) -> Node:
        found = self._sum()
        while True:
            if sign := self._taken(*COMPARED):
                found = Node(COMPARED[sign], None, (found, self._sum()))
            elif self._taken("!=", "<>"):
                found = Node("Not", None, (Node("EqualTo", None, (found, self._sum())),))
            elif self._taken("is"):
                found = self._is(found)
            elif (negated := self._taken("not")) or self.written.lower() in {*MATCHED, "in", "between"}:
                other = self._tested(found)
                found = Node("Not", None, (other,)) if negated else other
            else:
                return found

    def _is(self, value: Node) -> Node:
        negated = self._taken("not")
        word = self._taken("null", "true", "false")
        if word is None:
            raise self._refused("NULL, TRUE or FALSE is expected")
        found = Node("IsNull", None, (value,))
        if word != "null":
            found = Node("EqualNullSafe", None, (value, literal(word == "true")))
        return Node("Not", None, (found,)) if negated else found

    def _tested(self, value: Node) -> Node:
        if word := self._taken(*MATCHED):
            return Node(MATCHED[word], None, (value, self._sum()))
        if self._taken("between"):
            low = self._sum()
            self._need("and")
            least = Node("GreaterThanOrEqual", None, (value, low))
            return Node("And", None, (least, Node("LessThanOrEqual", None, (value, self._sum()))))
        self._need("in")
        self._need("(")
        return Node("In", None, (value, *self._listed()))

    def _sum(self) -> Node:
        found = self._product()
        while sign := self._taken(*SUMS):
            found = Node(SUMS[sign], None, (found, self._product()))
        return found

    def _product(self) -> Node:
        found = self._signed()
        while sign := self._taken(*PRODUCTS):
            found = Node(PRODUCTS[sign], None, (found, self._signed()))
        return found

    def _signed(self) -> Node:
        if not self._taken("-"):
            return self._operand()
        found = self._signed()
        if found.op == "literal" and found.kind in NUMBERS:
            return literal(-found.with_)
        return Node("UnaryMinus", None, (found,))

    # operands

    def _operand(self) -> Node:
        written = self.written
        if self.what == "number":
            self._read()
            return literal(int(written) if written.isdigit() and int(written) < 2**63 else float(written))
        if self.what == "text":
            self._read()
            return literal(re.sub(r"\\(.)", lambda found: ESCAPED.get(found[1], found[1]), written[1:-1], flags=re.S))
        if self._taken("("):
            found = self._or()
            self._need(")")
            return found
        if self.what not in ("name", "quoted"):
            raise self._refused("a value is expected")
        if word := self._taken("true", "false", "null"):
            return literal({"true": True, "false": False}.get(word))
        if self._taken("case"):
            return self._case()
        return self._named()

    def _case(self) -> Node:
        """Return a CASE; one with a value compares it in each of its branches."""
        value = None if self.written.lower() == "when" else self._or()
        of: list[Node] = []
        while self._taken("when"):
            when = self._or()
            self._need("then")
            of += [when if value is None else Node("EqualTo", None, (value, when)), self._or()]
        if not of:
            raise self._refused("WHEN is expected")
        if self._taken("else"):
            of.append(self._or())
        self._need("end")
        return Node("CaseWhen", None, tuple(of))

    def _named(self) -> Node:
        """Return a function, or the value at a path."""
        start, name, quoted = self.start, self.written, self.what == "quoted"
        self._read()
        if not quoted and self.written == "(":
            return self._function(name.lower(), start)
        name = name.strip("`")
        if name not in self.names:
            self.start, self.written = start, name
            raise self._refused(f"there is no such value; there are {', '.join(self.names)}")
        path: list[str | int] = [name]
        while sign := self._taken(".", "["):
            path.append(self._step() if sign == "." else self._place())
        return Node("path", None, with_=self.paths.setdefault(tuple(path), len(self.paths)))

    def _step(self) -> str:
        name = self.written.strip("`")
        if self.what not in ("name", "quoted") and name != "*":
            raise self._refused("the name of a field is expected")
        self._read()
        return name

    def _place(self) -> str | int:
        found = self._operand() if self.what in ("number", "text") else None
        if found is None or not isinstance(found.with_, (str, int)):
            raise self._refused("a name in quotes, or a number from 0, is expected")
        self._need("]")
        step: str | int = found.with_
        return step

    def _function(self, name: str, start: int) -> Node:
        self._need("(")
        if name in ("cast", "try_cast"):
            return self._cast(quiet=name == "try_cast")
        of = self._listed() if self.written != ")" else self._none()
        op, least, most = FUNCTIONS.get(name, ("", 0, 0))
        if not op or not least <= len(of) <= most:
            self.start, self.written = start, name
            near = get_close_matches(name, FUNCTIONS, 1)
            known = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(FUNCTIONS)}"
            raise self._refused("it has another number of operands" if op else f"Arrow has no such function{known}")
        return Node(op, None, of)

    def _cast(self, *, quiet: bool) -> Node:
        value = self._or()
        self._need("as")
        kind = TYPES.get(self.written.lower())
        if kind is None:
            raise self._refused(f"a type is expected: {', '.join(TYPES)}")
        self._read()
        self._need(")")
        return Node("Cast", None, (value,), kind, quiet)

    def _listed(self) -> tuple[Node, ...]:
        """Return expressions up to the closing bracket."""
        found = [self._or()]
        while self._taken(","):
            found.append(self._or())
        self._need(")")
        return tuple(found)

    def _none(self) -> tuple[Node, ...]:
        self._need(")")
        return ()
