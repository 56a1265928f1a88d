"""Spark's from_json as it is set to be strict: the oracle that decoding JSON in tasks is held to.

It was the decoder once. Text after the object, times, infinite numbers and keys that come twice in a map it does not
notice by itself; what finds these is kept here with it. What differs from it is in docs/reference/json.md.
"""

from __future__ import annotations

import json
import math
import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router_schemas.json_schema.spark_types import child_types

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "corrupt",
    "allowSingleQuotes": "false",
    "allowUnquotedFieldNames": "false",
    "allowNonNumericNumbers": "false",
    "allowNumericLeadingZeros": "false",
    "allowBackslashEscapingAnyCharacter": "false",
    "allowUnquotedControlChars": "false",
    "allowComments": "false",
}
"""RFC 8259 as strictly as Spark can be told to read it."""

BLANK = " \t\r\n"
TEMPORARY = ("_json", "_parsed", "_variant", "_unfit")
INFINITY = float("inf")
FIRST, LAST = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
"""The times that every reader of a table knows; Python has no others."""


def decoded(raw: DataFrame, schema: T.StructType) -> DataFrame:
    """Return raw records with `event` and `_error`, as from_json has them."""
    frame = raw
    for projection in levels(schema):
        frame = frame.withColumns(projection)
    return frame.drop(*TEMPORARY)


def levels(schema: T.StructType) -> tuple[dict[str, Column], ...]:
    """Return the projections that add `event` and `_error`, one after the other; each uses columns before it."""
    # Decoding passes over a byte order mark.
    text = F.col("value").cast("string")
    text = F.when(text.startswith("\ufeff"), F.substring(text, 2, 2**31 - 1)).otherwise(text)
    parsed = F.col("_json.value")
    value = F.col("_parsed") if has_times(schema) else parsed
    unread = F.col("_json.corrupt").isNotNull() | F.col("_json.end").isNull() | parsed.isNull()
    second = {"_variant": F.when(unread, F.try_parse_json(text))}
    if has_times(schema):
        second["_parsed"] = converted(parsed, schema)
    unfit = [F.when(found, F.lit(name)) for name, found in misfits(parsed, value, schema)]
    steps = [
        {"_json": _parse(text, schema)},
        second,
        {"_unfit": F.concat_ws(", ", *unfit)},
        {"_error": _error(text, schema)},
    ]
    return (*steps, {"event": F.when(F.col("_error").isNull(), value)})


def _parse(text: Column, schema: T.StructType) -> Column:
    fields = {"value": parsed_type(schema), "end": T.IntegerType(), "corrupt": T.StringType()}
    envelope = T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
    return F.from_json(F.concat(F.lit('{"value":'), text, F.lit(',"end":1}')), envelope, OPTIONS)


def _error(text: Column, schema: T.StructType) -> Column:
    """Return why a record is no event, null for a good one; the first reason that holds."""
    parsed, whole = F.col("_json.value").isNotNull(), F.col("_json.end").isNotNull()
    is_object, is_array = (F.ltrim(text, F.lit(BLANK)).startswith(bracket) for bracket in "{[")
    is_json = F.col("_variant").isNotNull()
    fits = F.col("_json.corrupt").isNull() & (F.col("_unfit") == "")
    return (
        F.when(_always() & fits & parsed & whole & F.is_valid_utf8(text), F.lit(None).cast("string"))
        .when(text.isNull(), "value is null")
        .when(F.trim(text, F.lit(BLANK)) == "", "value is empty")
        .when(~F.is_valid_utf8(text), "value is not UTF-8")
        .when(parsed & whole, _misfit_reason(schema))
        .when(is_json & is_object, "value has text after the object")
        .when(is_json & is_array, "value is an array, not an object")
        .when(is_json, "value is a scalar, not an object")
        .otherwise("value is not JSON")
    )


def _always() -> Column:
    """Return true in a form that Spark cannot know.

    Spark pushes no filter below a projection that has it. It would put the expressions of the columns in place of the
    columns: `where("event.game = 'uno'")` then parsed every record 30 times.
    """
    return F.spark_partition_id() >= 0


def _misfit_reason(schema: T.StructType) -> Column:
    """Return the reason with the fields that do not fit, as far as they can be told."""
    names = F.concat_ws(", ", F.nullif("_unfit", F.lit("")), *_missing(schema, F.col("_json.value"), "", "$"))
    return F.rtrim(F.concat(F.lit("does not fit the schema: "), names), F.lit(": "))


def _missing(schema: T.StructType, parsed: Column, prefix: str, path: str) -> Iterator[Column]:
    """Yield for every struct the names of its fields that the record gives and the parser could not take, or null.

    A given field is one that is not null when it is read as text. Keys of JSON texts are compared, and not fields: an
    expression for every field would take seconds to plan for a schema of some hundred.
    """
    texts = ", ".join(f"`{name.replace('`', '``')}`: string" for name in schema.fieldNames())
    given = _keys(F.try_variant_get("_variant", path, f"struct<{texts}>"))
    names = F.array_join(F.array_except(given, _keys(parsed)), f", {prefix}")
    yield F.concat(F.lit(prefix), F.nullif(names, F.lit("")))
    for field in schema:
        place = _step(path, field.name)
        if isinstance(field.dataType, T.StructType) and place:
            yield from _missing(field.dataType, parsed[field.name], f"{prefix}{field.name}.", place)


def _keys(struct: Column) -> Column:
    return F.json_object_keys(F.to_json(struct, {"ignoreNullFields": "true"}))


def _step(path: str, name: str) -> str:
    """Return the path of a field inside another; empty for a name that no path can hold."""
    quote = next((quote for quote in "\"'" if quote not in name), "")
    return f"{path}[{quote}{name}{quote}]" if quote else ""


def parsed_type(kind: T.DataType) -> T.DataType:
    """Return what the parser is asked for: a type with texts in place of times."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, parsed_type(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(parsed_type(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, parsed_type(kind.valueType))
    return T.StringType() if isinstance(kind, (T.TimestampType, T.DateType)) else kind


def has_times(kind: T.DataType) -> bool:
    """Say whether anything inside a type is parsed as text and converted."""
    return isinstance(kind, (T.TimestampType, T.DateType)) or any(has_times(child) for _, child in child_types(kind))


def converted(parsed: Column, kind: T.DataType) -> Column:
    """Return a parsed value with its times converted; a time that does not fit is null."""
    if not has_times(kind):
        return parsed
    if isinstance(kind, T.StructType):
        fields = [converted(parsed[field.name], field.dataType).alias(field.name) for field in kind]
        return F.when(parsed.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        return F.transform(parsed, lambda element: converted(element, kind.elementType))
    if isinstance(kind, T.MapType):
        return F.transform_values(parsed, lambda _, value: converted(value, kind.valueType))
    return _time(parsed, kind)


def _time(text: Column, kind: T.DataType) -> Column:
    """Return an ISO 8601 text as a date or timestamp.

    The cast alone would also take `12:30` (as today, so a replay would differ) and the number 2026.
    """
    dashed = (F.locate("-", text) == 5) & (F.locate("-", text, 6) == 8)
    if isinstance(kind, T.DateType):
        dashed = dashed & (F.length(text) == 10)
    return F.when(dashed, text.try_cast(kind))


def misfits(parsed: Column, value: Column, schema: T.StructType, prefix: str = "") -> Iterator[tuple[str, Column]]:
    """Yield the name of every field, in structs too, that may not fit, and whether it does not."""
    for field in schema:
        name, was, now = f"{prefix}{field.name}", parsed[field.name], value[field.name]
        if isinstance(field.dataType, T.StructType):
            yield from misfits(was, now, field.dataType, f"{name}.")
        elif (found := misfit(was, now, field.dataType)) is not None:
            yield name, found


def misfit(parsed: Column, value: Column, kind: T.DataType) -> Column | None:
    """Return whether a value that the parser accepted does not fit after all; never null. None: it always fits."""
    if isinstance(kind, (T.TimestampType, T.DateType)):
        beyond = (value < F.lit(FIRST).cast(kind)) | (value > F.lit(LAST).cast(kind))
        return parsed.isNotNull() & (value.isNull() | beyond)
    if isinstance(kind, (T.DoubleType, T.FloatType)):
        return value.isNotNull() & (F.abs(value) == INFINITY)
    if isinstance(kind, T.StructType):
        return either([misfit(parsed[field.name], value[field.name], field.dataType) for field in kind])
    if isinstance(kind, T.ArrayType):
        return _misfit_inside(parsed, kind.elementType)
    if isinstance(kind, T.MapType):
        keys = F.map_keys(parsed)
        twice = F.coalesce(F.size(F.array_distinct(keys)) < F.size(keys), F.lit(False))
        return either([twice, _misfit_inside(F.map_values(parsed), kind.valueType)])
    return None


def _misfit_inside(elements: Column, kind: T.DataType) -> Column | None:
    if misfit(F.lit(None), F.lit(None), kind) is None:
        return None
    found = F.exists(elements, lambda element: _misfit_of(element, kind))
    return F.coalesce(found, F.lit(False))


def _misfit_of(element: Column, kind: T.DataType) -> Column:
    found = misfit(element, converted(element, kind), kind)
    assert found is not None  # asked before
    return found


def either(conditions: list[Column | None]) -> Column | None:
    """Return the disjunction of the conditions there are."""
    given = [condition for condition in conditions if condition is not None]
    return reduce(operator.or_, given) if given else None


Row = tuple[Any, "str | None"]
"""An event and an error."""


def differences(values: Sequence[bytes | None], found: Sequence[Row], native: Sequence[Row]) -> list[Any]:
    """Return the values that from_json decodes to something else, but for those of docs/reference/json.md."""
    rows = zip(values, found, native, strict=True)
    return [row for row in rows if not _are_alike(row[1], row[2])]


LIMITS = (
    "value is nested more than",
    "value has a number of more than",
    "value has a field name of more than",
    "value has a text of more than",
)


def _are_alike(one: Row, other: Row) -> bool:
    if (one[1] or "").startswith(LIMITS):  # which from_json has, too, without words for them
        return (other[1] or "").startswith(("value is not JSON", "value has text after", "does not fit"))
    if one[1] == "value has text after the object":  # whatever it begins with; from_json takes it for more of an object
        return other[1] != "value is not UTF-8"
    if other[1] == "value has text after the object" and (one[1] or "").startswith("does not fit"):  # broken base64
        return True
    if one[1] == "value is not JSON" and (other[1] or "").startswith("does not fit"):  # an escape that is none: `\\q`
        return True
    return one[1] == other[1] and _alike(one[0], other[0])


def _alike(one: Any, other: Any) -> bool:
    """Compare events; a text that is JSON means the same where a number is written in another way."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _meaning(one) == _meaning(other)
    return repr(one) == repr(other)


def _meaning(text: str) -> Any:
    def number(found: str) -> Any:
        value = float(found)
        return str(value).replace("inf", "Infinity") if math.isinf(value) else value

    try:
        return json.loads(text, parse_float=number, parse_int=number, object_pairs_hook=tuple)
    except ValueError:
        return text
