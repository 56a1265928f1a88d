"""JSON documents to draw: those that fit a schema, strange ones, and texts that are nearly JSON."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, TypeVar

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.light import drawn

T = TypeVar("T")
UTC = pa.scalar(0, pa.timestamp("us", "UTC")).as_py().tzinfo
SCHEMA = (
    "text string, big bigint, whole int, real double, yes boolean, "
    "tags array<bigint>, notes map<string,string>, player struct<level: int, name: string>"
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
bigs = st.integers(-(2**63), 2**63 - 1)
days = st.dates().map(dt.date.isoformat)
times = st.builds(
    lambda time, places, blank: time.isoformat(blank, "microseconds")[: 20 + places].rstrip(".") + "Z",
    st.datetimes(),
    st.integers(0, 6),
    st.sampled_from("T "),
)
fitting = {
    "text": texts,
    "big": bigs,
    "whole": st.integers(-(2**31), 2**31 - 1),
    "real": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
    "yes": st.booleans(),
    "tags": st.lists(st.none() | bigs, max_size=4),
    "notes": st.dictionaries(texts, st.none() | texts, max_size=4),
    "player": st.fixed_dictionaries({}, optional={"level": st.integers(-9, 9), "name": texts, "x": st.booleans()}),
}
unknown = st.dictionaries(texts.filter(lambda name: name not in fitting), st.none() | bigs | texts, max_size=2)
documents = st.builds(
    lambda known, other: {**other, **known},
    st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in fitting.items()}),
    unknown,
)
whatever = st.recursive(
    st.none() | st.booleans() | bigs | st.floats() | texts, lambda inner: st.lists(inner, max_size=3)
)
strange = st.dictionaries(st.sampled_from([*fitting, "x"]), whatever | documents, max_size=4)


def examples(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """Draw up to so many examples of a strategy."""
    found: list[T] = []

    @settings(max_examples=drawn(count), database=None, phases=[Phase.generate])
    @given(strategy)
    def draw(example: T) -> None:
        found.append(example)

    draw()
    return found


@st.composite
def written(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> bytes:
    """Draw a JSON text in one of the ways that encoders write it."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n")]))
    return json.dumps(draw(values), ensure_ascii=draw(st.booleans()), separators=separators).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a JSON text with some bytes changed, put in or taken away."""
    text = bytearray(draw(written(documents)))
    for _ in range(draw(st.integers(1, 3))):
        place, width = draw(st.integers(0, len(text))), draw(st.integers(0, 2))
        text[place : place + width] = draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"{", b"}", b",", b"\\", b"0"])
        )
    return bytes(text)


def is_object(value: bytes) -> bool:
    """Say whether Python, as strict as the decoder, takes bytes for one JSON object."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return isinstance(json.loads(value.decode(), parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False
