"""Histories of queries that several tests look at: each is played once per committer."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config.models import Expectation, Route
from router_decoders import Json
from router_rules import Field, Sql
from router_sinks import Delta, Tables
from tests.engine.parts import Copy, Events, Fixed, Named, Where
from tests.engine.query import Query, records
from tests.expectations import inputs
from tests.expectations.inputs import EVERY_TYPE
from tests.light import drawn

if TYPE_CHECKING:
    import pyarrow as pa

MakeQuery = Callable[..., Query]
Scenario = Callable[[MakeQuery, Path, str], Query]

GARBAGE = (*inputs.GARBAGE, b'{"day": "2026-02-30"}', b'{"at": "yesterday"}')
NAMES = inputs.NAMES[: drawn(16)]
"""Sixteen have each kind of name. Every table costs a commit of either committer; labels are compared for all names."""


def event(i: int) -> dict[str, Any]:
    """Return an event with every type; each field is missing in some."""
    found: dict[str, Any] = {
        "game": ["poker", "rummy", "uno", "hearts"][i % 4],
        "gamer": f"g{i}",
        "at": f"2026-01-{i % 28 + 1:02d}T23:59:59.{i:06d}Z",
        "local": f"2026-01-01T12:00:{i % 60:02d}.{i:06d}",
        "day": f"19{i % 90 + 10}-02-03",
        "amount": i % 11 - 1,
        "price": i * 1.1,
        "ratio": i / 3,
        "cost": f"{i * 7919}.{i:06d}",
        "flag": i % 3 == 0,
        "blob": "AP+A",
        "small": i - 20,
        "tags": ["a", None, "é" * (i % 3)],
        "inner": {"x": i, "deep": {"y": f"y{i}", "at": f"2026-01-01T00:00:{i % 60:02d}Z"}},
        "scores": {"first": i, "second": None},
        "rounds": [{"n": i, "cards": ["7♠", "K♦"]}, {"n": None, "cards": []}, None],
    }
    for k, name in enumerate(list(found)):
        if i % 17 == k:
            del found[name]
        elif i % 19 == k:
            found[name] = None
    return found


@cache
def any_bytes() -> tuple[bytes, ...]:
    """Return what may be in a topic beside all that somebody thought of."""
    found: list[bytes] = []
    almost = st.lists(
        st.sampled_from([b"{", b"}", b'"game"', b'"uno"', b":", b",", b"null", b"\\u0000", b"\xff", b"1e9"])
    )

    @settings(max_examples=150, derandomize=True, database=None)
    @given(st.binary() | almost.map(b"".join) | st.text().map(str.encode))
    def collect(value: bytes) -> None:
        found.append(value)

    collect()
    return tuple(found)


def garbage(make_query: MakeQuery, folder: Path, commit: str) -> Query:
    """Take good events among every kind of bad ones, through every kind of sink and expectation."""
    games = Route(
        name="games",
        match=Sql(where="event.game IS NOT NULL"),
        expect=(
            Expectation(name="gamer", sql="event.gamer IS NOT NULL"),
            Expectation(name="sane", sql="event.amount >= 0", otherwise="warn"),
            Expectation(name="low", sql="event.amount < 9", otherwise="drop"),
            Expectation(name="shares", sql="10 / event.amount > 0", otherwise="warn"),
        ),
        sinks=(Tables(table="silver.{event.game}"),),
    )
    wins = Route(
        name="wins",
        match=Sql(where="event.amount / (event.amount - 5) > 0"),
        select=("event.*", "offset", "10 / (event.amount - 7) AS share"),
        sinks=(
            Delta(table="gold.wins"),
            Copy(to=str(folder / "copy"), refuses="amount % 2 = 1"),
            Delta(table="gold.wins_again"),
        ),
    )
    flags = Route(
        name="flags",
        match=Field(column="event.flag", equals=True),
        select=("event.game", "event.amount AS amount", "partition AS part", "cast(key AS string) AS key"),
        sinks=(Delta(table="gold.flags"),),
    )
    query = make_query(
        folder, commit=commit, decode=Json(schema=EVERY_TYPE), bronze="bronze.all", routes=(games, wins, flags)
    )
    named = [{"game": name, "gamer": "g", "amount": 1} for name in NAMES]
    mixed = [*map(event, range(60)), *GARBAGE, *named]
    random.Random(7).shuffle(mixed)
    query.take(records(mixed, partitions=3))
    query.take(records([*[event(i) for i in range(60, 75)], *any_bytes()], first=100))
    query.take(records([]))
    query.take(records([b"only", None, b"garbage"], first=1000, partitions=2))
    return query


NARROW = "game string, id int, amount int, price float, note string, inner struct<x: int>, Level int"
WIDE = (
    "game string, id int, amount bigint, price double, note bigint, inner struct<x: bigint, z: string>, level int, "
    "bonus double"
)
HUGE = 2**40


def evolution(make_query: MakeQuery, folder: Path, commit: str) -> Query:
    """Change the schema of events between batches: grow, widen, narrow, clash."""
    route = Route(
        name="all",
        match=Where(sql="true"),
        sinks=(
            Named(sql="concat('silver.', event.game)", columns="seen"),
            Fixed(name="gold.whole"),
            Copy(to=str(folder / "copy")),
        ),
    )
    query = make_query(folder, commit=commit, decode=Events(ddl=NARROW), routes=(route,))
    query.take(records([
        {"game": "old", "id": 1, "amount": 1, "price": 1.5, "note": "text", "inner": {"x": 1}, "Level": 1},
        {"game": "old", "id": 2},
        {"game": "other", "id": 3},
    ]))  # fmt: skip
    query = query.restarted(decode=Events(ddl=WIDE))
    query.take(records([
        {"game": "old", "id": 10, "amount": HUGE, "price": 1e300, "inner": {"x": HUGE, "z": "new"}, "bonus": 0.5},
        {"game": "old", "id": 11, "note": 5},
        {"game": "old", "id": 12, "level": 3},
        {"game": "old", "id": 13, "note": 6, "level": 4},
        {"game": "old", "id": 14},
        {"game": "wide", "id": 20, "amount": HUGE, "price": 1e300, "note": 7, "inner": {"z": "z"}, "level": 1},
        {"game": "other", "id": 21, "note": 8},
    ], first=100))  # fmt: skip
    query = query.restarted(decode=Events(ddl=NARROW))
    query.take(records([
        {"game": "wide", "id": 30, "amount": 5, "price": 2.5, "inner": {"x": 1}},
        {"game": "wide", "id": 31, "note": "text"},
        {"game": "wide", "id": 32, "Level": 9},
        {"game": "old", "id": 33, "amount": 6, "note": "again", "inner": {"x": 2}, "Level": 2},
        {"game": "other", "id": 34, "amount": 7},
    ], first=200))  # fmt: skip
    query = query.restarted(decode=Events(ddl=WIDE))
    query.take(records([{"game": "old", "id": 40, "note": 9}, {"game": "old", "id": 41, "amount": HUGE}], first=300))
    query.take(records([{"game": "old", "id": 42, "note": 9}, {"game": "old", "id": 43, "amount": HUGE}], first=400))
    return query


def cap(make_query: MakeQuery, folder: Path, commit: str) -> Query:
    """Name more tables than a sink may have, before and after a restart."""
    route = Route(
        name="games",
        match=Where(sql="event.game IS NOT NULL"),
        sinks=(Named(sql="concat('silver.', event.game)", at_most=3), Fixed(name="silver.every_game")),
    )
    query = make_query(folder, commit=commit, decode=Events(ddl="game string"), routes=(route,))
    query.take(_games("c", "d", "c"))
    query.take(_games("e", "c", "b", "a", "e", "a"))
    query.take(_games("b", "a", "f"))
    query = query.restarted()
    query.take(_games("e", "c"))
    return query


def _games(*names: str) -> pa.Table:
    return records([{"game": name} for name in names])


def shared(make_query: MakeQuery, folder: Path, commit: str) -> Query:
    """Lead two routes into one table: one has numbers where the other has texts, and each has a column of its own."""
    routes = (
        Route(
            name="numbers",
            match=Where(sql="event.kind = 'number' OR event.kind = 'both'"),
            select=("event.id", "event.n AS n", "event.n * 2 AS twice", "struct(event.n AS a) AS s"),
            sinks=(Fixed(name="silver.shared"),),
        ),
        Route(
            name="texts",
            match=Where(sql="event.kind = 'text' OR event.kind = 'both'"),
            select=("event.id", "cast(event.n AS string) AS n", "event.kind AS kind", "struct(event.kind AS b) AS s"),
            sinks=(Fixed(name="silver.shared"),),
        ),
    )
    query = make_query(folder, commit=commit, decode=Events(ddl="id int, kind string, n int"), routes=routes)
    for first in (0, 100):
        query.take(records([
            {"id": first + 1, "kind": "number", "n": 1},
            {"id": first + 2, "kind": "text", "n": 2},
            {"id": first + 3, "kind": "text"},
            {"id": first + 4, "kind": "both", "n": 4},
            {"id": first + 5, "kind": "both"},
        ], first=first))  # fmt: skip
    return query


APPLYING: list[Scenario] = [garbage, evolution]
"""Scenarios with a sink that applies."""
ALL: list[Scenario] = [*APPLYING, cap, shared]


def marks(commit: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return the mark `slow` where Spark commits: each commit costs a second of CPU.

    In every run Spark finishes a batch that delta-rs has begun (test_committers), and commits beside it (test_upserts).
    """
    return () if commit == "auto" else (pytest.mark.slow,)
