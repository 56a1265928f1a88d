"""Write the Avro schema of the games' events, version by version."""

from __future__ import annotations

import json
from typing import Any

from router_demo.games import GAMES

_COLUMNS = ("double", "long", "string")
_CARDS = {"type": "array", "items": "string"}


def _record(name: str, **fields: Any) -> dict[str, Any]:
    members = [{"name": field, "type": form} for field, form in fields.items()]
    return {"type": "record", "name": name, "fields": members}


_DETAILS: dict[str, dict[str, Any]] = {
    "rummy": _record(
        "Rummy", melds={"type": "array", "items": _CARDS}, hand=_record("Hand", size="int", deadwood="int")
    ),
    "spades": _record("Spades", bid="int", tricks="int", bags=_record("Bags", ours="int", theirs="int")),
    "euchre": _record("Euchre", trump="string", alone="boolean", score={"type": "array", "items": "int"}),
    "go_fish": _record("GoFish", asked="string", got="int", books=_CARDS),
    "uno": _record(
        "Uno",
        color="string",
        card="string",
        players={"type": "array", "items": _record("Player", seat="int", cards="int")},
    ),
    "hearts": _record("Hearts", passed=_CARDS, points="int", moon="boolean"),
    "poker": _record("Poker", pot="double", board=_CARDS, blinds=_record("Blinds", small="int", big="int")),
}
_HEAD: dict[str, Any] = {
    "game": "string",
    "gamer_id": "string",
    "ts": {"type": "long", "logicalType": "timestamp-millis"},
    "session_id": "string",
    "amount": "double",
    "type": "string",
}


def event_schema(version: int) -> dict[str, Any]:
    """Return the schema of a version, which has the fields col_foo_1 to col_foo_{version}; each may be null."""
    further = {f"col_foo_{number}": _COLUMNS[number % len(_COLUMNS)] for number in range(1, version + 1)}
    fields = _HEAD | {game: _DETAILS[game] for game in GAMES} | further
    members = [{"name": name, "type": ["null", form], "default": None} for name, form in fields.items()]
    return {"type": "record", "name": "Event", "namespace": "games", "fields": members}


def schema_text(version: int) -> str:
    """Return the schema of a version as it is registered."""
    return json.dumps(event_schema(version))
