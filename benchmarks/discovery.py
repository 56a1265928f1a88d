"""Find measurements, subjects and feeds: every module of their package is imported, every instance is taken."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

import benchmarks.feeds
import benchmarks.measurements
import benchmarks.subjects
from benchmarks.feeds import Feed
from benchmarks.measurements import Measurement
from benchmarks.subjects import Subject

if TYPE_CHECKING:
    from types import ModuleType


class Named(Protocol):
    """Something that is chosen by its name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


@cache
def feeds() -> dict[str, Feed]:
    """Return all kinds of events by name."""
    return found(benchmarks.feeds, Feed)


@cache
def subjects() -> dict[str, Subject]:
    """Return all contenders by name."""
    return found(benchmarks.subjects, Subject)


@cache
def modules() -> dict[str, str]:
    """Return the module of each contender by name."""
    return {name: module for module, names in _by_module(benchmarks.subjects, Subject).items() for name in names}


@cache
def measurements() -> dict[str, Measurement]:
    """Return all measurements by name, in the order they are run and printed."""
    every = found(benchmarks.measurements, Measurement)
    return dict(sorted(every.items(), key=lambda item: (item[1].order, item[0])))


def found(package: ModuleType, kind: type[T]) -> dict[str, T]:
    """Return the instances of `kind` in the modules of a package by name; raise ValueError on a name used twice."""
    instances: dict[str, T] = {}
    for inside in _by_module(package, kind).values():
        for name, value in inside.items():
            if instances.setdefault(name, value) is not value:
                raise ValueError(f"{package.__name__} has two of the name {name}: rename one")
    return instances


def _by_module(package: ModuleType, kind: type[T]) -> dict[str, dict[str, T]]:
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    things = {name: vars(importlib.import_module(name)).values() for name in names}
    return {name: {thing.name: thing for thing in inside if isinstance(thing, kind)} for name, inside in things.items()}
