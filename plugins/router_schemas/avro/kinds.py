"""Describe each kind of Avro value once: its column, how it is stored, and how it is written.

To add a kind, add a member to `AvroKind`: its parts must all be given, or mypy refuses it; docs/reference/formats.md
has the table that is made of them. Records, arrays, maps, enums and unions are no kinds: they are columns of their own
(spark_types).

Source of the columns: "Apache Avro Data Source Guide" of Spark 4.0, "Supported types for Avro -> Spark SQL conversion".
Later versions of Spark know more logical types. A logical type that does not change the column is not given to Spark,
so that a column has one type in all versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import types as T
from typing_extensions import override

from router_schemas import byte_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from router_schemas.avro.model import Logical, LogicalName, PrimitiveName

MAX_DECIMAL_DIGITS = 38
"""The largest precision of Spark's decimals."""


# Writers return the values of a column without nulls as fastavro takes them; `path` is that of the column.


def _as_they_are(array: pa.Array, _: str = "") -> list[Any]:
    """Return the values as Python has them."""
    values: list[Any] = array.to_pylist()
    return values


def _integers_of_times(array: pa.Array, _: str) -> list[Any]:
    """Return days or microseconds: Python's own dates and times end at the year 9999."""
    numbers: list[Any] = byte_columns.whole_numbers(array).tolist()
    return numbers


def _whole_milliseconds(array: pa.Array, path: str) -> list[Any]:
    micros = byte_columns.whole_numbers(array)
    if (micros % 1000).any():
        fault = "the time has microseconds, and the schema keeps milliseconds; cut it in `select`"
        raise ValueError(f"field {path}: {fault}")
    millis: list[Any] = (micros // 1000).tolist()
    return millis


def read_texts(array: pa.Array, path: str) -> list[Any]:
    """Return texts; raise ValueError for one that is not UTF-8."""
    return [text.decode() for text in byte_columns.encode_texts(array, path)]


@dataclass(frozen=True, eq=False)
class AvroDescription:
    """All that differs between kinds.

    `stored` and `logical` are how a schema names it. `column` is the type that it is read as; `columns` are those that
    are written to it, `declares` those among them for which a schema made for columns has it. `size` is that of the
    fixed that it needs; 0: any.
    """

    stored: PrimitiveName | Literal["fixed"]
    logical: LogicalName | None
    column: T.DataType
    columns: tuple[type[T.DataType], ...]
    declares: tuple[type[T.DataType], ...]
    write: Callable[[pa.Array, str], list[Any]]
    note: str = ""
    size: int = 0


_INTS = (T.ByteType, T.ShortType, T.IntegerType)
_LONGS = (*_INTS, T.LongType)


@unique
class AvroKind(Enum):
    """A kind of value: a type that has no other ones inside, with what it means beyond its bytes."""

    BOOLEAN = AvroDescription(
        stored="boolean",
        logical=None,
        column=T.BooleanType(),
        columns=(T.BooleanType,),
        declares=(T.BooleanType,),
        write=_as_they_are,
    )
    INT = AvroDescription(
        stored="int", logical=None, column=T.IntegerType(), columns=_INTS, declares=_INTS, write=_as_they_are
    )
    LONG = AvroDescription(
        stored="long", logical=None, column=T.LongType(), columns=_LONGS, declares=(T.LongType,), write=_as_they_are
    )
    FLOAT = AvroDescription(
        stored="float",
        logical=None,
        column=T.FloatType(),
        columns=(T.FloatType,),
        declares=(T.FloatType,),
        write=_as_they_are,
    )
    DOUBLE = AvroDescription(
        stored="double",
        logical=None,
        column=T.DoubleType(),
        columns=(*_INTS, T.FloatType, T.DoubleType),
        declares=(T.DoubleType,),
        write=_as_they_are,
    )
    STRING = AvroDescription(
        stored="string",
        logical=None,
        column=T.StringType(),
        columns=(T.StringType,),
        declares=(T.StringType,),
        write=read_texts,
    )
    BYTES = AvroDescription(
        stored="bytes",
        logical=None,
        column=T.BinaryType(),
        columns=(T.BinaryType,),
        declares=(T.BinaryType,),
        write=_as_they_are,
    )
    FIXED = AvroDescription(
        stored="fixed",
        logical=None,
        column=T.BinaryType(),
        columns=(T.BinaryType,),
        declares=(),
        write=_as_they_are,
        note="of its number of bytes",
    )
    DATE = AvroDescription(
        stored="int",
        logical="date",
        column=T.DateType(),
        columns=(T.DateType,),
        declares=(T.DateType,),
        write=_integers_of_times,
    )
    TIME_MILLIS = AvroDescription(
        stored="int",
        logical="time-millis",
        column=T.IntegerType(),
        columns=_INTS,
        declares=(),
        write=_integers_of_times,
        note="counted from midnight; Spark 4.0 has no type for it",
    )
    TIME_MICROS = AvroDescription(
        stored="long",
        logical="time-micros",
        column=T.LongType(),
        columns=(T.LongType,),
        declares=(),
        write=_integers_of_times,
        note="counted from midnight",
    )
    TIMESTAMP_MILLIS = AvroDescription(
        stored="long",
        logical="timestamp-millis",
        column=T.TimestampType(),
        columns=(T.TimestampType,),
        declares=(),
        write=_whole_milliseconds,
        note="a time with microseconds is not written",
    )
    TIMESTAMP_MICROS = AvroDescription(
        stored="long",
        logical="timestamp-micros",
        column=T.TimestampType(),
        columns=(T.TimestampType,),
        declares=(T.TimestampType,),
        write=_integers_of_times,
    )
    TIMESTAMP_NANOS = AvroDescription(
        stored="long",
        logical="timestamp-nanos",
        column=T.LongType(),
        columns=(T.LongType,),
        declares=(),
        write=_integers_of_times,
        note="Spark's timestamps end at microseconds",
    )
    LOCAL_TIMESTAMP_MILLIS = AvroDescription(
        stored="long",
        logical="local-timestamp-millis",
        column=T.TimestampNTZType(),
        columns=(T.TimestampNTZType,),
        declares=(),
        write=_whole_milliseconds,
        note="a time with microseconds is not written; Delta needs its table feature",
    )
    LOCAL_TIMESTAMP_MICROS = AvroDescription(
        stored="long",
        logical="local-timestamp-micros",
        column=T.TimestampNTZType(),
        columns=(T.TimestampNTZType,),
        declares=(T.TimestampNTZType,),
        write=_integers_of_times,
        note="Delta needs its table feature",
    )
    LOCAL_TIMESTAMP_NANOS = AvroDescription(
        stored="long",
        logical="local-timestamp-nanos",
        column=T.LongType(),
        columns=(T.LongType,),
        declares=(),
        write=_integers_of_times,
    )
    DECIMAL = AvroDescription(
        stored="bytes",
        logical="decimal",
        column=T.DecimalType(),
        columns=(T.DecimalType,),
        declares=(T.DecimalType,),
        write=_as_they_are,
        note="with no fewer digits before or after the point; beyond 38 digits binary: two's complement, big-endian",
    )
    FIXED_DECIMAL = AvroDescription(
        stored="fixed",
        logical="decimal",
        column=T.DecimalType(),
        columns=(T.DecimalType,),
        declares=(),
        write=_as_they_are,
        note="as on bytes",
    )
    BIG_DECIMAL = AvroDescription(
        stored="bytes",
        logical="big-decimal",
        column=T.BinaryType(),
        columns=(T.BinaryType,),
        declares=(),
        write=_as_they_are,
    )
    UUID = AvroDescription(
        stored="string",
        logical="uuid",
        column=T.StringType(),
        columns=(T.StringType,),
        declares=(),
        write=read_texts,
    )
    FIXED_UUID = AvroDescription(
        stored="fixed",
        logical="uuid",
        column=T.BinaryType(),
        columns=(T.BinaryType,),
        declares=(),
        write=_as_they_are,
        size=16,
    )
    DURATION = AvroDescription(
        stored="fixed",
        logical="duration",
        column=T.BinaryType(),
        columns=(T.BinaryType,),
        declares=(),
        write=_as_they_are,
        size=12,
    )

    def accepts_column(self, column: T.DataType, logical: Logical | None) -> bool:
        """Return whether a column can be written as this kind; single values may still be out of its range."""
        if logical is None or logical.name != "decimal":
            return isinstance(column, self.value.columns)
        if not isinstance(column, T.DecimalType):
            # More digits than Spark can have are read as their bytes.
            return isinstance(column, T.BinaryType) and logical.precision > MAX_DECIMAL_DIGITS
        # No digit is lost: the schema has as many after the point as the column, and as many before it.
        more_digits = logical.precision - column.precision
        return 0 <= logical.scale - column.scale <= more_digits

    @override
    def __str__(self) -> str:
        described = self.value
        return f"{described.stored} ({described.logical})" if described.logical else described.stored


KIND_OF: dict[tuple[str, str | None], AvroKind] = {(kind.value.stored, kind.value.logical): kind for kind in AvroKind}
"""The kind of each type with a logical type, or with none."""


def kind_of(name: str, logical: Logical | None) -> AvroKind | None:
    """Return the kind of a primitive type, or of `fixed`; None for null."""
    return KIND_OF.get((name, logical.name if logical else None))


def column_of(kind: AvroKind, logical: Logical | None) -> T.DataType:
    """Return the column of a kind; `logical` has the digits of a decimal."""
    if logical is None or logical.name != "decimal":
        return kind.value.column
    if logical.precision > MAX_DECIMAL_DIGITS:
        return T.BinaryType()
    return T.DecimalType(logical.precision, logical.scale)
