"""Turn pydantic's errors into problems: short sentences with a place, a next step, and no secret.

A `Document` finds the place of a fault, given as pydantic gives it. What a place may hold, and whether it is a secret,
is read from the annotations of the models and parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from router.config.models import BRONZE_PATTERN, HYPHENED_PATTERN, NAME_PATTERN, TABLE_PATTERN, Config
from router.config.yaml_tree import Items, Keys, MappingEntry, Node, Scalar, children
from router.errors import Problem, printable
from router.parts import Part
from router.registry import TRUSTED, options_of, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from router.registry import Entries, Location


_ELSEWHERE: dict[Location, str] = {
    ("sources",): "several topics are one source, `source: {kafka: {topics: [...]}}`, with a decoder each in "
    "`decode: {by_topic: {topics: {...}}}`",
}
"""Where to write what people look for under another key."""
_EXPECTED = {
    "string_type": "text",
    "bytes_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "none_required": "empty",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_short": "at least {min_length} characters long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "string_pattern_mismatch": "{pattern}",
}
"""What a value must be, by pydantic's type of error. None of these texts holds a value of the configuration."""

_PATTERNS = {
    NAME_PATTERN: "a name: lower-case letters, digits and _, at most 64, a letter first",
    HYPHENED_PATTERN: "a name: lower-case letters, digits, _ and -, at most 64, a letter first",
    BRONZE_PATTERN: "layer.table: lower-case letters, digits and _, the layer begins with a letter; or with {topic} in "
    "the table, such as bronze.{topic}",
    TABLE_PATTERN: "layer.table: lower-case letters, digits and _, the layer begins with a letter",
}
_WITHHELD = "its message is withheld, since the value is a secret or comes from a variable"


@dataclass(frozen=True)
class _Fault:
    """One error with its place; `member` says that it may be one of several ways to be wrong."""

    line: ErrorDetails
    place: LocatedNode
    what: str
    hint: str
    at_key: bool = False
    member: bool = False


def problems_of(error: ValidationError, document: Document, entries: Entries) -> list[Problem]:
    """Return the problems of a configuration; what follows from a value that could not be had is left out."""
    lines = [(line, document.locate(line["loc"])) for line in error.errors(include_url=False)]
    faults = [_fault(line, place, document, entries) for line, place in lines if not _follows(line, place)]
    return [
        document.problem(first.line["loc"], what, first.hint, at_key=first.at_key) for first, what in _joined(faults)
    ]


def _follows(line: ErrorDetails, place: LocatedNode) -> bool:
    """Say whether an error only repeats that a value is not known (an unset variable, say)."""
    if isinstance(place.node, Scalar):
        return place.node.broken
    if line["type"] == "too_short" and isinstance(place.node, Items):  # pydantic counts the good ones only
        return len(place.node.items) >= int(line.get("ctx", {}).get("min_length", 0))
    about_all = line["type"] not in _EXPECTED and line["type"] not in {"missing", "extra_forbidden"}
    return about_all and not line["type"].startswith(TRUSTED) and any(node.broken for _, node in _scalars(place.node))


def _fault(line: ErrorDetails, place: LocatedNode, document: Document, entries: Entries) -> _Fault:
    kind, loc, context = line["type"], line["loc"], line.get("ctx", {})
    if kind == "missing":
        meaning = description(entries, loc)
        return _Fault(line, place, f"`{loc[-1]}` is missing", f"add `{loc[-1]}`" + (f": {meaning}" if meaning else ""))
    if kind == "extra_forbidden":
        hint = _ELSEWHERE.get(loc) or suggestion(str(loc[-1]), known_keys(entries, loc[:-1]), "known keys")
        return _Fault(line, place, "unknown key", hint, at_key=True)
    if kind.startswith(TRUSTED) and {"what", "hint", "at"} <= context.keys():
        return _Fault(line, place, context["what"], context["hint"], at_key=context["at"] == "key")
    expected = _expected(kind, context)
    if expected:
        is_key = loc[-1:] == ("[key]",)
        hidden = is_secret(entries, loc) or (isinstance(place.node, Scalar) and place.node.tainted)
        what = f"a key must be {expected}" if is_key else f"must be {expected}"
        what += "" if hidden or is_key else f", not {_shown(place.node)}"
        return _Fault(line, place, what, "" if hidden else _near(place.node, context), is_key, bool(place.left))
    what = str(context.get("error", line["msg"])) if kind == "value_error" else line["msg"]
    if _gives_away(what, _hidden_texts(line, place, document, entries)):
        return _Fault(line, place, f"is not accepted ({kind})", _WITHHELD, member=bool(place.left))
    return _Fault(line, place, what, "", member=bool(place.left))


def _expected(kind: str, context: dict[str, Any]) -> str:
    """Return what a value must be, or nothing when only pydantic's own message tells."""
    pattern = context.get("pattern")
    known = {**context, "pattern": _PATTERNS.get(str(pattern), f"of the form {pattern}")}
    try:
        return _EXPECTED.get(kind, "").format(**known)
    except KeyError:  # a plugin's error of the same name, without the context
        return ""


def _shown(node: Node) -> str:
    if isinstance(node, Scalar):
        text = node.text if len(node.text) <= 40 else node.text[:37] + "..."
        return (repr(text) if isinstance(node.value, str) else text) or "empty"
    return "a mapping" if isinstance(node, Keys) else f"a list of {len(node.items)}"


def _near(node: Node, context: dict[str, Any]) -> str:
    """Suggest the nearest of the texts that are allowed."""
    allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    if not allowed or not isinstance(node, Scalar):
        return ""
    hint = suggestion(node.text, allowed)
    return hint[: hint.index("?") + 1] if "?" in hint else ""


def _joined(faults: list[_Fault]) -> Iterator[tuple[_Fault, str]]:
    """Say once what is wrong with a value in several ways: every member of a union reports for itself.

    What is wrong further inside a value tells which member was meant, so the other members are not mentioned.
    """
    inside = {f.place.path[:n] for f in faults for n in range(len(f.place.path))}
    inside |= {f.place.path for f in faults if f.line["type"] == "missing"}
    ways: dict[tuple[str, ...], list[_Fault]] = {}
    for fault in faults:
        if not fault.member:
            yield fault, fault.what
        elif fault.place.path not in inside:
            ways.setdefault(fault.place.path, []).append(fault)
    for same in ways.values():
        nearest = next((f for f in same if not f.what.startswith("must be ")), None)  # right type, refused by a check
        yield (nearest, nearest.what) if nearest else _either(same)


def _either(faults: list[_Fault]) -> tuple[_Fault, str]:
    """Say `must be this or that, not what it is`."""
    expected = dict.fromkeys(fault.what.partition(", not ")[0].removeprefix("must be ") for fault in faults)
    rest = "".join(faults[0].what.partition(", not ")[1:])
    return next((f for f in faults if f.hint), faults[0]), f"must be {' or '.join(expected)}{rest}"


def _hidden_texts(line: ErrorDetails, place: LocatedNode, document: Document, entries: Entries) -> list[str]:
    """Return the texts that a validator could see and no message may show: of the value and those beside it."""
    beside = document.locate(place.path[:-1])
    texts = [
        node.text for path, node in _scalars(beside.node) if node.tainted or is_secret(entries, (*beside.path, *path))
    ]
    if is_secret(entries, line["loc"]):
        texts.extend(node.text for _, node in _scalars(place.node))
    return texts


def _gives_away(message: str, hidden: list[str]) -> bool:
    """Say whether a message of a validator repeats a hidden text, or four characters of it in a row."""
    message = message.lower()
    runs = {message[start : start + 4] for start in range(len(message) - 3)}
    texts = [text.lower() for text in hidden if text]
    return any(text in message for text in texts) or any(run in text for run in runs for text in texts)


def _scalars(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    if isinstance(node, Scalar):
        yield path, node
    for key, child in children(node):
        yield from _scalars(child, (*path, key))


_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what YAML 1.1 counts as one


@dataclass(frozen=True)
class LocatedNode:
    """What stands at a location.

    `path` is the part of the location that the document has, `left` the elements it has not: a missing key, the name
    of a main option that was not written, the member of a union. `key` is the entry through which `node` was reached.
    """

    path: tuple[str, ...]
    left: tuple[str, ...]
    node: Node
    key: MappingEntry | None


@dataclass(frozen=True)
class Document:
    """The tree of one file, which makes problems out of locations in it."""

    file: str
    root: Node = field(repr=False)
    widths: tuple[int, ...] = field(repr=False)

    def locate(self, loc: Location) -> LocatedNode:
        """Walk a location as far as the document goes, past elements that it does not have."""
        place = LocatedNode((), (), self.root, None)
        for element in map(str, loc):
            place = _step(place, element)
        return place

    def problem(self, loc: Location, what: str, hint: str = "", *, at_key: bool = False) -> Problem:
        """Return a problem at the value (or the key) of a location, or at what is nearest to it."""
        place = self.locate(loc)
        nothing = isinstance(place.node, Scalar) and place.node.plain and not place.node.text
        spot = place.key if place.key is not None and (at_key or nothing) else place.node
        line, column = inside(self.widths, spot.line, spot.column)
        return Problem(self.file, line, column, printable(".".join(place.path)), printable(what), printable(hint))


def widths_of(text: str) -> tuple[int, ...]:
    """Return the length of every line of a text."""
    return tuple(len(line) for line in _LINE_BREAK.split(text))


def inside(widths: tuple[int, ...], line: int, column: int) -> tuple[int, int]:
    """Return the nearest place inside the file: what is missing at its end has no place of its own."""
    line = max(1, min(line, len(widths)))
    return line, max(1, min(column, widths[line - 1] + 1))


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return problems in the order of the file; one that aliases repeat is said once."""
    unique = {(problem.line, problem.column, problem.what): problem for problem in reversed(list(problems))}
    return tuple(sorted(unique.values(), key=lambda problem: (problem.line, problem.column, problem.path)))


def _step(place: LocatedNode, element: str) -> LocatedNode:
    node = place.node
    if isinstance(node, Keys) and element in node.entries:
        entry = node.entries[element]
        return LocatedNode((*place.path, element), place.left, entry.value, entry)
    if isinstance(node, Items) and element.isdecimal() and int(element) < len(node.items):
        return LocatedNode((*place.path, element), place.left, node.items[int(element)], None)
    return LocatedNode(place.path, (*place.left, element), node, place.key)


def annotations_at(entries: Entries, loc: Location) -> list[Any]:
    """Return the types a location may have, or those of the nearest place around it that is known."""
    types: list[Any] = [Config]
    for element in loc:
        inner = [found for kind in types for found in _inside(entries, kind, element)]
        # pydantic puts the member of a union into a location: an element that leads nowhere is one
        types = [member for kind in inner for member in _members(kind)] or types
    return types


def known_keys(entries: Entries, loc: Location) -> set[str]:
    """Return the keys that the mapping at a location may have."""
    models = (kind for kind in annotations_at(entries, loc) if _is_model(kind))
    return {name for model in models for name in options_of(model)}


def description(entries: Entries, loc: Location) -> str:
    """Return what an option is for, as its model says it."""
    models = (kind for kind in annotations_at(entries, loc[:-1]) if _is_model(kind))
    fields = (options_of(model).get(str(loc[-1])) for model in models)
    return next((field.description for field in fields if field and field.description), "")


def is_secret(entries: Entries, loc: Location) -> bool:
    """Say whether the value at a location is declared a secret."""
    kinds = (get_origin(kind) or kind for kind in annotations_at(entries, loc))
    return any(kind in {SecretStr, SecretBytes, Secret} for kind in kinds)


def _inside(entries: Entries, kind: Any, element: int | str) -> Iterator[Any]:
    """Return the types of one key or index of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if _is_model(kind) and vars(kind).get("kind") and issubclass(kind, Part):
        entry = entries[kind.kind].get(str(element))
        yield from [entry.part] if entry else []
    elif _is_model(kind):
        field = options_of(kind).get(str(element))
        yield from [field.annotation] if field else []
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield arguments[1]
    elif isinstance(origin, type) and issubclass(origin, Sequence) and str(element).isdecimal():
        yield from (argument for argument in arguments if argument is not Ellipsis)


def _members(kind: Any) -> Iterator[Any]:
    """Return the members of a union, without the metadata of `Annotated`."""
    if get_origin(kind) is Annotated:
        yield from _members(get_args(kind)[0])
    elif get_origin(kind) in {Union, UnionType}:
        for member in get_args(kind):
            yield from _members(member)
    else:
        yield kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
