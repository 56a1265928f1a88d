"""Frames of a schema registry: every row has one verdict, whatever is around it."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router_schemas.model import KEY_HEADER, VALUE_HEADER
from router_schemas.wire_format import (
    FRAMED,
    MAX_INDEX_POSITIONS,
    NULL,
    ParsedValues,
    SchemaKey,
    pack_value,
    parse_values,
    payload_prefix,
    payloads_of,
)
from tests.light import drawn

GUID = uuid.UUID("f3a1b8de-0f2a-4b8e-9d0b-7d5d7a1d7b11").bytes
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ID = b"\0\0\0\0\x07"


def array(*values: bytes | None) -> pa.BinaryArray:
    """Return values as an array."""
    return pa.array(values, pa.binary())


def key_of(frames: ParsedValues, row: int) -> SchemaKey | None:
    """Return the key of a row."""
    return frames.keys[frames.groups[row]] if frames.groups[row] >= 0 else None


@pytest.mark.parametrize(
    ("after", "path"),
    [
        ("00", (0,)),
        ("0200", (0,)),
        ("0202", (1,)),
        ("040002", (0, 1)),
        ("06000200", (0, 1, 0)),
        ("02808001", (8192,)),
        ("8000", (0,)),
        ("1200000000000000000a", (0,) * 8 + (5,)),
    ],
)
def test_index_paths_are_those_of_confluents_clients(after: str, path: tuple[int, ...]) -> None:
    """A message read as another one gives wrong values without an error."""
    frames = parse_values(array(ID + bytes.fromhex(after) + b"payload"), True)

    assert key_of(frames, 0) == SchemaKey(7, None, path)
    assert payloads_of(array(ID + bytes.fromhex(after) + b"payload"), frames).to_pylist() == [b"payload"]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (b"", "empty"),
        (b"\0\0\0\0", "5 bytes"),
        (b"{}{}{}", "magic"),
        (b"\0\xff\xff\xff\xff\0", "negative"),
        (ID, "within the message index"),
        (ID + b"\x04\x00", "within the message index"),
        (ID + b"\x80", "within the message index"),
        (ID + b"\x01\x00", "negative or too large"),
        (ID + b"\x02\x01", "negative or too large"),
        (ID + b"\x02\xff\xff\xff\xff\xff\x01", "negative or too large"),
        (ID + b"\x02\xfe\xff\xff\xff\x1f", "negative or too large"),
        (ID + b"\x44" + bytes(100), "too long"),
        (ID + b"\xfe\xff\xff\xff\x0f" + bytes(100), "too long"),
    ],
    ids=repr,
)
def test_a_bad_frame_is_refused_with_its_reason(value: bytes, word: str) -> None:
    """The payload behind it must never be decoded by guess."""
    frames = parse_values(array(value), True)

    assert word in frames.reasons[0].as_py()
    assert key_of(frames, 0) is None
    assert payloads_of(array(value), frames).to_pylist() == [None]


def test_a_bad_index_path_keeps_the_id_for_the_dead_letter() -> None:
    """It names the schema whose producer is at fault."""
    assert parse_values(array(ID + b"\x01"), True).ids.tolist() == [7]


def test_avro_and_json_have_no_index_path() -> None:
    """Their first bytes would be taken for one; in a mixed topic the ids tell."""
    values = array(ID + b"\x02abc", b"\0\0\0\0\x08\x02\x02xyz", ID)

    frames = parse_values(values, {8})

    assert [key_of(frames, row) for row in range(3)] == [SchemaKey(7), SchemaKey(8, None, (1,)), SchemaKey(7)]
    assert payloads_of(values, frames).to_pylist() == [b"\x02abc", b"xyz", b""]
    assert payloads_of(values, parse_values(values, False)).to_pylist() == [b"\x02abc", b"\x02\x02xyz", b""]


def test_a_tombstone_has_no_frame_and_no_error() -> None:
    """A deletion is not a bad record."""
    frames = parse_values(array(None, ID + b"\0"), True)

    assert frames.status.tolist() == [NULL, FRAMED]
    assert frames.reasons.to_pylist() == [None, None]
    assert payloads_of(array(None, ID + b"\0"), frames).to_pylist() == [None, b""]


def test_the_guid_in_a_header_goes_before_the_prefix() -> None:
    """The value is the bare payload then, and may well start with a zero."""
    values = array(b"\0\0\0\0\x07\0a", b"\0\0\0\0\x07\0a", b"\0\0\0\0\x07\0a", b"", None, b"x")
    good, nested = b"\x01" + GUID + b"\0", b"\x01" + GUID + b"\x04\x00\x02"
    headers = pa.array(
        [
            [{"key": "other", "value": b"1"}, {"key": VALUE_HEADER, "value": good}],
            [{"key": KEY_HEADER, "value": b"?"}],
            None,
            [{"key": VALUE_HEADER, "value": b"?"}, {"key": VALUE_HEADER, "value": nested}],
            [{"key": VALUE_HEADER, "value": good}],
            [],
        ],
        HEADERS,
    )

    frames = parse_values(values, True, headers)

    found = [key_of(frames, row) for row in range(6)]
    assert found == [
        SchemaKey(None, GUID, (0,)),
        SchemaKey(7, None, (0,)),
        SchemaKey(7, None, (0,)),
        SchemaKey(None, GUID, (0, 1)),
        None,
        None,
    ]
    assert payloads_of(values, frames).to_pylist() == [b"\0\0\0\0\x07\0a", b"a", b"a", b"", None, None]
    assert frames.status[4] == NULL


@pytest.mark.parametrize("value", [None, b"", b"\x01" + GUID[:15], b"\0" + GUID + b"\0"], ids=repr)
def test_a_bad_header_is_refused_and_not_passed_over(value: bytes | None) -> None:
    """The bare payload behind it could look like a prefix."""
    headers = pa.array([[{"key": VALUE_HEADER, "value": value}]], HEADERS)

    frames = parse_values(array(ID + b"\0"), True, headers)

    assert "header" in frames.reasons[0].as_py()
    assert key_of(frames, 0) is None


def test_an_index_path_in_a_header_can_be_cut_off_too() -> None:
    """It is read up to the end of the header, not into its neighbour."""
    headers = pa.array([[{"key": VALUE_HEADER, "value": b"\x01" + GUID + rest}] for rest in (b"\x02", b"\0")], HEADERS)

    frames = parse_values(array(b"a", b"b"), True, headers)

    assert frames.reasons.to_pylist()[0] == "wire format: the bytes end within the message index"
    assert key_of(frames, 1) == SchemaKey(None, GUID, (0,))
    assert key_of(parse_values(array(b"a", b"b"), {GUID}, headers), 1) == SchemaKey(None, GUID, (0,))
    assert key_of(parse_values(array(b"a", b"b"), {7}, headers), 1) == SchemaKey(None, GUID)


ROWS = (
    st.none()
    | st.binary(max_size=12)
    | st.binary(max_size=9).map(lambda rest: ID + rest)
    | st.builds(
        pack_value,
        st.integers(0, 2**31 - 1),
        st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12) | st.just([0]),
        st.binary(max_size=3),
    )
)


@settings(max_examples=drawn(200))
@given(rows=st.lists(ROWS, max_size=12), cut=st.integers(0, 3), wide=st.booleans())
@example(rows=[], cut=0, wide=False)
@example(rows=[None], cut=0, wide=False)
def test_a_row_has_one_verdict_whatever_is_around_it(rows: list[bytes | None], cut: int, wide: bool) -> None:
    """A replay in other batches must say the same, from slices and chunks of any offset."""
    values = pa.array(rows, pa.large_binary() if wide else pa.binary())[cut:]

    frames = parse_values(values, True)
    rest = payloads_of(values, frames)

    assert len(frames.status) == len(rest) == len(values)
    for row, value in enumerate(values):
        alone = parse_values(array(value.as_py()), True)
        assert (alone.status[0], alone.ids[0]) == (frames.status[row], frames.ids[row])
        assert key_of(alone, 0) == key_of(frames, row)
        assert payloads_of(array(value.as_py()), alone)[0].as_py() == rest[row].as_py()


@given(
    number=st.integers(0, 2**31 - 1),
    path=st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=MAX_INDEX_POSITIONS).map(tuple),
    payload=st.binary(),
)
def test_what_is_packed_is_parsed(number: int, path: tuple[int, ...] | None, payload: bytes) -> None:
    """What the router publishes, it and every other client must be able to read."""
    value = array(pack_value(number, path, payload))

    frames = parse_values(value, path is not None)

    assert key_of(frames, 0) == SchemaKey(number, None, path)
    assert payloads_of(value, frames).to_pylist() == [payload]


@pytest.mark.parametrize(("number", "path"), [(-1, None), (2**31, None), (1, ()), (1, (-1,)), (1, (0,) * 33)])
def test_an_impossible_frame_is_not_made(number: int, path: Any) -> None:
    """Nobody could read it."""
    with pytest.raises(ValueError, match="not"):
        payload_prefix(number, path)


def test_hidden_bytes_below_nulls_are_not_read() -> None:
    """Arrow allows bytes in a null slot, and headers in a null list."""
    data = pa.py_buffer(ID + b"\0" + ID + b"\0")
    offsets = pa.py_buffer(np.array([0, 6, 12], np.int32))
    values = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    entries = pa.array([{"key": VALUE_HEADER, "value": b"?"}], HEADERS.value_type)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), entries, mask=pa.array([False, True]))

    frames = parse_values(values, True, lists)

    assert frames.status.tolist() == [NULL, FRAMED]
