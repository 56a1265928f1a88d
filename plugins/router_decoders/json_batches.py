"""Decode JSON objects in Python, a record batch at a time: the plain ones, and nothing that is in doubt.

A row is decided here only when the native expressions of `json_columns` would accept it with the same event. All
others are left undecided, for these to give them an event or an error. msgspec is as strict as RFC 8259; what else the
native parser checks, or reads in its own way, is closed here:

| what | msgspec | here |
|---|---|---|
| bytes that are not UTF-8 | passes over them in fields that the schema lacks | undecided |
| a number of 1000 digits, 1000 levels, a key of 50,000 characters | takes them | undecided, with some margin |
| a time | takes more forms, rounds nanoseconds | UTC, with a Z and up to 6 decimals; or undecided |

Parsing row by row costs no more than whole lines (`decode_lines`): the bytes objects are warm when they are read.
"""

from __future__ import annotations

import datetime as dt
import re
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_decoders.json_shapes import arrow_type, decoder, struct_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from router_decoders.json_shapes import Shape

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
"""Bytes from one that is looked at to the next; a prime, so that the commas between numbers are met soon."""
SEEN_OF_DIGITS = re.compile(rb"[-+.0-9eE]{%d}" % (DIGITS // STRIDE))
NO_DIGITS_TO_BLANKS = bytes(byte if byte in b"-+.0123456789eE" else 0x20 for byte in range(256))

NOWHERE: Places = np.empty(0, np.intp)
TIMES: dict[str, type[dt.date]] = {"timestamp": dt.datetime, "date": dt.date}
FEW = 64
"""Texts that are converted one by one when one of them is no time."""


def events(records: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
    """Return the columns `event`, `_error` (always null) and `_undecided` for records with the columns of `RAW_SCHEMA`.

    An event is null where a row is undecided. Never raises on any bytes, and decides on a row without looking at its
    neighbours. Runs on executors.
    """
    values = records.column("value")
    blocks = [_events(values.slice(start, ROWS), shape) for start in range(0, len(values) or 1, ROWS)]
    event = pa.concat_arrays(blocks)
    columns = {"event": event, "_error": pa.nulls(len(event), pa.string()), "_undecided": event.is_null()}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _events(values: pa.Array, shape: Shape) -> pa.Array:
    objects = _objects(_texts(values), decoder(shape).decode)
    event, unfit = _structs(objects, shape)
    if not unfit.size:
        return event
    undecided = np.array([found is None for found in objects])
    undecided[unfit] = True
    return pa.StructArray.from_arrays(event.flatten(), fields=list(event.type), mask=pa.array(undecided))


def _texts(values: pa.Array) -> list[bytes | None]:
    """Return the values, None in place of those that the native parser would refuse for their bytes alone."""
    texts: list[bytes | None] = values.to_numpy(zero_copy_only=False).tolist()
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
    """Say whether a text is UTF-8 and keeps clear of the native parser's limits."""
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
    """Say whether too many characters of numbers follow each other; some of the bytes tell for nearly all texts."""
    if not SEEN_OF_DIGITS.search(text[::STRIDE]):
        return False
    return max(map(len, text.translate(NO_DIGITS_TO_BLANKS).split())) >= DIGITS


def _objects(texts: list[bytes | None], decode: Callable[[Any], Any]) -> list[Any]:
    """Return the objects of texts, None for a text that is none or does not fit."""
    found: list[Any] = []
    for text in texts:
        try:
            found.append(decode(text))
        except Exception:  # not JSON, does not fit, nested too deep for Python, null: undecided, whatever it is
            found.append(None)
    return found


def _column(values: list[Any], shape: Shape) -> tuple[pa.Array, Places]:
    """Return values as an array, and the places of those that do not fit after all."""
    if shape.kind == "struct":
        return _structs(values, shape)
    if shape.kind == "array":
        return _lists(values, shape)
    if shape.kind in TIMES:
        return _times(pa.array(values, pa.string()), shape)
    return pa.array(values, arrow_type(shape)), NOWHERE


def _structs(values: list[Any], shape: Shape) -> tuple[pa.Array, Places]:
    absent = [value is None for value in values]
    if any(absent):
        empty = struct_class(shape)()
        values = [empty if value is None else value for value in values]
    found = [_column([*map(attrgetter(f"f{place}"), values)], child) for place, (_, child) in enumerate(shape.fields)]
    columns, unfit = zip(*found, strict=True)
    mask = pa.array(absent, pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(arrow_type(shape)), mask=mask), np.concatenate(unfit)


def _lists(values: list[Any], shape: Shape) -> tuple[pa.Array, Places]:
    [(_, child)] = shape.fields
    elements, unfit = _column([*chain.from_iterable(value or () for value in values)], child)
    lengths = np.fromiter((len(value or ()) for value in values), np.intp, len(values))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = pa.array([value is None for value in values], pa.bool_())
    array = pa.ListArray.from_arrays(offsets, elements, type=arrow_type(shape), mask=mask)
    return array, np.repeat(np.arange(len(values)), lengths)[unfit]


def _times(texts: pa.Array, shape: Shape) -> tuple[pa.Array, Places]:
    """Return texts as times, and the places of those that are none or are not written in the one form taken here."""
    times = _cast(pc.if_else(_is_formed(texts, shape), texts, pa.scalar(None, pa.string())), shape)
    unfit = pc.and_(times.is_null(), texts.is_valid())
    return times, np.flatnonzero(unfit.to_numpy(zero_copy_only=False))


def _is_formed(texts: pa.Array, shape: Shape) -> pa.Array:
    """Return whether a text has the length and the end of `2026-11-21T10:00:00[.123456]Z` or of `2026-11-21`."""
    lengths, end = ([10], "") if shape.kind == "date" else ([20, *range(22, 28)], "Z")
    long_enough = pc.is_in(pc.binary_length(texts), pa.array(lengths, pa.int32()))
    return pc.and_not(pc.and_(long_enough, pc.ends_with(texts, end)), pc.starts_with(texts, "0000"))


def _cast(texts: pa.Array, shape: Shape) -> pa.Array:
    """Return texts as times, null for those that are none; for one of them Arrow refuses all."""
    try:
        return texts.cast(arrow_type(shape))
    except pa.ArrowInvalid:
        pass
    if len(texts) > FEW:
        return pa.concat_arrays([_cast(texts[at : at + FEW], shape) for at in range(0, len(texts), FEW)])
    return pa.array([_time(text, TIMES[shape.kind]) for text in texts.to_pylist()], arrow_type(shape))


def _time(text: str | None, kind: type[dt.date]) -> dt.date | None:
    """Return what Arrow casts a text to, None where it would raise, at less cost than its error."""
    if text is None or text[10:11] not in ("T", " ", ""):
        return None
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return None
