"""SQL expressions over JSON values, whose types nobody knows before they come: read without Spark, evaluated in Arrow.

The expressions of routes are analysed by Spark, over columns with types. Here the text is read where the configuration
is, without a session, and what is not known here is refused there. Each value has the type of its JSON, so a tree is
typed once for every combination of types that comes; then it is a tree like those of routes, with the same functions,
and with the implicit casts of Spark's ANSI mode. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router.engine.expressions import casts
from router.engine.expressions.evaluator import MAKERS, evaluate
from router.engine.expressions.expression_reader import COMPARED, ExpressionReader, literal
from router.engine.expressions.tree import FLOATS, INTEGERS, NUMBERS, Node, Untranslatable, arrow_type, nested, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.engine.expressions.expression_reader import Path

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
        reader = ExpressionReader(text, names)
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
    return _made(node, (value, *(of[1:] or ((literal(0),) if node.op == "Round" else ()))))


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
