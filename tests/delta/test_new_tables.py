"""One model says how a new table is made: whoever makes it, with delta-rs or with Spark, makes the same table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from router.api.sinks import KeyedTable, MergingSink
from router.api.table_options import PROPERTIES_OF_DELTA_RS, NewTable
from router.delta.commit import TableCommit, to_delta
from router.delta.lake import Lake
from router.delta.replace import add_columns, create_table, create_with_files, made_by_spark, replace_content
from router.delta.replace_by_spark import create_by_spark, is_finished
from router.engine.commit.committers import as_decided
from router.engine.label.layout import merge_options
from tests.lake_rows import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, SparkSession

SCHEMA = pa.schema([("game", pa.string()), ("n", pa.int64())])
NEW = NewTable(
    partition_by=("event.game",),
    properties={"delta.enableChangeDataFeed": "true", "delta.logRetentionDuration": "interval 7 days"},
    comment="of one game",
)


@pytest.mark.parametrize("maker", ["empty", "with files", "Spark"])
def test_whoever_makes_a_table_follows_all_of_its_options(spark: SparkSession, tmp_path: Path, maker: str) -> None:
    """Without it a table lacks its partitions, or its change feed, depending on who wrote its first batch."""
    lake = Lake.at(str(tmp_path))
    if maker == "empty":
        create_table(lake, "a.b", SCHEMA, options=NEW)
    elif maker == "with files":
        create_with_files(lake, "a.b", to_delta(SCHEMA), [], ids={}, notes={}, options=NEW)
    else:
        create_by_spark(spark, "a.b", lake.spark_address("a.b"), SCHEMA, options=NEW)

    table = lake.open("a.b")
    assert table is not None
    about = table.metadata()
    assert (about.partition_columns, about.description) == (["game"], "of one game")
    assert NEW.properties.items() <= about.configuration.items()
    assert is_finished(table, NEW)


def test_a_property_is_left_to_spark_unless_delta_rs_writes_it() -> None:
    """Without it delta-rs makes a table that has the name of a feature, and not the feature."""
    assert not made_by_spark(NewTable(properties={"delta.checkpointInterval": "5"}))
    assert made_by_spark(NewTable(properties={"delta.enableRowTracking": "true"})) == (
        "it is to have delta.enableRowTracking"
    )
    assert "delta.enableRowTracking" not in PROPERTIES_OF_DELTA_RS


def test_a_merge_makes_its_tables_by_all_options_of_its_sink() -> None:
    """Without it an option of new tables holds for appended ones only, or for those of one plugin."""

    class Latest(MergingSink):
        """Knows nothing of the options of new tables."""

        def table(self) -> str | Column:
            return "silver.latest"

        def keyed(self) -> KeyedTable:
            return KeyedTable(("game",))

    sink = Latest(**NEW.model_dump(), reset="never")
    assert merge_options(sink, only_spark=False).new_table == NEW
    with pytest.raises(ValueError, match="rows of a keyed table change"):
        Latest(properties={"delta.appendOnly": "true"})


@pytest.mark.parametrize("way", ["empty", "with files", "later", "replaced"])
def test_local_times_inside_of_maps_are_readable(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """Without it delta-rs makes a table without the feature `timestampNtz`, and nobody can open it again."""
    lake = Lake.at(str(tmp_path))
    times = pa.schema([pa.field("times", pa.map_(pa.string(), pa.timestamp("us")))])
    if way == "empty":
        create_table(lake, "a.b", pa.schema([*SCHEMA, *times]))
    elif way == "with files":
        create_with_files(lake, "a.b", to_delta(pa.schema([*SCHEMA, *times])), [], ids={"x": 1}, notes={})
    elif way == "later":
        add_columns(create_table(lake, "a.b", SCHEMA), to_delta(times))
    else:
        made = create_table(lake, "a.b", SCHEMA)
        replace_content(made, [], ids={}, notes={}, schema=to_delta(pa.schema([*SCHEMA, *times])))

    table = lake.open("a.b")
    assert table is not None
    assert table.transaction_version("x") == (1 if way == "with files" else None)
    spark.sql(f"INSERT INTO delta.`{lake.spark_address('a.b')}` VALUES ('uno', 1, map('x', TIMESTAMP_NTZ'2026-01-01'))")
    assert [dict(row["times"])["x"].year for row in read_rows(lake, "a.b")] == [2026]


def test_a_table_whose_creation_was_cut_off_gets_its_other_columns(tmp_path: Path) -> None:
    """Without it a kill between the steps of its creation makes another writer of the router, and its rows wait."""
    lake = Lake.at(str(tmp_path))
    times = pa.schema([pa.field("times", pa.map_(pa.string(), pa.timestamp("us")))])
    table = create_table(lake, "a.b", SCHEMA)
    work = TableCommit("r/s", "a.b", "x", 0, (), to_delta(pa.schema([*SCHEMA, *times])), decided=-1)

    assert as_decided(work, table).added == to_delta(times)
