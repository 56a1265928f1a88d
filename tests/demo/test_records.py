"""The simulator's records: the same for a seed, and as described."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_demo.games import GAMES
from router_demo.records import JSON_GARBAGE, chunks, records
from router_demo.traffic import Traffic

START = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
COMMON = {"game", "gamer_id", "ts", "session_id", "type", "amount"}


def sent(traffic: Traffic) -> list[dict[str, Any]]:
    return [json.loads(value) for _, value, _ in records(traffic) if value]


def test_the_same_seed_gives_the_same_records() -> None:
    traffic = Traffic(events=5000, games=20, bad=0.02, versions=3, seed=4, start=START)
    assert list(records(traffic)) == list(records(traffic))
    assert list(records(traffic)) != list(records(replace(traffic, seed=5)))


def test_a_seed_gives_the_records_it_always_gave() -> None:
    """Without it two releases cannot be measured with the same records."""
    digest = hashlib.sha256()
    for key, value, _ in records(Traffic(events=3000, games=9, bad=0.02, versions=3, seed=4, start=START)):
        digest.update(key + b" " + (value or b"null") + b"\n")
    assert digest.hexdigest() == "529aecd2b273475d9446a9deb0552d038085c0bf3a468183e03dd57c58cf3cb5"


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    traffic = Traffic(events=1000, bad=0.02, start=START)
    assert list(records(traffic)) == list(islice(records(replace(traffic, events=None)), 1000))


def test_every_event_has_the_common_fields_and_its_gamer_as_key() -> None:
    for key, value, headers in records(Traffic(events=2000, start=START)):
        assert value is not None
        event = json.loads(value)
        assert event.keys() >= COMMON
        assert event["gamer_id"].encode() == key
        assert dict(headers) == {"producer": b"simulator", "schema-version": b"0"}


def test_events_are_of_about_190_bytes() -> None:
    sizes = [len(value) for _, value, _ in records(Traffic(events=20_000, start=START)) if value]
    assert 180 <= sum(sizes) / len(sizes) <= 200


def test_each_game_has_fields_of_its_own_some_nested() -> None:
    fields = {
        event["game"]: {name: event[name] for name in event.keys() - COMMON} for event in sent(Traffic(events=5000))
    }
    assert set(fields) == set(GAMES)
    assert len({frozenset(names) for names in fields.values()}) == len(GAMES)
    kinds = {type(value) for own in fields.values() for value in own.values()}
    assert {list, dict} <= kinds


def test_times_begin_at_the_start_and_keep_to_the_rate() -> None:
    times = [
        datetime.fromisoformat(event["ts"].replace("Z", "+00:00"))
        for event in sent(Traffic(events=101, rate=50, start=START))
    ]
    assert times[0] == START
    assert (times[-1] - times[0]).total_seconds() == 2
    assert times == sorted(times)


def test_big_wins_are_rare_but_there() -> None:
    amounts = [event["amount"] for event in sent(Traffic(events=20_000, start=START))]
    assert min(amounts) > 0
    assert max(amounts) <= 10_000
    assert 0.005 < sum(amount > 9000 for amount in amounts) / len(amounts) < 0.02


def test_volumes_are_skewed_unless_told_otherwise() -> None:
    skewed = Counter(event["game"] for event in sent(Traffic(events=20_000)))
    assert [name for name, _ in skewed.most_common()] == list(GAMES)
    assert skewed["rummy"] > 5 * skewed["poker"]
    even = Counter(event["game"] for event in sent(Traffic(events=20_000, skew=0)))
    assert max(even.values()) < 1.2 * min(even.values())


def test_any_number_of_games_has_events() -> None:
    names = {event["game"] for event in sent(Traffic(events=20_000, games=200, skew=0))}
    assert len(names) == 200
    assert {*GAMES, "game_0008", "game_0200"} <= names


def test_the_schema_version_rises_in_equal_parts() -> None:
    versions = [sum(name.startswith("col_foo_") for name in event) for event in sent(Traffic(events=1000, versions=4))]
    assert versions == sorted(versions)
    assert Counter(versions) == {1: 250, 2: 250, 3: 250, 4: 250}


def test_without_an_end_the_schema_version_still_rises_and_stays_at_the_last() -> None:
    places = (0, 99_999, 100_000, 500_000)
    assert [Traffic(versions=2).version_at(place)[0] for place in places] == [1, 1, 2, 2]


def test_the_share_of_garbage_is_what_was_asked_for_and_of_every_kind() -> None:
    garbage = sum((chunk.garbage for chunk in chunks(Traffic(events=40_000, bad=0.01, start=START))), Counter[str]())
    assert 320 <= garbage.total() <= 480
    assert garbage.keys() == JSON_GARBAGE.keys()


def test_the_counts_are_those_of_the_records() -> None:
    traffic = Traffic(events=20_000, games=12, bad=0.1, versions=2, start=START)
    for chunk in chunks(traffic):
        good: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for _, value, _ in chunk.records:
            name = game_of(value)
            good.update([name] if name else [])
            kinds.update(["empty"] if value == b"" else ["null"] if value is None else [])
        assert good == chunk.games
        assert chunk.games.total() + chunk.garbage.total() == len(chunk.records)
        assert kinds["empty"] == chunk.garbage["empty"]
        assert kinds["null"] == chunk.garbage["null"]


def game_of(value: bytes | None) -> str | None:
    """Return the game of a good event: None for garbage of any kind."""
    try:
        name = json.loads(value or b"").get("game")
    except ValueError:
        return None
    return name if name in GAMES or str(name).startswith("game_") else None


@settings(max_examples=20)
@given(st.integers(0, 3000), st.integers(1, 9), st.integers(0, 5), st.sampled_from([None, 0.5, 30.0, 1e6]))
def test_the_number_of_records_is_exact(events: int, games: int, versions: int, rate: float | None) -> None:
    traffic = Traffic(events=events, games=games, versions=versions, rate=rate, bad=0.1, gamers=3)
    assert sum(len(chunk.records) for chunk in chunks(traffic)) == events


@pytest.mark.parametrize(
    "wrong",
    [{"games": 0}, {"bad": 1.5}, {"rate": 0}, {"versions": -1}, {"events": -1}, {"start": datetime(2026, 1, 1)}],  # noqa: DTZ001 - what is refused
    ids=lambda wrong: next(iter(wrong)),
)
def test_nonsense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Traffic(**wrong)
