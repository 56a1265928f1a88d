"""Turn pydantic's errors into problems: short sentences with a place, a next step, and no secret."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.config.models import NAME_PATTERN, TABLE_PATTERN
from router.config.shape import description, is_secret, known_keys
from router.config.tree import Items, Keys, Node, Scalar, children
from router.resolve import TRUSTED, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from router.config.document import Document, Place
    from router.errors import Problem
    from router.resolve import Entries

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
    TABLE_PATTERN: "layer.table: lower-case letters, digits and _, the layer begins with a letter",
}
_WITHHELD = "its message is withheld, since the value is a secret or comes from a variable"


@dataclass(frozen=True)
class _Fault:
    """Hold one error with its place; `member` says that it may be one of several ways to be wrong."""

    line: ErrorDetails
    place: Place
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


def _follows(line: ErrorDetails, place: Place) -> bool:
    """Say whether an error only repeats that a value is not known (an unset variable, say)."""
    if isinstance(place.node, Scalar):
        return place.node.broken
    if line["type"] == "too_short" and isinstance(place.node, Items):  # pydantic counts the good ones only
        return len(place.node.items) >= int(line.get("ctx", {}).get("min_length", 0))
    about_all = line["type"] not in _EXPECTED and line["type"] not in {"missing", "extra_forbidden"}
    return about_all and not line["type"].startswith(TRUSTED) and any(node.broken for _, node in _scalars(place.node))


def _fault(line: ErrorDetails, place: Place, document: Document, entries: Entries) -> _Fault:
    kind, loc, context = line["type"], line["loc"], line.get("ctx", {})
    if kind == "missing":
        meaning = description(entries, loc)
        return _Fault(line, place, f"`{loc[-1]}` is missing", f"add `{loc[-1]}`" + (f": {meaning}" if meaning else ""))
    if kind == "extra_forbidden":
        hint = suggestion(str(loc[-1]), known_keys(entries, loc[:-1]), "known keys")
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


def _hidden_texts(line: ErrorDetails, place: Place, document: Document, entries: Entries) -> list[str]:
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
