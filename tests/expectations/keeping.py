"""Scenarios of tables with a row per key: what wins, what deletes, what stays as history."""

from __future__ import annotations

import json
from typing import Any

from tests.expectations.scenario import HEAD, Given, Scenario, Taken

DDL = "game string, gamer string, level int, at bigint, gone boolean, note string"
BY_KEY = f"decode: {{value: {{json: '{DDL}'}}, key: {{json: 'game string, gamer string'}}}}\n"


def event(game: str | None, gamer: str | None, level: int | None = None, **more: Any) -> dict[str, Any]:
    """Return an event without what is null."""
    found = {"game": game, "gamer": gamer, "level": level, **more}
    return {name: value for name, value in found.items() if value is not None}


def dead(game: str | None, gamer: str | None) -> dict[str, Any]:
    """Return what stands for a record with this key and no value."""
    return {"dead": event(game, gamer)}


def records(*values: Any, text_keys: bool = False) -> tuple[Given, ...]:
    """Return records whose keys are those of their events."""
    made = []
    for value in values:
        if not isinstance(value, dict):
            made.append(Given(value, b"garbage"))
            continue
        of = value.get("dead", value)
        key = of.get("gamer", "") if text_keys else json.dumps({k: of[k] for k in ("game", "gamer") if k in of})
        made.append(Given(None if "dead" in value else json.dumps(value).encode(), key.encode()))
    return tuple(made)


def _upserts(decode: str, *options: str) -> str:
    sinks = "".join(f"      - upsert: {{{one}}}\n" for one in options)
    return (
        f"{HEAD}{decode}routes:\n  - name: profiles\n    match: {{sql: 'event.game IS NOT NULL'}}\n    sinks:\n{sinks}"
    )


BY_VALUE = f"decode: {{json: '{DDL}'}}\n"
KEY = "keys: [event.game, event.gamer]"
TOMBSTONES = _upserts(
    BY_KEY,
    'table: "silver.{event.game}_profiles", keys: [event.gamer], tombstones: true',
    f"table: silver.profiles, {KEY}, tombstones: true",
    f"table: silver.softly, {KEY}, tombstones: true, soft_delete: is_deleted",
    f"table: silver.history, {KEY}, tombstones: true, history: scd2",
)
BY_FIELD = _upserts(
    BY_VALUE,
    f"table: silver.newest, {KEY}, newest_by: event.at",
    f"table: silver.first, {KEY}, newest_by: event.at, when_matched: ignore",
    f"table: silver.left, {KEY}, newest_by: event.at, delete_when: event.gone",
    f"table: silver.softly, {KEY}, newest_by: event.at, delete_when: event.gone, soft_delete: is_deleted",
    f"table: silver.history, {KEY}, newest_by: event.at, delete_when: event.gone, history: scd2",
    f"table: silver.some, {KEY}, newest_by: [event.at, event.level], columns: [event.level]",
    'table: "silver.{event.game}", keys: [event.gamer], newest_by: "10 / event.level"',
    "table: silver.by_time, keys: [event.gamer], newest_by: timestamp, partition_by: [event.game], "
    "properties: {delta.appendOnly: 'false'}, comment: latest, comments: {level: how far}",
)
CHANGING = "game string, gamer string, level {}"


def _changing(kind: str) -> str:
    return _upserts(
        f"decode: {{json: '{CHANGING.format(kind)}'}}\n",
        f"table: silver.evolving, {KEY}",
        f"table: silver.frozen, {KEY}, evolution: freeze",
    )


def _failing(kind: str) -> str:
    return _upserts(f"decode: {{json: '{CHANGING.format(kind)}'}}\n", f"table: silver.failing, {KEY}, evolution: fail")


TEXT_KEYS = _upserts(
    BY_VALUE,
    "table: silver.profiles, keys: [event.gamer], tombstones: true",
    "table: silver.history, keys: [event.gamer], tombstones: true, history: scd2",
).replace("event.game IS NOT NULL", "true")
SCENARIOS = (
    Scenario(
        "tombstones",
        "The latest profile of each gamer, deleted by records without a value; keys are decoded",
        (
            Taken(
                records(
                    *[
                        event("uno", "a", 1),
                        event("uno", "b", 1),
                        event("poker", "a", 7),
                        event("uno", "a", 2),
                        b"garbage",
                    ],
                    *[event("uno", None, 3), dead("uno", "b"), dead(None, "nobody"), None, {}, dead("uno", "never")],
                ),
                TOMBSTONES,
            ),
            Taken(
                records(
                    *[event("uno", "c", 1), dead("poker", "a"), event("uno", "a", 3), event("../../x", "a", 1)],
                    *[event("uno", "b", 5), event("hearts", "z", 0), dead("uno", "c"), dead("uno", None)],
                )
            ),
            Taken(records(event("uno", "a", 3), dead("hearts", "z"), dead("hearts", "z"), event("poker", "a"))),
        ),
    ),
    Scenario(
        "tombstones_by_text",
        "Records without a value whose key is the text of the one key that rows are known by",
        (
            Taken(
                records(
                    *[
                        event("uno", "a", 1),
                        event("uno", "b", 1),
                        dead(None, "b"),
                        event("uno", "é", 2),
                        dead(None, "x"),
                    ],
                    *[event("uno", None, 2), b"garbage", dead(None, "")],
                    text_keys=True,
                ),
                TEXT_KEYS,
            ),
            Taken(
                (
                    *records(dead(None, "a"), event("uno", "b", 2), dead(None, "é"), text_keys=True),
                    *[Given(None, b"\xff"), Given(None, None), Given(b"", b"b")],
                )
            ),
        ),
    ),
    Scenario(
        "upserts_by_field",
        "Rows ordered by a field: the newest, the first, deleted ones, some columns, a history; late rows, ties, nulls",
        (
            Taken(
                records(
                    *[event("uno", "a", 1, at=10), event("uno", "a", 2, at=5), event("uno", "b", 1, at=7, note="x")],
                    *[
                        event("uno", "b", 2, at=7),
                        event("poker", "c", 0, at=1),
                        event("poker", "c", 5, at=2, gone=True),
                    ],
                    *[event("uno", "d", 4), event("uno", None, 1, at=1), event("uno", "e", 3, at=3, gone=False)],
                ),
                BY_FIELD,
            ),
            Taken(
                records(
                    *[event("uno", "a", 3, at=9), event("uno", "b", 3, at=8), event("poker", "c", 6, at=1)],
                    *[event("uno", "d", 5, at=1), event("uno", "e", 9, at=4, gone=True, note="left")],
                    *[event("uno", "f", 1, at=1, gone=True), event("con/", "g", 2, at=1)],
                )
            ),
            Taken(
                records(
                    *[
                        event("poker", "c", 7, at=3),
                        event("uno", "e", 1, at=2),
                        event("uno", "a", 4, at=11, note="last"),
                    ],
                    *[event("uno", "f", 2, at=2), event("uno", "d")],
                )
            ),
        ),
    ),
    Scenario(
        "upserts_evolve",
        "Tables with a row per key whose columns become wider, or may not change",
        (
            Taken(records(event("uno", "a", 1), event("uno", "b", 1)), _changing("int")),
            Taken(
                records(event("uno", "a", 2**40, note="x"), event("uno", "c", 2), event("uno", "b", note="y")),
                _changing("bigint, note string"),
            ),
            Taken(records({"game": "uno", "gamer": "a", "level": "text"}, event("uno", "c")), _changing("string")),
        ),
    ),
    Scenario(
        "upserts_fail",
        "A table with a row per key that is not to change stops the stream",
        (
            Taken(records(event("uno", "a", 1), event("uno", "b", 1)), _failing("int")),
            Taken(records(event("uno", "a", 2, note="x"), event("uno", "c", 2)), _failing("int, note string")),
            Taken(records(event("uno", "a", 3))),
        ),
        slow=True,
    ),
)
