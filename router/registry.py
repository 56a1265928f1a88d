"""Load plugins, check the parts that they offer, and make the parts that a configuration names.

A plugin is an entry point of the group `event_router`, or one file. Every fault of a plugin stops the start with its
provider's name: a plugin that is silently missing costs more than one that is loudly broken.

A configuration names a part and its options, as `{sql: "a > 1"}`; `resolve` makes the part of them. Every fault is a
pydantic ValidationError whose locations begin with the part's name. If it is raised inside a validator, pydantic merges
it into the outer error, so that a fault deep inside `all: [any: [...]]` keeps its whole path.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

import pluggy
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticKnownError
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException

from router.api import hookspecs
from router.api.parts import BatchReport, Decoder, Encoder, Part, Rule, ViewQuery
from router.api.sinks import ApplyingSink, MergingSink, Sink, TableSink
from router.errors import PluginError, RouterError

if TYPE_CHECKING:
    from types import ModuleType

    from pydantic.fields import FieldInfo

P = TypeVar("P", bound=Part)
KeyPath = tuple["int | str", ...]

_LISTED = 8
"""A message lists as many known names, if there is another place that lists all."""
TRUSTED = "router_"
"""Prefix of the error types made here: their texts hold no value of the configuration, only names and keys."""
FAMILIES: Mapping[str, type[Part]] = {
    "decoder": Decoder,
    "rule": Rule,
    "sink": Sink,
    "encoder": Encoder,
    "view": ViewQuery,
}
FILE_MODULE = "router_plugin_"
"""Prefix of the module names of plugin files: such modules travel to executors by value, not by import."""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

logger = logging.getLogger(__name__)


_DISTRIBUTION = "spark-event-router"


def router_version() -> str:
    """Return the version of the router, as it is installed; `of a checkout` if it is not."""
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "of a checkout"


@dataclass(frozen=True)
class Entry:
    """A part that a plugin offers; `provider` is `module (distribution version)`, or a file."""

    kind: str
    name: str
    part: type[Part]
    provider: str


Entries = Mapping[str, Mapping[str, Entry]]
"""kind -> name -> entry."""


@dataclass(frozen=True)
class Registry:
    """Every part on offer, and the observers."""

    entries: Entries
    manager: pluggy.PluginManager = field(repr=False, compare=False)

    def with_plugin(self, name: str, folder: Path) -> Registry:
        """Return this with a plugin that a configuration names: a file (`.py`), relative to its folder, or a module.

        Raises PluginError. A file that is here already, because an option names it, is not loaded again.
        """
        provider = name
        load: Callable[[], Any] = partial(importlib.import_module, name)
        if name.endswith(".py"):
            path = (folder / name).resolve()
            provider = str(path)
            load = partial(_import_file, path)
            if not path.is_file():
                raise PluginError(provider, "no such file")
        elif not _MODULE.fullmatch(name):
            raise PluginError(name, "is neither a file (.py) nor a module")
        if self.manager.has_plugin(provider):
            return self
        manager = _new_manager()
        for known, plugin in self.manager.list_name_plugin():
            manager.register(plugin, name=known)
        _register_plugin(manager, _load_plugin(provider, load), provider)
        return _registry_of(manager)

    def resolve(self, family: type[P], value: object) -> P:
        """Return the part for `{name: options}`; raise pydantic's ValidationError with `loc` (name, ...)."""
        return resolve_part(self.entries, family, value)

    def selected_entries(self, config: BaseModel) -> tuple[Entry, ...]:
        """Return the entries of the parts that a configuration uses, each once."""
        used = {type(part) for part in parts_in(config)}
        entries: list[Entry] = []
        for family in self.entries.values():
            entries += [entry for entry in family.values() if entry.part in used]
        return tuple(entries)

    def modules_of_parts(self, config: BaseModel) -> tuple[str, ...]:
        """Return the modules of the selected parts that an executor must be able to import.

        Plugin files are left out: they are pickled by value.
        """
        names = {entry.part.__module__ for entry in self.selected_entries(config)}
        return tuple(sorted(name for name in names if not name.startswith(FILE_MODULE)))

    def versions(self, config: BaseModel) -> tuple[str, ...]:
        """Return what a configuration runs with: the router, and each plugin that it uses, with their versions.

        That of a file is a hash of its content.
        """
        versions = [f"router {router_version()}"]
        for provider in sorted({entry.provider for entry in self.selected_entries(config)}):
            if provider.endswith(".py"):
                content = Path(provider).read_bytes()
                versions.append(f"{Path(provider).name} {hashlib.sha256(content).hexdigest()[:12]}")
            elif f"({_DISTRIBUTION} " not in provider:
                versions.append(provider)
        return tuple(versions)

    def notify_observers(self, report: BatchReport) -> None:
        """Call every observer of finished batches; an exception of one is logged, and the others are still called."""
        # One by one and not through pluggy, which would stop at the first exception.
        for impl in self.manager.hook.router_batch_finished.get_hookimpls():
            try:
                if impl.argnames:
                    impl.function(report)
                else:
                    impl.function()
            except Exception:
                logger.exception("observer %s failed on batch %d of %s", impl.plugin_name, report.batch, report.query)


def parts_in(value: object) -> Iterator[Part]:
    """Yield every part inside a value of a configuration, at any depth."""
    if isinstance(value, Part):
        yield value
    if isinstance(value, BaseModel):
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from parts_in(item)


def call_part(part: Part, method: str, wanted: type | tuple[type, ...], *arguments: Any, route: str = "") -> Any:
    """Call a method of a part; raise PluginError, naming plugin, route and part, if it raises or returns another type.

    Errors of the router, an OSError (a service is unavailable) and errors of Spark's analyser (in an expression of the
    configuration) are raised as they are: their callers know more about them.
    """
    try:
        result = getattr(part, method)(*arguments)
    except (RouterError, OSError, AnalysisException, ParseException):
        raise
    except Exception as error:
        raise part_error(part, f"{method}() raised {_describe_error(error)}", route) from error
    if isinstance(result, wanted):
        return result
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    raise part_error(part, f"{method}() returned {_kind_of(result)}; it must return {names}", route)


def part_error(part: Part, problem: str, route: str = "") -> PluginError:
    """Return an error about a part that names its plugin, or the module of its class if no configuration made it."""
    where = f"route {route}, " if route else ""
    return PluginError(part._provider or type(part).__module__, f"{where}{part.kind} {part.part_name}: {problem}")


def _kind_of(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def missing_extras(config: BaseModel) -> dict[str, str]:
    """Return the modules that parts of a configuration need and that are not installed -> a sentence about each."""
    sentences: dict[str, str] = {}
    for part in parts_in(config):
        for module, requirement in part.extras.items():
            if not _is_installed(module):
                sentences[module] = (
                    f"the {part.kind or 'option'} {part.part_name} needs the module {module}; "
                    f"pip install '{requirement}', here and on every node"
                )
    return sentences


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around the module is not installed either
        return False


def load_registry(plugin_files: Sequence[Path] = ()) -> Registry:
    """Load all plugins and return their parts; raise PluginError, naming the plugin, for the first broken one."""
    manager = _new_manager()
    for point in entry_points(group=hookspecs.PROJECT_NAME):
        provider = _provider_name(point)
        _register_plugin(manager, _load_plugin(provider, point.load), provider)
    for path in dict.fromkeys(path.resolve() for path in plugin_files):
        _register_plugin(manager, _load_plugin(str(path), partial(_import_file, path)), str(path))
    return _registry_of(manager)


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    return manager


def _registry_of(manager: pluggy.PluginManager) -> Registry:
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(str(error.plugin), str(error)) from error
    return Registry({kind: _collect_entries(manager, kind) for kind in FAMILIES}, manager)


def _provider_name(point: EntryPoint) -> str:
    if point.dist is None:
        return point.value
    return f"{point.value} ({point.dist.name} {point.dist.version})"


def _load_plugin(provider: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # a script that calls sys.exit() is no plugin, and must not end ours
        raise PluginError(provider, f"cannot be imported: {_describe_error(error)}") from error


def _describe_error(error: BaseException) -> str:
    """Return an exception in one line with the place where it was raised, for the plugin's author."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # its text has the place
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno})"


def _import_file(path: Path) -> ModuleType:
    """Import one file under a module name of its own, and have it pickled by value for executors."""
    stem = re.sub(r"\W", "_", path.stem)
    name = f"{FILE_MODULE}{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: annotations of a pydantic model are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _register_plugin(manager: pluggy.PluginManager, plugin: Any, provider: str) -> None:
    _check_hook_names(manager, plugin, provider)
    try:
        manager.register(plugin, name=provider)
    except (ValueError, pluggy.PluginValidationError) as error:
        raise PluginError(provider, " ".join(str(error).split())) from error


def _check_hook_names(manager: pluggy.PluginManager, plugin: Any, provider: str) -> None:
    """Refuse a misspelt hook, a hook without its marker, and a wrapper: pluggy would silently ignore the first two."""
    hooks = [name for name in vars(hookspecs) if name.startswith("router_")]
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            # A module that imports the specification itself has its name, and implements nothing.
            if name in hooks and getattr(plugin, name) is not getattr(hookspecs, name):
                raise PluginError(provider, f"{name} is not marked as a hook; put router's @hookimpl above it")
        elif (options["specname"] or name) not in hooks and not options["optionalhook"]:
            raise PluginError(provider, f"there is no hook {name}; {suggest_names(name, hooks, 'hooks')}")
        elif options["wrapper"] or options["hookwrapper"]:
            raise PluginError(provider, f"{name} is a wrapper; the hooks of the router are not wrapped")


def _collect_entries(manager: pluggy.PluginManager, kind: str) -> Mapping[str, Entry]:
    """Return the entries of one kind. Calls the hook plugin by plugin, so that every fault has a provider."""
    entries: dict[str, Entry] = {}
    for impl in getattr(manager.hook, f"router_{kind}s").get_hookimpls():
        for entry in _entries_of(impl, kind):
            other = entries.setdefault(entry.name, entry)
            if other is not entry:
                raise PluginError(entry.provider, f"offers the {kind} `{entry.name}`, and so does {other.provider}")
    return dict(sorted(entries.items()))


def _entries_of(impl: pluggy.HookImpl, kind: str) -> Iterator[Entry]:
    """Yield the entries of one plugin's hook. Raises PluginError if the hook fails or offers something unusable."""
    hook = f"router_{kind}s"
    try:
        parts = impl.function()
    except Exception as error:
        raise PluginError(impl.plugin_name, f"{hook} failed: {_describe_error(error)}") from error
    if not isinstance(parts, Mapping):
        family = FAMILIES[kind].__name__
        problem = f"{hook} returned {type(parts).__name__}; return a mapping of name to {family} class"
        raise PluginError(impl.plugin_name, problem)
    for name, part in parts.items():
        fault = _offer_fault(kind, name, part)
        if fault:
            raise PluginError(impl.plugin_name, f"{hook} offers `{name}`, {fault}")
        yield Entry(kind, name, part, impl.plugin_name)


def _offer_fault(kind: str, name: object, part: object) -> str:
    """Return why an offered class cannot be used; an empty text if it can."""
    family = FAMILIES[kind]
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        return "which is not a name: use lower-case letters, digits and _"
    if not (isinstance(part, type) and issubclass(part, family)):
        return f"which is not a class derived from {family.__name__}"
    if inspect.isabstract(part):
        return f"whose class {part.__name__} lacks {', '.join(sorted(part.__abstractmethods__))}"
    return _class_fault(part)


def _class_fault(part: type[Part]) -> str:
    if issubclass(part, Sink) and not issubclass(part, (TableSink, MergingSink, ApplyingSink)):
        return f"whose class {part.__name__} must derive from TableSink, MergingSink or ApplyingSink"
    if "kind" in vars(part):
        return f"whose class {part.__name__} sets `kind`, which belongs to the router"
    if part.main_option is not None and part.main_option not in options_of(part):
        return f"whose main_option `{part.main_option}` is not one of its options"
    return ""


def suggest_names(word: str, known: Iterable[str], called: str = "known", listed_in: str = "") -> str:
    """Return the next step after an unknown word: the nearest of the known ones, if one is near, and all of them.

    A list that is too long for a line is named by its place, `listed_in`, if it has one.
    """
    names = sorted(set(known))
    everything = f"{called}: {', '.join(names) or '(nothing is on offer)'}"
    shown_at_most = 1
    if listed_in and len(names) > _LISTED:
        everything = f"{called}: {listed_in}"
        shown_at_most = 3
    nearest = [f"`{name}`" for name in difflib.get_close_matches(word, names, n=shown_at_most)]
    if not nearest:
        return everything
    return f"did you mean {' or '.join(nearest)}? {everything}"


def fault(what: str, hint: str = "", at: str = "value") -> PydanticCustomError:
    """Return an error whose text may be shown; `at` is `key` or `value`, whichever is wrong."""
    return PydanticCustomError(f"{TRUSTED}fault", "{what}", {"what": what, "hint": hint, "at": at})


def resolve_part(entries: Entries, family: type[P], value: object) -> P:
    """Return the part of one family for `{name: options}`; raise ValidationError with `loc` (name, ...)."""
    kind = family.kind
    name, options = _name_and_options(entries, kind, value)
    entry = entries[kind].get(name)
    if entry is None:
        hint = suggest_names(name, entries[kind], f"known {kind}s")
        if not hint.startswith("did you mean"):
            hint += "; if a plugin offers it, install the plugin's package, or name its file under `plugins:`"
        _raise_invalid(kind, [_error_line(fault(f"there is no {kind} `{name}`", hint, at="key"), (name,), value)])
    part = _validate_part(entry, options, lambda nested_family, nested: resolve_part(entries, nested_family, nested))
    assert isinstance(part, family)  # the registry checked it when the plugin offered the class
    return part


def _name_and_options(entries: Entries, kind: str, value: object) -> tuple[str, object]:
    """Split `{name: options}`; raise ValidationError for a value of another shape."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, options),) = value.items()
        return str(name), options
    if isinstance(value, Mapping) and value:
        _raise_invalid(kind, list(_surplus_key_errors(entries, kind, value)))
    if isinstance(value, str) and value in entries[kind]:
        hint = f"write {{{value}}}"
    else:
        hint = f"known {kind}s: {', '.join(sorted(entries[kind])) or '(nothing is on offer)'}"
    _raise_invalid(
        kind, [_error_line(fault(f"{_with_article(kind)} is one key, its name, and its options", hint), (), value)]
    )


def _surplus_key_errors(entries: Entries, kind: str, value: Mapping[object, object]) -> Iterator[InitErrorDetails]:
    """Yield an error for each key but the one that counts: the first that names a part, or else the first."""
    keys = [str(key) for key in value]
    part_names = [key for key in keys if key in entries[kind]] or keys
    for key in keys:
        if key != part_names[0]:
            problem = f"{_with_article(kind)} is one key, and `{part_names[0]}` is here already"
            hint = f"remove `{key}`, or check the indentation"
            yield _error_line(fault(problem, hint, at="key"), (key,), value)


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind == "encoder" else f"a {kind}"


def _validate_part(entry: Entry, options: object, nested: Callable[[type[Part], object], Part]) -> Part:
    """Return the part with these options; `nested` makes the parts inside them. Faults begin with the part's name."""
    try:
        part = entry.part.model_validate(_as_mapping(entry.part, options), context={"resolve": nested})
        part._named = entry.name
        part._provider = entry.provider
        return part
    except ValidationError as error:
        lines = [_under_name(entry.name, details) for details in error.errors(include_url=False)]
    except Exception as error:  # a validator of a plugin may raise anything
        template = "{provider} failed on these options: {error}"
        failure = PydanticCustomError("part_failed", template, {"provider": entry.provider, "error": repr(error)})
        lines = [_error_line(failure, (entry.name,), options)]
    _raise_invalid(entry.name, lines)


def _as_mapping(part: type[Part], options: object) -> object:
    """Return options as a mapping: null is an empty one, and any other bare value is that of the main option."""
    if options is None:
        return {}
    main = part.main_option
    if isinstance(options, Mapping):
        # `not: {sql: ...}`: a mapping without an option of the part is a nested part, the value of the main option.
        names_no_option = bool(options) and not set(options) & set(options_of(part))
        if main is not None and names_no_option and _takes_part(part, main):
            return {main: options}
        return options
    if main is None:
        names = ", ".join(sorted(options_of(part))) or "none"
        line = _error_line(fault("options are a mapping", f"options: {names}"), (), options)
        raise ValidationError.from_exception_data(part.__name__, [line], hide_input=True)
    return {main: options}


def options_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a part (or of a model inside one) by the name that a configuration uses.

    The two names differ if a field has an alias: a sink's option `table` cannot be a field, since `table` is a method.
    """
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _takes_part(part: type[Part], option: str) -> bool:
    """Return whether an option holds parts."""
    named = classes_in(options_of(part)[option].annotation)
    return any(issubclass(kind, Part) and vars(kind).get("kind") for kind in named)


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield every class named anywhere in an annotation."""
    for argument in get_args(annotation):
        yield from classes_in(argument)
    if isinstance(annotation, type):
        yield annotation


def _under_name(name: str, details: ErrorDetails) -> InitErrorDetails:
    """Return an error that pydantic has reported as one to raise again, with a name in front of its location."""
    location = (name, *details["loc"])
    context = details.get("ctx", {})
    try:
        PydanticKnownError(details["type"], context)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):  # a custom type, or a context that pydantic does not accept again
        custom = PydanticCustomError(details["type"], "{text}", {**context, "text": details["msg"]})
        return _error_line(custom, location, details["input"])
    return InitErrorDetails(type=details["type"], loc=location, input=details["input"], ctx=context)


def _error_line(error: PydanticCustomError, location: KeyPath, value: object) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=location, input=value)


def _raise_invalid(title: str, lines: list[InitErrorDetails]) -> NoReturn:
    raise ValidationError.from_exception_data(title, lines, hide_input=True)
