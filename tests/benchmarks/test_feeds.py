"""The events are what the figures are about: their size, shape and spread."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import datetime, timezone
from statistics import mean
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from benchmarks.feeds import wire_formats
from benchmarks.feeds.json_events import DECIMALS, JSON, PROFILES

if TYPE_CHECKING:
    from benchmarks.feeds import Feed
    from router_demo.registry import EmbeddedRegistry


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


def test_events_with_a_map_are_the_others_with_a_map() -> None:
    for (value, table), (same, game) in zip(DECIMALS.values(20, 7, 1), JSON.values(20, 7, 1), strict=True):
        event = json.loads(value)
        assert set(event.pop("tags")) == {"source", "campaign"}
        assert (event, table) == (json.loads(same), game)


def test_every_profile_is_of_another_gamer_and_its_key_says_of_whom() -> None:
    """A profile that replaced another would leave one row less than is counted."""
    assert PROFILES.key is not None
    keys = [(PROFILES.key(value), value, table) for value, table in PROFILES.values(50, 7, 1)]

    assert len({key for key, _, _ in keys}) == 50
    for key, value, table in keys:
        profile = json.loads(value)
        assert json.loads(key) == {name: profile[name] for name in ("game", "gamer_id")}
        assert table == f"{profile['game']}_profiles"


def protobuf(payload: bytes, version: int) -> dict[str, Any]:
    message = wire_formats.message_class(version).FromString(payload)
    return {name: getattr(message, name) for name in wire_formats.FIELDS} | {"ts": message.ts.ToDatetime(timezone.utc)}


def avro(payload: bytes, version: int) -> dict[str, Any]:
    read: Any = fastavro.schemaless_reader(io.BytesIO(payload), wire_formats.avro_schema(version), None)
    return {name: read[name] for name in wire_formats.FIELDS}


@pytest.mark.parametrize(
    ("feed", "read", "start"),
    [(wire_formats.PROTOBUF_TEN, protobuf, 6), (wire_formats.AVRO_TEN, avro, 5)],
    ids=["protobuf", "avro"],
)
def test_framed_events_are_those_of_json_and_versions_take_turns(
    schema_registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch, feed: Feed, read: Any, start: int
) -> None:
    """Formats that are held against each other on different events are not compared."""
    monkeypatch.setattr(wire_formats, "registry", lambda: schema_registry)
    events = list(feed.values(30, 7, 1))
    ids = [int.from_bytes(value[1:5], "big") for value, _ in events]

    assert len(set(ids)) == wire_formats.VERSIONS
    assert ids[:10] == ids[10:20]
    for index, ((value, table), (text, same)) in enumerate(zip(events, JSON.values(30, 7, 1), strict=True)):
        event = json.loads(text)
        event["ts"] = datetime.fromisoformat(event["ts"].replace("Z", "+00:00"))
        assert (read(value[start:], index % 10 + 1), table) == (event, same)
    assert feed.decode()[feed.name.removesuffix("_10")]["registry"] == schema_registry.url
