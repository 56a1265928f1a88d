"""Load a configuration: one file in, frozen models out, or every problem at once."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from router.api.sinks import LakeSink
from router.config.models import Config, names_of
from router.config.problems import Document, place_inside, problems_of, sort_problems, widths_of, written_secrets
from router.config.validation import Finding, cross_checks
from router.config.variables import substitute_variables
from router.config.written_sql import check_written_sql
from router.config.yaml_tree import Items, Keys, Scalar, YamlNode, as_lists, parse_yaml, plain_data
from router.errors import ConfigError, PluginError, Problem
from router.table_names import templates_meet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from router.registry import KeyPath, Registry

_TEXT_WANTED = {"string_type", "bytes_type", "path_type", "url_type"}
_LIST_WANTED = {"tuple_type", "list_type", "set_type", "frozen_set_type"}
_VALIDATION_ROUNDS = 5
"""How often a configuration is validated: rules inside rules show their faults one level at a time, at worst."""


@dataclass(frozen=True)
class Loaded:
    """A configuration that can start.

    `fingerprint` names the configuration as it is written, without comments and layout and before variables are
    replaced: it changes with the file's meaning and never with a secret. `registry` also has the parts of its
    `plugins`. `notes` are not mistakes. `text` is the file's.
    """

    config: Config
    path: Path
    fingerprint: str
    registry: Registry = field(repr=False, compare=False)
    document: Document = field(repr=False, compare=False)
    notes: tuple[Problem, ...] = ()
    text: str = field(default="", repr=False, compare=False)

    def problem_at(self, loc: KeyPath, what: str, hint: str = "") -> Problem:
        """Return a problem at a place of the file, for checks that come later: `("routes", 0, "match")`."""
        return self.document.problem_at(loc, what, hint, code="plan")

    def with_debug_places(self) -> Loaded:
        """Return this with a lake and a checkpoint of its own, unless the file already has them."""
        if self.config.debug:
            return self
        return replace(self, config=self.config.with_debug_places())

    def with_fields(self, **fields: object) -> Loaded:
        """Return this with other fields of the configuration, valid ones, as options of a command line give them."""
        return replace(self, config=self.config.model_copy(update=fields))


def load_config(
    path: Path,
    registry: Registry,
    *,
    environ: Mapping[str, str] = os.environ,
    text: str | None = None,
    sql: bool = False,
) -> Loaded:
    """Return the configuration of a file (or of `text` in its place); raise ConfigError with all its problems.

    With `sql` also what is wrong in SQL, DDL and names of fields is a problem, as far as this needs no Spark.
    """
    file = str(path)
    text = read_text(path) if text is None else text.removeprefix("\ufeff")
    written, problems = parse_yaml(text, file)
    widths = widths_of(text)
    config = None
    notes: list[Problem] = []
    if written is not None:
        document = Document(file, written, widths)
        filled, unset = substitute_variables(written, environ, path.parent, file)
        registry = _with_plugins(registry, Document(file, filled, widths), path.parent)
        config, faults = _validate_config(Document(file, filled, widths), registry)
        problems = [*problems, *unset, *faults]
        if sql:
            findings, doubts = check_written_sql(filled, registry, path.parent)
            problems += [_problem_of_finding(document, finding) for finding in findings]
            notes += [
                _problem_of_finding(document, doubt) for doubt in (*doubts, *written_secrets(filled, registry.entries))
            ]
        if sql and config:
            notes += [_problem_of_finding(document, doubt) for doubt in _shared_tables(config)]
    if problems or written is None or config is None:
        raise ConfigError(sort_problems(_moved_inside(problem, widths) for problem in problems))
    if config.debug:
        config = config.with_debug_places()
    return Loaded(config, path, _fingerprint_of(written), registry, document, sort_problems(notes), text)


def load_sound(path: Path, registry: Registry, problems: Iterable[Problem]) -> Loaded | None:
    """Return a configuration with nothing in the place of what has problems; None if that is too much.

    A faulty route is one that takes nothing, and other options at fault have their defaults; so that what only Spark
    can tell of the others is told in the same round. It is for checks alone.
    """
    text = read_text(path)
    written, _ = parse_yaml(text, str(path))
    if not isinstance(written, Keys):
        return None
    filled, _ = substitute_variables(written, os.environ, path.parent, str(path))
    assert isinstance(filled, Keys)
    entries = dict(filled.entries)
    for problem in problems:
        option, _, rest = problem.path.partition(".")
        number = rest.partition(".")[0]
        routes = entries.get("routes")
        nothing, _ = parse_yaml(_NO_ROUTE.format(number), str(path))
        if option == "routes" and number and nothing and routes and isinstance(routes.value, Items):
            # What a view lacks may be what this route would make.
            entries.pop("views", None)
            items = [*routes.value.items]
            items[int(number)] = nothing
            entries["routes"] = replace(routes, value=replace(routes.value, items=tuple(items)))
        else:
            entries.pop(option, None)
    widths = widths_of(text)
    try:
        registry = _with_plugins(registry, Document(str(path), filled, widths), path.parent)
    except ConfigError:
        return None
    config, _ = _validate_config(Document(str(path), replace(filled, entries=entries), widths), registry)
    return Loaded(config, path, "", registry, Document(str(path), written, widths)) if config else None


_NO_ROUTE = "{{name: faulty_{0}, match: {{sql: 'false'}}, sinks: [{{delta: faulty.route_{0}}}]}}"


def read_text(path: Path) -> str:
    """Return the text of a file; raise ConfigError if it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        problem = Problem(
            str(path), 1, 1, "", f"cannot be read: {error.strerror}", "check the path and who may read it"
        )
    except UnicodeDecodeError as error:
        problem = Problem(str(path), 1, 1, "", f"is not UTF-8 text (byte {error.start + 1})", "save the file as UTF-8")
    raise ConfigError((problem,))


def _with_plugins(registry: Registry, document: Document, folder: Path) -> Registry:
    """Return a registry with the plugins that a configuration names; raise ConfigError for those that cannot be loaded.

    Without one of them nearly all else would be a mistake, so these are the only ones then.
    """
    names = document.locate(("plugins",)).node
    if not isinstance(names, Items):
        return registry
    problems = []
    seen = set()
    for number, name in enumerate(names.items):
        if not isinstance(name, Scalar) or name.broken:
            continue
        try:
            path = os.path.normpath(name.text)
            if path in seen:
                raise PluginError(name.text, "is listed twice")
            seen.add(path)
            registry = registry.with_plugin(name.text, folder)
        except PluginError as error:
            problems.append(document.problem_at(("plugins", number), str(error), code="value"))
    if problems:
        raise ConfigError(sort_problems(problems))
    return registry


def _validate_config(document: Document, registry: Registry) -> tuple[Config | None, list[Problem]]:
    """Return the configuration, and the problems of its fields and of what belongs together.

    What a text means can depend on the field: 0123 is a number for a port and text for a password, `a, b` may be a
    list. So pydantic says what is wanted, and what was read otherwise is read again.
    """
    config = None
    problems: list[Problem] = []
    as_text: frozenset[int] = frozenset()
    for _ in range(_VALIDATION_ROUNDS):
        data = plain_data(document.root, as_text)
        try:
            config = Config.model_validate(data, context={"resolve": registry.resolve})
            problems = []
            break
        except ValidationError as error:
            more_as_text = as_text | _wanted_as_text(error, document)
            # What may be either is a text.
            lists = _wanted_as_list(error, document) - more_as_text
            problems = problems_of(error, document, registry.entries)
        root = as_lists(document.root, lists) if lists else document.root
        if more_as_text == as_text and root == document.root:
            break
        as_text = more_as_text
        document = replace(document, root=root)
    for finding in cross_checks(document.root, registry):
        problems.append(_problem_of_finding(document, finding))
    return config, problems


def _problem_of_finding(document: Document, finding: Finding) -> Problem:
    return document.problem_at(finding.loc, finding.what, finding.hint, code=finding.code, at_key=finding.at_key)


def _shared_tables(config: Config) -> Iterator[Finding]:
    """Yield the sinks that write a table by its name to which another one's template may lead as well."""
    written: dict[tuple[int, int], str] = {}
    for index, route in enumerate(config.routes):
        for number, sink in enumerate(route.sinks):
            if isinstance(sink, LakeSink):
                written[index, number] = names_of(sink)
    for (index, number), table in written.items():
        for (of_route, _), template in written.items():
            if table and "{" not in table and "{" in template and templates_meet(table, template):
                what = f"{table} may also get the rows that route {config.routes[of_route].name} writes by {template}"
                yield Finding(("routes", index, "sinks", number), what, "if that is not meant, rename one")


def _wanted_as_text(error: ValidationError, document: Document) -> frozenset[int]:
    """Return the scalars that look like numbers or booleans although text is needed: they are taken as written.

    `password: ${PASSWORD}` with the value 0123 and `spark: {spark.ui.enabled: false}` are as good as quoted ones.
    """
    scalars = _scalars_with(error, document, _TEXT_WANTED)
    return frozenset(id(scalar) for scalar in scalars if scalar.text or scalar.tainted)


def _wanted_as_list(error: ValidationError, document: Document) -> frozenset[int]:
    """Return the scalars with a variable in them although a list is needed: `topics: ${TOPICS}` with `a,b`."""
    scalars = _scalars_with(error, document, _LIST_WANTED)
    return frozenset(id(scalar) for scalar in scalars if scalar.tainted and not scalar.broken)


def _scalars_with(error: ValidationError, document: Document, kinds: set[str]) -> Iterator[Scalar]:
    """Yield the scalars about which pydantic has an error of some kinds."""
    for line in error.errors(include_url=False):
        node = document.locate(line["loc"]).node
        if line["type"] in kinds and isinstance(node, Scalar):
            yield node


def _fingerprint_of(root: YamlNode) -> str:
    canonical = json.dumps(plain_data(root), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _moved_inside(problem: Problem, widths: tuple[int, ...]) -> Problem:
    line, column = place_inside(widths, problem.line, problem.column)
    return replace(problem, line=line, column=column)
