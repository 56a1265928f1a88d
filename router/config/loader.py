"""Load a configuration: one file in, frozen models out, or every problem at once."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from router.config.models import Config
from router.config.problems import Document, in_order, inside, problems_of, widths_of
from router.config.validation import cross_checks
from router.config.variables import substitute
from router.config.yaml_tree import Node, Scalar, as_lists, parse, plain_data
from router.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from router.registry import Location, Registry

_TEXT_WANTED = {"string_type", "bytes_type", "path_type", "url_type"}
_LIST_WANTED = {"tuple_type", "list_type", "set_type", "frozen_set_type"}
_ROUNDS = 5  # rules inside rules show their faults one level at a time, at worst


@dataclass(frozen=True)
class Loaded:
    """A configuration that can start.

    `fingerprint` names the configuration as it is written, without comments and layout and before variables are
    replaced: it changes with the file's meaning and never with a secret.
    """

    config: Config
    path: Path
    fingerprint: str
    document: Document = field(repr=False, compare=False)

    def problem(self, loc: Location, what: str, hint: str = "") -> Problem:
        """Return a problem at a place of the file, for checks that come later: `("routes", 0, "match")`."""
        return self.document.problem(loc, what, hint)

    def debugged(self) -> Loaded:
        """Return this with a lake and a checkpoint of its own, unless the file says so already."""
        return self if self.config.debug else replace(self, config=self.config.debugged())

    def changed(self, **fields: object) -> Loaded:
        """Return this with other fields of the configuration, valid ones, as options of a command line give them."""
        return replace(self, config=self.config.model_copy(update=fields))


def load(path: Path, registry: Registry, *, environ: Mapping[str, str] = os.environ, text: str | None = None) -> Loaded:
    """Return the configuration of a file (or of `text` in its place); raise ConfigError with all its problems."""
    file = str(path)
    text = _read(path) if text is None else text.removeprefix("\ufeff")
    written, problems = parse(text, file)
    widths = widths_of(text)
    config = None
    if written is not None:
        document = Document(file, written, widths)
        filled, unset = substitute(written, environ, path.parent, file)
        config, found = _validated(Document(file, filled, widths), registry)
        problems = [*problems, *unset, *found]
    if problems or written is None or config is None:
        raise ConfigError(in_order(_inside(problem, widths) for problem in problems))
    return Loaded(config.debugged() if config.debug else config, path, _fingerprint(written), document)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        what, hint = f"cannot be read: {error.strerror}", "check the path and who may read it"
    except UnicodeDecodeError as error:
        what, hint = f"is not UTF-8 text (byte {error.start + 1})", "save the file as UTF-8"
    raise ConfigError((Problem(str(path), 1, 1, "", what, hint),))


def _validated(document: Document, registry: Registry) -> tuple[Config | None, list[Problem]]:
    """Return the configuration, and the problems of its fields and of what belongs together."""
    config, problems, as_text = None, list[Problem](), frozenset[int]()
    for _ in range(_ROUNDS):
        data = plain_data(document.root, as_text)
        try:
            config, problems = Config.model_validate(data, context={"resolve": registry.resolve}), []
            break
        except ValidationError as error:
            wanted = as_text | _wanted_as_text(error, document)
            lists = _wanted_as_list(error, document) - wanted  # what may be either is a text
            problems = problems_of(error, document, registry.entries)
        listed = as_lists(document.root, lists) if lists else document.root
        if wanted == as_text and listed == document.root:
            break
        as_text, document = wanted, replace(document, root=listed)
    findings = cross_checks(document.root, registry)
    problems += [document.problem(found.loc, found.what, found.hint, at_key=found.at_key) for found in findings]
    return config, problems


def _wanted_as_text(error: ValidationError, document: Document) -> frozenset[int]:
    """Return the scalars that look like numbers or booleans where text is needed: they are taken as written.

    `password: ${PASSWORD}` with the value 0123 and `spark: {spark.ui.enabled: false}` are as good as quoted ones.
    """
    lines = (line for line in error.errors(include_url=False) if line["type"] in _TEXT_WANTED)
    nodes: list[Node] = [document.locate(line["loc"]).node for line in lines]
    return frozenset(id(node) for node in nodes if isinstance(node, Scalar) and (node.text or node.tainted))


def _wanted_as_list(error: ValidationError, document: Document) -> frozenset[int]:
    """Return the scalars with a variable in them where a list is needed: `topics: ${TOPICS}` with `a,b`."""
    lines = (line for line in error.errors(include_url=False) if line["type"] in _LIST_WANTED)
    nodes = [document.locate(line["loc"]).node for line in lines]
    return frozenset(id(node) for node in nodes if isinstance(node, Scalar) and node.tainted and not node.broken)


def _fingerprint(root: Node) -> str:
    canonical = json.dumps(plain_data(root), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _inside(problem: Problem, widths: tuple[int, ...]) -> Problem:
    line, column = inside(widths, problem.line, problem.column)
    return Problem(problem.file, line, column, problem.path, problem.what, problem.hint)
