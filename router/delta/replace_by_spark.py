"""Write tables with Delta on Spark: the twins of `replace`, for tables that delta-rs may not write. Runs on the driver.

`address` is a table's, as Spark has it. `once` is the transaction id and version under which a commit happens; Delta
leaves out silently what has an id that the table has seen. What fails raises what Spark raises.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import reduce
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from router.columns import quoted
from router.delta.commit import names, to_arrow_schema
from router.delta.replace import MADE, PROPERTIES
from router.delta.transaction_id import widening
from router.delta.widening import WIDENED, wider_schema
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from deltalake import Transaction
    from pyspark.sql import SparkSession

    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.sinks import KeyedTable
    from router.table_options import TableOptions


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema as Spark's, with the comments of its columns."""
    columns: list[StructField] = []
    for column, given in zip(to_spark_columns(schema, ntz=True), schema, strict=True):
        comment = (given.metadata or {}).get(b"comment", b"").decode()
        columns.append(StructField(column.name, column.dataType, True, {"comment": comment} if comment else None))
    return StructType(columns)


def staged_rows(session: SparkSession, lake: Lake, work: TableCommit) -> DataFrame:
    """Return the rows of a commit from its staged files, with the columns in the table's order. Lazy."""
    schema = spark_schema(to_arrow_schema(work.columns))
    by_partition: dict[tuple[tuple[str, str | None], ...], list[str]] = defaultdict(list)
    for file in work.files:
        by_partition[tuple(file.partition.items())].append(lake.for_spark(file.path))
    parts = [session.createDataFrame([], schema)]
    for partition, files in by_partition.items():
        values = {name: F.lit(text).cast(schema[name].dataType) for name, text in partition if name in schema.names}
        inside = StructType([column for column in schema if column.name not in values])
        rows = session.read.schema(inside).parquet(*files).withColumns(values)
        parts.append(rows.select(*map(quoted, schema.names)))
    return reduce(DataFrame.unionByName, parts[1:] or parts)


def create_by_spark(
    session: SparkSession,
    table: str,
    address: str,
    schema: pa.Schema,
    *,
    options: KeyedTable | TableOptions | None = None,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Make a table without rows that says who made it, unless it is there."""
    if options and options.cluster_by:  # Delta clusters by columns with statistics only: those in front have some
        first = [schema.field(name) for name in options.cluster_by]
        schema = type(schema)([*first, *(column for column in schema if column.name not in options.cluster_by)])
    builder = DeltaTable.createIfNotExists(session).location(address).addColumns(spark_schema(schema))
    given = options.properties if options else {}
    for name, value in {**PROPERTIES, MADE: table, **given, **(properties or {})}.items():
        builder = builder.property(name, str(value))
    if options and options.comment:
        builder = builder.comment(options.comment)
    if options and options.partition_by:
        builder = builder.partitionedBy(*options.partition_by)
    if options and options.cluster_by:
        builder = builder.clusterBy(*options.cluster_by)
    builder.execute()


def append_by_spark(
    rows: DataFrame, address: str, once: Transaction | None = None, notes: Mapping[str, str] | None = None
) -> None:
    """Append rows to a table, which gets the columns that it lacks; a table that is not there is made."""
    _save(rows, "append", address, once, notes)


def replace_by_spark(
    rows: DataFrame,
    address: str,
    once: Transaction,
    notes: Mapping[str, str],
    *,
    schema: str | None = None,
    new_schema: bool = False,
    partition_by: Iterable[str] = (),
) -> None:
    """Put rows in place of the content of a table.

    With a `schema` (Delta's JSON) the rows get its types, and the table gets it; with `new_schema` the table gets that
    of the rows. Otherwise it keeps its own, with the columns that it lacks.
    """
    if schema is not None:
        rows = _in_schema(rows, schema)
    _save(
        rows, "overwrite", address, once, notes, new_schema=new_schema or schema is not None, partition_by=partition_by
    )


def _save(
    rows: DataFrame,
    mode: str,
    address: str,
    once: Transaction | None,
    notes: Mapping[str, str] | None,
    *,
    new_schema: bool = False,
    partition_by: Iterable[str] = (),
) -> None:
    writer = rows.write.format("delta").mode(mode).option("overwriteSchema" if new_schema else "mergeSchema", "true")
    if once is not None:
        writer = writer.option("txnAppId", once.app_id).option("txnVersion", once.version)
    if notes is not None:
        writer = writer.option("userMetadata", json.dumps(dict(notes)))
    if new_schema:
        writer = writer.partitionBy(*partition_by)
    writer.save(address)


def rewrite_by_spark(session: SparkSession, address: str, table: Any, widened: str, app_id: str) -> None:
    """Give columns of a table their wider types in one commit of Delta on Spark; its properties stay."""
    replace_by_spark(
        session.read.format("delta").load(address),
        address,
        widening(app_id),
        {WIDENED: ", ".join(names(widened))},
        schema=wider_schema(table.schema().to_json(), widened, new_fields=False),
        partition_by=table.metadata().partition_columns,
    )


def _in_schema(rows: DataFrame, schema: str) -> DataFrame:
    """Return rows with the columns of a schema (Delta's JSON), then those that it does not have."""
    kinds = StructType.fromJson(json.loads(schema))
    columns = []
    for kind in kinds:
        value = F.col(quoted(kind.name)) if kind.name in rows.columns else F.lit(None)
        columns.append(value.cast(kind.dataType).alias(kind.name, metadata=kind.metadata))
    return rows.select(*columns, *(quoted(name) for name in rows.columns if name not in kinds.names))


def finish(session: SparkSession, address: str, options: KeyedTable | TableOptions) -> None:
    """Give a table without rows the properties that delta-rs does not make, and let it be clustered."""
    table = f"delta.{quoted(address)}"
    if options.properties:
        pairs = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in options.properties.items())
        session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})")
    if options.cluster_by:
        session.sql(f"ALTER TABLE {table} CLUSTER BY ({', '.join(map(quoted, options.cluster_by))})")


def set_property_by_spark(session: SparkSession, address: str, name: str, value: str) -> None:
    """Give a table a property."""
    session.sql(f"ALTER TABLE delta.{quoted(address)} SET TBLPROPERTIES ({_text(name)} = {_text(value)})")


def _text(text: str) -> str:
    """Return a text as Spark's SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def widen(session: SparkSession, address: str, widened: str) -> None:
    """Widen columns in place, nested ones too. Source: Delta protocol, table feature typeWidening."""
    table = f"delta.{quoted(address)}"
    have = session.read.format("delta").load(address).schema
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for column in to_spark_columns(to_arrow_schema(widened), ntz=True):
        for path, kind in _grown(quoted(column.name), have[column.name].dataType, column.dataType):
            session.sql(f"ALTER TABLE {table} ALTER COLUMN {path} TYPE {kind}")


def _grown(path: str, have: DataType, want: DataType) -> Iterator[tuple[str, str]]:
    """Yield path and new type of each leaf of a column that becomes wider."""
    if isinstance(have, StructType) and isinstance(want, StructType):
        for child in want:
            if child.name in have.names:
                yield from _grown(f"{path}.{quoted(child.name)}", have[child.name].dataType, child.dataType)
    elif isinstance(have, ArrayType) and isinstance(want, ArrayType):
        yield from _grown(f"{path}.element", have.elementType, want.elementType)
    elif isinstance(have, MapType) and isinstance(want, MapType):
        yield from _grown(f"{path}.key", have.keyType, want.keyType)
        yield from _grown(f"{path}.value", have.valueType, want.valueType)
    elif have != want:
        yield path, want.simpleString()
