"""The columns of a route as tables keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from router.delta.schema_diff import delta_schema
from router.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEPT = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
"""The types of single values that Delta keeps."""


def rows_schema(struct: StructType) -> pa.Schema:
    """Return the fields of a struct as a plain Arrow schema; refuse names and types that Delta lacks."""
    _check(struct)
    return delta_schema(pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timestamp_utc=True)) for f in struct]))


def _check(kind: DataType, column: str = "") -> None:
    """Refuse what Delta cannot keep, at any depth."""
    if isinstance(kind, StructType):
        _check_names(kind)
        for child in kind:
            _check(child.dataType, f"{column}.{child.name}" if column else child.name)
    elif isinstance(kind, ArrayType):
        _check(kind.elementType, column)
    elif isinstance(kind, MapType):
        _check(kind.keyType, column)
        _check(kind.valueType, column)
    elif not isinstance(kind, KEPT):
        raise StartError(
            f"column {column}: a table cannot keep {kind.simpleString()}; cast it or leave it out in `select`"
        )


def _check_names(struct: StructType) -> None:
    folded: dict[str, str] = {}
    for name in struct.fieldNames():
        if any(character in " ,;{}()\n\t=" for character in name) or not name:
            raise StartError(f"column {name!r}: Delta refuses spaces and ,;{{}}()= in names; rename it in `select`")
        if name.lower() in folded:
            raise StartError(f"columns {folded[name.lower()]} and {name} differ by case only; rename one in `select`")
        folded[name.lower()] = name


def quoted(name: str) -> str:
    """Return a name as Spark takes it."""
    return "`" + name.replace("`", "``") + "`"


def kind_of(frame: DataFrame, column: str) -> pa.DataType:
    """Return the Arrow type of a column."""
    return to_arrow_type(frame.schema[column].dataType, timestamp_utc=True)
