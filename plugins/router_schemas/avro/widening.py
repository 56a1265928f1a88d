"""Find the type that holds the values of two, and take unions apart and together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_schemas.avro.schema import NULL, Array, Choice, Definition, Logical, MapOf, Primitive, Ref, Type

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDER = {
    frozenset({"int", "long"}): "long",
    frozenset({"int", "float"}): "double",
    frozenset({"int", "double"}): "double",
    frozenset({"float", "double"}): "double",
    frozenset({"string", "bytes"}): "bytes",
}
UUID = Logical("uuid")
PAIRS = ({Primitive("int"), Primitive("long")}, {Primitive("float"), Primitive("double")})


def wider(have: Primitive, come: Primitive) -> Primitive:
    """Return the type that reads every value of both exactly; raise ValueError saying why there is none."""
    if have.name == come.name:
        return Primitive(have.name, meaning(have.logical, come.logical))
    name = WIDER.get(frozenset({have.name, come.name}))
    if name and {have.logical, come.logical} <= {None, UUID}:
        return Primitive(name)
    rounds = "long" in (have.name, come.name) and {have.name, come.name} <= {"long", "float", "double"}
    raise ValueError(f"{words(have)} became {words(come)}{', which would round large numbers' if rounds else ''}")


def meaning(have: Logical | None, come: Logical | None) -> Logical | None:
    """Return the logical type of both; raise ValueError where they mean different things.

    The bytes do not tell a logical type: milliseconds read as microseconds would be wrong without a word.
    """
    if have == come:
        return have
    if {have, come} == {None, UUID}:
        return None
    if have and come and have.name == come.name == "decimal" and have.scale == come.scale:
        return max(have, come, key=lambda decimal: decimal.precision)
    raise ValueError(f"its logical type {have or 'none'} became {come or 'none'}")


def words(kind: Type, types: Mapping[str, Definition] | None = None) -> str:
    """Return a type for a message; `types` has the named ones."""
    if isinstance(kind, Primitive):
        return f"{kind.name} ({kind.logical})" if kind.logical else kind.name
    if isinstance(kind, Ref):
        named = (types or {})[kind.name]
        return f"{type(named).__name__.lower()} {named.name}"
    if isinstance(kind, Choice):
        return f"a union of {', '.join(words(branch, types) for branch in kind.branches)}"
    return "an array" if isinstance(kind, Array) else "a map"


def parts(kind: Type) -> tuple[bool, tuple[Type, ...]]:
    """Return whether a type may be null, and its other branches; int beside long counts as long, so do the floats."""
    branches = kind.branches if isinstance(kind, Choice) else (kind,)
    rest = tuple(branch for branch in branches if branch != NULL)
    if len(rest) == 2 and set(rest) in PAIRS:
        rest = (Primitive("long" if Primitive("long") in rest else "double"),)
    return NULL in branches, rest


def joined(null: bool, branches: tuple[Type, ...]) -> Type:
    """Return the type of these branches, null first, so that null can be its default."""
    if null and branches:
        return Choice((NULL, *branches))
    if len(branches) == 1:
        return branches[0]
    return Choice(branches) if branches else NULL


def nullable(kind: Type) -> Type:
    """Return a type with null allowed."""
    return joined(True, parts(kind)[1])


def renamed(kind: Type, names: dict[str, str]) -> Type:
    """Return a type with other names for the types it refers to."""
    if isinstance(kind, Ref):
        return Ref(names[kind.name])
    if isinstance(kind, Array):
        return Array(renamed(kind.items, names))
    if isinstance(kind, MapOf):
        return MapOf(renamed(kind.values, names))
    if isinstance(kind, Choice):
        return Choice(tuple(renamed(branch, names) for branch in kind.branches))
    return kind
