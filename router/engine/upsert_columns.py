"""What the outbox of a merging sink has beside the route's columns: which table a row is for, and how new it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from router.delta.row_order import DELETED, newest_names
from router.delta.scd import HISTORY_COLUMNS
from router.errors import StartError

if TYPE_CHECKING:
    from router.sinks import KeyedTable, MergingSink


TABLE = "_table"
ORDERED = (NumericType, StringType, DateType, TimestampType, TimestampNTZType)
"""The types of what rows are ordered by."""
EQUAL = (IntegralType, DecimalType, StringType, DateType, TimestampType, TimestampNTZType, BooleanType)
"""The types whose values can be compared for equality by every engine: no fractions."""
KEYS = (*EQUAL, BinaryType)
DIVIDING = {"partition_by": EQUAL, "cluster_by": ORDERED}
"""The types of columns that tables are partitioned by, and clustered by: those need bounds."""


def merge_struct(sink: MergingSink) -> Column:
    """Return what the outbox of a sink has beside the route's columns, as a struct."""
    newest = sink.newest()
    named = [column.alias(name) for column, name in zip(newest, newest_names(len(newest)), strict=True)]
    return F.struct(F.lit("").alias(TABLE), F.lit(False).alias(DELETED), *named)


def counted(sink: MergingSink) -> KeyedTable:
    """Return the options of a sink's merge, with the number of columns that it orders by."""
    return replace(sink.keyed(), newest=len(sink.newest()))


def asked(keyed: KeyedTable, engine: str) -> KeyedTable:
    """Return the options of a sink's merge; where they choose no engine, `commit: spark` of the configuration does."""
    return replace(keyed, engine="spark") if (keyed.engine, engine) == ("auto", "spark") else keyed


def check(sink: MergingSink, where: str, rows: StructType, more: StructType) -> None:
    """Refuse options that no merge can carry out: keys that are no columns of the route, types without an order, ...

    `rows` are the route's columns, `more` those of `extra`. Raises StartError with the next step.
    """
    keyed = counted(sink)
    kinds: dict[str, DataType] = {field.name: field.dataType for field in rows}
    for option in ("keys", "columns", "partition_by", "cluster_by", "comments"):
        for name in getattr(keyed, option) or ():
            if name not in kinds:
                have = ", ".join(kinds)
                raise StartError(f"{where}: `{option}` names {name}, which `select` does not give; it gives {have}")
    for key in keyed.keys:
        if not isinstance(kinds[key], KEYS):
            raise StartError(f"{where}: {key} is {kinds[key].simpleString()} and cannot be a key; cast it in `select`")
    _check_division(keyed, where, kinds)
    for field in more.fields[2:]:
        if not isinstance(field.dataType, ORDERED):
            raise StartError(f"{where}: `newest_by` has no order: it is {field.dataType.simpleString()}; cast it")
    own = [*more.names, *(HISTORY_COLUMNS.names if keyed.history else []), *filter(None, (keyed.soft_delete,))]
    if clash := sorted({name.lower() for name in own} & {name.lower() for name in kinds}):
        raise StartError(f"{where}: the sink keeps a column {clash[0]} itself; rename the event's in `select`")


def _check_division(keyed: KeyedTable, where: str, kinds: dict[str, DataType]) -> None:
    for option, fit in DIVIDING.items():
        for name in getattr(keyed, option):
            if not isinstance(kinds[name], fit):
                what = f"{name} is {kinds[name].simpleString()}, which no table is divided by"
                raise StartError(f"{where}: `{option}`: {what}; cast it in `select`, or take another column")
    if len(keyed.partition_by) == len(kinds):
        raise StartError(f"{where}: `partition_by` names every column; leave one for the files")
