"""Tables read by name, as they are in a notebook."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from router import TableError, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake

LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def games(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a lake with two versions of one table, and one version of another that keeps no changes."""
    kept = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(lake.address("silver.uno"), pa.table({"k": ["a"], "v": [1]}), configuration=kept)
    write_deltalake(lake.address("silver.uno"), pa.table({"k": ["b"], "v": [2]}), mode="append")
    write_deltalake(lake.address("silver.poker"), pa.table({"k": ["c"], "chips": [3.5]}))
    monkeypatch.setenv("LAKE", lake.root)
    return lake


def read_sorted(*given: Any, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, read(*given, **options).collect()), key=repr)


def test_a_table_is_read_by_its_name(games: Lake) -> None:
    """Without it every notebook begins with paths."""
    assert read_sorted("silver.uno") == [("a", 1), ("b", 2)]
    assert read_sorted("silver.uno", lake=games.root, as_of=0) == [("a", 1)]


def test_tables_of_a_pattern_are_read_together(games: Lake) -> None:
    """Without it a question about all games is a loop over hundreds of tables."""
    assert read("silver.*").columns == ["table", "k", "chips", "v"]
    assert read_sorted("silver.*") == [
        ("silver.poker", "c", 3.5, None), ("silver.uno", "a", None, 1), ("silver.uno", "b", None, 2)
    ]  # fmt: skip


def test_a_table_is_read_as_it_was(games: Lake) -> None:
    """Without it a report of last week cannot be made again."""
    first = DeltaTable(games.address("silver.uno"), version=0)
    written = datetime.fromtimestamp(first.history(1)[0]["timestamp"] / 1000, tz=timezone.utc)
    later = datetime.now(timezone.utc) + timedelta(hours=1)

    assert ("a", 1) in read_sorted("silver.uno", as_of=written.isoformat())
    assert read_sorted("silver.u*", as_of=later) == [("silver.uno", "a", 1), ("silver.uno", "b", 2)]
    with pytest.raises(TableError, match="at that time"):
        read("silver.*", as_of=LONG_AGO)


def test_changes_are_read_since_a_version_or_a_time(games: Lake) -> None:
    """Without it whoever follows a table reads all of it again."""
    changed = read("silver.uno", changes_since=0).drop("_commit_timestamp").collect()

    assert [tuple(row) for row in changed] == [("b", 2, "insert", 1)]
    assert read("silver.uno", changes_since="2026-01-01").count() == 2
    assert read("silver.uno", changes_since=1).count() == 0
    with pytest.raises(TableError, match="enableChangeDataFeed"):
        read("silver.poker", changes_since=0)


def test_a_name_that_is_not_there_is_answered_with_those_that_are(games: Lake) -> None:
    """Without it a typing error is a trace of Java."""
    with pytest.raises(TableError, match=r"silver\.poker, silver\.uno"):
        read("silver.unno")
