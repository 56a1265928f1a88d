"""Turn pydantic's errors into problems: short sentences with a place, a next step, and no secret.

A `Document` finds the place of a fault, given as pydantic gives it. What a place may hold, and whether it is a secret,
is read from the annotations of the models and parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin
from urllib.parse import parse_qsl

import yaml
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from router.api.parts import Part
from router.config.models import BRONZE_PATTERN, HYPHENED_PATTERN, NAME_PATTERN, TABLE_PATTERN, Config
from router.config.validation import Finding
from router.config.yaml_tree import Items, Keys, MappingEntry, Scalar, YamlNode, child_nodes
from router.errors import Problem, to_printable
from router.registry import TRUSTED, options_of, suggest_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from router.registry import Entries, KeyPath


_HINTS_FOR_OTHER_KEYS: dict[KeyPath, str] = {
    ("sources",): "several topics are one source, `source: {kafka: {topics: [...]}}`, with a decoder each in "
    "`decode: {by_topic: {topics: {...}}}`",
}
"""Where to write what people look for under another key."""
_EXPECTED_VALUES = {
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

_DESCRIBED_PATTERNS = {
    NAME_PATTERN: "a name: lower-case letters, digits and _, at most 64, a letter first",
    HYPHENED_PATTERN: "a name: lower-case letters, digits, _ and -, at most 64, a letter first",
    BRONZE_PATTERN: "layer.table: lower-case letters, digits and _, the layer begins with a letter; or with {topic} in "
    "the table, such as bronze.{topic}",
    TABLE_PATTERN: "layer.table: lower-case letters, digits and _, the layer begins with a letter",
}
_CODES_BY_TYPE = {"missing": "missing", "extra_forbidden": "unknown"}
_WITHHELD_HINT = "its message is withheld, since the value is a secret or comes from a variable"


@dataclass(frozen=True)
class _Fault:
    """One error with its place. With `member` it is what one member of a union says of a value."""

    line: ErrorDetails
    place: LocatedNode
    what: str
    hint: str
    at_key: bool = False
    member: bool = False


def problems_of(error: ValidationError, document: Document, entries: Entries) -> list[Problem]:
    """Return the problems of a configuration; what follows from a value that could not be had is left out."""
    faults = []
    for line in error.errors(include_url=False):
        place = document.locate(line["loc"])
        if not _follows_from_broken(line, place):
            faults.append(_describe_fault(line, place, document, entries))
    problems = []
    for fault in _join_members(faults):
        code = _CODES_BY_TYPE.get(fault.line["type"], "unknown" if fault.at_key else "value")
        problems.append(document.problem_at(fault.line["loc"], fault.what, fault.hint, code=code, at_key=fault.at_key))
    return problems


def _follows_from_broken(line: ErrorDetails, place: LocatedNode) -> bool:
    """Say whether an error only repeats that a value is not known (an unset variable, say)."""
    kind = line["type"]
    if isinstance(place.node, Scalar):
        return place.node.broken
    if kind == "too_short" and isinstance(place.node, Items):
        # pydantic counts the good items only.
        return len(place.node.items) >= int(line.get("ctx", {}).get("min_length", 0))
    # What a validator says of a whole value may come from anything in it.
    if kind in _EXPECTED_VALUES or kind in {"missing", "extra_forbidden"} or kind.startswith(TRUSTED):
        return False
    return any(node.broken for _, node in _scalars_inside(place.node))


def _describe_fault(line: ErrorDetails, place: LocatedNode, document: Document, entries: Entries) -> _Fault:
    """Return the fault in the words of the router, as far as they do not give a secret away."""
    kind = line["type"]
    loc = line["loc"]
    context = line.get("ctx", {})
    if kind == "missing":
        hint = f"add `{loc[-1]}`"
        meaning = option_description(entries, loc)
        if meaning:
            hint += f": {meaning}"
        return _Fault(line, place, _explain_error(line, place.node), hint)
    if kind == "extra_forbidden":
        hint = _HINTS_FOR_OTHER_KEYS.get(loc) or _similar_keys(entries, loc)
        return _Fault(line, place, _explain_error(line, place.node), hint, at_key=True)
    if kind.startswith(TRUSTED) and {"what", "hint", "at"} <= context.keys():
        return _Fault(line, place, context["what"], context["hint"], at_key=context["at"] == "key")

    member = bool(place.left)
    expected = _describe_expected(kind, context)
    if expected and loc[-1:] == ("[key]",):
        hint = "" if _is_hidden(entries, loc, place) else _suggest_nearest(place.node, context)
        return _Fault(line, place, f"a key must be {expected}", hint, at_key=True, member=member)
    if expected and _is_hidden(entries, loc, place):
        return _Fault(line, place, f"must be {expected}", "", member=member)
    message = _explain_error(line, place.node)
    if expected:
        return _Fault(line, place, message, _suggest_nearest(place.node, context), member=member)
    if _gives_away(message, _hidden_texts(line, place, document, entries)):
        return _Fault(line, place, f"is not accepted ({kind})", _WITHHELD_HINT, member=member)
    return _Fault(line, place, message, "", member=member)


def problems_in_words(error: ValidationError, document: Document, hint: str) -> Iterator[Problem]:
    """Yield the problems of a file without secrets, such as one of route tests."""
    faults = []
    for line in error.errors(include_url=False):
        place = document.locate(line["loc"])
        if not _follows_from_broken(line, place):
            is_member = bool(place.left) and line["type"] != "missing"
            faults.append(_Fault(line, place, _explain_error(line, place.node), hint, member=is_member))
    for fault in _join_members(faults):
        code = _CODES_BY_TYPE.get(fault.line["type"], "value")
        yield document.problem_at(fault.line["loc"], fault.what, fault.hint, code=code)


def _explain_error(line: ErrorDetails, node: YamlNode) -> str:
    """Return the fault of a value that may be shown, in the words of the router."""
    context = line.get("ctx", {})
    expected = _describe_expected(line["type"], context)
    if line["type"] == "missing":
        return f"`{line['loc'][-1]}` is missing"
    if line["type"] == "extra_forbidden":
        return "unknown key"
    if expected:
        return f"must be {expected}, not {_describe_value(node)}"
    # The message of a validator, which may be a plugin's.
    return str(context.get("error", line["msg"])) if line["type"] == "value_error" else line["msg"]


def _is_hidden(entries: Entries, loc: KeyPath, place: LocatedNode) -> bool:
    """Say whether no message may show a value: it is a secret, or comes from a variable."""
    is_tainted = isinstance(place.node, Scalar) and place.node.tainted
    return is_tainted or is_secret(entries, loc)


def _describe_expected(kind: str, context: dict[str, Any]) -> str:
    """Return the requirement that a value does not meet, or nothing if only pydantic's own message tells."""
    pattern = context.get("pattern")
    values = {**context, "pattern": _DESCRIBED_PATTERNS.get(str(pattern), f"of the form {pattern}")}
    try:
        return _EXPECTED_VALUES.get(kind, "").format(**values)
    except KeyError:
        # A plugin's error of the same name, without the context.
        return ""


def _describe_value(node: YamlNode) -> str:
    if isinstance(node, Keys):
        return "a mapping"
    if isinstance(node, Items):
        return f"a list of {len(node.items)}"
    text = node.text
    if len(text) > 40:
        text = f"{text[:37]}..."
    if isinstance(node.value, str):
        return repr(text)
    return text or "empty"


def _suggest_nearest(node: YamlNode, context: dict[str, Any]) -> str:
    """Suggest the nearest of the texts that are allowed."""
    allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    if not allowed or not isinstance(node, Scalar):
        return ""
    # All that are allowed stand in the message already: of the hint only the question is new.
    question, mark, _ = suggest_names(node.text, allowed).partition("?")
    return f"{question}?" if mark else ""


def _join_members(faults: list[_Fault]) -> Iterator[_Fault]:
    """Say once what is wrong with a value in several ways: every member of a union reports for itself.

    What is wrong further inside a value tells which member was meant, so the other members are not mentioned.
    """
    with_fault_inside: set[tuple[str, ...]] = set()
    for fault in faults:
        path = fault.place.path
        with_fault_inside |= {path[:length] for length in range(len(path))}
        if fault.line["type"] == "missing":
            with_fault_inside.add(path)
    members: dict[tuple[str, ...], list[_Fault]] = {}
    for fault in faults:
        if not fault.member:
            yield fault
        elif fault.place.path not in with_fault_inside:
            members.setdefault(fault.place.path, []).append(fault)
    for same in members.values():
        # The right type, refused by a check, is nearer than a wrong type.
        refused = [fault for fault in same if not fault.what.startswith("must be ")]
        yield refused[0] if refused else _join_alternatives(same)


def _join_alternatives(faults: list[_Fault]) -> _Fault:
    """Say `must be this or that, not what it is`."""
    expected: dict[str, None] = {}
    for fault in faults:
        wanted, _, _ = fault.what.partition(", not ")
        expected[wanted.removeprefix("must be ")] = None
    _, separator, shown = faults[0].what.partition(", not ")
    first = next((fault for fault in faults if fault.hint), faults[0])
    return replace(first, what=f"must be {' or '.join(expected)}{separator}{shown}")


def _hidden_texts(line: ErrorDetails, place: LocatedNode, document: Document, entries: Entries) -> list[str]:
    """Return the texts that a validator could see and no message may show: of the value and its neighbours."""
    around = document.locate(place.path[:-1])
    texts = []
    for path, node in _scalars_inside(around.node):
        if node.tainted or is_secret(entries, (*around.path, *path)):
            texts.append(node.text)
    if is_secret(entries, line["loc"]):
        texts += [node.text for _, node in _scalars_inside(place.node)]
    return texts


def _gives_away(message: str, hidden: list[str]) -> bool:
    """Say whether a message of a validator repeats a hidden text, or four characters of it in a row."""
    message = message.lower()
    runs = {message[start : start + 4] for start in range(len(message) - 3)}
    for text in hidden:
        lowered = text.lower()
        if lowered and (lowered in message or any(run in lowered for run in runs)):
            return True
    return False


def _scalars_inside(node: YamlNode, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    if isinstance(node, Scalar):
        yield path, node
    for key, child in child_nodes(node):
        yield from _scalars_inside(child, (*path, key))


_BREAKS = "\r\n\x85\u2028\u2029"
_LINE_BREAK = re.compile(f"\r\n|[{_BREAKS}]")  # what YAML 1.1 counts as one
_LAST_BREAK = re.compile(f"(?:\r\n|[{_BREAKS}])$")


@dataclass(frozen=True)
class LocatedNode:
    """What stands at a location.

    `path` is the part of the location that the document has, `left` the elements it has not: a missing key, the name
    of a main option that was not written, the member of a union. `key` is the entry through which `node` was reached.
    """

    path: tuple[str, ...]
    left: tuple[str, ...]
    node: YamlNode
    key: MappingEntry | None


@dataclass(frozen=True)
class Document:
    """The tree of one file, which makes problems out of locations in it."""

    file: str
    root: YamlNode = field(repr=False)
    widths: tuple[int, ...] = field(repr=False)

    def locate(self, loc: KeyPath) -> LocatedNode:
        """Walk a location as far as the document goes, past elements that it does not have."""
        place = LocatedNode((), (), self.root, None)
        for element in loc:
            place = _step_into(place, str(element))
        return place

    def problem_at(self, loc: KeyPath, what: str, hint: str = "", *, code: str, at_key: bool = False) -> Problem:
        """Return a problem at the value (or the key) of a location, or at what is nearest to it."""
        place = self.locate(loc)
        # An empty value stands nowhere: its key is shown.
        is_nothing = isinstance(place.node, Scalar) and place.node.plain and not place.node.text
        spot: YamlNode | MappingEntry = place.node
        if place.key is not None and (at_key or is_nothing):
            spot = place.key
        line, column = place_inside(self.widths, spot.line, spot.column)
        return Problem(
            self.file, line, column, to_printable(".".join(place.path)), to_printable(what), to_printable(hint), code
        )


def widths_of(text: str) -> tuple[int, ...]:
    """Return the length of every line of a text."""
    return tuple(len(line) for line in _LINE_BREAK.split(text))


def place_inside(widths: tuple[int, ...], line: int, column: int) -> tuple[int, int]:
    """Return the nearest place inside the file: what is missing at its end has no place of its own."""
    line = max(1, min(line, len(widths)))
    return line, max(1, min(column, widths[line - 1] + 1))


def sort_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return problems in the order of the file; one that aliases repeat is said once."""
    unique = {(problem.line, problem.column, problem.what): problem for problem in reversed(list(problems))}
    return tuple(sorted(unique.values(), key=lambda problem: (problem.line, problem.column, problem.path)))


def _step_into(place: LocatedNode, element: str) -> LocatedNode:
    node = place.node
    if isinstance(node, Keys) and element in node.entries:
        entry = node.entries[element]
        return LocatedNode((*place.path, element), place.left, entry.value, entry)
    if isinstance(node, Items) and element.isdecimal() and int(element) < len(node.items):
        return LocatedNode((*place.path, element), place.left, node.items[int(element)], None)
    return LocatedNode(place.path, (*place.left, element), node, place.key)


def annotations_at(entries: Entries, loc: KeyPath) -> list[Any]:
    """Return the types a location may have, or those of the nearest place around it that is known."""
    types: list[Any] = [Config]
    for element in loc:
        members: list[Any] = []
        for kind in types:
            for inner in _types_inside(entries, kind, element):
                members += _union_members(inner)
        # pydantic puts the member of a union into a location: an element that leads nowhere is one.
        types = members or types
    return types


def _models_at(entries: Entries, loc: KeyPath) -> list[type[BaseModel]]:
    return [kind for kind in annotations_at(entries, loc) if _is_model(kind)]


def known_keys(entries: Entries, loc: KeyPath) -> set[str]:
    """Return the keys that the mapping at a location may have."""
    keys: set[str] = set()
    for model in _models_at(entries, loc):
        keys |= options_of(model).keys()
    return keys


def _similar_keys(entries: Entries, loc: KeyPath) -> str:
    """Return the keys that someone may have meant by an unknown one, and where all are listed."""
    listed_in = "`router help configuration`"
    for length in range(len(loc) - 1, 0, -1):
        # A class with a `kind` of its own stands for all parts of that kind; the others are parts with a name.
        if any(issubclass(model, Part) and "kind" not in vars(model) for model in _models_at(entries, loc[:length])):
            listed_in = f"`router plugins {loc[length - 1]}`"
            break
    return suggest_names(str(loc[-1]), known_keys(entries, loc[:-1]), "known keys", listed_in)


def option_description(entries: Entries, loc: KeyPath) -> str:
    """Return the description of an option, as its model has it."""
    for model in _models_at(entries, loc[:-1]):
        field = options_of(model).get(str(loc[-1]))
        if field and field.description:
            return field.description
    return ""


def is_secret(entries: Entries, loc: KeyPath) -> bool:
    """Say whether the value at a location is declared a secret."""
    kinds = [get_origin(kind) or kind for kind in annotations_at(entries, loc)]
    return any(isinstance(kind, type) and issubclass(kind, SecretStr | SecretBytes | Secret) for kind in kinds)


_SECRET_NAME = re.compile(
    r"password|passwd|secret|token|jaas|credential|authorization|(^|[._])(access|api|account|private)?_?key$"
)
_SECRET_URL = re.compile(r"[a-z0-9+.]+://[^/@:]*:[^/@]+@|https://.")


def written_secrets(root: YamlNode, entries: Entries) -> Iterator[Finding]:
    """Yield the secrets that stand in a file itself. Of options that are all kept secret only some are."""
    for path, node in _scalars_inside(root):
        if node.tainted or not node.text or not is_secret(entries, path):
            continue
        is_address = "://" in node.text
        hidden = _SECRET_URL.match(node.text) if is_address else _SECRET_NAME.search(path[-1].lower())
        if hidden:
            hint = "write ${NAME}, or ${file:/run/secrets/NAME}"
            yield Finding(path, "a secret stands in the file", hint, code="secret")


HIDDEN = "'***'"
"""What stands in place of a secret, as YAML."""
_REFERENCE = re.compile(r"\$\{(file:[^}]*|[A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable without a default, or a file: what stands in a configuration in place of a secret."""
_ADDRESS = re.compile(r"[a-z0-9+.]+://")
_LOGIN_IN_ADDRESS = re.compile(r"://[^/@]*:[^/@]+@")
_COMMENT = re.compile(f"[ \t]*#[^{_BREAKS}]*")
_BLOCK_COMMENT = re.compile(f"(?<=[ \t])#[^{_BREAKS}]*")


def without_secrets(text: str, entries: Entries) -> str:
    """Return the text of a file without its comments, and with HIDDEN for each secret that stands in it itself."""
    root = yaml.compose(text)
    assert root is not None
    places = set()
    for path, node in _written_scalars(root, ()):
        if _shows_secret(entries, path, node.value):
            places.add(node.start_mark.index)
    shown = ""
    end = 0
    is_hidden = False
    for token in yaml.scan(text):
        begin = token.start_mark.index
        shown += _COMMENT.sub("", text[end:begin])
        end = token.end_mark.index
        # An anchor or a tag stands before its value, and begins it.
        is_hidden |= begin in places
        written = text[begin:end]
        if isinstance(token, yaml.ScalarToken):
            if token.style in ("|", ">"):
                header, line_break, lines = written.partition("\n")
                written = _BLOCK_COMMENT.sub("", header) + line_break + lines
            if is_hidden:
                # A block ends with its line.
                written = HIDDEN + "".join(_LAST_BREAK.findall(written))
            is_hidden = False
        shown += written
    return shown + _COMMENT.sub("", text[end:])


def _written_scalars(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.ScalarNode]]:
    """Yield the values of a file with their places, also those that others override: `<<` is left out of a place."""
    if isinstance(node, yaml.ScalarNode):
        yield path, node
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _written_scalars(item, (*path, str(number)))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            merged = [value]
            if key.value == "<<" and isinstance(value, yaml.SequenceNode):
                merged = value.value
            for item in merged:
                yield from _written_scalars(item, path if key.value == "<<" else (*path, str(key.value)))


def _shows_secret(entries: Entries, path: tuple[str, ...], text: str) -> bool:
    """Return whether a value may have a secret that stands in the file itself, by its option, its name or its address.

    Names count for settings of clients and of Spark, which have dots: `spark.hadoop.fs.s3a.secret.key`.
    """
    written = _REFERENCE.sub("", text)
    is_declared = bool(path) and is_secret(entries, path)
    if _ADDRESS.match(text):
        names = [name.lower() for name, _ in parse_qsl(written.partition("?")[2])]
        has_secret = _LOGIN_IN_ADDRESS.search(written) or any(map(_SECRET_NAME.search, names))
        # The address of a webhook is a secret as a whole.
        return bool(has_secret) or (is_declared and written.startswith("https://"))
    is_named = bool(path) and "." in path[-1] and bool(_SECRET_NAME.search(path[-1].lower()))
    return bool(written) and (is_declared or is_named)


def _types_inside(entries: Entries, kind: Any, element: int | str) -> Iterator[Any]:
    """Yield the types of one key or index of a type."""
    if _is_model(kind) and vars(kind).get("kind") and issubclass(kind, Part):
        # A part is written as {name: options}.
        entry = entries[kind.kind].get(str(element))
        if entry:
            yield entry.part
        return
    if _is_model(kind):
        field = options_of(kind).get(str(element))
        if field:
            yield field.annotation
        return
    origin = get_origin(kind)
    if not isinstance(origin, type):
        return
    arguments = get_args(kind)
    if issubclass(origin, Mapping):
        yield arguments[1]
    elif issubclass(origin, Sequence) and str(element).isdecimal():
        for argument in arguments:
            if argument is not Ellipsis:
                yield argument


def _union_members(kind: Any) -> Iterator[Any]:
    """Return the members of a union, without the metadata of `Annotated`."""
    if get_origin(kind) is Annotated:
        yield from _union_members(get_args(kind)[0])
    elif get_origin(kind) in {Union, UnionType}:
        for member in get_args(kind):
            yield from _union_members(member)
    else:
        yield kind


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
