"""Find plugins, check them, keep what they offer, and make parts of what a configuration names.

A plugin is an entry point of the group `event_router` or one file. Whatever is wrong with one stops the start with
the provider's name: a plugin that is silently not there costs more than one that is loudly broken.

What a configuration names (`{sql: "a > 1"}`) becomes a part of those on offer. Every fault is a pydantic
ValidationError whose locations begin with the part's name. Raised inside a validator, pydantic merges it into the outer
error, so that a fault deep inside `all: [any: [...]]` keeps its whole path.
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
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

import pluggy
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticKnownError
from pyspark import cloudpickle

from router import hookspecs
from router.errors import PluginError
from router.parts import BatchReport, Decoder, Encoder, Part, Rule, ViewQuery
from router.sinks import ApplyingSink, MergingSink, Sink, TableSink

if TYPE_CHECKING:
    from types import ModuleType

    from pydantic.fields import FieldInfo

P = TypeVar("P", bound=Part)
Location = tuple["int | str", ...]

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

logger = logging.getLogger(__name__)


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

    def resolve(self, family: type[P], value: object) -> P:
        """Return the part that `{name: options}` means; raise pydantic's ValidationError with `loc` (name, ...)."""
        return resolve(self.entries, family, value)

    def selected(self, config: BaseModel) -> tuple[Entry, ...]:
        """Return the entries of the parts that a configuration uses, each once."""
        used = {type(part) for part in parts_in(config)}
        return tuple(entry for family in self.entries.values() for entry in family.values() if entry.part in used)

    def modules(self, config: BaseModel) -> tuple[str, ...]:
        """Return the modules of the selected parts that an executor must be able to import.

        Plugin files are left out: they travel inside what is pickled.
        """
        names = {entry.part.__module__ for entry in self.selected(config)}
        return tuple(sorted(name for name in names if not name.startswith(FILE_MODULE)))

    def finished(self, report: BatchReport) -> None:
        """Tell every observer of a finished batch; an exception of one is logged, and the others are still called."""
        for impl in self.manager.hook.router_batch_finished.get_hookimpls():
            try:
                impl.function(*(report for _ in impl.argnames))
            except Exception:
                logger.exception("observer %s failed on batch %d of %s", impl.plugin_name, report.batch, report.query)


def parts_in(value: object) -> Iterator[Part]:
    """Return every part inside a model, at any depth."""
    if isinstance(value, Part):
        yield value
    if isinstance(value, BaseModel):
        value = [getattr(value, name) for name in type(value).model_fields]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from parts_in(item)


def missing_extras(config: BaseModel) -> dict[str, str]:
    """Return the modules that parts of a configuration need and that are not installed -> a sentence about each."""
    wanted = {module: (part, what) for part in parts_in(config) for module, what in part.extras.items()}
    return {
        module: f"the {part.kind or 'option'} {part.part_name} needs the module {module}; "
        f"pip install '{what}', here and on every node"
        for module, (part, what) in wanted.items()
        if not _is_installed(module)
    }


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def load_registry(plugin_files: Sequence[Path] = ()) -> Registry:
    """Return what all plugins offer; raise PluginError naming the first plugin that is broken."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for point in entry_points(group=hookspecs.PROJECT):
        provider = _provider(point)
        _register(manager, _imported(provider, point.load), provider)
    for path in dict.fromkeys(path.resolve() for path in plugin_files):
        _register(manager, _imported(str(path), partial(_module_of, path)), str(path))
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(str(error.plugin), str(error)) from error
    return Registry({kind: _collect(manager, kind) for kind in FAMILIES}, manager)


def _provider(point: EntryPoint) -> str:
    return f"{point.value} ({point.dist.name} {point.dist.version})" if point.dist else point.value


def _imported(provider: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise PluginError(provider, f"cannot be imported: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """Return an exception in one line with the place where it was raised, for the plugin's author."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else f" ({Path(last.filename).name}:{last.lineno})"
    return f"{type(error).__name__}: {error}{where}"


def _module_of(path: Path) -> ModuleType:
    """Import one file under a name of its own, and let it travel to executors by value."""
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


def _register(manager: pluggy.PluginManager, plugin: Any, provider: str) -> None:
    _check_hook_names(manager, plugin, provider)
    try:
        manager.register(plugin, name=provider)
    except (ValueError, pluggy.PluginValidationError) as error:
        raise PluginError(provider, " ".join(str(error).split())) from error


def _check_hook_names(manager: pluggy.PluginManager, plugin: Any, provider: str) -> None:
    """Refuse a misspelt hook and a hook without its marker: pluggy would take both for no hook at all."""
    known = [name for name in vars(hookspecs) if name.startswith("router_")]
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            if name in known and getattr(plugin, name) is not getattr(hookspecs, name):
                raise PluginError(provider, f"{name} is not marked as a hook; put router's @hookimpl above it")
        elif (options["specname"] or name) not in known and not options["optionalhook"]:
            raise PluginError(provider, f"there is no hook {name}; {suggestion(name, known, 'hooks')}")
        elif options["wrapper"] or options["hookwrapper"]:
            raise PluginError(provider, f"{name} is a wrapper; the hooks of the router are not wrapped")


def _collect(manager: pluggy.PluginManager, kind: str) -> Mapping[str, Entry]:
    """Call one hook plugin by plugin, so that every fault has a provider."""
    found: dict[str, Entry] = {}
    for impl in getattr(manager.hook, f"router_{kind}s").get_hookimpls():
        for entry in _offered(impl, kind):
            other = found.setdefault(entry.name, entry)
            if other is not entry:
                raise PluginError(entry.provider, f"offers the {kind} `{entry.name}`, and so does {other.provider}")
    return dict(sorted(found.items()))


def _offered(impl: pluggy.HookImpl, kind: str) -> Iterator[Entry]:
    hook = f"router_{kind}s"
    try:
        offered = impl.function()
    except Exception as error:
        raise PluginError(impl.plugin_name, f"{hook} failed: {_told(error)}") from error
    if not isinstance(offered, Mapping):
        what = f"{hook} returned {type(offered).__name__}; return a mapping of name to {FAMILIES[kind].__name__} class"
        raise PluginError(impl.plugin_name, what)
    for name, part in offered.items():
        fault = _offer_fault(kind, name, part)
        if fault:
            raise PluginError(impl.plugin_name, f"{hook} offers `{name}`, {fault}")
        yield Entry(kind, name, part, impl.plugin_name)


def _offer_fault(kind: str, name: object, part: object) -> str:
    """Say what keeps an offered class from being used, or nothing."""
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


def suggestion(word: str, known: Iterable[str], called: str = "known") -> str:
    """Return the next step after an unknown word: the nearest known one, if any is near, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    guess = f"did you mean `{near[0]}`? " if near else ""
    return f"{guess}{called}: {', '.join(names) or '(nothing is on offer)'}"


def fault(what: str, hint: str = "", at: str = "value") -> PydanticCustomError:
    """Return an error whose text may be shown; `at` says whether the key or the value is wrong."""
    return PydanticCustomError(f"{TRUSTED}fault", "{what}", {"what": what, "hint": hint, "at": at})


def resolve(entries: Entries, family: type[P], value: object) -> P:
    """Return the part of one family that `{name: options}` means; raise ValidationError with `loc` (name, ...)."""
    name, options = _named(entries, family.kind, value)
    entry = entries[family.kind].get(name)
    if entry is None:
        known = suggestion(name, entries[family.kind], f"known {family.kind}s")
        _refuse(family.kind, [_line(fault(f"there is no {family.kind} `{name}`", known, at="key"), (name,), value)])
    part = _validate(entry, options, lambda kind, nested: resolve(entries, kind, nested))
    assert isinstance(part, family)  # the registry checked it when the plugin offered the class
    return part


def _named(entries: Entries, kind: str, value: object) -> tuple[str, object]:
    """Split `{name: options}`."""
    if isinstance(value, Mapping) and len(value) == 1:
        return next((str(name), options) for name, options in value.items())
    if isinstance(value, Mapping) and value:
        _refuse(kind, list(_surplus(entries, kind, value)))
    what = f"{_a(kind)} is one key, its name, and its options"
    known = isinstance(value, str) and value in entries[kind]
    offered = ", ".join(sorted(entries[kind])) or "(nothing is on offer)"
    hint = f"write {{{value}}}" if known else f"known {kind}s: {offered}"
    _refuse(kind, [_line(fault(what, hint), (), value)])


def _surplus(entries: Entries, kind: str, value: Mapping[object, object]) -> Iterator[InitErrorDetails]:
    """Return an error for each key too many: those that name no part, or else all but the first."""
    keys = [str(key) for key in value]
    known = [key for key in keys if key in entries[kind]] or keys
    for key in keys:
        if key != known[0]:
            what = f"{_a(kind)} is one key, and `{known[0]}` is here already"
            yield _line(fault(what, f"take `{key}` away, or check the indentation", at="key"), (key,), value)


def _a(kind: str) -> str:
    return f"an {kind}" if kind == "encoder" else f"a {kind}"


def _validate(entry: Entry, options: object, nested: Callable[[type[Part], object], Part]) -> Part:
    """Make the part; its own faults get its name in front."""
    try:
        part = entry.part.model_validate(_mapping(entry.part, options), context={"resolve": nested})
        part._named = entry.name
        return part
    except ValidationError as error:
        lines = [_again(line, entry.name) for line in error.errors(include_url=False)]
    except Exception as error:  # a validator of a plugin may raise anything
        what = "{provider} failed on these options: {error}"
        broken = PydanticCustomError("part_failed", what, {"provider": entry.provider, "error": repr(error)})
        lines = [_line(broken, (entry.name,), options)]
    _refuse(entry.name, lines)


def _mapping(part: type[Part], options: object) -> object:
    """Return the options as a mapping: null has none, a bare value is the main option."""
    if options is None:
        return {}
    main = part.main_option
    if isinstance(options, Mapping):
        nested = main is not None and options and not set(options) & set(options_of(part)) and _takes_part(part, main)
        return {main: options} if nested else options
    if main is None:
        names = ", ".join(sorted(options_of(part))) or "none"
        raise ValidationError.from_exception_data(
            part.__name__, [_line(fault("options are a mapping", f"options: {names}"), (), options)], hide_input=True
        )
    return {main: options}


def options_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a part (or of a model inside one) by the name that a configuration uses.

    The two differ where a field has an alias: a sink's option `table` cannot be a field, since `table` is a method.
    """
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _takes_part(part: type[Part], option: str) -> bool:
    """Say whether an option holds parts, so that `not: {sql: ...}` needs no name of the option."""
    named = classes(options_of(part)[option].annotation)
    return any(issubclass(kind, Part) and vars(kind).get("kind") for kind in named)


def classes(annotation: Any) -> Iterator[type]:
    """Return every class named anywhere in an annotation."""
    for argument in get_args(annotation):
        yield from classes(argument)
    if isinstance(annotation, type):
        yield annotation


def _again(line: ErrorDetails, name: str) -> InitErrorDetails:
    """Return a finished line with a name in front of its location."""
    loc, context = (name, *line["loc"]), line.get("ctx", {})
    try:
        PydanticKnownError(line["type"], context)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError):  # a custom type, or a context that pydantic does not take back
        custom = PydanticCustomError(line["type"], "{text}", {**context, "text": line["msg"]})
        return _line(custom, loc, line["input"])
    return InitErrorDetails(type=line["type"], loc=loc, input=line["input"], ctx=context)


def _line(error: PydanticCustomError, loc: Location, value: object) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=loc, input=value)


def _refuse(title: str, lines: list[InitErrorDetails]) -> NoReturn:
    raise ValidationError.from_exception_data(title, lines, hide_input=True)
