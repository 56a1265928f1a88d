"""Decode JSON objects in Python, a record batch at a time, in two steps that mean the same.

msgspec parses a row to an object; a row that it does not take as it is goes to `json_rows`, which decides on any row.
Then the objects of some thousand rows become columns. If msgspec takes more than RFC 8259, or in another way than
`json_rows`, a row is kept from it:

| what | msgspec | here |
|---|---|---|
| bytes that are not UTF-8 | passes over them in fields that the schema lacks | second step |
| a number of 1000 digits, 1000 levels, a key of 50,000 characters | takes them | second step, with some margin |
| a time, a decimal, a map with a key that comes twice | takes them in its own way | looked at when columns are made |

Parsing row by row costs no more than whole lines (`decode_lines`): the bytes objects are warm when they are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import VariantVal

from router_decoders.json_rows import DecodedRow, RowDecoder, json_text_of
from router_decoders.json_types import (
    TIME_KINDS,
    Shape,
    arrow_type,
    make_parsers,
    map_parser,
    read_decimal,
    read_time,
    struct_class,
)
from router_decoders.unknown_fields import UnknownInRows, unknown_fields
from router_schemas.model import WriterSchema
from router_schemas.wire_format import (
    ADDED_COLUMNS,
    event_reasons,
    framed_rows,
    schema_bytes,
    schema_columns,
    wanted_writers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from decimal import Decimal

    from numpy.typing import NDArray

    from router_schemas.model import SchemaInfo

    Places = NDArray[np.intp]

BLOCK_ROWS = 4096
"""Rows that are decoded together, so that their objects stay in the processor's cache."""

HARMLESS_BYTES = 1000
"""Bytes that cannot exceed a limit of the native parser: 1000 digits of a number, 1000 levels."""
LONG_TEXT_BYTES = 50_000
"""Bytes that hold no key beyond its limit of 50,000 characters."""
MAX_BRACKETS = 900
"""Brackets of a longer text, at most."""
MAX_NUMBER_BYTES = 900
"""Characters of a number in a longer text, less than that."""
DIGIT_STRIDE = 17
"""Only every so many bytes are looked at; a prime, so that the commas between numbers are met soon."""
SEEN_OF_DIGITS = re.compile(rb"[-+.0-9eE]{%d}" % (MAX_NUMBER_BYTES // DIGIT_STRIDE))
NO_DIGITS_TO_BLANKS = bytes(byte if byte in b"-+.0123456789eE" else 0x20 for byte in range(256))

NOWHERE: Places = np.empty(0, np.intp)
CUT_ROWS = 64
"""Texts that are converted one by one when one of them is no time."""
FIRST_TIME = pa.scalar("0001-01-01T00:00:00Z").cast(pa.timestamp("us", "UTC"))
LAST_TIME = pa.scalar("9999-12-31T23:59:59.999999Z").cast(pa.timestamp("us", "UTC"))
NO_TEXT = pa.scalar(None, pa.string())
ZONELESS_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
TIME_WITH_OFFSET = ZONELESS_TIME.replace("$", "[-+](0[0-9]|1[0-7]):[0-5][0-9]$")
RESCUED_FIELD = "_rescued"
RAW_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
TEXT_DECODER = msgspec.json.Decoder(str)


@dataclass(frozen=True)
class JsonEvents:
    """How JSON objects are read: to which type, in which time zone, and with unknown keys in `_rescued` or not."""

    shape: Shape
    zone: str = "UTC"
    rescue: bool = False


def json_events(records: pa.RecordBatch, options: JsonEvents) -> pa.RecordBatch:
    """Return the columns `event`, `_error` and `_unknown` for records with the columns of `RAW_SCHEMA`.

    Never raises on any bytes, and decides on a row without looking at its neighbours. Runs on executors.
    """
    columns = decode_texts(records.column("value"), options)
    return pa.RecordBatch.from_arrays([*columns], names=["event", "_error", "_unknown"])


def decode_texts(values: pa.Array, options: JsonEvents) -> tuple[pa.StructArray, pa.StringArray, pa.ListArray]:
    """Return the events of texts, why rows have none, and the names of the fields that the type lacks."""
    # Zero rows make one empty block, so that the columns have their types.
    starts = range(0, max(len(values), 1), BLOCK_ROWS)
    blocks = [_decode_block(values.slice(start, BLOCK_ROWS), options) for start in starts]
    events, reasons, unknown = zip(*blocks, strict=True)
    return pa.concat_arrays(events), pa.concat_arrays(reasons), pa.concat_arrays(unknown)


def _decode_block(values: pa.Array, options: JsonEvents) -> tuple[pa.StructArray, pa.StringArray, pa.ListArray]:
    texts: list[bytes | None] = values.to_numpy(zero_copy_only=False).tolist()
    unknown = UnknownInRows(unknown_fields(options.shape), len(texts))
    event, remaining = _parse_by_msgspec(texts, values, options, unknown)
    # The second step decides on the rows that msgspec does not take.
    decided: dict[int, DecodedRow] = {}
    if remaining:
        decoder = RowDecoder(options.shape, options.zone, options.rescue)
        decided = {row: decoder.decode(texts[row]) for row in remaining}
        objects = [decoded.event for decoded in decided.values()]
        event, _ = _place_objects(event, remaining, objects, options.shape, options.zone)
        for row, decoded in decided.items():
            unknown.add_decided(row, decoded.value, options.shape)
    if options.rescue:
        rescued: list[dict[str, str | None] | None] = [None] * len(texts)
        for row in np.flatnonzero(unknown.any).tolist():
            if row in decided:
                rescued[row] = decided[row].unknown
            else:
                rescued[row] = _unknown_keys(texts[row], options)
        event = _with_rescued(event, rescued)
    return event, _reason_array(decided, len(texts)), unknown.to_column()


def _parse_by_msgspec(
    texts: list[bytes | None], values: pa.Array, options: JsonEvents, unknown: UnknownInRows
) -> tuple[pa.StructArray, list[int]]:
    """Return the events of rows that msgspec takes, and the other rows."""
    plain_texts = _plain_texts(texts, values)
    event = pa.nulls(len(texts), arrow_type(options.shape))
    remaining = [*range(len(texts))]
    # Nearly all rows are taken by a parser that refuses fields which the type lacks, and so finds them at no cost. The
    # rows with such fields remain for the same parsers without the refusal.
    for refusing in (True, False):
        for shape, parser in make_parsers(options.shape, unknown.shape, refusing=refusing):
            if not remaining:
                continue
            to_parse = plain_texts
            if len(remaining) < len(plain_texts):
                to_parse = [plain_texts[row] for row in remaining]
            objects = _parse_texts(to_parse, parser.decode)
            if refusing:
                unknown.add_parsed(remaining, objects)
            else:
                unknown.add_refused(remaining, objects, plain_texts, options.shape)
            event, remaining = _place_objects(event, remaining, objects, shape, options.zone)
    return event, remaining


def _place_objects(
    event: pa.StructArray, rows: list[int], objects: list[Any], shape: Shape, zone: str
) -> tuple[pa.StructArray, list[int]]:
    """Return events with those of some rows' objects, and the rows that are still without one."""
    if all(parsed is None for parsed in objects):
        return event, rows
    structs, unfit = _struct_column(objects, shape, zone)
    if unfit.size:
        # An object with a field that does not fit is no event.
        absent = structs.is_null().to_numpy(zero_copy_only=False).copy()
        absent[unfit] = True
        structs = pa.StructArray.from_arrays(structs.flatten(), fields=list(structs.type), mask=pa.array(absent))
    remaining: list[int] = []
    if structs.null_count:
        remaining = [rows[place] for place in np.flatnonzero(structs.is_null())]
    if len(rows) < len(event):
        # The new events stand behind all others; each of the rows takes its event from there.
        places = np.arange(len(event))
        places[rows] = len(event) + np.arange(len(rows))
        structs = pa.concat_arrays([event, structs]).take(pa.array(places))
    return structs, remaining


def _reason_array(decided: dict[int, DecodedRow], rows: int) -> pa.StringArray:
    if not decided:
        return pa.nulls(rows, pa.string())
    reasons: list[str | None] = [None] * rows
    for row, decoded in decided.items():
        reasons[row] = decoded.reason
    return pa.array(reasons, pa.string())


def _unknown_keys(text: bytes | None, options: JsonEvents) -> dict[str, str | None] | None:
    """Return the unknown keys of a text that msgspec took, as `json_rows` does."""
    if text is None:
        return None
    field_names = {name for name, _ in options.shape.fields}
    values = RAW_OBJECT_DECODER.decode(text)
    unknown = {}
    for key in sorted(values):
        if key not in field_names:
            unknown[key] = json_text_of(bytes(values[key]))
    return unknown or None


def _with_rescued(event: pa.StructArray, rescued: list[dict[str, str | None] | None]) -> pa.StructArray:
    kind = pa.map_(pa.string(), pa.string())
    entries = pa.array([keys and [*keys.items()] for keys in rescued], kind)
    fields = [*event.type, pa.field(RESCUED_FIELD, kind)]
    return pa.StructArray.from_arrays([*event.flatten(), entries], fields=fields, mask=event.is_null())


# What msgspec takes


def _plain_texts(texts: list[bytes | None], values: pa.Array) -> Sequence[bytes | None]:
    """Return the texts, None in place of those that msgspec may take and must not."""
    # Nearly always one check of the whole column is enough.
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest <= HARMLESS_BYTES and _are_utf8(values):
        return texts
    return [text if text is not None and _is_plain(text) else None for text in texts]


def _are_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_plain(text: bytes) -> bool:
    """Return whether a text is UTF-8 and stays below the limits."""
    if len(text) > LONG_TEXT_BYTES:
        return False
    if len(text) > HARMLESS_BYTES and (_may_be_deep(text) or _has_long_number(text)):
        return False
    return text.isascii() or _is_utf8(text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_deep(text: bytes) -> bool:
    return len(text) > 2 * MAX_BRACKETS and text.count(b"[") + text.count(b"{") > MAX_BRACKETS


def _has_long_number(text: bytes) -> bool:
    """Return whether a text has too long a run of digits; for nearly all texts, some of the bytes are enough."""
    if not SEEN_OF_DIGITS.search(text[::DIGIT_STRIDE]):
        return False
    numbers = text.translate(NO_DIGITS_TO_BLANKS).split()
    return max(map(len, numbers)) >= MAX_NUMBER_BYTES


def _parse_texts(texts: Sequence[bytes | None], decode: Callable[[Any], Any]) -> list[Any]:
    """Return the objects of texts, None for a text that is none or does not fit."""
    objects: list[Any] = []
    for text in texts:
        try:
            objects.append(decode(text))
        except Exception:  # not JSON, does not fit, nested too deep for Python, null: for the second step
            objects.append(None)
    return objects


# Columns: comprehensions and map walk the values, because a loop would take longer for each of them


def _value_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return the column of values, and the places of those that do not fit its type."""
    if shape.kind in TIME_KINDS:
        return _time_column(pa.array(values, pa.string()), shape, zone)
    if shape.kind in COLUMN_MAKERS:
        return COLUMN_MAKERS[shape.kind](values, shape, zone)
    return pa.array(values, arrow_type(shape)), NOWHERE


def _struct_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.StructArray, Places]:
    absent = [value is None for value in values]
    if any(absent):
        # Null has no attributes to make columns of: an empty struct stands for it, under the mask.
        empty = struct_class(shape)()
        values = [empty if value is None else value for value in values]
    columns = []
    unfit = []
    for place, (_, child) in enumerate(shape.fields):
        field_values = [*map(attrgetter(f"f{place}"), values)]
        column, unfit_of_column = _value_column(field_values, child, zone)
        columns.append(column)
        unfit.append(unfit_of_column)
    mask = pa.array(absent, pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(arrow_type(shape)), mask=mask), np.concatenate(unfit)


def _list_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    all_elements = [*chain.from_iterable(value or () for value in values)]
    elements, unfit = _value_column(all_elements, shape.inner, zone)
    offsets, mask, rows = _nested_rows(values)
    array = pa.ListArray.from_arrays(offsets, elements, type=arrow_type(shape), mask=mask)
    return array, rows[unfit]


def _map_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return maps: dicts of the second step, texts of the first one."""
    maps = [_parse_map(value, shape) if isinstance(value, msgspec.Raw) else value for value in values]
    keys = pa.array([*chain.from_iterable(value or () for value in maps)], pa.string())
    items = [*chain.from_iterable(value.values() for value in maps if value)]
    column, unfit = _value_column(items, shape.inner, zone)
    offsets, mask, rows = _nested_rows(maps)
    array = pa.MapArray.from_arrays(offsets, keys, column, type=arrow_type(shape), mask=mask)
    # A text that gives no map and is not null: the second step decides on its row.
    doubtful = [row for row, value in enumerate(maps) if value is None and not _is_null(values[row])]
    return array, np.concatenate([rows[unfit], np.array(doubtful, np.intp)])


def _parse_map(raw: msgspec.Raw, shape: Shape) -> dict[str, Any] | None:
    """Return a map's entries; None if it is none, or if a key may come twice: then it has more colons."""
    text = bytes(raw)
    try:
        entries: dict[str, Any] | None = map_parser(shape).decode(text)
    except Exception:  # another type, or null
        return None
    if entries is None or text.count(b":") != len(entries):
        return None
    return entries


def _nested_rows(values: list[Any]) -> tuple[pa.Array, pa.Array, Places]:
    """Return offsets and mask of lists or maps, and the row of each of their elements."""
    lengths = np.fromiter((len(value or ()) for value in values), np.intp, len(values))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = pa.array([value is None for value in values], pa.bool_())
    return offsets, mask, np.repeat(np.arange(len(values)), lengths)


def _float_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    column = pa.array(values, pa.float64()).cast(pa.float32(), safe=False)
    beyond = pc.is_inf(column).fill_null(False)
    return column, np.flatnonzero(beyond.to_numpy(zero_copy_only=False))


def _decimal_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    decimals: list[Decimal | None] = []
    unfit = []
    for row, value in enumerate(values):
        text = None if value is None else _scalar_text(value)
        if text is None:
            decimals.append(None)
            continue
        number = read_decimal(text, shape.digits)
        decimals.append(number)
        if number is None:
            unfit.append(row)
    return pa.array(decimals, arrow_type(shape)), np.array(unfit, np.intp)


def _variant_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return variants of the second step; a text of the first one is for the second to look at."""
    structs: list[dict[str, bytes] | None] = []
    doubtful = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            variant = VariantVal.parseJson(value)
            structs.append({"value": bytes(variant.value), "metadata": bytes(variant.metadata)})
            continue
        structs.append(None)
        if isinstance(value, msgspec.Raw):
            doubtful.append(row)
    return pa.array(structs, arrow_type(shape)), np.array(doubtful, np.intp)


def _any_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return strings of the second parser."""
    texts = [None if value is None else json_text_of(bytes(value)) for value in values]
    return pa.array(texts, pa.string()), NOWHERE


def _void_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    return pa.nulls(len(values)), NOWHERE


COLUMN_MAKERS: dict[str, Callable[[list[Any], Shape, str], tuple[pa.Array, Places]]] = {
    "struct": _struct_column,
    "array": _list_column,
    "map": _map_column,
    "float": _float_column,
    "decimal": _decimal_column,
    "variant": _variant_column,
    "void": _void_column,
    "any": _any_column,
}


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, msgspec.Raw) and bytes(value) == b"null")


def _scalar_text(value: msgspec.Raw | str) -> str | None:
    """Return a number or a text of either step as text; None for null."""
    if isinstance(value, str):
        return value
    text = bytes(value)
    if text[:1] == b'"':
        return TEXT_DECODER.decode(text)
    if text == b"null":
        return None
    return text.decode()


# Times


def _time_column(texts: pa.Array, shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return texts as times, and the places of those that are none: whole columns at once, odd forms one by one."""
    if shape.kind == "timestamp" and zone == "UTC":
        texts = _with_zone(texts)
    # First the usual form, which Arrow reads as `read_time` does.
    formed = _is_formed(texts, shape)
    times = _cast_times(pc.if_else(formed, texts, NO_TEXT), shape, zone)
    # Then timestamps with an offset such as +02:00. It may move one out of the years 1 to 9999, which Arrow allows.
    if shape.kind == "timestamp" and not pc.all(formed).as_py():
        with_offset = pc.and_not(pc.match_substring_regex(texts, TIME_WITH_OFFSET), formed)
        moved = _cast_times(pc.if_else(with_offset, texts, NO_TEXT), shape, zone)
        times = pc.coalesce(times, _in_range(moved))
        formed = pc.or_(formed, with_offset)
    # Then the other forms, one by one.
    others = pc.and_not(texts.is_valid(), formed.fill_null(False))
    if others.true_count:
        other_times = [read_time(text, shape.kind, zone) for text in texts.filter(others).to_pylist()]
        times = pc.replace_with_mask(times, others, pa.array(other_times, times.type))
    unfit = pc.and_(times.is_null(), texts.is_valid())
    return times, np.flatnonzero(unfit.to_numpy(zero_copy_only=False))


def _in_range(times: pa.Array) -> pa.Array:
    """Return times with null for those that their offset moves out of the years 1 to 9999."""
    inside = pc.and_(pc.greater_equal(times, FIRST_TIME), pc.less_equal(times, LAST_TIME))
    return pc.if_else(inside, times, pa.scalar(None, times.type))


def _with_zone(texts: pa.Array) -> pa.Array:
    """Return texts with Z added where they have no zone, so that whole columns can be cast."""
    if pc.all(pc.ends_with(texts, "Z")).as_py() is not False:
        return texts
    is_zoneless = pc.match_substring_regex(texts, ZONELESS_TIME)
    return pc.if_else(is_zoneless, pc.binary_join_element_wise(texts, "Z", ""), texts)


def _is_formed(texts: pa.Array, shape: Shape) -> pa.Array:
    """Return whether Arrow reads a text as `read_time` does: `2026-11-21T10:00:00[.123456]Z`, `2026-11-21`, ..."""
    is_year_zero = pc.starts_with(texts, "0000")
    if shape.kind == "timestamp_ntz":
        return pc.and_not(pc.match_substring_regex(texts, ZONELESS_TIME), is_year_zero)
    # The characters of a time in whole seconds, and with one to six decimals.
    lengths = [20, *range(22, 28)]
    end = "Z"
    if shape.kind == "date":
        lengths = [10]
        end = ""
    has_length = pc.is_in(pc.binary_length(texts), pa.array(lengths, pa.int32()))
    return pc.and_not(pc.and_(has_length, pc.ends_with(texts, end)), is_year_zero)


def _cast_times(texts: pa.Array, shape: Shape, zone: str) -> pa.Array:
    """Return texts as times, null for those that are none. Arrow refuses a whole column for one of them: it is cut."""
    try:
        return texts.cast(arrow_type(shape))
    except pa.ArrowInvalid:
        pass
    if len(texts) > CUT_ROWS:
        pieces = [_cast_times(texts[start : start + CUT_ROWS], shape, zone) for start in range(0, len(texts), CUT_ROWS)]
        return pa.concat_arrays(pieces)
    times = [text and read_time(text, shape.kind, zone) for text in texts.to_pylist()]
    return pa.array(times, arrow_type(shape))


# Objects in the wire format of a schema registry


@dataclass(frozen=True)
class FramedObjects:
    """How framed objects are read. `written` is by prefix; `header` is the one that may hold a GUID."""

    options: JsonEvents
    written: dict[bytes, SchemaInfo]
    header: str
    absence: str = ""


def framed_events(records: pa.RecordBatch, known: FramedObjects) -> pa.RecordBatch:
    """Return `event`, ADDED_COLUMNS and `_unknown` for records with the columns of `RAW_SCHEMA`, as `events`."""
    rows = framed_rows(records, "confluent", known.header, indexed=False)
    written = [known.written.get(schema_bytes(WriterSchema.of(writer))) for writer in rows.writers]
    unread = event_reasons(rows, written, absence=known.absence)
    payloads = rows.payloads
    if unread.null_count < len(unread):
        payloads = pc.if_else(unread.is_valid(), pa.scalar(None, payloads.type), payloads)
    event, reasons, unknown = decode_texts(payloads, known.options)
    columns = [
        event,
        pc.coalesce(unread, reasons),
        wanted_writers(rows, written),
        *schema_columns(rows, written),
        unknown,
    ]
    return pa.RecordBatch.from_arrays(columns, names=["event", *ADDED_COLUMNS.names, "_unknown"])
