"""Read YAML text into a tree of values that know where they stand.

Plain scalars are typed as YAML 1.2's core schema does it: `no`, `on`, `12:30` and dates stay text, as people who
write a configuration expect. Anchors, aliases and merge keys (`<<`) work, within bounds on depth and size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from router.errors import Problem, to_printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_Value = str | int | float | bool | None
KeyNames = tuple[str, ...]


@dataclass(frozen=True)
class Scalar:
    """One value; `text` is how it is written, `plain` says that it stands without quotes.

    A tainted scalar holds text from a variable or a file, which no message may show; a broken one stands for a value
    that could not be had, about which a problem exists already.
    """

    line: int
    column: int
    text: str = field(repr=False)
    value: _Value = field(repr=False)
    plain: bool = False
    tainted: bool = False
    broken: bool = False


@dataclass(frozen=True)
class Items:
    """A list."""

    line: int
    column: int
    items: tuple[YamlNode, ...]


@dataclass(frozen=True)
class MappingEntry:
    """One value of a mapping, and the place of its key."""

    line: int
    column: int
    value: YamlNode


@dataclass(frozen=True)
class Keys:
    """A mapping. All keys are text, as written."""

    line: int
    column: int
    entries: dict[str, MappingEntry]


YamlNode = Scalar | Items | Keys


def child_nodes(node: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    """Yield the values directly inside a node, by key or index."""
    if isinstance(node, Keys):
        for key, entry in node.entries.items():
            yield key, entry.value
    elif isinstance(node, Items):
        for index, item in enumerate(node.items):
            yield str(index), item


def plain_data(node: YamlNode, as_text: frozenset[int] = frozenset()) -> Any:
    """Return a tree as dicts, lists and scalars; scalars whose `id` is in `as_text` come as they are written."""
    if isinstance(node, Keys):
        return {key: plain_data(entry.value, as_text) for key, entry in node.entries.items()}
    if isinstance(node, Items):
        return [plain_data(item, as_text) for item in node.items]
    return node.text if id(node) in as_text else node.value


def as_lists(node: YamlNode, wanted: frozenset[int]) -> YamlNode:
    """Return a tree in which the scalars whose `id` is in `wanted` are the lists that their texts mean."""
    if isinstance(node, Keys):
        entries = {}
        for key, entry in node.entries.items():
            entries[key] = replace(entry, value=as_lists(entry.value, wanted))
        return replace(node, entries=entries)
    if isinstance(node, Items):
        return replace(node, items=tuple(as_lists(item, wanted) for item in node.items))
    return _split_into_items(node) if id(node) in wanted else node


def _split_into_items(node: Scalar) -> YamlNode:
    """Return the items of `a, b` or of `["a", "b"]`, all at the place of the text; the text if it is no list."""
    items: list[Scalar] = []
    if node.text.lstrip().startswith("["):
        root, problems = parse_yaml(node.text, "")
        if problems or not isinstance(root, Items):
            return node
        for item in root.items:
            if not isinstance(item, Scalar):
                return node
            value = parse_plain_scalar(item.text) if item.plain else item.text
            items.append(replace(node, text=item.text, value=value))
    else:
        for part in node.text.split(","):
            text = part.strip()
            if text:
                items.append(replace(node, text=text, value=parse_plain_scalar(text)))
    return Items(node.line, node.column, tuple(items))


def _parse_integer(text: str) -> int:
    """Return a whole number; one with a leading zero is decimal."""
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    base = {"0x": 16, "0o": 8}.get(digits[:2], 10)
    return sign * int(digits if base == 10 else digits[2:], base)


def _parse_float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


CORE_TYPES: dict[str, tuple[str, Callable[[str], _Value]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", _parse_integer),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        _parse_float,
    ),
}
"""YAML 1.2's core schema: the type of a plain scalar, by a pattern of its whole text."""


def parse_plain_scalar(text: str) -> _Value:
    """Return the value of a plain scalar."""
    for pattern, convert in CORE_TYPES.values():
        if re.fullmatch(pattern, text):
            return convert_text(convert, text)
    return text


def convert_text(convert: Callable[[str], _Value], text: str) -> _Value:
    """Convert a text that has the pattern of a type."""
    try:
        return convert(text)
    except ValueError:
        # Python refuses to convert numbers of thousands of digits.
        return text


MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Bounds on a document with all its aliases written out; a hostile or broken file must not eat the machine."""

_TAG_PREFIX = "tag:yaml.org,2002:"


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """A loader that only composes nodes, and refuses what is nested too deeply before Python's stack does."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def parse_yaml(text: str, file: str) -> tuple[YamlNode | None, list[Problem]]:
    """Return the tree of a document and what is wrong with it as YAML; no tree when it cannot be read at all."""
    try:
        root = _compose_nodes(text)
    except yaml.MarkedYAMLError as error:
        return None, [_syntax_problem(error, text, file)]
    except ReaderError as error:
        before = text[: error.position]
        line = before.count("\n") + 1
        column = len(before) - before.rfind("\n")
        message = f"character U+{error.character:04X} is not allowed in YAML"
        return None, [Problem(file, line, column, "", message, "remove it, or write it as an escape in double quotes")]
    if root is None:
        return None, [Problem(file, 1, 1, "", "the file is empty", "begin with `name:` and `lake:`")]
    builder = _Builder(file)
    return builder.build_node(root, ()), builder.problems


def _compose_nodes(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except (ValueError, OverflowError) as error:  # numbers of escapes and directives that PyYAML does not check
        raise yaml.MarkedYAMLError(problem="a number is out of range", problem_mark=loader.get_mark()) from error


_SYNTAX_HINTS = {
    "mapping values are not allowed": "put quotes around a value that holds `: `, or check the indentation",
    "'\\t'": "indent with spaces, not tabs",
    "undefined alias": "put quotes around a text that begins with *; an alias needs its anchor before it",
    "duplicate anchor": "give each anchor a name of its own",
    "single document": "keep one configuration per file",
    "cannot start any token": "put quotes around the value",
}


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, file: str) -> Problem:
    line = column = 1
    mark = error.problem_mark or error.context_mark
    if mark:
        line = mark.line + 1
        column = mark.column + 1
    message = ", ".join(part for part in (error.context, error.problem) if part) or "this is not YAML"
    hint = next((hint for sign, hint in _SYNTAX_HINTS.items() if sign in message), "")
    if not hint and "'{'" in message and "${" in text:
        hint = 'inside { } or [ ] put quotes around a variable: "${NAME}"'
    return Problem(file, line, column, "", to_printable(f"not YAML: {message}"), hint)


@dataclass(frozen=True)
class _Extent:
    values: int
    depth: int


class _Builder:
    """The builder of the tree from PyYAML's nodes; a node that several aliases share is made once and shared."""

    def __init__(self, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._built: dict[int, YamlNode] = {}
        self._extents: dict[int, _Extent] = {}
        self._open: set[int] = set()

    def build_node(self, node: yaml.Node, path: KeyNames) -> YamlNode:
        if id(node) in self._open:
            return self._refuse_node(node, path, "an alias stands inside its own anchor", "remove the alias")
        if id(node) not in self._built:
            self._open.add(id(node))
            built = self._make_node(node, path)
            self._open.discard(id(node))
            self._built[id(node)] = self._refuse_huge_value(node, built, path)
        return self._built[id(node)]

    def _make_node(self, node: yaml.Node, path: KeyNames) -> YamlNode:
        line, column = _place_of(node)
        if node.tag.removeprefix(_TAG_PREFIX) not in {"str", "seq", "map", *CORE_TYPES}:
            return self._refuse_node(node, path, "tags such as `!name` have no meaning here", "remove the tag")
        if isinstance(node, yaml.MappingNode):
            return Keys(line, column, self._make_entries(node, path))
        if isinstance(node, yaml.SequenceNode):
            items = [self.build_node(item, (*path, str(index))) for index, item in enumerate(node.value)]
            return Items(line, column, tuple(items))
        return self._make_scalar(node, path)

    def _make_scalar(self, node: yaml.Node, path: KeyNames) -> YamlNode:
        line, column = _place_of(node)
        text = str(node.value)
        kind = node.tag.removeprefix(_TAG_PREFIX)
        plain = isinstance(node, yaml.ScalarNode) and not node.style
        if not _is_unicode(text):
            return self._refuse_node(
                node, path, "an escape stands for half a character", "write it as \\U and eight digits"
            )
        if kind not in CORE_TYPES:
            return Scalar(line, column, text, parse_plain_scalar(text) if plain else text, plain)
        # A tag such as `!!int` says what the text means.
        pattern, convert = CORE_TYPES[kind]
        if not re.fullmatch(pattern, text):
            return self._refuse_node(node, path, f"the text is not of type {kind}", "remove the tag")
        return Scalar(line, column, text, convert_text(convert, text))

    def _make_entries(self, node: yaml.MappingNode, path: KeyNames) -> dict[str, MappingEntry]:
        own: dict[str, MappingEntry] = {}
        merged: dict[str, MappingEntry] = {}
        for key, value in node.value:
            line, column = _place_of(key)
            if not isinstance(key, yaml.ScalarNode) or not _is_unicode(key.value):
                self._refuse_node(key, path, "a key must be text", "put quotes around it")
            elif key.value == "<<" and not key.style:
                for source in self._merge_sources(value, path):
                    merged = {**source.entries, **merged}
            elif key.value in own:
                first = own[key.value]
                hint = f"the first is at line {first.line}, column {first.column}; keep one"
                self._refuse_node(key, (*path, key.value), "this key is given twice", hint)
            else:
                own[key.value] = MappingEntry(line, column, self.build_node(value, (*path, key.value)))
        return {**merged, **own}

    def _merge_sources(self, node: yaml.Node, path: KeyNames) -> Iterator[Keys]:
        """Return the mappings that `<<` names; of two that have a key, the first one counts."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for source in sources:
            built = self.build_node(source, path)
            if isinstance(built, Keys):
                yield built
            else:
                self._refuse_node(
                    source, path, "`<<` takes a mapping or a list of mappings", "name an anchor: `<<: *name`"
                )

    def _refuse_huge_value(self, node: yaml.Node, built: YamlNode, path: KeyNames) -> YamlNode:
        """Refuse a value that aliases make huge or deep; what is inside was measured before."""
        values = 1
        depth = 1
        for _, child in child_nodes(built):
            extent = self._extents.get(id(child), _Extent(1, 0))
            values += extent.values
            depth = max(depth, 1 + extent.depth)
        if values > MAX_VALUES or depth > MAX_DEPTH:
            message = f"aliases make this larger than {MAX_VALUES} values or deeper than {MAX_DEPTH} levels"
            return self._refuse_node(node, path, message, "use fewer aliases of aliases")
        self._extents[id(built)] = _Extent(values, depth)
        return built

    def _refuse_node(self, node: yaml.Node, path: KeyNames, what: str, hint: str) -> Scalar:
        line, column = _place_of(node)
        self.problems.append(Problem(self._file, line, column, to_printable(".".join(path)), what, hint))
        return Scalar(line, column, "", None, broken=True)


def _place_of(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _is_unicode(text: str) -> bool:
    """Say whether a text can be written out; escapes can make halves of surrogate pairs, which cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
