"""`--json`: the one document that a command prints in place of its lines. Needs no terminal library."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
"""`--json`; the command gets it as `as_json`."""


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document: times as ISO 8601 in UTC, all but ASCII escaped."""
    click.echo(json.dumps(document, indent=2, default=_json_value))


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return in_utc(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC, which one without a zone is in."""
    return time.replace(tzinfo=time.tzinfo or timezone.utc).astimezone(timezone.utc)
