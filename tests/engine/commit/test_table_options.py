"""Tables are made as their sinks ask for, divided, with properties and comments, and have the rows of any other."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pydantic import ValidationError

from router.config.models import Bronze, Route
from router.delta.commit import TableCommit, to_delta
from router.delta.lake import Lake
from router.delta.parquet_writer import divide_by_partition
from router.delta.replace import create_table
from router.engine.commit.committers import _is_unfinished
from router.errors import StartError
from router.storage.locations import TableLocation
from router_decoders.json import Json
from router_rules.rules import Sql
from router_sinks.tables import Delta, Tables
from tests.engine.query import records

if TYPE_CHECKING:
    from tests.engine.conftest import MakeQuery

DDL = "game string, level int, day date, won boolean, n bigint"
PARTED = {"partition_by": ("game", "event.day", "level", "won")}
SINKS = (
    Tables(table="silver.{event.game}", partition_by=("day", "won"), comment="of one game", comments={"n": "how many"}),
    Delta(table="gold.parted", **PARTED, properties={"delta.enableChangeDataFeed": "true"}),
    Delta(
        table="gold.owned",
        properties={"team": "the 'good'", "delta.appendOnly": "true"},
        comments={"event.level": "1 to 9"},
    ),
    Delta(table="gold.clustered", cluster_by=("n", "game"), columns="seen"),
    Delta(table="gold.plain"),
    Delta(table="gold.late"),
)
ROUTE = Route(name="games", match=Sql(where="true"), sinks=SINKS)


def events(first: int) -> pa.Table:
    """Return events in which every column is null at times; the last batch brings a column's first value."""
    found = [
        {
            "game": None if i % 5 == 4 else ["uno", "skat/x y", "", "uno"][i % 4],
            "level": None if i % 3 == 2 else i % 3 - 1,
            "day": None if i % 4 == 3 else f"2026-01-0{i % 4 + 1}",
            "won": [True, False, None][i % 3],
            **({"n": i} if first else {}),
        }
        for i in range(first, first + 20)
    ]
    return records(found, first)


def test_rows_are_split_by_the_values_of_a_partition() -> None:
    """Without it a reader that leaves out partitions misses rows."""
    columns = {"g": ["a", None, "a", ""], "d": [date(2026, 1, 2), None, None, None], "n": [1, 2, 3, 4]}
    rows = pa.RecordBatch.from_pydict({**columns, "b": [True, True, True, True]})

    found = {values: part.to_pydict() for values, part in divide_by_partition(rows, ("g", "d", "b", "absent"))}

    rest = (("b", "true"), ("absent", None))
    nothing = (("g", None), ("d", None), *rest)
    assert {values: part["n"] for values, part in found.items() if values != nothing} == {
        (("g", "a"), ("d", "2026-01-02"), *rest): [1],
        (("g", "a"), ("d", None), *rest): [3],
    }
    assert sorted(n for _, part in divide_by_partition(rows, ("g",)) for n in part.to_pydict()["n"]) == [1, 2, 3, 4]


@pytest.mark.parametrize("commit", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
def test_tables_are_made_as_asked(make_query: MakeQuery, tmp_path: Path, commit: str) -> None:
    """Without it the options are for upserts only, or a divided table has other rows than a plain one."""
    sinks = list(SINKS)
    bronze = Bronze(
        table="bronze.{topic}", partition_by=("partition",), comment="as received", comments={"key": "whose"}
    )
    places = {0: f"{tmp_path}/games/{{event.game}}", 3: f"{tmp_path}/clustered", 5: f"{tmp_path}/late"}
    for number, place in places.items():  # some tables do not lie in the lake's layout
        sinks[number] = sinks[number].model_copy(update={"location": TableLocation(place=place)})
    route = ROUTE.model_copy(update={"sinks": tuple(sinks)})
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=(route,), bronze=bronze)

    query.take(events(0))
    sinks[-1] = sinks[-1].model_copy(update={"partition_by": ("level",)})
    query = query.restarted(routes=(ROUTE.model_copy(update={"sinks": tuple(sinks)}),))
    query.take(events(20))

    plain = query.rows("gold.plain")
    wanted = sorted(({**row, "game": row["game"] or None} for row in plain), key=repr)
    names = list(plain[0])
    for table in ("gold.owned", "gold.late"):
        assert query.rows(table, *names) == plain
    assert len(plain) == 40
    spark = query.spark.read.format("delta")
    for table in ("gold.parted", "gold.clustered"):
        assert sorted(
            (row.asDict() for row in spark.load(query.lake.address(table)).select(*names).collect()), key=repr
        ) == (wanted if table == "gold.parted" else plain)
    assert (
        sorted(({**row, "game": row["game"] or None} for row in query.rows("gold.parted", *names)), key=repr) == wanted
    )
    about = {table: query.open(table).metadata() for table in query.tables()}
    assert about["gold.parted"].partition_columns == ["game", "day", "level", "won"]
    assert about["silver.uno"].partition_columns == ["day", "won"]
    assert about["bronze.events"].partition_columns == ["partition"]
    assert (about["silver.uno"].description, about["bronze.events"].description) == ("of one game", "as received")
    assert about["gold.parted"].configuration["delta.enableChangeDataFeed"] == "true"
    assert about["gold.owned"].configuration["team"] == "the 'good'"
    assert "clustering" in (query.open("gold.clustered").protocol().writer_features or ())
    comments = {"silver.uno": ("n", "how many"), "gold.owned": ("level", "1 to 9"), "bronze.events": ("key", "whose")}
    for table, (column, text) in comments.items():
        (field,) = [field for field in query.open(table).schema().fields if field.name == column]
        assert field.metadata == {"comment": text}
    assert len(query.rows("bronze.events")) == 40
    for table, place in {"silver.uno": "games/uno", "gold.clustered": "clustered", "gold.late": "late"}.items():
        assert query.lake.address(table) == f"{tmp_path}/{place}"
        assert (tmp_path / place / "_delta_log").is_dir()
        assert not Path(query.lake.root, *table.split(".")).exists()
    assert Lake.at(query.lake.root).as_noted().open("silver.uno"), "who has no configuration finds it as well"
    if commit == "auto":  # files that are divided alike are committed as they are
        actions = pa.table(query.open("gold.parted").get_add_actions(flatten=True)).to_pylist()
        assert {action["partition.won"] for action in actions} == {True, False, None}
        assert query.open("gold.parted").version() == 2  # made; the first batch; the second


def test_a_table_cannot_be_divided_by_everything(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it the first batch fails instead of the start."""
    for sink, what in (
        (Delta(table="a.b", partition_by=("nope",)), "names nope"),
        (Delta(table="a.b", cluster_by=("won",)), "no table is divided by"),
        (Delta(table="a.b", partition_by=("game", "level", "day", "won", "n")), "names every column"),
    ):
        route = Route(name="games", match=Sql(where="true"), sinks=(sink,))
        query = make_query(tmp_path, decode=Json(schema=DDL), routes=(route,))
        with pytest.raises(StartError, match=what):
            query.batches.decider.planner.plan_batch(query.spark.createDataFrame(events(0)))
    with pytest.raises(ValidationError, match="topic, partition, not offset"):
        Bronze(table="bronze.all", partition_by=("offset",))


def test_a_table_that_was_half_made_is_finished(tmp_path: Path) -> None:
    """Without it a process that dies between making a table and dividing it leaves one that is never clustered."""
    lake, schema = Lake.at(str(tmp_path)), pa.schema([("n", pa.int64())])
    clustered, feed = Delta(table="a.b", cluster_by=("n",)), Delta(table="a.b", properties={"team": "x"})
    made = create_table(lake, "a.b", schema)
    work = TableCommit("r/delta", "a.b", "id", 0, (), to_delta(schema), decided=-1)

    assert _is_unfinished(made, work, clustered)
    assert _is_unfinished(made, work, feed)
    assert not _is_unfinished(made, work, Delta(table="a.b", comment="delta-rs makes it whole"))
    assert not _is_unfinished(made, replace(work, decided=0), clustered)  # somebody else's
    write_deltalake(made, pa.table({"n": [1]}), mode="append")
    made.update_incremental()
    assert not _is_unfinished(made, work, clustered)
