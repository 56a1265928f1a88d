"""Files of before, or of others, with values that readers refuse: `verify` finds them, and a rebuild mends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from router.config.models import Route
from router.engine.audit.verify import Verification
from router.engine.reprocess.refresh import Refresh
from router_decoders import Json
from router_sinks import Delta, Upsert
from tests.engine.parts import Where
from tests.engine.query import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

EVENTS = [{"id": 1}, {"id": 2}, {"id": 3}]
FAR = {
    "text": "CAST(unhex(CASE WHEN event.id = 2 THEN 'FF' ELSE '61' END) AS string)",
    "day": "date_add(DATE'9999-12-01', CASE WHEN event.id = 2 THEN 60 ELSE 1 END)",
}
"""Expressions whose value for the second event readers refuse."""
NEAR = {"text": "'a'", "day": "DATE'2026-01-01'"}
FAR_DAY = pa.array([2_932_937], pa.int32()).cast(pa.date32())
BOUNDS = {"text": ("a", "\ufffd"), "day": ("2026-01-01", "+10000-02-10")}
"""What Delta on Spark notes of a file with such a value."""


def begun(make_query: MakeQuery, folder: Path, column: str, expressions: dict[str, str]) -> Query:
    select = ("event.id", f"{expressions[column]} AS {column}")
    everything = Where(sql="true")
    routes = (
        Route(name="all", match=everything, select=select, sinks=(Delta(table="silver.all"),)),
        Route(name="latest", match=everything, select=select, sinks=(Upsert(table="gold.latest", keys=("id",)),)),
    )
    return make_query(folder, decode=Json(schema="id int"), bronze="bronze.events", routes=routes)


def spoil(query: Query, table: str, column: str, *, bounds: bool) -> None:
    """Write the second row's refused value into its file of a table, as another writer would have done."""
    folder = Path(query.lake.address(table))
    (file,) = [file for file in folder.glob("*.parquet") if 2 in pq.read_table(file, columns=["id"])["id"].to_pylist()]
    rows = pq.read_table(file)
    place = rows.column("id").to_pylist().index(2)
    values = rows.column(column).combine_chunks()
    if column == "text":
        raw = [b"a"] * len(rows)
        raw[place] = b"\xff"
        content = pa.array(raw, pa.binary())
        spoiled: Any = pa.Array.from_buffers(pa.string(), len(raw), content.buffers())
    else:
        spoiled = pa.concat_arrays([values[:place], FAR_DAY, values[place + 1 :]])
    number = rows.schema.get_field_index(column)
    pq.write_table(rows.set_column(number, rows.schema.field(number), spoiled), file)

    (log,) = [log for log in (folder / "_delta_log").glob("*.json") if file.name in log.read_text()]
    lines = []
    for line in log.read_text().splitlines():
        action = json.loads(line)
        if action.get("add", {}).get("path") == file.name:
            statistics = json.loads(action["add"]["stats"])
            for name, bound in zip(("minValues", "maxValues"), BOUNDS[column], strict=True):
                statistics[name].pop(column, None)
                if bounds:
                    statistics[name][column] = bound
            action["add"] |= {"size": file.stat().st_size, "stats": json.dumps(statistics)}
        lines.append(json.dumps(action))
    log.write_text("\n".join(lines) + "\n")


def wrong(query: Query, *, contents: bool) -> dict[str, str]:
    audits = Verification.of_config(query.config, contents=contents).audit_tables()
    return {audit.table: "; ".join(audit.problems) for audit in audits if audit.problems}


@pytest.mark.parametrize("bounds", [True, False], ids=["with bounds", "without"])
@pytest.mark.parametrize("column", ["text", "day"])
def test_a_file_with_a_refused_value_is_found_and_mended(
    make_query: MakeQuery, tmp_path: Path, spark: SparkSession, column: str, bounds: bool
) -> None:
    """Without it readers fail on a table for good, and `verify` is content with it."""
    query = begun(make_query, tmp_path, column, NEAR)
    query.write_run_id()
    query.take(records(EVENTS))
    assert wrong(query, contents=True) == {}
    for table in ("silver.all", "gold.latest"):
        spoil(query, table, column, bounds=bounds)

    found = wrong(query, contents=not bounds)
    assert found.keys() == {"silver.all", "gold.latest"}
    assert all(f"{column}: " in problem for problem in found.values())
    assert all("1 file is refused by readers: part" in problem for problem in found.values())

    taken = query.taken
    query = begun(make_query, tmp_path, column, FAR)
    query.taken.update(taken)
    refreshed = Refresh(query.context(spark.newSession()), ("silver.all", "gold.latest")).run()
    assert refreshed.failed == {}
    assert {table.table: table.refused for table in refreshed.done} == {"silver.all": 0, "gold.latest": 1}
    assert refreshed.refused == 1, "rows that are landed belong to no table yet"
    assert wrong(query, contents=True) == {}
    query.take(records([{"id": 4}], first=3))
    for table in ("silver.all", "gold.latest"):
        assert [row["id"] for row in query.rows(table, "id")] == [1, 3, 4]
