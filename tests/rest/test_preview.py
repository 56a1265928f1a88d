"""What a REST sink says it would send is what it sends, and no secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from router import Batch, Opening, Sink
from router.delta.commit import StagedParts
from router.registry import load_registry
from router_sinks import Rest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router.delta.lake import Lake
    from router_demo.api import Api

HUSH = "hush-hush"
NOBODY = "http://127.0.0.1:1"
OAUTH = {"token_url": f"{NOBODY}/token", "client_id": "router", "client_secret": HUSH}


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    """Return events of two partitions, as a lane has them: one of nobody, one of a player with a strange name."""
    rows = [(0, 4, "g-1", 1.5), (0, 1, "a/../b c", 2.0), (1, 7, None, 3.0), (1, 9, "g-2", 4.0), (0, 3, "g-1", 5.0)]
    frame = spark.createDataFrame(rows, "_partition int, _offset bigint, player string, amount double")
    return frame.selectExpr("*", "'events' AS _topic", "current_timestamp() AS _timestamp", "X'41' AS _key")


def resolve_sink(url: str, **options: Any) -> Rest:
    """Return a sink, as a configuration makes it."""
    found = load_registry().resolve(Sink, {"rest": {"url": url, **options}})
    assert isinstance(found, Rest)
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="alone"),
        pytest.param({"rows_per_call": 2}, id="in pairs"),
        pytest.param({"url": "/{event.player}", "rows_per_call": 2, "without": ["player"]}, id="by URL"),
        pytest.param({"rows_per_call": 9, "bytes_per_call": 70, "ordering": "per_key", "key": "player"}, id="by key"),
        pytest.param({"rows_per_call": 2, "body": "ndjson", "method": "PUT"}, id="lines"),
        pytest.param({"rows_per_call": 9, "body": {"wrap": {"events": "$rows"}}}, id="wrapped"),
        pytest.param({"body": {"template": {"text": "{event.player} won", "n": "{event.amount}"}}}, id="a template"),
        pytest.param(
            {
                "method": {"sql": "IF(amount > 4, 'DELETE', 'PUT')"},
                "body": {"text": "{event.player} won {amount}"},
                "rows_per_call": 3,
                "group_by": "player",
            },
            id="lines of text, by method and key",
        ),
        pytest.param({"body": {"urlencoded": {"who": "{event.player}", "n": "{event.amount}"}}}, id="a form"),
        pytest.param({"value": {"to_json": {"nulls": "keep"}}, "body": {"content_type": "text/x"}}, id="another type"),
    ],
)
def test_what_is_shown_is_what_is_sent(
    api: Api, events: DataFrame, lake: Lake, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Without it a route test passes, and the API gets something else."""
    api.reset()
    sink, opening = (
        resolve_sink(f"{api.url}{options.pop('url', '/wins')}", **options),
        Opening(tmp_path, events.limit(0)),
    )
    batch = Batch("games", 0, "wins", "rest", keeps=lambda table: StagedParts(lake, table, "games:run/wins/rest", 0))

    shown = sink.preview(events, opening)
    assert not api.requests()
    sink.prepare(opening).apply(events, batch)

    assert by_call((one["method"], one["url"], one["body"]) for one in shown) == by_call(
        (one["method"], f"{api.url}{one['path']}", read(one["body"], options)) for one in api.requests()
    )


def by_call(calls: Any) -> list[str]:
    """Return calls in an order of their own."""
    return sorted(map(repr, calls))


def read(body: str, options: dict[str, Any]) -> Any:
    """Return the values of a body that the API got."""
    text = body.encode("latin-1").decode()
    if {"text", "urlencoded"} & {*(options.get("body") or ())}:
        return text
    return [json.loads(line) for line in text.splitlines()] if options.get("body") == "ndjson" else json.loads(text)


def test_a_row_without_a_url_is_not_sent(events: DataFrame, tmp_path: Path) -> None:
    """Without it a route test promises a call that no task makes."""
    sink = resolve_sink(f"{NOBODY}/{{event.player}}", allow_dot_segments=True)

    found = sink.preview(events, Opening(tmp_path, events.limit(0), trial=True))

    assert [one["url"] for one in found] == [
        f"{NOBODY}/a%2F..%2Fb%20c",
        f"{NOBODY}/g-1",
        f"{NOBODY}/g-1",
        f"{NOBODY}/g-2",
    ]
    assert [one["rows"] for one in found] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"auth": {"oauth": OAUTH}},
        {"auth": {"api_key": {"query": "key", "value": HUSH}}},
        {"auth": {"bearer": HUSH}, "headers": {"X-Account": HUSH}},
        {"auth": {"hmac": {"key": HUSH}}, "proxy": f"http://me:{HUSH}@127.0.0.1:1", "gzip": True},
    ],
    ids=["oauth", "key in the query", "bearer", "hmac"],
)
def test_nobody_is_asked_and_no_secret_is_shown(events: DataFrame, tmp_path: Path, options: dict[str, Any]) -> None:
    """Without it the output of a failed route test holds what opens the API, or a test waits for a token server."""
    shown = resolve_sink(f"{NOBODY}/wins", **options).preview(events, Opening(tmp_path, events.limit(0), trial=True))

    assert {one["url"] for one in shown} == {f"{NOBODY}/wins"}
    assert shown[0]["body"] == {"player": "a/../b c", "amount": 2.0}
    assert not {name for one in shown for name in one["headers"]} - {"Content-Type", "Content-Encoding"}
    assert HUSH not in repr(shown)


def test_a_body_that_is_no_text_is_shown_in_base64(events: DataFrame, tmp_path: Path) -> None:
    """Without it a route test of an Avro body stops with a traceback."""
    schema = {
        "type": "record",
        "name": "Win",
        "fields": [{"name": "player", "type": ["null", "string"]}, {"name": "amount", "type": "double"}],
    }
    (tmp_path / "win.avsc").write_text(json.dumps(schema))
    value = {"to_avro": {"schema_file": "win.avsc", "wire_format": "none"}}

    found = resolve_sink(f"{NOBODY}/wins", value=value).preview(
        events.filter("_offset = 4"), Opening(tmp_path, events.limit(0))
    )

    assert [(one["body"], one["headers"]) for one in found] == [
        ("AgZnLTEAAAAAAAD4Pw==", {"Content-Type": "application/octet-stream"})
    ]
