"""Replace `${NAME}`, `${NAME:-default}` and `${file:/run/secrets/x}` in the values of a configuration.

Keys stay as they are. `$${` is a plain `${`. A value with anything replaced is tainted from then on: no message shows
it, not even in part. A value that is one variable and nothing else, without quotes, takes the type of its text, so
`port: ${PORT}` is a number. If a list is wanted, `a, b` and `["a", "b"]` are one (see the loader).
"""

from __future__ import annotations

import re
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from router.config.yaml_tree import Items, Keys, MappingEntry, Scalar, YamlNode, parse_plain_scalar
from router.errors import Problem, to_printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_FILE_BYTES = 1 << 20

_REFERENCE_OR_ESCAPE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_VARIABLE_REFERENCE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)
_KNOWN_FORMS = "known forms: ${NAME}, ${NAME:-default}, ${file:/path}; a plain `${` is written `$${`"


class _UnresolvedError(Exception):
    """The reason why a reference has no value: what, and the next step."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint


def substitute_variables(
    root: YamlNode, environ: Mapping[str, str], folder: Path, file: str
) -> tuple[YamlNode, list[Problem]]:
    """Return the tree with all references replaced, and those that could not be; `folder` is for relative files."""
    substitution = _Substitution(environ, folder, file)
    return substitution.replace_in(root, ()), substitution.problems


class _Substitution:
    """One walk over a tree; a node that aliases share stays shared."""

    def __init__(self, environ: Mapping[str, str], folder: Path, file: str) -> None:
        self.problems: list[Problem] = []
        self._environ = environ
        self._folder = folder
        self._file = file
        self._done: dict[int, YamlNode] = {}

    def replace_in(self, node: YamlNode, path: tuple[str, ...]) -> YamlNode:
        if id(node) not in self._done:
            self._done[id(node)] = self._replace_node(node, path)
        return self._done[id(node)]

    def _replace_node(self, node: YamlNode, path: tuple[str, ...]) -> YamlNode:
        if isinstance(node, Keys):
            entries = node.entries.items()
            return replace(node, entries={key: self._replace_in_entry(entry, (*path, key)) for key, entry in entries})
        if isinstance(node, Items):
            items = [self.replace_in(item, (*path, str(index))) for index, item in enumerate(node.items)]
            return replace(node, items=tuple(items))
        if "${" in node.text:
            return self._replace_in_scalar(node, path)
        return node

    def _replace_in_entry(self, entry: MappingEntry, path: tuple[str, ...]) -> MappingEntry:
        return replace(entry, value=self.replace_in(entry.value, path))

    def _replace_in_scalar(self, node: Scalar, path: tuple[str, ...]) -> Scalar:
        tainted = any(token[0] != "$${" for token in _REFERENCE_OR_ESCAPE.finditer(node.text))
        try:
            text = _REFERENCE_OR_ESCAPE.sub(self._value_of_token, node.text)
        except _UnresolvedError as unknown:
            place = to_printable(".".join(path))
            self.problems.append(
                Problem(self._file, node.line, node.column, place, unknown.what, unknown.hint, "variable")
            )
            return replace(node, value="", tainted=tainted, broken=True)
        # One variable and nothing else has the type of its text: `port: ${PORT}` is a number.
        is_alone = tainted and node.plain and _REFERENCE_OR_ESCAPE.fullmatch(node.text)
        return replace(node, text=text, value=parse_plain_scalar(text) if is_alone else text, tainted=tainted)

    def _value_of_token(self, token: re.Match[str]) -> str:
        if token[0] == "$${":
            return "${"
        reference, closed = token.groups()
        if not closed:
            raise _UnresolvedError("a `${` is not closed", _KNOWN_FORMS)
        if "${" in reference:
            raise _UnresolvedError("a variable stands inside another one", "give the inner one a variable of its own")
        if reference.startswith("file:"):
            return _read_value_file(self._folder / reference.removeprefix("file:"))
        return self._value_of_variable(reference)

    def _value_of_variable(self, reference: str) -> str:
        named = _VARIABLE_REFERENCE.fullmatch(reference)
        if named is None:
            raise _UnresolvedError("this is not a variable", _KNOWN_FORMS)
        name = named["name"]
        default = named["default"]
        value = self._environ.get(name)
        if default is not None:
            # As in a shell, the default also stands for an empty value.
            return value or default.removeprefix(":-")
        if value is None:
            raise _UnresolvedError(f"the variable {name} is not set", f"set it, or give a default: ${{{name}:-...}}")
        return value


def _read_value_file(path: Path) -> str:
    """Return the text of a file without the line break at its end."""
    shown = to_printable(str(path))
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _UnresolvedError(f"{shown} is not a regular file", "name a file that holds the value")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise _UnresolvedError(f"{shown} is larger than {MAX_FILE_BYTES} bytes", "name a file with only the value")
        return content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _UnresolvedError(f"{shown} is not UTF-8 text", "name a file that holds the value as text") from None
    except (OSError, ValueError) as error:
        # A ValueError is a NUL in the path.
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise _UnresolvedError(f"{shown} cannot be read: {reason}", "check the path and who may read it") from None
