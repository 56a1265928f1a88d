"""Keyed tables with values that are too long for a folder's name: they are merged, and maintained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Maintenance
from router.engine.maintenance import TableMaintenance
from router_decoders import Json
from router_sinks import Delta, Upsert
from tests.engine.profiles import event, raw, route

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DECODE = Json(schema="game string, gamer string, level int, town string, land string")
LATIN = "x" * 300
GREEK = "ω" * 50 + "/ %" * 5
"""No 255 bytes, but more once they are percent-encoded."""
LATEST = Upsert(table="silver.p", keys=["event.gamer"], partition_by=("event.town", "event.land"))
SINKS = {"latest": LATEST, "history": LATEST.model_copy(update={"history": "scd2"})}


def both(query: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return rows as delta-rs and Spark both read them."""
    by_delta_rs = [tuple(row[name] for name in columns) for row in query.rows("silver.p", *columns)]
    frame = query.spark.read.format("delta").load(query.lake.address("silver.p")).select(*columns)
    by_spark = [tuple(row) for row in frame.collect()]
    assert sorted(by_spark, key=repr) == sorted(by_delta_rs, key=repr)
    return sorted(by_spark, key=repr)


@pytest.mark.parametrize("commit", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SINKS)
def test_a_long_value_of_a_partition_is_merged(make_query: Any, tmp_path: Path, kind: str, commit: str) -> None:
    """Without it one record with a long text stops its table for ever."""
    query = make_query(tmp_path, commit=commit, decode=DECODE, routes=route(SINKS[kind]))
    query.take(raw(event("uno", "a", 1, town="short", land="s"), event("uno", "b", 1, town="short", land=None)))
    query.take(
        raw(
            event("uno", "a", 2, town=LATIN, land=GREEK),
            event("uno", "c", 1, town="é" * 100, land="l"),
            event("uno", "d", 1, town="short", land="s"),
            first=2,
        )
    )
    # Rows of long partitions change within it, leave it, and come back.
    query.take(raw(event("uno", "a", 3, town=LATIN, land=GREEK), event("uno", "c", 2, town="s", land="l"), first=5))
    query.take(raw(event("uno", "b", 2, town=LATIN[:260], land="l"), first=7))

    found = both(query, "gamer", "level", "town", "land")
    newest = [
        ("a", 3, LATIN, GREEK), ("b", 2, LATIN[:260], "l"), ("c", 2, "s", "l"), ("d", 1, "short", "s"),
    ]  # fmt: skip
    older = [
        ("a", 1, "short", "s"), ("a", 2, LATIN, GREEK), ("b", 1, "short", None), ("c", 1, "é" * 100, "l"),
    ]  # fmt: skip
    assert found == sorted(newest + (older if kind == "history" else []), key=repr)
    if kind == "history":
        current = query.spark.read.format("delta").load(query.lake.address("silver.p")).filter("is_current")
        assert sorted(row["level"] for row in current.collect()) == [1, 2, 2, 3]


def test_a_table_with_long_partitions_is_compacted(make_query: Any, tmp_path: Path, spark: SparkSession) -> None:
    """Without it such a table is never maintained, whether rows are merged into it or appended."""
    appended = Delta(table="silver.p", partition_by=("event.town",))
    query = make_query(tmp_path, decode=DECODE, routes=route(appended))
    for first in range(3):
        query.take(raw(event("uno", "a", first, town=LATIN), event("uno", "b", first, town="s"), first=2 * first))
    before = both(query, "gamer", "level", "town")
    care = TableMaintenance(query.lake, lambda: spark, (Maintenance(tables="silver.p", commits=1),))

    result = care.maintain_table("silver.p", care.plans[0])
    again = care.maintain_table("silver.p", care.plans[0])

    assert (result.files, result.into) == (6, 2)
    assert (again.files, again.into) == (0, 0)
    assert both(query, "gamer", "level", "town") == before
    assert "partitions by town would have a name of" in again.by_spark


def test_appended_rows_of_long_partitions_can_be_merged(make_query: Any, tmp_path: Path) -> None:
    """Without it a sink that appended, and merges now, stops at the values that its table has."""
    query = make_query(tmp_path, decode=DECODE, routes=route(Delta(table="silver.p", partition_by=("event.town",))))
    query.take(raw(event("uno", "a", 1, town=LATIN), event("uno", "b", 1, town="s")))
    merging = query.restarted(routes=route(Upsert(table="silver.p", keys=["event.gamer"])))

    merging.take(raw(event("uno", "a", 2, town="s"), event("uno", "b", 2, town="s"), first=2))

    assert both(merging, "gamer", "level", "town") == [("a", 2, "s"), ("b", 2, "s")]
