"""Read and write the wire format of a schema registry, and find the schema that wrote each record. Runs on executors.

| form | where | layout |
|---|---|---|
| prefix | value or key | `00`, id (4 bytes, big-endian), [message index], payload |
| header | record header `__value_schema_id` or `__key_schema_id` | `01`, UUID (16 bytes), [message index] |

Only Protobuf has the message index, which names a message of a .proto file: a count and as many positions, from the
file's root down the nesting, each a zigzag varint; `00` is short for the first message. With the header form the value
is the bare payload. Source: docs.confluent.io, Schema Registry, "Formats, Serializers, Deserializers".

`framed_rows` finds the schema and the payload of every record. ADDED_COLUMNS, next to an event, contain its writer's
schema, or why there is no event. In the functions that make these columns, `written` has an object with the attributes
of SCHEMA_COLUMNS and `reason` for each of the `writers`, or None if nothing is known of its schema.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router import to_spark_columns
from router_schemas.byte_columns import encode_varint
from router_schemas.model import FIRST_MESSAGE, VALUE_HEADER, WriterSchema, dotted_index

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import types as T

    Rows = NDArray[np.int64]


FINE, CUT, RANGE, DEEP = range(4)
INDEX_PROBLEMS = (
    "wire format: the bytes end within the message index",
    "wire format: an index of the message is negative or too large",
    "wire format: the message index is too long",
)
"""What is wrong, for CUT, RANGE and DEEP in turn."""

MAX_INDEX_POSITIONS = 32
"""Positions that a message index may have; compilers nest messages no deeper than that."""
_MAX_NUMBER_BYTES = 5
"""Bytes that a 32-bit varint may have."""
_MAX_INDEX_BYTES = (1 + MAX_INDEX_POSITIONS) * _MAX_NUMBER_BYTES
_WINDOW_BYTES = 8
MessageIndex = tuple[int, ...]


FRAMED, NULL, EMPTY, TOO_SHORT, MAGIC, BAD_ID, HEADER = range(7)
STATUS_REASONS = (
    None,
    None,
    "wire format: the value is empty",
    "wire format: the value is shorter than the 5 bytes before a payload",
    "wire format: the value does not start with the magic byte 0",
    "wire format: the schema id is negative",
    "wire format: the header with the schema's GUID is not 01 and 16 bytes",
    *INDEX_PROBLEMS,
)
"""The reason of each status; FRAMED and NULL (a tombstone, which names no schema) have none."""

_PREFIX_BYTES = 5
_GUID_HEADER_BYTES = 17
_TO_THE_END = 2**31 - 1
"""Where a payload stops; pyarrow 26 fails on large arrays when this is left out."""


@dataclass(frozen=True)
class SchemaKey:
    """A schema as the wire format names it, by `id` or by `guid` (16 bytes), and the message index (`path`)."""

    id: int | None
    guid: bytes | None = None
    path: MessageIndex | None = None

    @property
    def writer(self) -> WriterSchema:
        """Return the schema and the message in it."""
        return WriterSchema(
            self.id if self.guid is None else UUID(bytes=self.guid), dotted_index(self.path or FIRST_MESSAGE)
        )


@dataclass(frozen=True)
class ParsedValues:
    """The schemas that the prefixes and headers of one array of values name, row by row.

    `status`: FRAMED, NULL, or the position of a reason in STATUS_REASONS. `groups`: the position in `keys`, -1 unless
    FRAMED. `ids`: the schema id, -1 if none was read; a row with a bad message index still has one. `starts`: where
    the payload starts in the value.
    """

    status: NDArray[np.uint8]
    groups: NDArray[np.int64]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    keys: tuple[SchemaKey, ...]

    @property
    def reasons(self) -> pa.StringArray:
        """Return why a row names no schema; null if it does, and for tombstones."""
        return pa.array(STATUS_REASONS, pa.string()).take(pa.array(self.status))


@dataclass(frozen=True)
class _Bytes:
    """The rows of a binary array as ranges of one buffer, whatever its slice and chunk offset."""

    data: NDArray[np.uint8]
    begins: Rows
    ends: Rows
    valid: NDArray[np.bool_]

    @staticmethod
    def of(array: pa.Array) -> _Bytes:
        _, offsets, data = array.buffers()
        valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
        if offsets is None or not len(array):
            zeros = np.zeros(len(array), np.int64)
            return _Bytes(np.zeros(0, np.uint8), zeros, zeros, valid)
        all_offsets = np.frombuffer(offsets, np.int64 if pa.types.is_large_binary(array.type) else np.int32)
        starts = all_offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
        return _Bytes(np.frombuffer(data or b"", np.uint8), starts[:-1], starts[1:], valid)

    def select_rows(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> _Bytes:
        return _Bytes(self.data, self.begins[chosen], self.ends[chosen], self.valid[chosen])


def parse_values(
    values: pa.BinaryArray,
    indexed: bool | Collection[int | bytes],
    headers: pa.ListArray | None = None,
    header: str = VALUE_HEADER,
) -> ParsedValues:
    """Parse the prefix or header of every value. Runs on an executor; never raises for what a row holds.

    `indexed`: the schemas of Protobuf, whose values have a message index; all, none, or these ids and GUIDs.
    `headers` is a column of list<struct<key: string, value: binary>>: a row that has the header named `header` (the
    last of them, as Java readers take it) is framed by it, any other row by its prefix.
    """
    column = _Bytes.of(values)
    status, ids = _read_prefixes(column)
    groups, keys = _group_by_id(ids, status == FRAMED)
    starts = np.where(status == FRAMED, _PREFIX_BYTES, 0).astype(np.int64)
    by_prefix = np.flatnonzero(status == FRAMED)
    # The bytes in which a message index may follow: headers behind their GUID, values behind their prefix.
    sources: list[tuple[Rows, _Bytes, int]] = []
    if headers is not None:
        rows, guids = _guid_headers(headers, header, status)
        good = guids.valid & (guids.ends - guids.begins >= _GUID_HEADER_BYTES)
        good[good] = guids.data[guids.begins[good]] == 1
        # A header outranks a prefix, also if the header is broken.
        status[rows] = np.where(good, FRAMED, HEADER)
        ids[rows] = -1
        starts[rows] = 0
        groups[rows] = -1
        groups[rows[good]] = _group_by_guid(guids.select_rows(good), keys)
        by_prefix = by_prefix[~np.isin(by_prefix, rows)]
        sources.append((rows[good], guids.select_rows(good), _GUID_HEADER_BYTES))
    sources.append((by_prefix, column.select_rows(by_prefix), _PREFIX_BYTES))
    parsed = ParsedValues(status, groups, ids, starts, tuple(keys))
    if indexed is False:
        return parsed
    return _with_paths(parsed, sources, indexed)


def payloads_of(values: pa.BinaryArray, parsed: ParsedValues) -> pa.BinaryArray:
    """Return the bytes behind the prefixes; null if a row names no schema."""
    framed = parsed.status == FRAMED
    starts = np.unique(parsed.starts[framed])
    if len(starts) == 0:
        return pa.nulls(len(values), values.type)
    # In nearly all batches the payloads start at one place: one slice serves all rows.
    if len(starts) == 1:
        rest = pc.binary_slice(values, int(starts[0]), _TO_THE_END)
        if framed.all():
            return rest
        return pc.if_else(pa.array(framed), rest, pa.scalar(None, rest.type))
    rows = [np.flatnonzero(framed & (parsed.starts == start)) for start in starts]
    parts = []
    for start, rows_of_start in zip(starts, rows, strict=True):
        parts.append(pc.binary_slice(values.take(pa.array(rows_of_start)), int(start), _TO_THE_END))
    return at_rows(parts, rows, len(values))


def payload_prefix(schema_id: int, path: Sequence[int] | None = None) -> bytes:
    """Return the bytes to put before a payload; `path` for Protobuf only. Raises ValueError for an impossible id."""
    if not 0 <= schema_id < 2**31:
        raise ValueError(f"a schema id is a number from 0 to 2147483647, not {schema_id}")
    return struct.pack(">bI", 0, schema_id) + (b"" if path is None else encoded_index(path))


def pack_value(schema_id: int, path: Sequence[int] | None, payload: bytes) -> bytes:
    """Return a whole value; `path` for Protobuf only. Raises ValueError for an impossible id."""
    return payload_prefix(schema_id, path) + payload


def guid_header(guid: UUID, path: Sequence[int] | None = None) -> bytes:
    """Return the value of the header that names a schema by its GUID; `path` for Protobuf only."""
    return b"\x01" + guid.bytes + (b"" if path is None else encoded_index(path))


def schema_bytes(writer: WriterSchema) -> bytes:
    """Return the bytes by which values or headers name a schema of a registry, without a message index."""
    assert writer.schema is not None
    if isinstance(writer.schema, UUID):
        return guid_header(writer.schema)
    return payload_prefix(writer.schema)


def _read_prefixes(column: _Bytes) -> tuple[NDArray[np.uint8], Rows]:
    """Return the status and the schema id of every row, by its first five bytes."""
    sizes = column.ends - column.begins
    # Each line outranks those before it: an empty value is short as well, and a null is empty as well.
    status = np.where(sizes < _PREFIX_BYTES, TOO_SHORT, FRAMED).astype(np.uint8)
    status[sizes == 0] = EMPTY
    status[~column.valid] = NULL
    rows = np.flatnonzero(status == FRAMED)
    status[rows[column.data[column.begins[rows]] != 0]] = MAGIC
    rows = np.flatnonzero(status == FRAMED)
    ids = np.full(len(sizes), -1, np.int64)
    numbers = np.zeros(len(rows), np.int64)
    for byte in range(1, _PREFIX_BYTES):
        numbers = numbers << 8 | column.data[column.begins[rows] + byte]
    ids[rows] = np.where(numbers < 2**31, numbers, -1)
    status[rows[numbers >= 2**31]] = BAD_ID
    return status, ids


def _group_by_id(ids: Rows, framed: NDArray[np.bool_]) -> tuple[Rows, list[SchemaKey]]:
    coded = pa.array(ids[framed]).dictionary_encode()
    groups = np.full(len(ids), -1, np.int64)
    groups[framed] = coded.indices.to_numpy(zero_copy_only=False)
    return groups, [SchemaKey(number) for number in coded.dictionary.to_pylist()]


def _group_by_guid(headers: _Bytes, keys: list[SchemaKey]) -> Rows:
    """Return the groups of rows by the GUID in their header; adds the new keys to `keys`."""
    guids = headers.data[headers.begins[:, None] + np.arange(1, _GUID_HEADER_BYTES)]
    flat = pa.py_buffer(np.ascontiguousarray(guids))
    coded = pa.Array.from_buffers(pa.binary(16), len(guids), [None, flat]).dictionary_encode()
    groups = np.asarray(coded.indices, np.int64) + len(keys)
    keys += [SchemaKey(None, guid) for guid in coded.dictionary.to_pylist()]
    return groups


def _guid_headers(headers: pa.ListArray, header: str, status: NDArray[np.uint8]) -> tuple[Rows, _Bytes]:
    """Return the rows that have the header, and its values; tombstones need none."""
    offsets = np.asarray(headers.offsets).astype(np.int64)
    if not len(headers) or offsets[0] == offsets[-1]:
        return np.zeros(0, np.int64), _Bytes.of(pa.array([], pa.binary()))
    entries = headers.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    named = pc.equal(entries.field("key"), header).fill_null(False)
    hits = np.flatnonzero(named.to_numpy(zero_copy_only=False))
    rows = np.searchsorted(offsets - offsets[0], hits, side="right") - 1
    last = np.full(len(headers), -1, np.int64)
    last[rows] = hits  # hits ascend, so the last of a row's stays
    last[~headers.is_valid().to_numpy(zero_copy_only=False) | (status == NULL)] = -1
    with_header = np.flatnonzero(last >= 0)
    return with_header, _Bytes.of(entries.field("value")).select_rows(last[with_header])


def _with_paths(
    parsed: ParsedValues, sources: list[tuple[Rows, _Bytes, int]], indexed: bool | Collection[int | bytes]
) -> ParsedValues:
    """Add the message indexes: to the groups and keys, and to where the payloads of prefixed values start.

    `sources`: rows, the bytes of each, and how many of these come before its message index.
    """
    has_index = np.array([_has_index(key, indexed) for key in parsed.keys] or [False])
    status = parsed.status.copy()
    starts = parsed.starts.copy()
    paths = np.zeros(len(status), np.int64)  # 0: no message index, else 1 + its code
    codes: dict[MessageIndex, int] = {}
    for source_rows, source, skip in sources:
        chosen = has_index[parsed.groups[source_rows]]
        rows = source_rows[chosen]
        raw = source.select_rows(chosen)
        row_codes, sizes, problems = indexes_at(raw.data, raw.begins + skip, raw.ends, codes)
        paths[rows] = row_codes + 1
        if skip == _PREFIX_BYTES:  # with a header the whole value is the payload
            starts[rows] += sizes
        status[rows] = np.where(problems, problems + HEADER, FRAMED)

    # A group is a schema and a message index: one number stands for both.
    framed = status == FRAMED
    choices = [None, *codes]
    pairs = parsed.groups[framed] * len(choices) + paths[framed]
    coded = pa.array(pairs).dictionary_encode()
    groups = np.full(len(status), -1, np.int64)
    groups[framed] = coded.indices.to_numpy(zero_copy_only=False)
    keys = []
    for pair in coded.dictionary.to_pylist():
        schema, path = divmod(pair, len(choices))
        keys.append(replace(parsed.keys[schema], path=choices[path]))
    return ParsedValues(status, groups, parsed.ids, starts, tuple(keys))


def _has_index(key: SchemaKey, indexed: bool | Collection[int | bytes]) -> bool:
    if isinstance(indexed, bool):
        return indexed
    return (key.id if key.guid is None else key.guid) in indexed


def encoded_index(path: Sequence[int]) -> bytes:
    """Return the bytes of a message index; raise ValueError for one that no message can have."""
    if not 0 < len(path) <= MAX_INDEX_POSITIONS or any(not 0 <= index < 2**31 for index in path):
        raise ValueError(f"a message index has 1 to {MAX_INDEX_POSITIONS} positions from 0 on, not {tuple(path)}")
    if tuple(path) == FIRST_MESSAGE:
        return b"\0"
    return b"".join(encode_varint(number << 1) for number in (len(path), *path))


def read_index(raw: bytes) -> tuple[int, MessageIndex, int]:
    """Return (FINE, index, its size) for bytes that start with a message index, or (problem, (), 0)."""
    numbers: list[int] = []
    position = 0
    count = 1
    while len(numbers) < count:
        problem, value, position = _read_number(raw, position)
        if problem:
            return problem, (), 0
        numbers.append(value)
        count = 1 + numbers[0]
        if count > 1 + MAX_INDEX_POSITIONS:
            return DEEP, (), 0
    return FINE, tuple(numbers[1:]) or FIRST_MESSAGE, position


def indexes_at(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], codes: dict[MessageIndex, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return for each row of `data` the code of its message index, the bytes that it takes, and its problem.

    `codes` has the codes of the indexes and gains the new ones. The first message, and indexes of short positions, are
    read without a loop over the rows.
    """
    row_codes = np.full(len(begins), -1, np.int64)
    sizes = np.zeros(len(begins), np.int64)
    problems = np.where(begins < ends, FINE, CUT).astype(np.uint8)
    rows = np.flatnonzero(problems == FINE)
    head = data[begins[rows]]
    first = rows[head == 0]
    if len(first):
        row_codes[first] = codes.setdefault(FIRST_MESSAGE, len(codes))
        sizes[first] = 1
    rest = rows[head != 0]
    for raw, positions in _group_equal(data, begins[rest], ends[rest]):
        equal_rows = rest[positions]
        problem, path, size = read_index(raw)
        problems[equal_rows] = problem
        sizes[equal_rows] = size
        if not problem:
            row_codes[equal_rows] = codes.setdefault(path, len(codes))
    return row_codes, sizes, problems


def _group_equal(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[tuple[bytes, NDArray[np.int64]]]:
    """Return the bytes to read an index from, each with the rows that have them; most rows share a few indexes."""
    if not len(begins):
        return []
    # A window of eight bytes is one number, so that numpy can find the distinct ones. It holds an index if that has at
    # most seven positions, each of one byte; bytes behind the index are set to zero.
    columns = np.arange(_WINDOW_BYTES)
    cells = np.minimum(begins[:, None] + columns, len(data) - 1)
    inside = columns <= (data[begins] >> 1)[:, None]
    window = np.where(inside, data[cells], 0).astype(np.uint8)
    size = 1 + (data[begins] >> 1).astype(np.int64)
    short = (size <= np.minimum(_WINDOW_BYTES, ends - begins)) & (window < 128).all(axis=1)
    groups: list[tuple[bytes, NDArray[np.int64]]] = []
    short_rows = np.flatnonzero(short)
    words, codes = np.unique(window[short_rows].view(np.uint64).ravel(), return_inverse=True)
    for code, word in enumerate(words):
        groups.append((word.tobytes(), short_rows[codes == code]))
    for row in np.flatnonzero(~short):
        stop = min(int(ends[row]), int(begins[row]) + _MAX_INDEX_BYTES)
        groups.append((data[begins[row] : stop].tobytes(), np.array([row])))
    return groups


def _read_number(raw: bytes, start: int) -> tuple[int, int, int]:
    """Return (FINE, the number, where the next one starts), or a problem."""
    value = 0
    for size in range(_MAX_NUMBER_BYTES):
        if start + size >= len(raw):
            return CUT, 0, 0
        byte = raw[start + size]
        value |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            if value & 1 or value >= 2**32:  # zigzag: an odd value is a negative number
                return RANGE, 0, 0
            return FINE, value >> 1, start + size + 1
    return RANGE, 0, 0


# Records: what each of them was written with


WireFormat = Literal["confluent", "none"]
ONLY_WRITER = ""
"""The name of the writer if values name no schema: one schema wrote them all."""
_UNFRAMED_REASONS = pa.array([*STATUS_REASONS[:NULL], "value is null", *STATUS_REASONS[NULL + 1 :]], pa.string())
"""STATUS_REASONS for rows that must have an event: a tombstone has none either."""


@dataclass(frozen=True)
class FramedRows:
    """Payloads and what they were written with, row by row.

    `groups`: the position in `writers`, -1 if a row has none for the reason in `reasons`. `ids`: the schema id that
    the row names, null if it names none.
    """

    payloads: pa.BinaryArray
    groups: NDArray[np.int64]
    writers: tuple[str, ...]
    reasons: pa.StringArray
    ids: pa.Int32Array


def framed_rows(
    records: pa.RecordBatch,
    wire_format: WireFormat,
    header: str,
    numbered: bool = True,
    indexed: bool | Collection[int | bytes] = True,
) -> FramedRows:
    """Return the payloads and writers of records. Needs the columns `value` and `headers`; never raises for a row.

    `header` is the name of the one that may hold a GUID. `numbered`: ids and GUIDs name schemas; otherwise these are
    ignored, and only the message index counts. `indexed`: which schemas have message indexes, as for `parse_values`.
    """
    values = records.column("value")
    if wire_format == "none":
        valid = np.asarray(values.is_valid())
        groups = np.where(valid, 0, -1).astype(np.int64)
        reasons = pa.nulls(len(values), pa.string())
        if not valid.all():
            reasons = pc.if_else(pa.array(valid), reasons, "value is null")
        return FramedRows(values, groups, (ONLY_WRITER,), reasons, pa.nulls(len(values), pa.int32()))
    parsed = parse_values(values, indexed, headers=records.column("headers"), header=header)
    if numbered:
        writers = tuple(str(key.writer) for key in parsed.keys)
    else:
        writers = tuple(at_index(key.path or FIRST_MESSAGE) for key in parsed.keys)
    ids = pa.array(parsed.ids.astype(np.int32), mask=parsed.ids < 0)
    # Most batches have no bad row, and need no reasons.
    reasons = pa.nulls(len(values), pa.string())
    if (parsed.groups < 0).any():
        reasons = _UNFRAMED_REASONS.take(pa.array(parsed.status))
    return FramedRows(payloads_of(values, parsed), parsed.groups, writers, reasons, ids)


def at_index(path: tuple[int, ...]) -> str:
    """Return the name of the writer for a message index, in a schema without an id."""
    return f"message {'.'.join(map(str, path))}"


SCHEMA_COLUMNS = pa.schema(
    [("schema_id", pa.int32()), ("schema_version", pa.int32()), ("subject", pa.string()), ("message", pa.string())]
)
"""What is known of an event's schema."""
ADDED_COLUMNS = pa.schema([("_error", pa.string()), ("_wanted", pa.string()), *SCHEMA_COLUMNS])
"""The columns next to an event."""
ADDED_FIELDS: tuple[T.StructField, ...] = tuple(to_spark_columns(ADDED_COLUMNS))
"""The same as Spark's fields."""


_SCHEMA_ID_TEXT = re.compile(r"(?:^| of )(schema (\d{1,10}))$")
"""The id in the name of a writer's schema."""


def event_reasons(rows: FramedRows, written: Sequence[Any], only: str = "", absence: str = "") -> pa.StringArray:
    """Return why rows have no event, as far as their prefixes and schemas tell; null for the others.

    `only` is the name of the message that is read if ids do not count. `absence` is the reason for an id that the
    registry does not have, with `{id}` in the place of the id.
    """
    reasons = []
    for writer, info in zip(rows.writers, written, strict=True):
        if info is not None:
            reasons.append(info.reason)
        elif only:
            reasons.append(f"{writer} is not {only}, the only message that is read here")
        else:
            reasons.append(_unknown_reason(writer, absence))
    return pc.coalesce(rows.reasons, _by_group(rows, reasons, pa.string()))


def _unknown_reason(writer: str, absence: str) -> str:
    """Return why a row of an unknown writer has no event.

    The row keeps it if the registry has no such id. If it has one, the row is decoded again.
    """
    match = _SCHEMA_ID_TEXT.search(writer)
    if match is None or not absence:
        return f"{writer} is not known yet"
    return f"the registry does not give {match[1]}: {absence.replace('{id}', match[2])}"


def wanted_writers(rows: FramedRows, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return the writers' schemas that are to be fetched, by row; none if `only` one message is read."""
    if only:
        return pa.nulls(len(rows.groups), pa.string())
    pairs = zip(rows.writers, written, strict=True)
    return _by_group(rows, [writer if info is None else None for writer, info in pairs], pa.string())


def schema_columns(rows: FramedRows, written: Sequence[Any]) -> list[pa.Array]:
    """Return the arrays of SCHEMA_COLUMNS. The id is set for every record that names one."""
    columns = []
    for field in SCHEMA_COLUMNS:
        values = [getattr(info, field.name, None) for info in written]
        columns.append(_by_group(rows, values, field.type))
    columns[0] = pc.coalesce(rows.ids, columns[0])
    return columns


def _by_group(rows: FramedRows, values: Sequence[str | int | None], kind: pa.DataType) -> pa.Array:
    if all(value is None for value in values):
        return pa.nulls(len(rows.groups), kind)
    positions = np.where(rows.groups >= 0, rows.groups, len(values))
    return pa.array([*values, None], kind).take(pa.array(positions))


def at_rows(parts: Sequence[pa.Array], rows: Sequence[Rows], count: int) -> pa.Array:
    """Return an array of `count` rows: each part at its `rows`, null at rows of no part."""
    filled = np.concatenate(rows)
    positions = np.zeros(count, np.int64)
    positions[filled] = np.arange(len(filled))
    is_empty = np.ones(count, bool)
    is_empty[filled] = False
    return pa.concat_arrays(parts).take(pa.array(positions, mask=is_empty))


def widen_structs(structs: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """Return structs with the fields of `kind`, in its types; null in fields that they do not have."""
    if structs.type == kind:
        return structs
    columns = [_widened_field(structs, field) for field in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=structs.is_null())


def _widened_field(structs: pa.StructArray, field: pa.Field) -> pa.Array:
    position = structs.type.get_field_index(field.name)
    if position < 0:
        return pa.nulls(len(structs), field.type)
    values = pc.struct_field(structs, [position])
    if pa.types.is_struct(field.type):
        return widen_structs(values, field.type)
    if values.type == field.type:
        return values
    return values.cast(field.type)
