"""Draw columns as a route may have them, and rows for them."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as T

from router import Encoded, Encoding
from router.spark_internals import arrow_type
from router_encoders.registry_encoder import write_with_prefix

Values = st.SearchStrategy[Any]
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NAMES = ["id", "name", "game", "value", "Bags", "bags_", "_x", "f1", "optional", "type"]


def struct(**fields: T.DataType) -> T.StructType:
    """Return columns."""
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def rows_of(columns: T.StructType, rows: list[dict[str, Any]]) -> pa.StructArray:
    """Return rows as tasks get them."""
    return pa.array(rows, arrow_type(columns))


def encoded(rows: pa.StructArray, write: Any) -> Encoded:
    """Return what a task makes of rows with a writer that raises ValueError for some."""
    return Encoding(lambda array, _: write_with_prefix(array, b"", write), None, "rows").encode(rows)


def whole(bits: int) -> Values:
    """Return numbers of so many bits."""
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) | st.sampled_from([0, -1, 1, 63, 64, -64, -65])


def decimals(kind: T.DecimalType) -> Values:
    """Return all that a decimal holds."""
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{kind.scale}"))


TIMES = st.datetimes()
"""All that Python knows, without a zone."""
SHARED: list[tuple[T.DataType, Values]] = [
    (T.BooleanType(), st.booleans()),
    (T.ByteType(), whole(8)),
    (T.ShortType(), whole(16)),
    (T.IntegerType(), whole(32)),
    (T.LongType(), whole(64)),
    (T.FloatType(), st.floats(width=32, allow_nan=False)),
    (T.DoubleType(), st.floats(allow_nan=False)),
    (T.StringType(), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    (T.BinaryType(), st.binary(max_size=5)),
    (T.TimestampType(), TIMES.map(lambda time: time.replace(tzinfo=timezone.utc))),
]
"""What both formats have a type for."""
DECIMALS = [T.DecimalType(5, 2), T.DecimalType(38, 0), T.DecimalType(38, 38), T.DecimalType(20, 0)]
OF_AVRO = [
    *SHARED,
    (T.DateType(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    (T.TimestampNTZType(), TIMES),
    *((kind, decimals(kind)) for kind in DECIMALS),
]
UNSIGNED = (T.DecimalType(20, 0), st.integers(0, 2**64 - 1).map(Decimal))
OF_PROTOBUF = [*SHARED, UNSIGNED]


@st.composite
def tables(draw: st.DrawFn, leaves: list[tuple[T.DataType, Values]], *, nested: bool, nulls: bool) -> Any:
    """Draw columns and a strategy for their rows.

    `nested`: lists of lists and maps in lists; `nulls`: nulls inside of arrays and maps, and in their place.
    """
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique_by=str.lower))
    found = {name: draw(_column(leaves, nested, nulls, 2)) for name in names}
    columns = struct(**{name: kind for name, (kind, _) in found.items()})
    return columns, st.fixed_dictionaries({name: values for name, (_, values) in found.items()})


@st.composite
def _column(
    draw: st.DrawFn, leaves: list[tuple[T.DataType, Values]], nested: bool, nulls: bool, depth: int
) -> tuple[T.DataType, Values]:
    form = draw(st.sampled_from(["leaf"] * 3 + ["array", "map", "struct"] * bool(depth)))
    if form in ("leaf", "struct"):
        kind, values = draw(st.sampled_from(leaves)) if form == "leaf" else draw(_struct(leaves, nested, nulls, depth))
        return kind, st.none() | values
    inner = _column(leaves, nested, nulls, depth - 1) if nested else _element(leaves, nulls, depth)
    kind, values = draw(inner)
    values = values if nulls else values.filter(lambda value: value is not None)
    if form == "array":
        return T.ArrayType(kind), _or_none(st.lists(values, max_size=3), nulls)
    pairs = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), values, max_size=3)
    return T.MapType(T.StringType(), kind), _or_none(pairs.map(lambda held: [*held.items()]), nulls)


@st.composite
def _element(
    draw: st.DrawFn, leaves: list[tuple[T.DataType, Values]], nulls: bool, depth: int
) -> tuple[T.DataType, Values]:
    return draw(st.sampled_from(leaves)) if draw(st.booleans()) else draw(_struct(leaves, False, nulls, depth))


@st.composite
def _struct(
    draw: st.DrawFn, leaves: list[tuple[T.DataType, Values]], nested: bool, nulls: bool, depth: int
) -> tuple[T.DataType, Values]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique_by=str.lower))
    found = {name: draw(_column(leaves, nested, nulls, depth - 1)) for name in names}
    kind = struct(**{name: kind for name, (kind, _) in found.items()})
    return kind, st.fixed_dictionaries({name: values for name, (_, values) in found.items()})


def _or_none(values: Values, nulls: bool) -> Values:
    return st.none() | values if nulls else values


def plain(value: Any) -> Any:
    """Return a value as it can be compared: maps as pairs in order, times as microseconds, floats by their digits."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        pairs = bool(value) and all(isinstance(one, tuple) for one in value)
        return sorted((key, plain(one)) for key, one in value) if pairs else [plain(one) for one in value]
    if isinstance(value, datetime):
        return (value.replace(tzinfo=timezone.utc) - EPOCH) // timedelta(microseconds=1)
    return repr(value) if isinstance(value, float) else value
