"""Tables that other writers made: each protocol version and each table feature that Delta on Spark can make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable, IdentityGenerator
from pyspark.sql.types import LongType, StringType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

COLUMNS = "(game STRING, id BIGINT, name STRING)"


def by_sql(columns: str = COLUMNS, clauses: str = "", **properties: str) -> Callable[[SparkSession, str], Any]:
    """Return a maker of a table; a property's name has `__` for a dot."""
    named = ", ".join(f"'delta.{name.replace('__', '.')}' = '{value}'" for name, value in properties.items())
    tail = f"{clauses} TBLPROPERTIES ({named})" if named else clauses
    return lambda spark, address: spark.sql(f"CREATE TABLE delta.`{address}` {columns} USING delta {tail}")


def with_column(name: str, **kind: Any) -> Callable[[SparkSession, str], Any]:
    """Return a maker of a table with a column that Delta fills."""

    def make(spark: SparkSession, address: str) -> None:
        table = DeltaTable.create(spark).location(address).addColumn("game", "STRING").addColumn("id", "BIGINT")
        table.addColumn("name", "STRING").addColumn(name, "BIGINT", **kind).execute()

    return make


def invariant(spark: SparkSession, address: str) -> None:
    """Make a table whose column has an invariant, as Delta wrote them before checks."""
    rule = {"delta.invariants": json.dumps({"expression": {"expression": "id < 10"}})}
    fields = [StructField("game", StringType()), StructField("id", LongType(), metadata=rule)]
    spark.createDataFrame([], StructType([*fields, StructField("name", StringType())])).write.format("delta").save(
        address
    )


def with_rows(make: Callable[[SparkSession, str], Any], then: str) -> Callable[[SparkSession, str], Any]:
    """Return a maker of a table that has had rows; `then` is a statement about {table}."""

    def made(spark: SparkSession, address: str) -> None:
        make(spark, address)
        spark.sql(f"INSERT INTO delta.`{address}` (game, id, name) VALUES ('old', 8, 'o'), ('old', 9, 'p')")
        spark.sql(then.format(table=f"delta.`{address}`"))

    return made


def unknown(**protocol: Any) -> Callable[[SparkSession, str], Any]:
    """Return a maker of a table with a protocol that is put into its log by hand."""

    def make(spark: SparkSession, address: str) -> None:
        by_sql()(spark, address)
        lines = [{"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}}, {"protocol": protocol}]
        log = Path(address, "_delta_log", f"{1:020}.json")
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return make


def renamed(spark: SparkSession, address: str) -> None:
    """Make a table with a column whose name in the files is another one."""
    by_sql("(game STRING, id BIGINT, called STRING)", columnMapping__mode="name")(spark, address)
    spark.sql(f"ALTER TABLE delta.`{address}` RENAME COLUMN called TO name")


WRITER_FEATURE = {"minReaderVersion": 1, "minWriterVersion": 7}
BOTH = {"minReaderVersion": 3, "minWriterVersion": 7}
TABLES: dict[str, Callable[[SparkSession, str], Any]] = {
    "protocol_1_1": by_sql(minReaderVersion="1", minWriterVersion="1"),
    "protocol_1_2": by_sql(minReaderVersion="1", minWriterVersion="2"),
    "protocol_1_3": by_sql(minReaderVersion="1", minWriterVersion="3"),
    "protocol_1_4": by_sql(minReaderVersion="1", minWriterVersion="4"),
    "protocol_2_5": by_sql(minReaderVersion="2", minWriterVersion="5"),
    "protocol_2_6": by_sql(minReaderVersion="2", minWriterVersion="6"),
    "protocol_3_7": by_sql(minReaderVersion="3", minWriterVersion="7"),
    "append_only": by_sql(appendOnly="true"),
    "check": by_sql(constraints__small="id < 10"),
    "invariant": invariant,
    "not_null": by_sql("(game STRING, id BIGINT NOT NULL, name STRING)"),
    "varchar": by_sql("(game STRING, id BIGINT, name VARCHAR(9))"),
    "char": by_sql("(game STRING, id BIGINT, name CHAR(5))"),
    "generated": with_column("twice", generatedAlwaysAs="id * 2"),
    "identity": with_column("number", generatedAlwaysAs=IdentityGenerator()),
    "column_defaults": by_sql(
        "(game STRING, id BIGINT, name STRING DEFAULT 'x')", feature__allowColumnDefaults="supported"
    ),
    "change_data_feed": by_sql(enableChangeDataFeed="true"),
    "deletion_vectors": with_rows(by_sql(enableDeletionVectors="true"), "DELETE FROM {table} WHERE id = 9"),
    "column_mapping_name": by_sql(columnMapping__mode="name"),
    "column_mapping_id": by_sql(columnMapping__mode="id"),
    "renamed_column": renamed,
    "timestamp_ntz": by_sql("(game STRING, id BIGINT, name STRING, at TIMESTAMP_NTZ)"),
    "partitioned": by_sql(clauses="PARTITIONED BY (id)"),
    "clustered": by_sql(clauses="CLUSTER BY (id)"),
    "row_tracking": by_sql(enableRowTracking="true"),
    "in_commit_timestamps": by_sql(enableInCommitTimestamps="true"),
    "v2_checkpoints": by_sql(checkpointPolicy="v2"),
    "type_widening": with_rows(
        by_sql("(game STRING, id INT, name STRING)", enableTypeWidening="true"),
        "ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT",
    ),
    "vacuum_protocol_check": by_sql(feature__vacuumProtocolCheck="supported"),
    "variant": by_sql("(game STRING, id BIGINT, name STRING, anything VARIANT)"),
    "iceberg_compatible": by_sql(
        columnMapping__mode="name", enableIcebergCompatV2="true", enableDeletionVectors="false"
    ),
    "collations": unknown(**BOTH, readerFeatures=["collations-preview"], writerFeatures=["collations-preview"]),
    "catalog_managed": unknown(**BOTH, readerFeatures=["catalogManaged"], writerFeatures=["catalogManaged"]),
    "unknown_writer_feature": unknown(**WRITER_FEATURE, writerFeatures=["fromTomorrow"]),
    "unknown_reader_feature": unknown(**BOTH, readerFeatures=["fromTomorrow"], writerFeatures=["fromTomorrow"]),
    "protocol_4_8": unknown(minReaderVersion=4, minWriterVersion=8),
}
"""Table -> what makes it. Its name is the game of its records."""


QUICK = ("column_mapping_name", "partitioned", "unknown_writer_feature")
"""Those that every run of the tests makes."""
