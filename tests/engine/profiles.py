"""Profiles of gamers: events, records with keys, and the route to the sinks that keep one row per key."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from router.config.models import Route
from tests.engine.parts import Where
from tests.engine.query import BEGIN, RAW


def raw(*values: dict[str, Any] | bytes | None, first: int = 0, keys: bool = True) -> pa.Table:
    """Return records whose keys are those of their values; `{"dead": ...}` is a tombstone."""
    rows = []
    for offset, value in enumerate(values, first):
        dead = value.get("dead") if isinstance(value, dict) else None
        of = dead or value
        key = {name: of[name] for name in ("game", "gamer") if name in of} if isinstance(of, dict) else None
        rows.append({
            "key": json.dumps(key).encode() if key is not None and keys else None,
            "value": None if dead else json.dumps(value).encode() if isinstance(value, dict) else value,
            "topic": "events", "partition": 0, "offset": offset, "timestamp": BEGIN, "timestamp_type": 0,
            "headers": None,
        })  # fmt: skip
    return pa.Table.from_pylist(rows, RAW)


def event(game: str | None, gamer: str | None, level: int | None, **more: Any) -> dict[str, Any]:
    """Return an event without what is null."""
    return {
        name: value
        for name, value in {"game": game, "gamer": gamer, "level": level, **more}.items()
        if value is not None
    }


def route(*sinks: Any, sql: str = "event.game IS NOT NULL") -> tuple[Route, ...]:
    """Return the one route of these tests."""
    return (Route(name="profiles", match=Where(sql=sql), sinks=sinks),)
