"""What the texts of options mean: numbers with a unit, intervals, times, pairs."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from router.config.models import parse_interval, parse_zoned_moment
from router.errors import StartError
from router.registry import suggest_names
from router.table_names import matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

NUMBER_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def parse_number(text: str) -> float | None:
    """Return the number that `500000`, `500k` or `1.5M` means; None if it is no number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*", text)
    if match is None:
        return None
    return float(match[1]) * NUMBER_UNITS[match[2].lower()]


def read_interval_option(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | None:
    """Return the length of an interval, of an option with this as its `callback`."""
    if text is None:
        return None
    # `5m` is what everybody types.
    text = re.sub(r"(?<=\d)\s*m$", " min", text)
    try:
        return parse_interval(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}") from None


def parse_since(text: str, option: str = "--since") -> float:
    """Return a time, or how long ago it was, in seconds since 1970."""
    try:
        return parse_zoned_moment(text).timestamp()
    except ValueError:
        pass
    try:
        return (datetime.now(timezone.utc) - parse_interval(text)).timestamp()
    except ValueError:
        message = f"{text!r} is neither a time with a zone (2025-01-31T12:00:00Z) nor a length (2 h)"
        raise click.BadParameter(message, param_hint=option) from None


def chosen_names(patterns: tuple[str, ...], names: Iterable[str], what: str) -> list[str]:
    """Return the names that match a pattern, or all without patterns, in their order.

    Raises StartError for a pattern that matches none; `what` says of what the names are.
    """
    every = list(names)
    for pattern in patterns:
        if not any(matches_any(name, (pattern,)) for name in every):
            near = suggest_names(pattern, every, listed_in="the command lists all without a name")
            raise StartError(f"{pattern} is no {what}; {near}")
    return [name for name in every if not patterns or matches_any(name, patterns)]


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return the values of an option that is given as KEY=VALUE, several times."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        pairs[key] = value
    return pairs
