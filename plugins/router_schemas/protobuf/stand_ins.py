"""Write the messages of google/protobuf/ that stand for one value: times, wrappers, JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import struct_pb2  # type: ignore[import-untyped]
from google.protobuf.json_format import ParseDict, ParseError  # type: ignore[import-untyped]
from pyspark.sql import types as T

from router_schemas import pieces
from router_schemas.protobuf.scalars import ZERO, scalar, takes, wire_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from router_schemas.pieces import Pieces, Write

_YEARS_1_TO_9999 = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_TEN_THOUSAND_YEARS = (-315_576_000_000_000_000, 315_576_000_000_000_000)
"""Microseconds; the comments of timestamp.proto and duration.proto."""
_SECOND = 1_000_000
_DEEPEST = 90
"""Values within values; google's parsers end at 100 messages, of which a value takes one and an object two."""


def stand_in(kind: str, of: str, column: T.DataType, path: str) -> Write | None:
    """Return what writes a column as such a message, without its length; None where it does not go with it.

    `kind` is what router_schemas.protobuf.shape.SPECIAL calls it, `of` the message's full name.
    """
    if kind == "timestamp" and isinstance(column, T.TimestampType):
        return lambda array: _timestamps(pieces.whole(array), path)
    if kind == "duration" and isinstance(column, T.LongType):
        return lambda array: _durations(pieces.whole(array), path)
    if kind == "json" and isinstance(column, T.StringType):
        return lambda array: [_json(text, of, path) for text in pieces.texts(array, path)]
    if kind in ("timestamp", "duration", "json") or not takes(kind, column):
        return None
    write, zero, tag = scalar(kind, path, {}), ZERO[wire_type(kind)], bytes([1 << 3 | wire_type(kind)])
    return lambda array: [b"" if one == zero else tag + one for one in write(array)]


def _timestamps(micros: NDArray[np.int64], path: str) -> Pieces:
    pieces.within(micros, *_YEARS_1_TO_9999, path, "the time is outside the years 1 to 9999")
    return _seconds(micros // _SECOND, micros % _SECOND)


def _durations(micros: NDArray[np.int64], path: str) -> Pieces:
    pieces.within(micros, *_TEN_THOUSAND_YEARS, path, "the duration is longer than 10 000 years")
    seconds = np.where(micros < 0, -(-micros // _SECOND), micros // _SECOND)  # both parts have the sign
    return _seconds(seconds, micros - seconds * _SECOND)


def _seconds(seconds: NDArray[np.int64], micros: NDArray[np.int64]) -> Pieces:
    whole, rest = pieces.varints(seconds.view(np.uint64)), pieces.varints((micros * 1000).view(np.uint64))
    return [
        (b"" if one == b"\0" else b"\x08" + one) + (b"" if more == b"\0" else b"\x10" + more)
        for one, more in zip(whole, rest, strict=True)
    ]


def _json(text: bytes, of: str, path: str) -> bytes:
    """Return the message of a JSON text."""
    name = of.rpartition(".")[2]
    try:
        value = json.loads(text, parse_constant=_refused)
        if _depth(value) > _DEEPEST:
            raise ValueError("it is nested too deep")
        message: Any = getattr(struct_pb2, name)()
        ParseDict(value, message)
    except (ValueError, ParseError, RecursionError):
        raise ValueError(f"field {path}: the text is not JSON that {of} can hold") from None
    return bytes(message.SerializeToString(deterministic=True))


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inside), default=0)
