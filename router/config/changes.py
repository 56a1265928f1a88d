"""Say in words what differs between two texts of a configuration. Needs neither variables nor plugins."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from router.config.yaml_tree import parse_yaml, plain_data

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMING = ("name", "into", "table", "tables")
"""Options by which an item of a list is called, the first that it has."""


def describe_changes(before: str, now: str) -> list[str]:
    """Return a sentence for each option that is new, gone or another one: routes by name, sinks by kind."""
    return [*_differences("", _data_of(before), _data_of(now))]


def _data_of(text: str) -> Any:
    root, _ = parse_yaml(text, "")
    return _by_name(plain_data(root)) if root else {}


def _by_name(value: Any) -> Any:
    """Return a value in which lists of mappings are mappings by the names of their items."""
    if isinstance(value, dict):
        return {name: _by_name(option) for name, option in value.items()}
    if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
        return value
    named: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for item in value:
        name, content = _named(item)
        counts[name] += 1
        # Of one kind a route may have several sinks: the second is `rest_2`.
        named[f"{name}_{counts[name]}" if counts[name] > 1 else name] = _by_name(content)
    return named


def _named(item: Any) -> tuple[str, Any]:
    """Return what an item of a list is called, and the rest of it: a sink by its kind, all else by an option."""
    if not isinstance(item, dict):
        return str(item), {}
    if len(item) == 1:
        ((kind, options),) = item.items()
        return str(kind), options
    for option in _NAMING:
        if option in item:
            return str(item[option]), {name: value for name, value in item.items() if name != option}
    return ", ".join(item), item


def _differences(path: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in [*before, *(name for name in now if name not in before)]:
            place = f"{path}.{name}" if path else str(name)
            if name not in now:
                yield f"{place}: gone"
            elif name not in before:
                yield f"{place}: new"
            else:
                yield from _differences(place, before[name], now[name])
        return
    more: list[str] = []
    fewer: list[str] = []
    if isinstance(before, list) and isinstance(now, list):
        more = [str(item) for item in now if item not in before]
        fewer = [str(item) for item in before if item not in now]
    if more:
        yield f"{path}: also {', '.join(more)}"
    if fewer:
        yield f"{path}: no longer {', '.join(fewer)}"
    if not (more or fewer) and (before != now or type(before) is not type(now)):
        yield f"{path}: {now}, was {before}"
