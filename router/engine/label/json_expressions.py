"""SQL expressions over JSON values, whose types nobody knows before they come: read without Spark, evaluated in Arrow.

The expressions of routes are analysed by Spark, over columns with types. Here the text is read where the configuration
is, without a session, and what is not known here is refused there. Each value has the type of its JSON, so a tree is
typed once for every combination of types that comes; then it is a tree like those of routes, with the same functions,
and with the implicit casts of Spark's ANSI mode. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router.engine.label import casts
from router.engine.label.expressions import MAKERS, evaluate
from router.engine.label.tree import FLOATS, INTEGERS, NUMBERS, Node, Untranslatable, arrow_type, nested, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Path = tuple[str | int, ...]
MOST_KEPT = 1000
"""Combinations of types whose trees are kept, and combinations of small values whose result is."""
SMALL = 64
"""Characters of a text that a result is kept for: most answers of an API are alike, and evaluating takes 0.1 ms."""
OBJECT = {"type": "struct", "fields": []}
LISTED = ("void", "boolean", "long", "double", "string")
KINDS: dict[str, Any] = {"object": OBJECT} | {
    f"array of {kind}": {"type": "array", "elementType": kind, "containsNull": True} for kind in LISTED
}
"""Types that are no scalars. Of an object, or a list of objects, only its absence and its size can be asked."""
SCALARS = {type(None): "void", bool: "boolean", float: "double", str: "string"}


@dataclass(frozen=True)
class JsonExpression:
    """An SQL expression over JSON values: `paths` are the values that it reads, `tree` is not typed yet."""

    text: str
    paths: tuple[Path, ...]
    tree: Node
    _typed: dict[tuple[str, ...], Node | None] = field(default_factory=dict, repr=False, compare=False)
    _known: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, text: str, names: Sequence[str]) -> JsonExpression:
        """Return the expression that a text is, over values of these names.

        Raises ValueError, which says at which character, for what is no expression or cannot be evaluated in Arrow.
        """
        reader = _Reader(text, names)
        tree = reader.whole()
        found = cls(text, tuple(reader.paths), tree)
        try:
            _typed(tree, ["void"] * len(found.paths))
        except Untranslatable as error:
            raise ValueError(f"cannot be evaluated in Arrow: {error}") from None
        return found

    def reads(self, name: str) -> bool:
        """Return whether the expression reads the value of this name, or a part of it."""
        return any(path[0] == name for path in self.paths)

    def values(self, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the value for each row of JSON values by name; None where it is null or cannot be evaluated."""
        leaves = [tuple(_at(row, path) for path in self.paths) for row in rows]
        if self.tree.op == "path":
            return [value for (value,) in leaves]
        found: list[Any] = [None] * len(rows)
        alike: dict[tuple[str, ...], list[int]] = {}
        for at, row in enumerate(leaves):
            kinds = tuple(map(_kind, row))
            if _are_small(row) and (kinds, row) in self._known:
                found[at] = self._known[kinds, row]
            else:
                alike.setdefault(kinds, []).append(at)
        for kinds, places in alike.items():
            for at, value in zip(places, self._evaluated(kinds, [leaves[at] for at in places]), strict=True):
                found[at] = value
        return found

    def _evaluated(self, kinds: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the values for rows whose leaves have these types."""
        tree = self._tree(kinds)
        if tree is None:
            return [None] * len(rows)
        try:
            columns = {
                str(at): pa.array([_plain(row[at], kind) for row in rows], arrow_type(KINDS.get(kind, kind)))
                for at, kind in enumerate(kinds)
                if kind != "void"
            }
            values: list[Any] = evaluate(tree, columns, len(rows))[0].to_pylist()
        except (pa.ArrowException, ArithmeticError):
            return [None] * len(rows)
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known.update({(kinds, row): value for row, value in zip(rows, values, strict=True) if _are_small(row)})
        return values

    def _tree(self, kinds: tuple[str, ...]) -> Node | None:
        """Return the tree for values of these types; None where they do not go together."""
        if kinds not in self._typed:
            if len(self._typed) >= MOST_KEPT:
                self._typed.clear()
            try:
                self._typed[kinds] = _typed(self.tree, kinds)
            except Untranslatable:
                self._typed[kinds] = None
        return self._typed[kinds]


def _at(value: Any, path: Path) -> Any:
    """Return the value at a path; None where there is none. `*` is the only field of an object, whatever its name."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        elif isinstance(value, list):  # the fields of its items, as in Spark
            value = [_at(item, (step,)) for item in value]
        elif not isinstance(value, Mapping) or (step == "*" and len(value) != 1):
            return None
        else:
            value = next(iter(value.values())) if step == "*" else value.get(step)
    return value


def _are_small(values: tuple[Any, ...]) -> bool:
    """Return whether a result may be kept for these values."""
    return not any(isinstance(one, (list, Mapping)) or (isinstance(one, str) and len(one) > SMALL) for one in values)


def _kind(value: Any) -> str:
    """Return the name of the type that a JSON value has; a whole number of more than 64 bits is a double."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "long" if -(2**63) <= value < 2**63 else "double"
    if not isinstance(value, list):
        return SCALARS.get(type(value), "object")
    kinds = {"object" if isinstance(one, list) else _kind(one) for one in value} - {"void"}
    if kinds == {"long", "double"}:
        return "array of double"
    return f"array of {kinds.pop()}" if len(kinds) == 1 and kinds <= {*LISTED} else "array of void"


def _plain(value: Any, kind: str) -> Any:
    """Return a value as Arrow takes it: of what is no scalar only what can be asked."""
    if value is None:
        return None
    match kind:
        case "double":
            return float(value)
        case "object":
            return {}
        case "array of void":
            return [None] * len(value)
        case "array of double":
            return [None if one is None else float(one) for one in value]
    return value


# Reading


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


def _literal(value: Any) -> Node:
    return Node("literal", _kind(value), with_=value)


class _Reader:
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
            found = Node("EqualNullSafe", None, (value, _literal(word == "true")))
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
            return _literal(-found.with_)
        return Node("UnaryMinus", None, (found,))

    # operands

    def _operand(self) -> Node:
        written = self.written
        if self.what == "number":
            self._read()
            return _literal(int(written) if written.isdigit() else float(written))
        if self.what == "text":
            self._read()
            return _literal(re.sub(r"\\(.)", lambda found: ESCAPED.get(found[1], found[1]), written[1:-1], flags=re.S))
        if self._taken("("):
            found = self._or()
            self._need(")")
            return found
        if self.what not in ("name", "quoted"):
            raise self._refused("a value is expected")
        if word := self._taken("true", "false", "null"):
            return _literal({"true": True, "false": False}.get(word))
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


# Typing


def _typed(node: Node, kinds: Sequence[str]) -> Node:
    """Return a tree over values of these types. Raises Untranslatable where they do not go together."""
    if node.op == "path":
        kind = kinds[node.with_]
        return (
            Node("literal", "void") if kind == "void" else Node("column", KINDS.get(kind, kind), with_=str(node.with_))
        )
    if node.op == "literal":
        return node
    of = tuple(_typed(child, kinds) for child in node.of)
    return _RULES.get(node.op, _text)(node, of)


def _as(node: Node, kind: Any) -> Node:
    """Return a value as another type, as Spark casts it by itself."""
    if node.kind == kind:
        return node
    if node.kind == "void" or node == Node("literal", node.kind):
        return Node("literal", kind)
    if node.op == "literal" and kind == "double" and node.kind in INTEGERS:
        return Node("literal", kind, with_=float(node.with_))
    return casts.cast("Cast", {"dataType": kind, "timeZoneId": "UTC"}, (node,))


def _alike(of: Sequence[Node]) -> tuple[Node, ...]:
    """Return values in one type: a text beside another type is read as that one."""
    kinds = [node.kind for node in of if node.kind != "void"]
    others = [kind for kind in kinds if kind != "string"]
    for kind in others:
        if not isinstance(kind, str):
            raise Untranslatable(f"a comparison with {shown(kind)}")
    read = len(others) < len(kinds)
    if others and all(kind in NUMBERS for kind in others):
        whole = "long" if read else max(others, key=(*INTEGERS, *FLOATS).index)
        kind = "double" if any(kind in FLOATS for kind in others) else whole
    else:
        kind = (others or kinds or ["long"])[0]
        if any(other != kind for other in others):
            raise Untranslatable(f"a comparison of {' and '.join(sorted({*map(shown, kinds)}))}")
    return tuple(_as(node, kind) for node in of)


def _made(node: Node, of: tuple[Node, ...], **entry: Any) -> Node:
    return MAKERS[node.op](node.op, entry, of)


def _logical(node: Node, of: tuple[Node, ...]) -> Node:
    if any(child.kind not in ("boolean", "void") for child in of):
        raise Untranslatable(f"{node.op.upper()} of {' and '.join(shown(child.kind) for child in of)}")
    return _made(node, tuple(_as(child, "boolean") for child in of))


def _compared(node: Node, of: tuple[Node, ...]) -> Node:
    return _made(node, _alike(of))


def _chosen(node: Node, of: tuple[Node, ...]) -> Node:
    """Type what chooses one of its values: conditions are every other operand, but for the last of an odd number."""
    conditional = node.op != "Coalesce"
    conditions = {at for at in range(len(of) // 2 * 2) if at % 2 == 0} if conditional else set()
    values = iter(_alike([child for at, child in enumerate(of) if at not in conditions]))
    return _made(
        node, tuple(_as(child, "boolean") if at in conditions else next(values) for at, child in enumerate(of))
    )


def _computed(node: Node, of: tuple[Node, ...]) -> Node:
    kind = {"Divide": "double", "IntegralDivide": "long"}.get(node.op)
    same = _alike(of)
    return _made(node, tuple(_as(child, kind) for child in same) if kind else same)


def _number(node: Node, of: tuple[Node, ...]) -> Node:
    value = _as(of[0], "double") if of[0].kind in ("void", "string") else of[0]
    return _made(node, (value, *(of[1:] or ((_literal(0),) if node.op == "Round" else ()))))


def _text(node: Node, of: tuple[Node, ...]) -> Node:
    """Type a function of texts; what follows the first one are constants in most."""
    every = node.op in ("Concat", "ConcatWs")
    return _made(node, tuple(_as(child, "string") if every or at == 0 else child for at, child in enumerate(of)))


def _size(node: Node, of: tuple[Node, ...]) -> Node:
    return _made(node, (_as(of[0], KINDS["array of void"]) if of[0].kind == "void" else of[0],))


def _contains(node: Node, of: tuple[Node, ...]) -> Node:
    held, wanted = of
    if held.kind == "void":
        return Node("literal", "boolean")
    if not nested(held.kind, "array"):
        raise Untranslatable(f"the function array_contains of {shown(held.kind)}")
    return _made(node, (held, _as(wanted, held.kind["elementType"])))


def _cast(node: Node, of: tuple[Node, ...]) -> Node:
    found = _as(of[0], node.with_)
    return replace(found, quiet=True) if node.quiet and found.op == "cast" else found


_RULES: dict[str, Callable[[Node, tuple[Node, ...]], Node]] = {
    **dict.fromkeys(("And", "Or", "Not"), _logical),
    **dict.fromkeys(("IsNull", "IsNotNull"), _made),
    **dict.fromkeys((*COMPARED.values(), "In", "Greatest", "Least"), _compared),
    **dict.fromkeys(("Coalesce", "If", "CaseWhen"), _chosen),
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Divide", "Remainder", "IntegralDivide"), _computed),
    **dict.fromkeys(("UnaryMinus", "Abs", "Ceil", "Floor", "Round"), _number),
    "Size": _size,
    "ArrayContains": _contains,
    "Cast": _cast,
}
"""How operands are typed, by operation; all others are functions of texts."""
