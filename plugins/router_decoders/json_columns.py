"""Make the columns that decode a JSON text: native expressions, one parse for a good record.

The text is parsed inside of `{"value":TEXT,"end":1}`. The parser stops after the first value and would not notice
what follows; here `end` is found only where TEXT is one whole value. Everything that names the reason of a failure
stands in a branch that good records do not enter, and uses nothing that Spark cannot generate code for: a lambda or a
second from_json there would take the whole projection out of code generation, for good records too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router_decoders.json_types import check_types, converted, has_times, misfits, parsed_type
from router_decoders.schema_files import struct_of_ddl

if TYPE_CHECKING:
    from collections.abc import Iterator

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
RESCUED = "_rescued"
TEMPORARY = ("_json", "_parsed", "_variant", "_unfit", "_all")


@lru_cache(maxsize=16)
def levels(ddl: str, rescue: bool) -> tuple[dict[str, Column], ...]:
    """Return the projections that add `event` and `_error`, one after the other; each uses columns before it.

    They are levels because Spark keeps a costly column that is used several times in a projection of its own, and so
    evaluates it once. Made once per schema: a column is some calls across the gateway, a batch must not pay for all.
    Raises ValueError for a schema that cannot be decoded to.
    """
    schema = _checked(ddl, rescue)
    text = F.col("value").cast("string")
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
    event = value
    if rescue:
        good = _always() & F.col("_error").isNull()
        steps.append({"_all": F.when(good, F.from_json(text, "map<string,string>", OPTIONS))})
        fields = [value[name].alias(name) for name in schema.fieldNames()]
        event = F.struct(*fields, _rescued(schema).alias(RESCUED))
    return (*steps, {"event": F.when(F.col("_error").isNull(), event)})


def _checked(ddl: str, rescue: bool) -> T.StructType:
    schema = struct_of_ddl(ddl)
    check_types(schema)
    if rescue and RESCUED in (name.lower() for name in schema.fieldNames()):
        raise ValueError(f"the schema has a field {RESCUED} already; take it away or switch `rescue` off")
    return schema


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


def _rescued(schema: T.StructType) -> Column:
    """Return the entries of the record that the schema does not know, null when there are none.

    A key that comes twice counts with its last value, as in the event. Sorted by key and place, the last of a key is
    the entry before another key.
    """
    entries = F.map_entries(F.map_filter("_all", lambda key, _: ~key.isin(schema.fieldNames())))
    placed = F.transform(entries, lambda entry, place: F.struct(entry["key"], place, entry["value"]))
    ordered = F.transform(F.array(F.array_sort(placed)), _last_of_each)[0]  # the array binds it to a name, once
    return F.when(F.size(entries) > 0, F.map_from_entries(ordered))


def _last_of_each(entries: Column) -> Column:
    def is_last(entry: Column, place: Column) -> Column:
        return F.coalesce(F.get(entries, place + 1)["key"] != entry["key"], F.lit(True))

    last = F.filter(entries, is_last)
    return F.transform(last, lambda entry: F.struct(entry["key"], entry["value"]))
