"""The events are what the figures are about: their size, shape and spread."""

from __future__ import annotations

import json
from collections import Counter
from statistics import mean

from benchmarks.feeds.json_events import JSON


def test_events_have_ten_fields_in_about_190_bytes() -> None:
    values = [value for value, _ in JSON.values(1000, 7, 1)]

    assert 180 <= mean(len(value) for value in values) <= 200
    assert {len(json.loads(value)) for value in values} == {10}
    assert {len(JSON.schema.split(","))} == {10}


def test_events_name_their_table_and_spread_evenly() -> None:
    events = list(JSON.values(20_000, 20, 1))

    assert all(json.loads(value)["game"] == table for value, table in events)
    counts = Counter(table for _, table in events)
    assert len(counts) == 20
    assert min(counts.values()) > 800


def test_one_seed_gives_the_same_events_again() -> None:
    assert list(JSON.values(500, 7, 3)) == list(JSON.values(500, 7, 3))
    assert list(JSON.values(500, 7, 3)) != list(JSON.values(500, 7, 4))
