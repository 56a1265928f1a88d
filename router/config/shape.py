"""Know what a place of the configuration may hold, from the annotations of the models and parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from router.config.models import Config
from router.parts import Part
from router.resolve import options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.resolve import Entries, Location


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
