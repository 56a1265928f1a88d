"""Tables that delta-rs cannot write correctly go through Delta on Spark, under the same transaction ids."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake import write_deltalake

from router import TableError
from router.delta.constraints import features_against_appends
from router.delta.lake import Lake
from router.engine.commit.committers import Committers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.delta.commit import TableCommit

COLUMNS = "id BIGINT, game STRING, amount INT"
TABLES = {
    "plain": f"({COLUMNS}) USING delta",
    "feed": f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed'='true')",
    "vectors": f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableDeletionVectors'='true')",
    "partitioned": f"({COLUMNS}) USING delta PARTITIONED BY (game)",
    "clustered": f"({COLUMNS}) USING delta CLUSTER BY (game)",
    "checked": f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.constraints.positive'='id > 0')",
    "not_null": "(id BIGINT NOT NULL, game STRING, amount INT) USING delta",
    "widening": f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.enableTypeWidening'='true')",
    "mapped": f"({COLUMNS}) USING delta TBLPROPERTIES ('delta.columnMapping.mode'='name')",
}
KINDS = [*TABLES, "generated"]
BY_RS = {"plain", "feed", "vectors"}
ROWS = pa.table({
    "id": [1, 2, None],
    "game": ["uno", None, "poker"],
    "amount": pa.array([5, None, 7], pa.int32()),
}).slice(0, 2)  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """Hold the tables of every kind and what was committed to them."""

    lake: Lake
    spark: SparkSession
    works: dict[str, TableCommit]
    made: int

    def rows(self, name: str) -> list[dict[str, Any]]:
        frame = self.spark.read.format("delta").load(self.lake.address(f"silver.{name}"))
        return [row.asDict(recursive=True) for row in frame.orderBy("id").collect()]

    def version(self, name: str) -> int:
        handle = self.lake.open(f"silver.{name}")
        assert handle is not None
        return handle.version()


@pytest.fixture(scope="module")
def tables(spark: SparkSession, land: Callable[..., TableCommit], tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Make a table of every kind and commit the same rows to each."""
    lake = Lake.at(str(tmp_path_factory.mktemp("lake")))
    for name, sql in TABLES.items():
        spark.sql(f"CREATE TABLE delta.`{lake.address(f'silver.{name}')}` {sql}")
    generated = SparkTable.create(spark).location(lake.address("silver.generated")).addColumn("id", "BIGINT")
    generated.addColumn("double_id", "BIGINT", generatedAlwaysAs="id * 2").execute()
    works = {name: land(lake, f"silver.{name}", ROWS, 3) for name in KINDS}
    made = Committers(lake, spark).commit_all(tuple(works.values()), {}, {"router.batch": "3"})
    return Tables(lake, spark, works, made)


@pytest.mark.parametrize("name", KINDS)
def test_the_rows_are_in_the_table(tables: Tables, name: str) -> None:
    """Without it a table made by somebody else gets rows that its readers cannot read, or none."""
    assert tables.made == len(KINDS)
    assert [{key: row[key] for key in ROWS.column_names} for row in tables.rows(name)] == ROWS.to_pylist()


@pytest.mark.parametrize("name", KINDS)
def test_only_what_delta_rs_keeps_is_left_to_it(tables: Tables, name: str) -> None:
    """Without it a check is broken, or 200 plain tables pay for a Spark job each."""
    handle = tables.lake.open(f"silver.{name}")

    assert handle is not None
    assert bool(features_against_appends(handle)) == (name not in BY_RS)
    assert handle.transaction_version(f"query/route/sink/silver.{name}") == 3


def test_generated_columns_are_generated(tables: Tables) -> None:
    """Without it a generated column is null, which its table says it never is."""
    assert [row["double_id"] for row in tables.rows("generated")] == [2, 4]


def test_a_replay_commits_nothing(tables: Tables) -> None:
    """Without it a restart doubles the rows of tables that Spark writes."""
    before = {name: tables.version(name) for name in KINDS}

    assert Committers(tables.lake, tables.spark).commit_all(tuple(tables.works.values()), {}, {}) == 0

    assert {name: tables.version(name) for name in KINDS} == before


@pytest.mark.parametrize(
    ("name", "row"),
    [("checked", {"id": -1}), ("not_null", {"id": None})],
    ids=["check", "not null"],
)
def test_a_broken_promise_keeps_other_tables_from_nothing(
    tables: Tables, land: Callable[..., TableCommit], name: str, row: dict[str, Any]
) -> None:
    """Without it one table's constraint is broken silently, or stops the other tables and does not say whose it was."""
    bad = land(tables.lake, f"silver.{name}", pa.Table.from_pylist([row], pa.schema([("id", pa.int64())])), 4)
    good = land(tables.lake, "silver.fresh_" + name, ROWS, 4)

    with pytest.raises(TableError) as caught:
        Committers(tables.lake, tables.spark).commit_all((bad, good), {}, {})

    assert caught.value.table == f"silver.{name}"
    assert len(tables.rows(name)) == 2
    assert len(tables.rows(f"fresh_{name}")) == 2


def test_what_spark_commits_is_read_by_others_too(
    spark: SparkSession, land: Callable[..., TableCommit], tmp_path: Path
) -> None:
    """Without it a table with a time of long ago is read by Spark only."""
    lake, long_ago = Lake.at(str(tmp_path)), datetime(1, 1, 1, tzinfo=timezone.utc)
    rows = pa.table({"at": pa.array([long_ago], pa.timestamp("us", "UTC"))})
    for version in (0, 1):
        Committers(lake, spark, only_spark=True).commit_all((land(lake, "silver.old", rows, version),), {}, {})

    handle = lake.open("silver.old")
    assert handle is not None
    assert handle.to_pyarrow_table().column("at").to_pylist() == [long_ago] * 2


GROWN = pa.struct([("x", pa.int64()), ("new", pa.string())])
WIDER = {
    "top": (pa.int32(), pa.int64(), 1, 2**40),
    "float": (pa.float32(), pa.float64(), 1.5, 1e300),
    "number": (pa.int32(), pa.float64(), 2**31 - 1, 0.5),
    "nested": (pa.struct([("x", pa.int32())]), GROWN, {"x": 1}, {"x": 2**40, "new": "n"}),
    "list": (pa.list_(pa.int16()), pa.list_(pa.int32()), [1], [2**20]),
    "map_": (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [("k", 1)], [("k", 2**40)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["made here", "made here by Spark", "foreign"])
def test_columns_are_widened_in_place(
    spark: SparkSession, land: Callable[..., TableCommit], tmp_path: Path, kind: str
) -> None:
    """Without it a counter that outgrew its type is a dead letter, or the old rows are lost."""
    lake = Lake.at(str(tmp_path))
    narrow = pa.table({"id": [1], **{name: pa.array([old], kind) for name, (kind, _, old, _) in WIDER.items()}})
    wide = pa.table(
        {"id": [2], **{name: pa.array([new], kind) for name, (_, kind, _, new) in WIDER.items()}, "added": ["x"]}
    )
    by_spark = kind == "made here by Spark"
    committer, folder = Committers(lake, spark, only_spark=by_spark), "_staged/query" if by_spark else None
    if kind == "foreign":
        write_deltalake(lake.address("silver.t"), narrow)
    else:
        assert committer.commit_all((land(lake, "silver.t", narrow, folder=folder),), {}, {}) == 1
    work = land(lake, "silver.t", wide, 1, folder=folder)
    assert work.widened

    assert committer.commit_all((work,), {}, {}) == 1
    assert committer.commit_all((work,), {}, {}) == 0

    handle = lake.open("silver.t")
    assert handle is not None
    assert handle.transaction_version(work.app_id) == 1
    assert ("typeWidening" in (handle.protocol().writer_features or ())) == (kind == "foreign")
    old, new = Tables(lake, spark, {}, 0).rows("t")
    assert old == {
        "id": 1,
        "top": 1,
        "float": 1.5,
        "number": float(2**31 - 1),
        "nested": {"x": 1, "new": None},
        "list": [1],
        "map_": {"k": 1},
        "added": None,
    }
    assert new == {
        **{"id": 2, "top": 2**40, "float": 1e300, "number": 0.5, "nested": {"x": 2**40, "new": "n"}},
        **{"list": [2**20], "map_": {"k": 2**40}, "added": "x"},
    }


def test_two_targets_of_one_table_commit_one_after_the_other(
    spark: SparkSession, land: Callable[..., TableCommit], lake: Lake
) -> None:
    """Without it the second route into a new table fails, because the first has just made it."""
    works = tuple(land(lake, "silver.both", ROWS, 0, target=f"{route}/sink") for route in ("one", "two"))

    assert Committers(lake, spark).commit_all(works, {"silver.both": None}, {}) == 2

    handle = lake.open("silver.both")
    assert handle is not None
    assert handle.version() == 1
    assert handle.to_pyarrow_table().num_rows == 4
