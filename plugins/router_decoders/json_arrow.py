"""Decode JSON objects in Python, a record batch at a time, in two steps that mean the same.

msgspec parses a row to an object; what it does not take as it is goes to `json_rows`, which decides on any row. Then
the objects of some thousand rows become columns. Where msgspec takes more than RFC 8259, or in another way than
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
    TIMES,
    Shape,
    arrow_type,
    map_parser,
    parsers,
    read_decimal,
    read_time,
    struct_class,
)
from router_decoders.unknown_fields import UnknownInRows, unknown_fields
from router_schemas.model import WriterSchema
from router_schemas.wire_format import ADDED, about, framed_rows, schema_bytes, wanted, why

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from router_schemas.model import SchemaInfo

    Places = NDArray[np.intp]

ROWS = 4096
"""Rows that are decoded together, so that their objects stay in the processor's cache."""

SHORT = 1000
"""Bytes that cannot exceed a limit of the native parser: 1000 digits of a number, 1000 levels."""
LONG = 50_000
"""Bytes that hold no key beyond its limit of 50,000 characters."""
DEEP = 900
"""Brackets of a longer text, at most."""
DIGITS = 900
"""Characters of a number in a longer text, less than that."""
STRIDE = 17
"""Only every so many bytes are looked at; a prime, so that the commas between numbers are met soon."""
SEEN_OF_DIGITS = re.compile(rb"[-+.0-9eE]{%d}" % (DIGITS // STRIDE))
NO_DIGITS_TO_BLANKS = bytes(byte if byte in b"-+.0123456789eE" else 0x20 for byte in range(256))

NOWHERE: Places = np.empty(0, np.intp)
FEW = 64
"""Texts that are converted one by one when one of them is no time."""
FIRST, LAST = (
    pa.scalar(text).cast(pa.timestamp("us", "UTC")) for text in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")
)
ZONELESS = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$"
WITH_OFFSET = ZONELESS.replace("$", "[-+](0[0-9]|1[0-7]):[0-5][0-9]$")
RESCUED = "_rescued"
UNKNOWN = msgspec.json.Decoder(dict[str, msgspec.Raw])
TEXT = msgspec.json.Decoder(str)


@dataclass(frozen=True)
class JsonEvents:
    """How JSON objects are read: to which type, in the session's time zone, and with unknown keys where wanted."""

    shape: Shape
    zone: str = "UTC"
    rescue: bool = False


def events(records: pa.RecordBatch, asked: JsonEvents) -> pa.RecordBatch:
    """Return the columns `event`, `_error` and `_unknown` for records with the columns of `RAW_SCHEMA`.

    Never raises on any bytes, and decides on a row without looking at its neighbours. Runs on executors.
    """
    return pa.RecordBatch.from_arrays([*decode(records.column("value"), asked)], names=["event", "_error", "_unknown"])


def decode(values: pa.Array, asked: JsonEvents) -> tuple[pa.StructArray, pa.StringArray, pa.ListArray]:
    """Return the events of texts, why rows have none, and the names of the fields that the type lacks."""
    blocks = [_block(values.slice(start, ROWS), asked) for start in range(0, len(values) or 1, ROWS)]
    found, reasons, unknown = zip(*blocks, strict=True)
    return pa.concat_arrays(found), pa.concat_arrays(reasons), pa.concat_arrays(unknown)


def _block(values: pa.Array, asked: JsonEvents) -> tuple[pa.StructArray, pa.StringArray, pa.ListArray]:
    texts: list[bytes | None] = values.to_numpy(zero_copy_only=False).tolist()
    unknown = UnknownInRows(unknown_fields(asked.shape), len(texts))
    event, left = _parsed(texts, values, asked, unknown)
    decoder = RowDecoder(asked.shape, asked.zone, asked.rescue) if left else None
    decided = {row: decoder.decode(texts[row]) for row in left} if decoder else {}
    if decided:
        event, _ = _placed(event, left, [one.event for one in decided.values()], asked.shape, asked.zone)
        for row, one in decided.items():
            unknown.decided(row, one.value, asked.shape)
    if asked.rescue:
        beyond = [
            decided[row].unknown if row in decided else _unknown(texts[row], asked) if has_some else None
            for row, has_some in enumerate(unknown.any)
        ]
        event = _rescued(event, beyond)
    return event, _reasons(decided, len(texts)), unknown.column()


def _parsed(
    texts: list[bytes | None], values: pa.Array, asked: JsonEvents, unknown: UnknownInRows
) -> tuple[pa.StructArray, list[int]]:
    """Return the events of rows that msgspec takes, and the other rows.

    Nearly all rows are taken by a parser that refuses fields which the type lacks, and so finds them at no cost.
    """
    plain = _plain(texts, values)
    event, left = pa.nulls(len(texts), arrow_type(asked.shape)), [*range(len(texts))]
    for refusing in (True, False):
        for shape, parse in parsers(asked.shape, unknown.shape, refusing=refusing):
            if left:
                some = plain if len(left) == len(plain) else [plain[row] for row in left]
                objects = _objects(some, parse.decode)
                if refusing:
                    unknown.parsed(left, objects)
                else:
                    unknown.refused(left, objects, plain, asked.shape)
                event, left = _placed(event, left, objects, shape, asked.zone)
    return event, left


def _placed(
    event: pa.StructArray, rows: list[int], objects: list[Any], shape: Shape, zone: str
) -> tuple[pa.StructArray, list[int]]:
    """Return events with those of some rows' objects, and the rows that are still without one."""
    if all(one is None for one in objects):
        return event, rows
    found, unfit = _struct_column(objects, shape, zone)
    if unfit.size:
        absent = found.is_null().to_numpy(zero_copy_only=False).copy()
        absent[unfit] = True
        found = pa.StructArray.from_arrays(found.flatten(), fields=list(found.type), mask=pa.array(absent))
    left = [rows[at] for at in np.flatnonzero(found.is_null())] if found.null_count else []
    if len(rows) < len(event):
        places = np.arange(len(event))
        places[rows] = len(event) + np.arange(len(rows))
        found = pa.concat_arrays([event, found]).take(pa.array(places))
    return found, left


def _reasons(decided: dict[int, DecodedRow], rows: int) -> pa.StringArray:
    if not decided:
        return pa.nulls(rows, pa.string())
    reasons: list[str | None] = [None] * rows
    for row, one in decided.items():
        reasons[row] = one.reason
    return pa.array(reasons, pa.string())


def _unknown(text: bytes | None, asked: JsonEvents) -> dict[str, str | None] | None:
    """Return the unknown keys of a text that msgspec took, as `json_rows` does."""
    if text is None:
        return None
    known = {name for name, _ in asked.shape.fields}
    found = {key: raw for key, raw in UNKNOWN.decode(text).items() if key not in known}
    return {key: json_text_of(bytes(found[key])) for key in sorted(found)} or None


def _rescued(event: pa.StructArray, unknown: list[dict[str, str | None] | None]) -> pa.StructArray:
    kind = pa.map_(pa.string(), pa.string())
    entries = pa.array([one and [*one.items()] for one in unknown], kind)
    fields = [*event.type, pa.field(RESCUED, kind)]
    return pa.StructArray.from_arrays([*event.flatten(), entries], fields=fields, mask=event.is_null())


# What msgspec takes


def _plain(texts: list[bytes | None], values: pa.Array) -> Sequence[bytes | None]:
    """Return the texts, None in place of those that msgspec may take and must not."""
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    if longest <= SHORT and _are_utf8(values):
        return texts
    return [text if text is not None and _is_plain(text) else None for text in texts]


def _are_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_plain(text: bytes) -> bool:
    """Say whether a text is UTF-8 and stays below the limits."""
    if len(text) > SHORT and (len(text) > LONG or _may_be_deep(text) or _has_long_number(text)):
        return False
    return text.isascii() or _is_utf8(text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_deep(text: bytes) -> bool:
    return len(text) > 2 * DEEP and text.count(b"[") + text.count(b"{") > DEEP


def _has_long_number(text: bytes) -> bool:
    """Say whether a text has too long a run of digits; for nearly all texts, some of the bytes are enough to tell."""
    if not SEEN_OF_DIGITS.search(text[::STRIDE]):
        return False
    return max(map(len, text.translate(NO_DIGITS_TO_BLANKS).split())) >= DIGITS


def _objects(texts: Sequence[bytes | None], decode: Callable[[Any], Any]) -> list[Any]:
    """Return the objects of texts, None for a text that is none or does not fit."""
    found: list[Any] = []
    for text in texts:
        try:
            found.append(decode(text))
        except Exception:  # not JSON, does not fit, nested too deep for Python, null: for the second step
            found.append(None)
    return found


# Columns


def _column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    if shape.kind in TIMES:
        return _times(pa.array(values, pa.string()), shape, zone)
    if shape.kind in COLUMNS:
        return COLUMNS[shape.kind](values, shape, zone)
    return pa.array(values, arrow_type(shape)), NOWHERE


def _struct_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.StructArray, Places]:
    absent = [value is None for value in values]
    if any(absent):
        empty = struct_class(shape)()
        values = [empty if value is None else value for value in values]
    found = [
        _column([*map(attrgetter(f"f{place}"), values)], child, zone) for place, (_, child) in enumerate(shape.fields)
    ]
    columns, unfit = zip(*found, strict=True)
    mask = pa.array(absent, pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(arrow_type(shape)), mask=mask), np.concatenate(unfit)


def _list_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    elements, unfit = _column([*chain.from_iterable(value or () for value in values)], shape.inner, zone)
    offsets, mask, rows = _nesting(values)
    array = pa.ListArray.from_arrays(offsets, elements, type=arrow_type(shape), mask=mask)
    return array, rows[unfit]


def _map_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return maps: dicts of the second step, texts of the first one."""
    maps = [_entries(value, shape) if isinstance(value, msgspec.Raw) else value for value in values]
    keys = pa.array([*chain.from_iterable(value or () for value in maps)], pa.string())
    items = [*chain.from_iterable(value.values() for value in maps if value)]
    column, unfit = _column(items, shape.inner, zone)
    offsets, mask, rows = _nesting(maps)
    array = pa.MapArray.from_arrays(offsets, keys, column, type=arrow_type(shape), mask=mask)
    doubtful = [row for row, value in enumerate(maps) if value is None and not _is_null(values[row])]
    return array, np.concatenate([rows[unfit], np.array(doubtful, np.intp)])


def _entries(raw: msgspec.Raw, shape: Shape) -> dict[str, Any] | None:
    """Return a map's entries; None where it is none, or where a key may come twice: then it has more colons."""
    text = bytes(raw)
    try:
        found: dict[str, Any] | None = map_parser(shape).decode(text)
    except Exception:  # another type, or null
        return None
    return found if found is not None and text.count(b":") == len(found) else None


def _nesting(values: list[Any]) -> tuple[pa.Array, pa.Array, Places]:
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
    texts = [None if value is None else _scalar_text(value) for value in values]
    found = [None if text is None else read_decimal(text, shape.digits) for text in texts]
    unfit = [row for row, text in enumerate(texts) if text is not None and found[row] is None]
    return pa.array(found, arrow_type(shape)), np.array(unfit, np.intp)


def _variant_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return variants of the second step; a text of the first one is for the second to look at."""
    found = [VariantVal.parseJson(value) if isinstance(value, str) else None for value in values]
    rows = [one and {"value": bytes(one.value), "metadata": bytes(one.metadata)} for one in found]
    doubtful = [row for row, value in enumerate(values) if isinstance(value, msgspec.Raw)]
    return pa.array(rows, arrow_type(shape)), np.array(doubtful, np.intp)


def _any_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return strings of the second parser."""
    texts = [None if value is None else json_text_of(bytes(value)) for value in values]
    return pa.array(texts, pa.string()), NOWHERE


def _void_column(values: list[Any], shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    return pa.nulls(len(values)), NOWHERE


COLUMNS: dict[str, Callable[[list[Any], Shape, str], tuple[pa.Array, Places]]] = {
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
        return TEXT.decode(text)
    return None if text == b"null" else text.decode()


# Times


def _times(texts: pa.Array, shape: Shape, zone: str) -> tuple[pa.Array, Places]:
    """Return texts as times, and the places of those that are none: whole columns at once, odd forms one by one."""
    if shape.kind == "timestamp" and zone == "UTC":
        texts = _with_zone(texts)
    formed = _is_formed(texts, shape)
    times = _cast(pc.if_else(formed, texts, pa.scalar(None, pa.string())), shape, zone)
    if shape.kind == "timestamp" and not pc.all(formed).as_py():
        offset = pc.and_not(pc.match_substring_regex(texts, WITH_OFFSET), formed)
        moved = _cast(pc.if_else(offset, texts, pa.scalar(None, pa.string())), shape, zone)
        times, formed = pc.coalesce(times, _in_range(moved)), pc.or_(formed, offset)
    others = pc.and_not(texts.is_valid(), formed.fill_null(False))
    if others.true_count:
        read = [read_time(text, shape.kind, zone) for text in texts.filter(others).to_pylist()]
        times = pc.replace_with_mask(times, others, pa.array(read, times.type))
    unfit = pc.and_(times.is_null(), texts.is_valid())
    return times, np.flatnonzero(unfit.to_numpy(zero_copy_only=False))


def _in_range(times: pa.Array) -> pa.Array:
    """Return times with null for those that their offset moves out of the years 1 to 9999."""
    inside = pc.and_(pc.greater_equal(times, FIRST), pc.less_equal(times, LAST))
    return pc.if_else(inside, times, pa.scalar(None, times.type))


def _with_zone(texts: pa.Array) -> pa.Array:
    """Return texts with Z added where they have no zone, so that whole columns can be cast."""
    if pc.all(pc.ends_with(texts, "Z")).as_py() is not False:
        return texts
    return pc.if_else(pc.match_substring_regex(texts, ZONELESS), pc.binary_join_element_wise(texts, "Z", ""), texts)


def _is_formed(texts: pa.Array, shape: Shape) -> pa.Array:
    """Return whether Arrow reads a text as `read_time` does: `2026-11-21T10:00:00[.123456]Z`, `2026-11-21`, ..."""
    if shape.kind == "timestamp_ntz":
        return pc.and_not(pc.match_substring_regex(texts, ZONELESS), pc.starts_with(texts, "0000"))
    lengths, end = ([10], "") if shape.kind == "date" else ([20, *range(22, 28)], "Z")
    long_enough = pc.is_in(pc.binary_length(texts), pa.array(lengths, pa.int32()))
    return pc.and_not(pc.and_(long_enough, pc.ends_with(texts, end)), pc.starts_with(texts, "0000"))


def _cast(texts: pa.Array, shape: Shape, zone: str) -> pa.Array:
    """Return texts as times, null for those that are none: Arrow refuses a whole column for one of them."""
    try:
        return texts.cast(arrow_type(shape))
    except pa.ArrowInvalid:
        pass
    if len(texts) > FEW:
        return pa.concat_arrays([_cast(texts[at : at + FEW], shape, zone) for at in range(0, len(texts), FEW)])
    return pa.array([text and read_time(text, shape.kind, zone) for text in texts.to_pylist()], arrow_type(shape))


# Objects in the wire format of a schema registry


@dataclass(frozen=True)
class FramedObjects:
    """How framed objects are read. `written` is by prefix; `header` is the one that may hold a GUID."""

    asked: JsonEvents
    written: dict[bytes, SchemaInfo]
    header: str


def framed_events(records: pa.RecordBatch, known: FramedObjects) -> pa.RecordBatch:
    """Return `event`, the columns of ADDED and `_unknown` for records with the columns of `RAW_SCHEMA`, as `events`."""
    found = framed_rows(records, "confluent", known.header, indexed=False)
    written = [known.written.get(schema_bytes(WriterSchema.of(writer))) for writer in found.writers]
    unread = why(found, written)
    failed = unread.is_valid()
    payloads = pc.if_else(failed, pa.scalar(None, found.payloads.type), found.payloads)
    event, reasons, unknown = decode(payloads if failed.true_count else found.payloads, known.asked)
    columns = [event, pc.coalesce(unread, reasons), wanted(found, written), *about(found, written), unknown]
    return pa.RecordBatch.from_arrays(columns, names=["event", *ADDED.names, "_unknown"])
