"""Write tables with Delta on Spark: the twins of `replace`, for tables that delta-rs may not write. Runs on the driver.

`address` is a table's, in the form that Spark takes. `once` is the transaction id and version of the commit; if the
table has them already, Delta silently skips the commit. Errors are those of Spark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from delta.exceptions import captured as exceptions
from delta.tables import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from router.api.columns import quote_identifier, sql_text
from router.api.table_options import PLAIN_TABLE
from router.delta.casting import cast_to
from router.delta.commit import schema_column_names, to_arrow, to_arrow_schema
from router.delta.partition_folders import RANDOM_FOLDERS, has_long_folder
from router.delta.replace import MADE, PROPERTIES
from router.delta.transaction_id import widening_transaction
from router.delta.widening import WIDENED, wider_schema
from router.spark_internals import hadoop_lacks, map_in_arrow, to_arrow_columns, to_spark_columns
from router.storage.addresses import is_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from deltalake import Transaction
    from pyspark.sql import Column, SparkSession

    from router.api.table_options import NewTable
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake


CONFLICTS: tuple[type[Exception], ...] = (
    exceptions.DeltaConcurrentModificationException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentTransactionException,
)
"""The errors of Delta on Spark if another writer was faster. In Python the first is no base class of the others.

The import is also what makes PySpark raise them, in place of py4j's error: before 4.4 Delta leaves it to its users.
"""


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema as Spark's, with the comments of its columns."""
    columns: list[StructField] = []
    for column, field in zip(to_spark_columns(schema, ntz=True), schema, strict=True):
        comment = (field.metadata or {}).get(b"comment", b"").decode()
        metadata = {"comment": comment} if comment else None
        columns.append(StructField(column.name, column.dataType, nullable=True, metadata=metadata))
    return StructType(columns)


def staged_rows(session: SparkSession, lake: Lake, work: TableCommit) -> DataFrame:
    """Return the rows of a commit from its staged files, with the columns of `work.columns`. Lazy.

    Where Spark has no file system for the lake, Python workers read the files, as they have written them.
    """
    schema = spark_schema(to_arrow_schema(work.columns))
    by_partition: dict[tuple[tuple[str, str | None], ...], list[str]] = defaultdict(list)
    for file in work.files:
        by_partition[tuple(file.partition.items())].append(file.path)
    parts: list[DataFrame] = []
    for partition, files in by_partition.items():
        # The files lack the partition's columns: read the others, and add these as literals.
        values: dict[str, Column] = {}
        for name, text in partition:
            if name in schema.names:
                values[name] = F.lit(text).cast(schema[name].dataType)
        in_files = StructType([column for column in schema if column.name not in values])
        rows = _parquet_rows(session, lake, files, in_files).withColumns(values)
        parts.append(rows.select(*[quote_identifier(name) for name in schema.names]))
    if not parts:
        return session.createDataFrame([], schema)
    return reduce(DataFrame.unionByName, parts)


def outbox_rows(session: SparkSession, lake: Lake, outbox: str) -> DataFrame:
    """Return the rows of an outbox, all of which the router has staged. Lazy."""
    folder = outbox.replace(".", "/")
    if not _spark_lacks(session, lake, folder):
        return session.read.format("delta").load(lake.spark_address(outbox))
    table = lake.open(outbox)
    assert table is not None  # a commit into it is done
    actions = pa.table(table.get_add_actions())
    paths = [f"{folder}/{unquote(path)}" for path in actions.column("path").to_pylist()]
    return _rows_by_arrow(session, lake, paths, spark_schema(to_arrow(table)))


def in_types_of(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows whose columns have the types of a schema, nested fields by name; others stay. Lazy."""
    columns = StructType([schema[field.name] if field.name in schema.names else field for field in rows.schema])
    if columns.simpleString() == rows.schema.simpleString():
        return rows
    types = to_arrow_columns(columns)

    def cast_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from cast_to(pa.Table.from_batches([batch]), types).to_batches()

    return map_in_arrow(rows, cast_batches, columns)


def _parquet_rows(session: SparkSession, lake: Lake, paths: list[str], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files of the lake. Lazy."""
    if _spark_lacks(session, lake, paths[0]):
        return _rows_by_arrow(session, lake, paths, schema)
    return session.read.schema(schema).parquet(*[lake.for_spark(path) for path in paths])


def _spark_lacks(session: SparkSession, lake: Lake, path: str) -> bool:
    """Return whether Spark has no file system for a path of the lake."""
    address = lake.for_spark(path)
    return not is_local(address) and bool(hadoop_lacks(session, address))


def _rows_by_arrow(session: SparkSession, lake: Lake, paths: list[str], schema: StructType) -> DataFrame:
    """Return the rows of Parquet files, read by Python workers with the rights of the lake. Lazy."""
    tasks = min(len(paths), session.sparkContext.defaultParallelism)
    columns = to_arrow_columns(schema)

    def read_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                for path in paths[number::tasks]:
                    with lake.files.open_input_file(path) as source:
                        for batch in pq.ParquetFile(source).iter_batches(use_threads=False):
                            yield from cast_to(pa.Table.from_batches([batch]), columns).to_batches()

    return session.range(0, tasks, 1, tasks).mapInArrow(read_files, schema)


def create_by_spark(
    session: SparkSession,
    table: str,
    address: str,
    schema: pa.Schema,
    *,
    options: NewTable = PLAIN_TABLE,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create a table without rows, unless it exists; its property `MADE` marks it as the router's."""
    all_properties = {**PROPERTIES, MADE: table, **options.properties, **(properties or {})}
    # Delta clusters by columns with statistics only, and those are the first 32: put the columns in front.
    if options.cluster_by:
        first = [schema.field(name) for name in options.cluster_by]
        others = [column for column in schema if column.name not in options.cluster_by]
        schema = pa.schema([*first, *others])

    builder = DeltaTable.createIfNotExists(session).location(address).addColumns(spark_schema(schema))
    for name, value in all_properties.items():
        builder = builder.property(name, str(value))
    if options.comment:
        builder = builder.comment(options.comment)
    if options.partition_by:
        builder = builder.partitionedBy(*options.partition_by)
    if options.cluster_by:
        builder = builder.clusterBy(*options.cluster_by)
    builder.execute()


def append_by_spark(
    rows: DataFrame, address: str, once: Transaction | None = None, notes: Mapping[str, str] | None = None
) -> None:
    """Append rows to a table, which gets the columns that it lacks; create it if it does not exist."""
    _save_rows(rows, "append", address, once, notes)


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
    """Replace the content of a table by rows.

    With a `schema` (Delta's JSON) the rows are cast to it, and it becomes the table's. With `new_schema` the schema of
    the rows becomes the table's. Otherwise the table keeps its own, and gets the columns that it lacks.
    """
    if schema is not None:
        rows = _in_schema(rows, schema)
        new_schema = True
    _save_rows(rows, "overwrite", address, once, notes, new_schema=new_schema, partition_by=partition_by)


def _save_rows(
    rows: DataFrame,
    mode: str,
    address: str,
    once: Transaction | None,
    notes: Mapping[str, str] | None,
    *,
    new_schema: bool = False,
    partition_by: Iterable[str] = (),
) -> None:
    schema_option = "overwriteSchema" if new_schema else "mergeSchema"
    writer = rows.write.format("delta").mode(mode).option(schema_option, "true")
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
        widening_transaction(app_id),
        {WIDENED: ", ".join(schema_column_names(widened))},
        schema=wider_schema(table.schema().to_json(), widened, new_fields=False),
        partition_by=table.metadata().partition_columns,
    )


def _in_schema(rows: DataFrame, schema: str) -> DataFrame:
    """Return rows cast to the columns of a schema (Delta's JSON); columns that the schema lacks come last."""
    fields = StructType.fromJson(json.loads(schema))
    columns = []
    for field in fields:
        value = F.col(quote_identifier(field.name)) if field.name in rows.columns else F.lit(None)
        columns.append(value.cast(field.dataType).alias(field.name, metadata=field.metadata))
    others = [quote_identifier(name) for name in rows.columns if name not in fields.names]
    return rows.select(*columns, *others)


def finish_new_table(session: SparkSession, address: str, options: NewTable) -> None:
    """Set the properties of a table without rows that delta-rs cannot set, and its clustering."""
    table = f"delta.{quote_identifier(address)}"
    if options.properties:
        pairs = [f"{sql_text(name)} = {sql_text(value)}" for name, value in options.properties.items()]
        session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({', '.join(pairs)})")
    if options.cluster_by:
        columns = ", ".join(quote_identifier(name) for name in options.cluster_by)
        session.sql(f"ALTER TABLE {table} CLUSTER BY ({columns})")


def is_finished(table: Any, options: NewTable) -> bool:
    """Return whether an open table has what `finish_new_table` gives it."""
    if options.cluster_by and "clustering" not in (table.protocol().writer_features or ()):
        return False
    return bool(options.properties.items() <= table.metadata().configuration.items())


def set_property_by_spark(session: SparkSession, address: str, name: str, value: str) -> None:
    """Set a property of a table."""
    session.sql(
        f"ALTER TABLE delta.{quote_identifier(address)} SET TBLPROPERTIES ({sql_text(name)} = {sql_text(value)})"
    )


def name_folders_at_random(session: SparkSession, address: str, table: Any, long_folder: str = "") -> None:
    """Let Delta on Spark name the folders of a table, if those of a partition could not be named after it.

    `table` is open, and `long_folder` not empty if rows for it need that.
    """
    if RANDOM_FOLDERS not in table.metadata().configuration and (long_folder or has_long_folder(table)):
        set_property_by_spark(session, address, RANDOM_FOLDERS, "true")


def widen_columns(session: SparkSession, address: str, widened: str) -> None:
    """Widen columns, also nested ones, without a rewrite. Source: Delta protocol, table feature typeWidening."""
    table = f"delta.{quote_identifier(address)}"
    have = session.read.format("delta").load(address).schema
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    for column in to_spark_columns(to_arrow_schema(widened), ntz=True):
        # Delta widens one leaf a statement.
        for path, kind in _wider_leaves(quote_identifier(column.name), have[column.name].dataType, column.dataType):
            session.sql(f"ALTER TABLE {table} ALTER COLUMN {path} TYPE {kind}")


def _wider_leaves(path: str, have: DataType, want: DataType) -> Iterator[tuple[str, str]]:
    """Yield path and new type of each leaf of a column that becomes wider."""
    if isinstance(have, StructType) and isinstance(want, StructType):
        for child in want:
            if child.name in have.names:
                yield from _wider_leaves(
                    f"{path}.{quote_identifier(child.name)}", have[child.name].dataType, child.dataType
                )
    elif isinstance(have, ArrayType) and isinstance(want, ArrayType):
        yield from _wider_leaves(f"{path}.element", have.elementType, want.elementType)
    elif isinstance(have, MapType) and isinstance(want, MapType):
        yield from _wider_leaves(f"{path}.key", have.keyType, want.keyType)
        yield from _wider_leaves(f"{path}.value", have.valueType, want.valueType)
    elif have != want:
        yield path, want.simpleString()
