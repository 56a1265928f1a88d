"""Turn what a configuration names (`{sql: "a > 1"}`) into a part.

Every fault is a pydantic ValidationError whose locations begin with the part's name. Raised inside a validator,
pydantic merges it into the outer error, so that a fault deep inside `all: [any: [...]]` keeps its whole path.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticKnownError

from router.parts import Part

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

P = TypeVar("P", bound=Part)
Location = tuple["int | str", ...]

TRUSTED = "router_"
"""Prefix of the error types made here: their texts hold no value of the configuration, only names and keys."""


@dataclass(frozen=True)
class Entry:
    """A part that a plugin offers; `provider` is `module (distribution version)`, or a file."""

    kind: str
    name: str
    part: type[Part]
    provider: str


Entries = Mapping[str, Mapping[str, Entry]]
"""kind -> name -> entry."""


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
