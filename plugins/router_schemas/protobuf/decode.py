"""Decode payloads: checked by google's own parser row by row, read natively by the batch.

Both are needed. The native decoder reads a batch or none of it, and takes some bytes that google refuses; google's is
exact, and several times slower when it has to make values. Rows that google would write otherwise (a value twice, two
members of a oneof, map entries without a value or unsorted) go to the native decoder as google writes them, so that it
reads what google reads. Source of the rules: protobuf.dev, "Encoding", last one wins.

Left to differ, in bytes that no encoder writes: an entry of a map with fields of its own, which google's Python parser
sets aside as unknown and which is an entry here as it is in Java.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from router_schemas.protobuf.columns import Column, columns_of
from router_schemas.protobuf.convert import converted
from router_schemas.protobuf.mapping import arrow_struct, spark_struct
from router_schemas.protobuf.messages import message_of
from router_schemas.protobuf.native import handler_of, read
from router_schemas.protobuf.shape import SPECIAL, shape_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from router_schemas.protobuf.merge import Merged

_RANGE = "a Timestamp or Duration is outside the range that Protobuf gives it"
_NATIVE = "the native decoder cannot read it"


@dataclass(frozen=True)
class Reader:
    """Say how payloads become events: plain data that travels to the executors.

    `message` is the full name for reasons, `descriptors` those of router_schemas.protobuf.merge, `type` the Arrow type
    of the events.
    """

    message: str
    descriptors: bytes
    type: pa.StructType

    @property
    def spark_type(self) -> StructType:
        """Return the Spark type of the events."""
        return spark_struct(self.type)


@dataclass(frozen=True)
class Decoded:
    """Hold the events of an array of payloads, row by row, and why there is none.

    A null payload has neither an event nor a reason. Below a null event the fields hold zeros: read them through the
    event's own nulls (`events.flatten()`). `unknown` counts the events with fields that the reader does not know, at
    any depth; -1 when they were not counted.
    """

    events: pa.StructArray
    reasons: pa.StringArray
    unknown: int


def reader(merged: Merged) -> Reader:
    """Return the reader of merged versions. Runs on the driver.

    Raises ValueError where a message has no fields, too many of them, or cannot be read natively.
    """
    machine = _machine(merged.descriptors)
    found = Reader(merged.message, merged.descriptors, arrow_struct(machine.columns))
    decode(pa.array([b""], pa.binary()), found)  # what fails for every row shall fail here
    return found


def decode(payloads: pa.BinaryArray, reader: Reader, count_unknown: bool = False) -> Decoded:
    """Decode payloads into events. Runs on an executor; never raises for what a row holds.

    The same bytes always have the same outcome, whatever their neighbours.
    """
    machine = _machine(reader.descriptors)
    if payloads.type != pa.binary():
        payloads = payloads.cast(pa.binary())
    checked, why, unknown = _checked(payloads, machine, count_unknown)
    rows, unread = read(machine.handler, checked)
    arrays, outside = converted(rows, machine.columns)
    why |= dict.fromkeys(unread, _NATIVE)
    if outside is not None:
        why = dict.fromkeys(np.flatnonzero(outside).tolist(), _RANGE) | why
    missing = np.array(payloads.is_null())
    missing[list(why)] = True
    events = pa.StructArray.from_arrays(
        arrays, fields=list(reader.type), mask=pa.array(missing) if missing.any() else None
    )
    return Decoded(events, _reasons(why, len(payloads), reader.message), unknown)


@dataclass(frozen=True)
class _Machine:
    """Hold what decodes one message in this process."""

    columns: tuple[Column, ...]
    handler: Any
    message: Any
    has_maps: bool


@lru_cache(maxsize=64)
def _machine(descriptors: bytes) -> _Machine:
    root = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file[-1]
    message = message_of(descriptors, f"{root.package}.{root.message_type[0].name}")
    shape = shape_of(message)
    has_maps = any(one.key or SPECIAL.get(one.of) == "json" for fields in shape.messages.values() for one in fields)
    columns = columns_of(shape)
    return _Machine(columns, handler_of(columns), message_factory.GetMessageClass(message), has_maps)


def _checked(payloads: pa.BinaryArray, machine: _Machine, count: bool) -> tuple[pa.BinaryArray, dict[int, str], int]:
    """Return payloads that the native decoder may read, why others are not among them, and unknown fields."""
    values = payloads.to_pylist()
    why: dict[int, str] = {}
    changed, unknown = False, 0 if count else -1
    # One object for all rows: making one for each costs as much as reading it.
    message = machine.message()
    parse, encode = message.ParseFromString, message.SerializePartialToString
    if machine.has_maps:  # whose order differs from process to process; the option costs a fifth of the check
        encode = partial(encode, deterministic=True)
    for row, value in enumerate(values):
        if value is None:
            continue
        try:
            parse(value)
        except DecodeError as error:
            why[row], values[row], changed = _reason(error), None, True
            continue
        canonical = encode()
        if canonical != value:
            values[row], changed = canonical, True
        if count:
            message.DiscardUnknownFields()
            unknown += message.ByteSize() < len(canonical)
    return pa.array(values, pa.binary()) if changed else payloads, why, unknown


def _reason(error: DecodeError) -> str:
    """Return what google's parser says, without the name that the message has after a merge."""
    said = str(error).rpartition(": ")[2]
    return said[:1].lower() + said[1:]


def _reasons(why: dict[int, str], count: int, message: str) -> pa.StringArray:
    if not why:
        return pa.nulls(count, pa.string())
    return pa.array([f"protobuf: not a {message}: {why[row]}" if row in why else None for row in range(count)])
