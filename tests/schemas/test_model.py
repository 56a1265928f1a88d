"""Places are texts that people read in logs and that a restart reads again."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_schemas.model import WriterSchema, dotted_index

GUID = UUID("f3a1b8de-0f2a-4b8e-9d0b-7d5d7a1d7b11")
SCHEMAS = st.none() | st.integers(0, 2**31 - 1) | st.uuids()
MESSAGES = st.just("") | st.from_regex(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,3}", fullmatch=True) | st.just("0.1")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (WriterSchema(2147483647), "schema 2147483647"),
        (WriterSchema(17, "0.1"), "message 0.1 of schema 17"),
        (WriterSchema(17, "games.Bet"), "message games.Bet of schema 17"),
        (WriterSchema(GUID), f"schema {GUID}"),
        (WriterSchema(GUID, "1"), f"message 1 of schema {GUID}"),
        (WriterSchema(None, "games.Bet"), "message games.Bet"),
    ],
    ids=str,
)
def test_a_place_is_called_so_that_people_understand_it(place: WriterSchema, text: str) -> None:
    assert str(place) == text
    assert WriterSchema.of(text) == place


@given(schema=SCHEMAS, message=MESSAGES)
def test_what_is_written_is_read(schema: int | UUID | None, message: str) -> None:
    """A place that cannot be read is forgotten by a restart."""
    place = WriterSchema(schema, message)
    if schema is not None or message:
        assert WriterSchema.of(str(place)) == place


@given(st.text() | st.sampled_from(["17/0.1", "schema", "schema -1", "message a b of schema 1", "schema 1 ", ""]))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        place = WriterSchema.of(text)
    except ValueError:
        return
    assert str(place) == text


@pytest.mark.parametrize(
    ("message", "path"), [("", (0,)), ("0.1", (0, 1)), ("1", (1,)), ("games.Bet", None), ("a", None)]
)
def test_an_index_path_is_told_from_a_name(message: str, path: tuple[int, ...] | None) -> None:
    assert WriterSchema(1, message).path == path
    assert path is None or dotted_index(path) == message
