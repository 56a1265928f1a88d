"""The simulator's events, with lists and structs in them, in every format: for what decoding alone costs."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.feeds import Feed
from benchmarks.registries import registry
from router_demo.records import opened, records
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUTES = Path(__file__).parents[2] / "routes"
START = datetime(2026, 11, 1, tzinfo=timezone.utc)


def _values(form: str, events: int, games: int, seed: int) -> Iterator[tuple[bytes, str]]:
    traffic = Traffic(events=events, games=games, versions=1, seed=seed, start=START)
    url = None if form == "json" else registry().url
    with opened(form, url, _subject(form)) as write:
        for _, value, _ in records(traffic, write):
            yield value or b"", "events"


@cache
def _decode(form: str) -> dict[str, Any]:
    if form == "json":
        return {"json": {"schema_file": str(ROUTES / "games_json.schema.json")}}
    return {form: {"registry": registry().url, "subjects": [_subject(form)]}}


def _subject(form: str) -> str:
    return f"nested-{form}"


def _feed(form: str) -> Feed:
    return Feed(f"nested_{form}", "", partial(_values, form), partial(_decode, form))


NESTED_JSON, NESTED_PROTOBUF, NESTED_AVRO = _feed("json"), _feed("protobuf"), _feed("avro")
