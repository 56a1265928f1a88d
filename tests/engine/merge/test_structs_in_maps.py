"""Structs inside maps that gain a field, or come with their fields in another order, in tables with one row per key."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router.config.models import Maintenance
from router.engine.checkpoint_store import LearntSchemas
from router.engine.maintenance import TableMaintenance
from router.engine.outbox.apply import layout_of
from router_decoders import Json
from router_sinks import Upsert
from tests.engine.profiles import event, raw, route
from tests.engine.query import BEGIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.engine.query import Query

LATEST = Upsert(table="silver.p", keys=["event.gamer"])
SINKS = {"latest": LATEST, "history": LATEST.model_copy(update={"history": "scd2"})}
NAMES = ("props", "many", "inner")


def decoder(item: str) -> Json:
    """Return a decoder of maps with an item, bare and inside other types."""
    maps = f"props map<string, {item}>, many array<map<string, {item}>>, inner struct<m: map<string, {item}>>"
    return Json(schema=f"game string, gamer string, level int, {maps}")


FORMER = decoder("struct<a: int>")
LATER = decoder("struct<b: string, a: int, c: struct<d: int>>")
"""With new fields, and in another order."""


def profile(gamer: str, level: int, **item: Any) -> dict[str, Any]:
    maps = {"props": {"x": item}, "many": [{"x": item}], "inner": {"m": {"x": item}}}
    return event("uno", gamer, level, **maps)


def aged(records: pa.Table) -> pa.Table:
    """Return records of which the first is a day older than the others."""
    times = [BEGIN - timedelta(days=1), *records["timestamp"].to_pylist()[1:]]
    column = records.schema.get_field_index("timestamp")
    return records.set_column(column, records.schema.field(column), pa.array(times, records.schema.field(column).type))


def both(query: Query) -> list[tuple[str, int, list[Any]]]:
    """Return gamer, level and the item of the maps of each row, as delta-rs and Spark both read them."""
    by_delta_rs = []
    for row in query.rows("silver.p", "gamer", "level", *NAMES):
        item = dict(row["props"])["x"]
        assert dict(row["many"][0]) == dict(row["inner"]["m"]) == {"x": item}
        by_delta_rs.append((row["gamer"], row["level"], json.dumps(item, sort_keys=True)))
    frame = query.spark.read.format("delta").load(query.lake.address("silver.p")).select("gamer", "level", *NAMES)
    by_spark = []
    for row in frame.collect():
        item = row["props"]["x"]
        assert row["many"][0]["x"] == row["inner"]["m"]["x"] == item
        by_spark.append((row["gamer"], row["level"], json.dumps(item.asDict(recursive=True), sort_keys=True)))
    assert sorted(by_spark) == sorted(by_delta_rs)
    return [(gamer, level, list(json.loads(item).values())) for gamer, level, item in sorted(by_spark)]


@pytest.mark.parametrize("commit", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SINKS)
def test_a_struct_in_a_map_gains_fields(
    make_query: Any, tmp_path: Path, spark: SparkSession, kind: str, commit: str
) -> None:
    """Without it a new field stops a table for ever, and the outbox keeps its rows for ever."""
    query = make_query(tmp_path, commit=commit, decode=FORMER, routes=route(SINKS[kind]))
    query.take(aged(raw(profile("a", 1, a=1), profile("b", 1, a=1))))
    query.take(raw(profile("c", 1, a=1), first=2))
    query = query.restarted(decode=LATER)
    query.take(raw(profile("a", 2, b="new", a=2, c={"d": 3}), profile("d", 1, b="new", a=1), first=3))
    query.take(raw(profile("b", 2, a=2), first=5))

    newest = [
        ("a", 2, [2, "new", {"d": 3}]), ("b", 2, [2, None, None]), ("c", 1, [1, None, None]),
        ("d", 1, [1, "new", None]),
    ]  # fmt: skip
    older = [("a", 1, [1, None, None]), ("b", 1, [1, None, None])]
    expected = sorted(newest + (older if kind == "history" else []), key=lambda row: row[:2])
    assert both(query) == expected

    care = TableMaintenance(query.lake, lambda: spark, (Maintenance(tables="silver.p", commits=1),))
    result = care.maintain_table("silver.p", care.plans[0])
    assert result.files > result.into == 1
    assert both(query) == expected
    assert care.maintain_table("silver.p", care.plans[0]).by_spark == ""  # every file has the fields now

    outbox = "outbox.games__profiles__upsert"
    outboxes = query.batches.outboxes
    (target,) = [target for target in layout_of(outboxes.config, spark, LearntSchemas()).targets if target.outbox]
    assert query.content(outbox).num_rows == 6
    assert outboxes.retention._delete_from_outbox(target, outbox, BEGIN) == 1
    assert query.content(outbox).num_rows == 5


def test_rows_that_wait_are_joined_by_name(make_query: Any, tmp_path: Path) -> None:
    """Without it rows that wait for a table end every run once fields come in another order."""
    query = make_query(tmp_path, decode=FORMER, routes=route(LATEST))
    place = Path(query.lake.address("silver.p"))
    place.mkdir(parents=True)
    (place / "notes.csv").write_text("mine")
    query.take(raw(profile("a", 1, a=1), profile("b", 1, a=1)))
    query = query.restarted(decode=LATER)
    query.take(raw(profile("a", 2, b="new", a=2, c={"d": 3}), first=2))
    query.take(raw(profile("c", 3, b="x", a=3), first=3))
    (place / "notes.csv").unlink()
    query = query.restarted(decode=decoder("struct<c: struct<d: int>, a: int, b: string>"))
    query.take(raw(profile("d", 4, a=4), first=4))

    assert both(query) == [
        ("a", 2, [2, "new", {"d": 3}]), ("b", 1, [1, None, None]), ("c", 3, [3, "x", None]), ("d", 4, [4, None, None])
    ]  # fmt: skip
