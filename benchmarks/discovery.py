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
    return find_instances(benchmarks.feeds, Feed)


@cache
def subjects() -> dict[str, Subject]:
    """Return all contenders by name."""
    return find_instances(benchmarks.subjects, Subject)


@cache
def modules() -> dict[str, str]:
    """Return the module of each contender by name."""
    module_of_name: dict[str, str] = {}
    for module, instances in _instances_by_module(benchmarks.subjects, Subject).items():
        module_of_name |= dict.fromkeys(instances, module)
    return module_of_name


@cache
def measurements() -> dict[str, Measurement]:
    """Return all measurements by name, in the order they are run and printed."""
    every = find_instances(benchmarks.measurements, Measurement)
    return dict(sorted(every.items(), key=lambda item: (item[1].order, item[0])))


def find_instances(package: ModuleType, kind: type[T]) -> dict[str, T]:
    """Return the instances of `kind` in the modules of a package by name; raise ValueError on a name used twice."""
    every: dict[str, T] = {}
    for instances in _instances_by_module(package, kind).values():
        for name, instance in instances.items():
            # Modules import instances of each other: the same one twice is no second of its name.
            if every.setdefault(name, instance) is not instance:
                raise ValueError(f"{package.__name__} has two of the name {name}: rename one")
    return every


def _instances_by_module(package: ModuleType, kind: type[T]) -> dict[str, dict[str, T]]:
    by_module: dict[str, dict[str, T]] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module_info.name}")
        instances = [value for value in vars(module).values() if isinstance(value, kind)]
        by_module[module.__name__] = {instance.name: instance for instance in instances}
    return by_module
