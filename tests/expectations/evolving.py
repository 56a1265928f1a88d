"""Scenarios in which the events change from batch to batch: columns come, become wider, clash."""

from __future__ import annotations

from typing import Any

from tests.expectations.scenario import HEAD, Scenario, Taken, given

NARROW = "game string, id int, amount int, price float, note string, inner struct<x: int>, Level int"
WIDE = (
    "game string, id int, amount bigint, price double, note bigint, inner struct<x: bigint, z: string>, level int, "
    "bonus double"
)
SMALL = "game string, id int, inner struct<x: int>, rounds array<struct<n: int>>"
GROWN = (
    "game string, id bigint, inner struct<x: int, z: string>, rounds array<struct<n: int, card: string>>, bonus double"
)
EXTRA = f"{GROWN}, extra string"
HUGE = 2**40
BEGUN = [
    {"game": "old", "id": 1, "amount": 1, "price": 1.5, "note": "text", "inner": {"x": 1}, "Level": 1},
    {"game": "old", "id": 2},
    {"game": "other", "id": 3},
]
CHANGED: list[dict[str, Any]] = [
    {"game": "old", "id": 10, "amount": HUGE, "price": 1e300, "inner": {"x": HUGE, "z": "new"}, "bonus": 0.5},
    {"game": "old", "id": 11, "note": 5},
    {"game": "old", "id": 12, "level": 3},
    {"game": "old", "id": 13, "note": 6, "level": 4},
    {"game": "old", "id": 14},
    {"game": "wide", "id": 20, "amount": HUGE, "price": 1e300, "note": 7, "inner": {"z": "z"}, "level": 1},
    {"game": "other", "id": 21, "note": 8},
]
BACK: list[dict[str, Any]] = [
    {"game": "wide", "id": 30, "amount": 5, "price": 2.5, "inner": {"x": 1}},
    {"game": "wide", "id": 31, "note": "text"},
    {"game": "wide", "id": 32, "Level": 9},
    {"game": "old", "id": 33, "amount": 6, "note": "again", "inner": {"x": 2}, "Level": 2},
    {"game": "other", "id": 34, "amount": 7},
]
LATER: list[dict[str, Any]] = [{"game": "old", "id": 40, "note": 9}, {"game": "old", "id": 41, "amount": HUGE}]
OLD: list[dict[str, Any]] = [
    {"game": "old", "id": 1, "inner": {"x": 1}, "rounds": [{"n": 1}]},
    {"game": "other", "id": 1},
]
NEW: list[dict[str, Any]] = [
    {"game": "old", "id": 2},
    {"game": "old", "id": 3, "inner": {"x": 3, "z": "new"}},
    {"game": "old", "id": 4, "rounds": [{"n": 4}, None, {"n": 5, "card": "new"}]},
    {"game": "old", "id": HUGE},
    {"game": "fresh", "id": 5, "bonus": 1.5, "inner": {"x": 7, "z": "new"}},
    {"game": "old", "id": 6, "bonus": 0.5},
    {"game": "old", "id": HUGE + 1, "bonus": 8.5},
]
AGAIN: list[dict[str, Any]] = [{"game": "old", "id": 7, "bonus": 7.5}, {"game": "fresh", "id": HUGE}]
AND_MORE: list[dict[str, Any]] = [{"game": "old", "id": 8, "bonus": 8.5}, {"game": "old", "id": 9, "extra": "more"}]
KINDS = "game string, v {}"
VALUES: tuple[tuple[str, list[Any]], ...] = (
    ("int", [1, -1, None]),
    ("bigint", [HUGE, 2]),
    ("smallint", [3]),
    ("double", [1.5, 2.0]),
    ("string", ["4", "x"]),
    ("boolean", [True]),
    ("timestamp", ["2026-01-01T00:00:00Z"]),
    ("array<int>", [[1, 2]]),
    ("struct<a: int>", [{"a": 1}]),
)
"""A column that has another type in every batch."""


def _evolve(ddl: str) -> str:
    return f"""{HEAD}decode: {{json: "{ddl}"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks:
      - tables: "silver.{{event.game}}"
      - delta: gold.whole
      - recording: {{to: "${{FOLDER}}/recorded.jsonl"}}
"""


def _mode(mode: str, ddl: str) -> str:
    return f"""{HEAD}decode: {{json: "{ddl}"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{tables: {{table: "silver.{{event.game}}", evolution: {mode}}}}}, {{delta: gold.all}}]
"""


def _kinds(kind: str) -> str:
    return f"""{HEAD}decode: {{json: "{KINDS.format(kind)}"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{tables: "silver.{{event.game}}"}}, {{delta: {{table: gold.frozen, evolution: freeze}}}}]
"""


def _columns(ddl: str) -> str:
    return f"""{HEAD}decode: {{json: "{ddl}"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks:
      - tables: {{table: "silver.{{event.game}}", columns: all}}
      - tables: {{table: "gold.{{event.game}}", columns: seen}}
      - delta: {{table: gold.delta_all, columns: all}}
      - delta: {{table: gold.delta_seen, columns: seen}}
"""


SCENARIOS = (
    Scenario(
        "evolve",
        "Tables gain and widen columns, and cannot take a type or a spelling that clashes",
        (
            Taken(given(BEGUN), _evolve(NARROW)),
            Taken(given(CHANGED), _evolve(WIDE)),
            Taken(given(BACK), _evolve(NARROW)),
            Taken(given(LATER), _evolve(WIDE)),
            Taken(given(LATER)),
        ),
    ),
    Scenario(
        "freeze",
        "Frozen tables take rows without what they have no place for; values that do not fit are dead letters",
        (
            Taken(given(OLD), _mode("freeze", SMALL)),
            Taken(given(NEW), _mode("freeze", GROWN)),
            Taken(given(AGAIN)),
        ),
    ),
    Scenario(
        "quarantine",
        "Rows with something new wait until it is approved, and land then",
        (
            Taken(given(OLD), _mode("quarantine", SMALL)),
            Taken(given(NEW), _mode("quarantine", GROWN)),
            Taken(given(AGAIN), approve=True),
            Taken(given(AND_MORE), _mode("quarantine", EXTRA)),
            Taken(given(AND_MORE), approve=True),
        ),
    ),
    Scenario(
        "evolution_fails",
        "A change of a table stops the stream, and the batch commits nothing",
        (
            Taken(given(OLD), _mode("fail", SMALL)),
            Taken(given(NEW), _mode("fail", GROWN)),
            Taken(given([NEW[0]])),
        ),
    ),
    Scenario(
        "types",
        "One column with another type in every batch, into tables that evolve and one that is frozen",
        tuple(
            Taken(given([{"game": ("uno", "poker")[i % 2], "v": v} for i, v in enumerate(values)]), _kinds(kind))
            for kind, values in VALUES
        ),
        slow=True,
    ),
    Scenario(
        "columns",
        "Tables with every column of a route, and tables that gain one with its first value",
        (
            Taken(
                given([{"game": "uno", "a": 1}, {"game": "poker"}]), _columns("game string, a int, b struct<x: int>")
            ),
            Taken(given([{"game": "uno", "b": {"x": None}}, {"game": "poker", "b": {"x": 0}, "a": 0}])),
            Taken(
                given([{"game": "uno", "c": []}, {"game": "uno", "a": 2}, {"game": "chess"}]),
                _columns("game string, a int, b struct<x: int, y: string>, c array<int>"),
            ),
        ),
    ),
)
