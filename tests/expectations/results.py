"""What a scenario left behind: every table of its lake, and what it sent, in an order that does not change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql.types import StructType

from tests.expectations.texts import plain

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

LEDGER = "ops.ledger"
NOT_KEPT = frozenset({"query", "run", "finished", "unknown", "unknown_fields", "violated", "configuration"})
"""Columns of the ledger that say who counted, when, and by which configuration; and counts of fields that were left out
without a count."""
NOT_COMPARED = frozenset(
    {"delta.checkpointInterval", "delta.deletedFileRetentionDuration", "router.table", "router.keyed"}
)
"""Table properties that are a matter of who committed first: delta-rs sets the one, Delta on Spark the other; and those
that came after results were saved."""
ARRIVALS = frozenset({"arrival", "_arrival"})
"""Columns that came after results were saved: in which batch a record arrived (docs/decisions/0023). Tables that keep
one row per key have the record's `_timestamp` with them."""


def results(lake: Path, folder: Path, spark: SparkSession) -> dict[str, Any]:
    """Return the tables of a lake and the rows that the sink `recording` was given."""
    found = {
        f"{log.parent.parent.name}.{log.parent.name}": _table(log.parent, spark)
        for log in sorted(lake.glob("*/*/_delta_log"))
    }
    if LEDGER in found:
        found[LEDGER] = _ledger(found[LEDGER])
    copied = folder / "recorded.jsonl"
    lines = copied.read_text(encoding="utf-8").splitlines() if copied.exists() else []
    return {"tables": found, "recorded": _in_order(map(json.loads, lines))}


def _table(place: Path, spark: SparkSession) -> dict[str, Any]:
    handle = DeltaTable(str(place))
    schema = StructType.fromJson(json.loads(handle.schema().to_json()))
    about = handle.metadata()
    properties = {k: v for k, v in about.configuration.items() if k not in NOT_COMPARED and "materialized" not in k}
    later = ARRIVALS & {*schema.fieldNames()}
    if "_arrival" in later and "_key" not in schema.fieldNames():  # no outbox, which had the time before
        later |= {"_timestamp"}
    schema = StructType([field for field in schema if field.name not in later])
    content = _content(handle, place, spark).select(schema.fieldNames())
    columns = [[plain(_value(value)) for value in column] for column in content.columns]
    rows = (list(row) for row in zip(*columns, strict=True))
    found: dict[str, Any] = {
        "columns": [_column(field) for field in schema],
        "partitioned_by": list(about.partition_columns),
        "properties": dict(sorted(properties.items())),
        "comment": about.description,
        "rows": _in_order(rows),
    }
    return {name: value for name, value in found.items() if value or name in ("columns", "rows")}


def _column(field: Any) -> str:
    comment = field.metadata.get("comment")
    said = f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
    return f"{said} -- {comment}" if comment else said


def _content(handle: DeltaTable, place: Path, spark: SparkSession) -> pa.Table:
    try:
        return handle.to_pyarrow_table()
    except DeltaProtocolError:  # a widened table: only Spark reads it
        return spark.read.format("delta").load(str(place)).toArrow()


def _value(value: pa.Scalar) -> Any:
    """Return a value of Arrow; of a time that Python cannot hold, its number; of a text that is none, its bytes."""
    try:
        return value.as_py()
    except OverflowError:
        return f"{value.type} {value.value}"
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes()


def _ledger(table: dict[str, Any]) -> dict[str, Any]:
    """Return the ledger with named counts, so that a new or moved column changes no row that has nothing in it."""
    names = [column.split()[0] for column in table["columns"]]
    rows = [
        {name: value for name, value in zip(names, row, strict=True) if value is not None and name not in NOT_KEPT}
        for row in table["rows"]
    ]
    return {**table, "rows": _in_order(rows)}


def _in_order(rows: Any) -> list[Any]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
