"""Read and write the wire format of a schema registry, and say what each record was written with. Runs on executors.

| form | where | layout |
|---|---|---|
| prefix | value or key | `00`, id (4 bytes, big-endian), [message index], payload |
| header | record header `__value_schema_id` or `__key_schema_id` | `01`, UUID (16 bytes), [message index] |

Only Protobuf has the message index, which names a message of a .proto file: a count and as many positions, from the
file's root down the nesting, each a zigzag varint; `00` is short for the first message. With the header form the value
is the bare payload. Source: docs.confluent.io, Schema Registry, "Formats, Serializers, Deserializers".

`framed_rows` finds the schema and the payload of every record. Next to an event stand columns (ADDED) that say what it
was written with, or why there is no event. In the functions that make these, `written` has what is known of the schema
of each of the `writers`, None where nothing is known; it has the attributes of ABOUT and `reason`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router import to_spark_columns
from router_schemas.byte_columns import varint
from router_schemas.model import FIRST, VALUE_HEADER, WriterSchema, dotted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import types as T

    Rows = NDArray[np.int64]


FINE, CUT, RANGE, DEEP = range(4)
PROBLEMS = (
    "wire format: the bytes end within the message index",
    "wire format: an index of the message is negative or too large",
    "wire format: the message index is too long",
)
"""What is wrong, for CUT, RANGE and DEEP in turn."""

DEEPEST = 32
"""Positions that a message index may have; compilers nest messages no deeper than that."""
_VARINT = 5
"""Bytes that a 32-bit varint may have."""
_LONGEST = (1 + DEEPEST) * _VARINT
_WINDOW = 8
MessageIndex = tuple[int, ...]


FRAMED, NULL, EMPTY, SHORT, MAGIC, ID, HEADER = range(7)
REASONS = (
    None,
    None,
    "wire format: the value is empty",
    "wire format: the value is shorter than the 5 bytes before a payload",
    "wire format: the value does not start with the magic byte 0",
    "wire format: the schema id is negative",
    "wire format: the header with the schema's GUID is not 01 and 16 bytes",
    *PROBLEMS,
)
"""The reason of each status; FRAMED and NULL (a tombstone, which names no schema) have none."""

_PREFIX = 5
_GUID = 17
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
        return WriterSchema(self.id if self.guid is None else UUID(bytes=self.guid), dotted(self.path or FIRST))


@dataclass(frozen=True)
class ParsedValues:
    """What the prefixes and headers of one array of values say, row by row.

    `status`: FRAMED, NULL, or the position of a reason in REASONS. `groups`: the position in `keys`, -1 unless FRAMED.
    `ids`: the schema id, -1 where none was read; a row with a bad message index still has one. `starts`: where the
    payload starts in the value.
    """

    status: NDArray[np.uint8]
    groups: NDArray[np.int64]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    keys: tuple[SchemaKey, ...]

    @property
    def reasons(self) -> pa.StringArray:
        """Return why a row names no schema; null if it does, and for tombstones."""
        return pa.array(REASONS, pa.string()).take(pa.array(self.status))


@dataclass(frozen=True)
class _Bytes:
    """The rows of a binary array as ranges of one buffer, whatever its slice and chunk offset."""

    data: NDArray[np.uint8]
    begins: Rows
    ends: Rows
    valid: NDArray[np.bool_]

    @staticmethod
    def of(array: pa.Array) -> _Bytes:
        wide = pa.types.is_large_binary(array.type)
        _, offsets, data = array.buffers()
        known = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
        if offsets is None or not len(array):
            nothing = np.zeros(len(array), np.int64)
            return _Bytes(np.zeros(0, np.uint8), nothing, nothing, known)
        every = np.frombuffer(offsets, np.int64 if wide else np.int32)
        starts = every[array.offset : array.offset + len(array) + 1].astype(np.int64)
        return _Bytes(np.frombuffer(data or b"", np.uint8), starts[:-1], starts[1:], known)

    def rows(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> _Bytes:
        return _Bytes(self.data, self.begins[chosen], self.ends[chosen], self.valid[chosen])


def parse(
    values: pa.BinaryArray,
    indexed: bool | Collection[int | bytes],
    headers: pa.ListArray | None = None,
    header: str = VALUE_HEADER,
) -> ParsedValues:
    """Parse the prefix or header of every value. Runs on an executor; never raises for what a row holds.

    `indexed` says which schemas are Protobuf, whose values have a message index: all, none, or these ids and GUIDs.
    `headers` is a column of list<struct<key: string, value: binary>>: a row that has the header named `header` (the
    last of them, as Java readers take it) is framed by it, any other row by its prefix.
    """
    column = _Bytes.of(values)
    status, ids = _prefixes(column)
    groups, names = _by_id(ids, status == FRAMED)
    starts = np.where(status == FRAMED, _PREFIX, 0).astype(np.int64)
    framed = np.flatnonzero(status == FRAMED)
    sources = [(framed, column.rows(framed), _PREFIX)]
    if headers is not None:
        rows, given = _headers(headers, header, status)
        good = (given.valid) & (given.ends - given.begins >= _GUID)
        good[good] = given.data[given.begins[good]] == 1
        status[rows] = np.where(good, FRAMED, HEADER)
        ids[rows], starts[rows], groups[rows] = -1, 0, -1
        groups[rows[good]] = _by_guid(given.rows(good), names)
        left = ~np.isin(framed, rows)
        sources = [(framed[left], column.rows(framed[left]), _PREFIX), (rows[good], given.rows(good), _GUID)]
    parsed = ParsedValues(status, groups, ids, starts, tuple(names))
    return _with_paths(parsed, sources, indexed) if indexed is not False else parsed


def payloads(values: pa.BinaryArray, parsed: ParsedValues) -> pa.BinaryArray:
    """Return what follows the prefixes; null if a row names no schema."""
    framed = parsed.status == FRAMED
    starts = np.unique(parsed.starts[framed])
    if len(starts) == 0:
        return pa.nulls(len(values), values.type)
    if len(starts) == 1:
        rest = pc.binary_slice(values, int(starts[0]), _TO_THE_END)
        return rest if framed.all() else pc.if_else(pa.array(framed), rest, pa.scalar(None, rest.type))
    rows = [np.flatnonzero(framed & (parsed.starts == start)) for start in starts]
    parts = [
        pc.binary_slice(values.take(pa.array(some)), int(start), _TO_THE_END)
        for some, start in zip(rows, starts, strict=True)
    ]
    return at_rows(parts, rows, len(values))


def prefix(schema_id: int, path: Sequence[int] | None = None) -> bytes:
    """Return the bytes to put before a payload; `path` for Protobuf only. Raises ValueError for an impossible id."""
    if not 0 <= schema_id < 2**31:
        raise ValueError(f"a schema id is a number from 0 to 2147483647, not {schema_id}")
    return struct.pack(">bI", 0, schema_id) + (b"" if path is None else encoded_index(path))


def pack(schema_id: int, path: Sequence[int] | None, payload: bytes) -> bytes:
    """Return a whole value; `path` for Protobuf only. Raises ValueError for an impossible id."""
    return prefix(schema_id, path) + payload


def guid_header(guid: UUID, path: Sequence[int] | None = None) -> bytes:
    """Return the value of the header that names a schema by its GUID; `path` for Protobuf only."""
    return b"\x01" + guid.bytes + (b"" if path is None else encoded_index(path))


def schema_bytes(writer: WriterSchema) -> bytes:
    """Return the bytes by which values or headers name a schema of a registry, without a message index."""
    assert writer.schema is not None
    return guid_header(writer.schema) if isinstance(writer.schema, UUID) else prefix(writer.schema)


def _prefixes(column: _Bytes) -> tuple[NDArray[np.uint8], Rows]:
    """Return the status and the schema id of every row, by its first five bytes."""
    sizes = column.ends - column.begins
    status = np.where(sizes < _PREFIX, SHORT, FRAMED).astype(np.uint8)
    status[sizes == 0] = EMPTY
    status[~column.valid] = NULL
    rows = np.flatnonzero(status == FRAMED)
    status[rows[column.data[column.begins[rows]] != 0]] = MAGIC
    rows = np.flatnonzero(status == FRAMED)
    ids = np.full(len(sizes), -1, np.int64)
    found = np.zeros(len(rows), np.int64)
    for byte in range(1, _PREFIX):
        found = found << 8 | column.data[column.begins[rows] + byte]
    ids[rows] = np.where(found < 2**31, found, -1)
    status[rows[found >= 2**31]] = ID
    return status, ids


def _by_id(ids: Rows, framed: NDArray[np.bool_]) -> tuple[Rows, list[SchemaKey]]:
    coded = pa.array(ids[framed]).dictionary_encode()
    groups = np.full(len(ids), -1, np.int64)
    groups[framed] = coded.indices.to_numpy(zero_copy_only=False)
    return groups, [SchemaKey(number) for number in coded.dictionary.to_pylist()]


def _by_guid(given: _Bytes, names: list[SchemaKey]) -> Rows:
    """Return the groups of rows by their GUID; `names` gains the keys."""
    guids = given.data[given.begins[:, None] + np.arange(1, _GUID)]
    flat = pa.py_buffer(np.ascontiguousarray(guids))
    coded = pa.Array.from_buffers(pa.binary(16), len(guids), [None, flat]).dictionary_encode()
    groups = np.asarray(coded.indices, np.int64) + len(names)
    names += [SchemaKey(None, guid) for guid in coded.dictionary.to_pylist()]
    return groups


def _headers(headers: pa.ListArray, header: str, status: NDArray[np.uint8]) -> tuple[Rows, _Bytes]:
    """Return the rows that have the header and what it holds; tombstones need none."""
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
    found = np.flatnonzero(last >= 0)
    return found, _Bytes.of(entries.field("value")).rows(last[found])


def _with_paths(
    parsed: ParsedValues, sources: list[tuple[Rows, _Bytes, int]], indexed: bool | Collection[int | bytes]
) -> ParsedValues:
    """Add the message indexes: to the groups and keys, and to where the payloads of prefixed values start."""
    chosen = np.array([indexed is True or _is_one(key, indexed) for key in parsed.keys] or [False])
    status, starts = parsed.status.copy(), parsed.starts.copy()
    paths = np.zeros(len(status), np.int64)
    known: dict[MessageIndex, int] = {}
    for rows, given, skip in sources:
        mine = chosen[parsed.groups[rows]]
        chosen_rows, at = given.rows(mine), rows[mine]
        codes, sizes, problems = indexes_at(chosen_rows.data, chosen_rows.begins + skip, chosen_rows.ends, known)
        paths[at] = codes + 1
        starts[at] += sizes if skip == _PREFIX else 0
        status[at] = np.where(problems, problems + HEADER, FRAMED)
    framed = status == FRAMED
    both, groups = len(known) + 1, np.full(len(status), -1, np.int64)
    coded = pa.array(parsed.groups[framed] * both + paths[framed]).dictionary_encode()
    groups[framed] = coded.indices.to_numpy(zero_copy_only=False)
    found = [None, *known]
    pairs = [(parsed.keys[code // both], found[code % both]) for code in coded.dictionary.to_pylist()]
    keys = tuple(SchemaKey(key.id, key.guid, path) for key, path in pairs)
    return ParsedValues(status, groups, parsed.ids, starts, keys)


def _is_one(key: SchemaKey, chosen: bool | Collection[int | bytes]) -> bool:
    return not isinstance(chosen, bool) and (key.id if key.guid is None else key.guid) in chosen


def encoded_index(path: Sequence[int]) -> bytes:
    """Return the bytes of a message index; raise ValueError for one that no message can have."""
    if not 0 < len(path) <= DEEPEST or any(not 0 <= index < 2**31 for index in path):
        raise ValueError(f"a message index has 1 to {DEEPEST} positions from 0 on, not {tuple(path)}")
    if tuple(path) == FIRST:
        return b"\0"
    return b"".join(varint(number << 1) for number in (len(path), *path))


def read_index(raw: bytes) -> tuple[int, MessageIndex, int]:
    """Return (FINE, index, its bytes) of what starts with a message index, or (problem, (), 0)."""
    numbers: list[int] = []
    at, wanted = 0, 1
    while len(numbers) < wanted:
        problem, value, at = _number(raw, at)
        if problem:
            return problem, (), 0
        numbers.append(value)
        wanted = 1 + numbers[0]
        if wanted > 1 + DEEPEST:
            return DEEP, (), 0
    return FINE, tuple(numbers[1:]) or FIRST, at


def indexes_at(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], known: dict[MessageIndex, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return for each row of `data` the code of its message index, the bytes that it takes, and its problem.

    `known` has the codes of the indexes and gains those that are new. The first message, and indexes of short
    positions, are read without a loop over the rows.
    """
    codes = np.full(len(begins), -1, np.int64)
    sizes = np.zeros(len(begins), np.int64)
    problems = np.where(begins < ends, FINE, CUT).astype(np.uint8)
    rows = np.flatnonzero(problems == FINE)
    head = data[begins[rows]]
    first = rows[head == 0]
    if len(first):
        codes[first], sizes[first] = known.setdefault(FIRST, len(known)), 1
    rest = rows[head != 0]
    for raw, alike in _alike(data, begins[rest], ends[rest]):
        at = rest[alike]
        problem, path, size = read_index(raw)
        problems[at], sizes[at] = problem, size
        if not problem:
            codes[at] = known.setdefault(path, len(known))
    return codes, sizes, problems


def _alike(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> list[tuple[bytes, NDArray[np.int64]]]:
    """Return the bytes to read an index from, and the rows that have these; most rows share a few indexes."""
    if not len(begins):
        return []
    columns = np.arange(_WINDOW)
    at = np.minimum(begins[:, None] + columns, len(data) - 1)
    inside = columns <= (data[begins] >> 1)[:, None]
    window = np.where(inside, data[at], 0).astype(np.uint8)
    size = 1 + (data[begins] >> 1).astype(np.int64)
    short = (size <= np.minimum(_WINDOW, ends - begins)) & (window < 128).all(axis=1)
    found: list[tuple[bytes, NDArray[np.int64]]] = []
    simple = np.flatnonzero(short)
    words, codes = np.unique(window[simple].view(np.uint64).ravel(), return_inverse=True)
    for code, word in enumerate(words):
        found.append((word.tobytes(), simple[codes == code]))
    for row in np.flatnonzero(~short):
        stop = min(int(ends[row]), int(begins[row]) + _LONGEST)
        found.append((data[begins[row] : stop].tobytes(), np.array([row])))
    return found


def _number(raw: bytes, at: int) -> tuple[int, int, int]:
    """Return (FINE, the number, where the next one starts), or a problem."""
    value = 0
    for size in range(_VARINT):
        if at + size >= len(raw):
            return CUT, 0, 0
        byte = raw[at + size]
        value |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            odd = value & 1 or value >= 2**32
            return (RANGE, 0, 0) if odd else (FINE, value >> 1, at + size + 1)
    return RANGE, 0, 0


# Records: what each of them was written with


WireFormat = Literal["confluent", "none"]
WHOLE = ""
"""The name of the writer where values name no schema: one schema wrote them all."""
_UNFRAMED = pa.array([*REASONS[:NULL], "value is null", *REASONS[NULL + 1 :]], pa.string())
"""REASONS for rows that must have an event: a tombstone has none either."""


@dataclass(frozen=True)
class FramedRows:
    """Payloads and what they were written with, row by row.

    `groups`: the position in `writers`, -1 where a row has none for the reason in `reasons`. `ids`: the schema id that
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
    """Return what records were written with. Needs the columns `value` and `headers`; never raises for a row.

    `header` is the name of the one that may hold a GUID. `numbered`: ids and GUIDs name schemas; otherwise these are
    ignored, and only the message index counts. `indexed`: which schemas have message indexes, as for `parse`.
    """
    values = records.column("value")
    if wire_format == "none":
        known = np.asarray(values.is_valid())
        groups = np.where(known, 0, -1).astype(np.int64)
        reasons = pa.array(["value is null"], pa.string()).take(pa.array(np.zeros(len(values), np.int8), mask=known))
        return FramedRows(values, groups, (WHOLE,), reasons, pa.nulls(len(values), pa.int32()))
    parsed = parse(values, indexed, headers=records.column("headers"), header=header)
    writers = tuple(str(key.writer) if numbered else at_index(key.path or FIRST) for key in parsed.keys)
    ids = pa.array(parsed.ids.astype(np.int32), mask=parsed.ids < 0)
    framed = (parsed.groups >= 0).all()
    reasons = pa.nulls(len(values), pa.string()) if framed else _UNFRAMED.take(pa.array(parsed.status))
    return FramedRows(payloads(values, parsed), parsed.groups, writers, reasons, ids)


def at_index(path: tuple[int, ...]) -> str:
    """Return what a message is called by its index, in a schema without an id."""
    return f"message {'.'.join(map(str, path))}"


ABOUT = pa.schema(
    [("schema_id", pa.int32()), ("schema_version", pa.int32()), ("subject", pa.string()), ("message", pa.string())]
)
"""What is known of an event's schema."""
ADDED = pa.schema([("_error", pa.string()), ("_wanted", pa.string()), *ABOUT])
"""The columns that are added to an event."""
ADDED_FIELDS: tuple[T.StructField, ...] = tuple(to_spark_columns(ADDED))
"""The same as Spark's fields."""


def why(found: FramedRows, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return why rows have no event, as far as their prefixes and schemas say; null for the others.

    `only` names the message that is read where ids do not count.
    """
    missing = f"is not {only}, the only message that is read here" if only else "is not known yet"
    texts = [f"{writer} {missing}" if one is None else one.reason for writer, one in _pairs(found, written)]
    return pc.coalesce(found.reasons, _by_group(found, texts, pa.string()))


def wanted(found: FramedRows, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return the writers' schemas that are to be fetched, by row."""
    writers = [writer if one is None and not only else None for writer, one in _pairs(found, written)]
    return _by_group(found, writers, pa.string())


def about(found: FramedRows, written: Sequence[Any]) -> list[pa.Array]:
    """Return the columns of ABOUT. The id is there wherever a record names one."""
    ids, *columns = [
        _by_group(found, [getattr(one, field.name, None) for one in written], field.type) for field in ABOUT
    ]
    return [pc.coalesce(found.ids, ids), *columns]


def _pairs(found: FramedRows, written: Sequence[Any]) -> list[tuple[str, Any]]:
    return list(zip(found.writers, written, strict=True))


def _by_group(found: FramedRows, values: Sequence[str | int | None], kind: pa.DataType) -> pa.Array:
    if all(value is None for value in values):
        return pa.nulls(len(found.groups), kind)
    at = np.where(found.groups >= 0, found.groups, len(values))
    return pa.array([*values, None], kind).take(pa.array(at))


def at_rows(parts: Sequence[pa.Array], rows: Sequence[Rows], count: int) -> pa.Array:
    """Return an array of `count` rows: each part at its `rows`, null at rows of no part."""
    positions, absent = np.zeros(count, np.int64), np.ones(count, bool)
    taken = np.concatenate(rows)
    positions[taken], absent[taken] = np.arange(len(taken)), False
    return pa.concat_arrays(parts).take(pa.array(positions, mask=absent))


def widened(structs: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """Return structs with the fields of `kind`, in its types; null in fields that they do not have."""
    if structs.type == kind:
        return structs
    columns = [_field(structs, one) for one in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=structs.is_null())


def _field(structs: pa.StructArray, field: pa.Field) -> pa.Array:
    at = structs.type.get_field_index(field.name)
    if at < 0:
        return pa.nulls(len(structs), field.type)
    values = pc.struct_field(structs, [at])
    if pa.types.is_struct(field.type):
        return widened(values, field.type)
    return values if values.type == field.type else values.cast(field.type)
