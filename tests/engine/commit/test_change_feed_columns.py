"""Columns whose names Delta's change data feed takes stay out of tables that have one: nobody could read the feed."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from router import StartError
from router_decoders import Json
from router_sinks import Delta, Upsert
from tests.engine.conftest import EITHER
from tests.engine.profiles import event, raw, route

FEED = {"delta.enableChangeDataFeed": "true"}
DECODE = Json(schema="game string, gamer string, level int, _change_type string")
SINKS = {
    "appended": lambda **options: Delta(table="silver.t", **options),
    "merged": lambda **options: Upsert(table="silver.t", keys=["event.gamer"], **options),
}
ROWS = (event("uno", "a", 1), event("uno", "b", 2, _change_type="insert"))


@pytest.mark.parametrize("sink", SINKS)
def test_a_start_names_the_column(make_query: Any, sink: str, tmp_path: Any) -> None:
    """Without it the table takes rows for months, and its first reader finds that its feed cannot be read."""
    query = make_query(tmp_path, decode=DECODE, routes=route(SINKS[sink](properties=FEED)))
    query.batches.decider.planner.checks_columns = True  # as at a start
    with pytest.raises(
        StartError, match=rf"route profiles, sink {'delta' if sink == 'appended' else 'upsert'}: column _"
    ):
        query.take(raw(*ROWS))


@pytest.mark.parametrize("commit", EITHER)
@pytest.mark.parametrize("sink", SINKS)
def test_rows_with_such_a_column_are_dead_letters(make_query: Any, sink: str, commit: str, tmp_path: Any) -> None:
    """Without it a producer makes the feed of a table unreadable, by a field."""
    without = Json(schema="game string, gamer string, level int")
    query = make_query(tmp_path, commit=commit, decode=without, routes=route(SINKS[sink]()))
    query.take(raw(event("uno", "c", 0)))
    DeltaTable(query.lake.address("silver.t")).alter.set_table_properties(FEED)
    since = query.open("silver.t").version()
    query = query.restarted(decode=DECODE)
    query.take(raw(*ROWS, first=1))

    assert query.rows("silver.t", "gamer") == [{"gamer": "a"}, {"gamer": "c"}]

    ((reason, offset),) = query.letters("reason", "offset")
    assert "column _change_type: the table's change data feed has a column of this name" in reason
    assert offset == 2
    feed = query.spark.read.option("readChangeFeed", "true").option("startingVersion", since)
    assert feed.format("delta").load(query.lake.address("silver.t")).count() == 1


def test_a_table_without_a_feed_has_such_columns(make_query: Any, tmp_path: Any) -> None:
    """Without it a stream that reads the feed of another table cannot keep what it read."""
    query = make_query(tmp_path, decode=DECODE, routes=route(Delta(table="silver.t")))
    query.batches.decider.planner.checks_columns = True
    query.take(raw(*ROWS))
    assert [row["_change_type"] for row in query.rows("silver.t")] == [None, "insert"]
