"""Garbage ends in bronze and in dead letters or a table; it stops no batch and leaves nothing outside of the lake."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.table_names import is_usable_name
from tests.chaos import lakes
from tests.chaos.conftest import configuration
from tests.light import drawn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

T = TypeVar("T")
MB = 1 << 20
NAMES = [
    *("../../x", "..", ".", "/", "/etc/passwd", "a/b", "a\\b", "C:\\x", "x\0y", "%2e%2e", "~", "$HOME", "silver.x"),
    *("con", "CON", "nul", "aux", "COM1", "lpt9", "_delta_log", "_router", "", " ", "x ", " x", "x\n", "x.", "x" * 300),
    *("🃏", "poker🂡", "żółw", "null", "NaN", "true", "0", "Poker", "poker", "POKER", "pOkEr"),
    *("\u0131", "\u0130", "\u212a"),  # Unicode folds them to i and k
]
GARBAGE: list[bytes | None] = [
    None,
    b"",
    b" ",
    b"\0",
    b"null",
    b"5",
    b'"text"',
    b"[]",
    b"{}",
    b"{",
    b'{"game"',
    b'{"game": "rummy"} {"game": "rummy"}',
    b'\xef\xbb\xbf{"game": "rummy"}',
    '{"game": "rummy"}'.encode("utf-16"),
    b'{"game": "rum\xffmy"}',
    b'{"game": "rummy", "gamer_id": "\xed\xa0\x80"}',
    rb'{"game": "rummy", "gamer_id": "\ud800"}',
    rb'{"game": "rummy", "gamer_id": "\x"}',
    b'{"game": "rummy", "game": "spades"}',
    b'{"Game": "rummy", "game": "spades", "GAME": "euchre"}',
    b'{"game": {"game": "rummy"}}',
    b'{"game": ["rummy"]}',
    b'{"game": 5}',
    b'{"game": "rummy", "bid": 9223372036854775808}',
    b'{"game": "rummy", "bid": -1e400}',
    b'{"game": "rummy", "amount": 1e400}',
    b'{"game": "rummy", "amount": NaN}',
    b'{"game": "rummy", "amount": -0.0}',
    b'{"game": "rummy", "amount": ' + b"9" * 2_000 + b"}",
    b'{"game": "rummy", "ts": "99999-01-01T00:00:00Z"}',
    b'{"game": "rummy", "ts": "2026-02-30T25:61:61Z"}',
    b'{"game": "rummy", "blinds": [], "melds": {}}',
    b'{"game": "rummy", "melds": [null, [null], []]}',
    *(opening * depth for opening in (b"[", b'{"game":') for depth in (1_000, 100_000)),
    b"[" * 1_000 + b"]" * 1_000,
    b'{"game": "rummy", "melds": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    b'{"game": "rummy", "other": ' + b'{"a":' * 1_000 + b"1" + b"}" * 1_000 + b"}",
    b"x" * 5 * MB,
    b"\xff" * 5 * MB,
    b'{"game": "rummy", "session_id": "' + b"s" * 5 * MB + b'"}',
    b'{"game": "rummy", "other": [' + b"1," * (5 * MB // 2) + b"1]}",
]


GOOD = b'{"game": "rummy", "amount": 1.5, "blinds": {"small": 1}, "melds": [["2S"]]}'
BYTES = st.binary(max_size=300)
BROKEN = st.builds(
    lambda at, put: GOOD[:at] + put + GOOD[at + 1 :], st.integers(0, len(GOOD) - 1), st.binary(max_size=3)
)
"""A good event with a byte replaced by up to three others."""
TEXTS = st.text(max_size=300)
SHORT = st.from_regex(r"\A[a-zA-Z0-9_.]{0,3}\Z")


def examples(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Return so many examples that hypothesis thinks up."""
    found: list[T] = []

    @settings(max_examples=drawn(count), database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def think_up(value: T) -> None:
        found.append(value)

    think_up()
    return found


def named(name: str) -> bytes:
    return json.dumps({"game": name, "amount": 1.0}).encode()


@pytest.mark.parametrize(
    ("commit", "count"),
    [pytest.param("auto", 200, id="arrow"), pytest.param("spark", 20, id="spark", marks=pytest.mark.slow)],
)
def test_garbage_is_kept_with_its_reason(drain, new_topic, tmp_path, commit, count):
    values = [*GARBAGE, *examples(BYTES, count), *examples(BROKEN, count)]
    names = [*NAMES, *examples(TEXTS, count), *examples(SHORT, count // 2)]
    topic, folder = new_topic(), tmp_path / "a" / "b"
    topic.send([named(name) for name in names], partition=0)
    topic.send(values, partition=1)
    games = {"name": "games", "match": {"sql": "event.game IS NOT NULL"}, "select": ["event.*", "partition", "offset"]}
    routes = [{**games, "sinks": [{"tables": "silver.{event.game}"}]}]
    config, lake = configuration(folder, topic, commit=commit, routes=routes, rows=150), folder / "lake"
    before = everything(tmp_path)

    drain(config)

    sent = Counter((0, place, value) for place, value in enumerate(map(named, names)))
    sent.update((1, place, value) for place, value in enumerate(values))
    bronze = Counter((row["partition"], row["offset"], row["value"]) for row in lakes.read(lake, "bronze.events"))
    assert differing(bronze, sent) == []
    dead = lakes.places(lake, "ops.dead_letters")
    found = {table: lakes.places(lake, table) for table in lakes.tables(lake) if table.startswith("silver.")}
    landed = sum(found.values(), Counter())
    assert differing(dead + landed, Counter(place[:2] for place in sent)) == []
    assert all(is_usable_name(table) and table == table.lower() for table in found)
    for place, name in enumerate(names):
        table = f"silver.{name}".lower()
        assert (0, place) in (found[table] if is_usable_name(f"silver.{name}") else dead), name
    assert all(row["stage"] and row["reason"] for row in lakes.read(lake, "ops.dead_letters"))
    balanced(lake, len(names) + len(values))
    assert everything(tmp_path) == before, "something is outside of the lake"
    assert {path.name for path in lake.iterdir()} - {"_staged"} == {"_router", "bronze", "ops", "silver"}


def differing(one: Counter[Any], other: Counter[Any]) -> list[str]:
    """Return some of what is in one and not in the other, cut short."""
    return [repr(what)[:200] for what in [*(one - other), *(other - one)][:5]]


def everything(folder: Path) -> set[Path]:
    """Return what is in a folder, but for what is in the lake."""
    return {path for path in folder.rglob("*") if "lake" not in path.relative_to(folder).parts}


def balanced(lake: Path, events: int) -> None:
    """Assert that the ledger adds up for every batch."""
    rows: list[dict[str, Any]] = lakes.read(lake, "ops.ledger")
    sources = [row for row in rows if row["read"] is not None]
    assert sum(row["read"] for row in sources) == events
    assert all(row["read"] == row["decoded"] + row["failed"] + row["bare"] for row in sources)
    for row in rows:
        if row["route"] is not None:
            assert row["matched"] == row["landed"] + row["refused"] + row["dropped"]


def test_lists_that_are_empty_in_all_rows_of_a_batch_land(drain, new_topic, tmp_path):
    """Spark sends no offsets for them, and what reads offsets that are not there kills the worker."""
    topic, lake = new_topic(), tmp_path / "lake"
    topic.send([json.dumps({"game": "rummy", "melds": melds}).encode() for melds in (None, None, [])])
    routes = [{"name": "every", "match": {"sql": "true"}, "sinks": [{"delta": "silver.every"}]}]
    drain(configuration(tmp_path, topic, routes=routes))
    assert Counter(json.dumps(row["melds"]) for row in lakes.read(lake, "silver.every")) == {"null": 2, "[]": 1}
