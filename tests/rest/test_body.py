"""Rows joined to bodies: what an API reads is what was sent, whatever is wrapped around it."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import Placeholder
from router_rest.options import BodyOptions
from router_rest.templates import Body, Text, body_of, check_wrap, parse_json, parse_text


def json_of(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Draw JSON whose values have only such texts."""
    plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
    return st.recursive(
        plain,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )


JSON = json_of(st.text())
ROWS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=1, max_size=5)


def encoded(rows: list[Any]) -> list[bytes]:
    return [json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") for row in rows]


def free_of_marks(node: Any) -> bool:
    if isinstance(node, (dict, list)):
        return all(map(free_of_marks, node.values() if isinstance(node, dict) else node))
    return node != "$rows"


@given(ROWS)
def test_an_array_holds_the_rows_in_their_order(rows: list[Any]) -> None:
    """A row that is lost, doubled or moved is a row that the receipts are wrong about."""
    rows = json.loads(json.dumps(rows).encode("utf-8", "replace"))
    body = body_of("array", "application/json")

    joined = body.join_rows(encoded(rows))

    assert json.loads(joined.decode("utf-8", "surrogatepass")) == rows
    assert len(joined) == sum(map(len, encoded(rows))) + body.frame_bytes(len(rows))


@given(ROWS, JSON.filter(free_of_marks), st.text().filter(lambda name: name not in {"$rows", "z"}))
def test_rows_stand_where_the_wrapping_says(rows: list[Any], beside: Any, name: str) -> None:
    """Whatever else is in the wrapping, keys and texts that look like the mark included, stays as it is."""
    wrap = {"a": beside, name: ["$rows", "x$rows", {"$rows": "$rows$"}], "$rows": beside, "z": "$"}
    before = json.loads(json.dumps(wrap))
    check_wrap(wrap)

    joined = body_of("array", "application/json", wrap=wrap).join_rows([b'{"row":%d}' % at for at in range(len(rows))])

    found = json.loads(joined)
    at = next(key for key, value in wrap.items() if isinstance(value, list) and "$rows" in value)
    assert found[at][0] == [{"row": place} for place in range(len(rows))]
    found[at][0] = "$rows"
    assert found == before


@given(ROWS)
def test_each_line_is_a_row(rows: list[Any]) -> None:
    """An API that reads lines must find as many as there are rows."""
    body = body_of("ndjson", "application/x-ndjson")
    held = encoded(rows)

    joined = body.join_rows(held)

    assert joined.endswith(b"\n")
    assert joined[:-1].split(b"\n") == held
    assert len(joined) == sum(map(len, held)) + body.frame_bytes(len(rows))


@pytest.mark.parametrize(
    ("form", "row", "why"),
    [
        ("ndjson", b'{"a":\n1}', "line break"),
        ("ndjson", b'{"a":1}\r', "line break"),
        ("ndjson", b"", "empty"),
        ("array", b"", "empty"),
        ("array", b'{"a":\n1}', None),
        ("object", b"", None),
        ("object", b"a\nb", None),
    ],
)
def test_a_row_that_would_break_its_neighbours_is_told(form: Any, row: bytes, why: str | None) -> None:
    """One bad row must not make the API refuse the others of its call."""
    fault = body_of(form, "a/b").row_fault(row)

    assert fault is None if why is None else why in str(fault)


def test_one_object_is_one_row() -> None:
    """Two objects behind each other are no JSON."""
    body = body_of("object", "application/json")

    assert body.join_rows([b"{}"]) == b"{}"
    with pytest.raises(ValueError, match="2 rows"):
        body.join_rows([b"{}", b"{}"])
    with pytest.raises(ValueError, match="0 rows"):
        body.join_rows([])


def test_the_same_rows_make_the_same_bytes_compressed() -> None:
    """A replay with other bytes under the same key would be refused by an API that compares them."""
    body = body_of("array", "application/json", compressed=True)
    joined = body.join_rows([b"{}", b'{"a":1}'])

    packed = body.pack_body(joined)

    assert packed == pickle.loads(pickle.dumps(body)).pack_body(joined)
    assert packed[4:8] == bytes(4)  # no time of day in the header of gzip
    assert gzip.decompress(packed) == joined
    assert body.headers == {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert body_of("array", "a/b").pack_body(joined) == joined


@pytest.mark.parametrize(
    ("options", "rows", "content_type", "body"),
    [
        ({}, 1, "application/json", b'{"a":1}'),
        ({}, 2, "application/json", b'[{"a":1}]'),
        ("array", 1, "application/json", b'[{"a":1}]'),
        ({"wrap": {"events": "$rows"}}, 1, "application/json", b'{"events":[{"a":1}]}'),
        ("ndjson", 5, "application/x-ndjson", b'{"a":1}\n'),
        ({"text": "wins n={n}"}, 1, "text/plain; charset=utf-8", b'{"a":1}'),
        ({"text": "wins n={n}"}, 2, "text/plain; charset=utf-8", b'{"a":1}\n'),
        ({"urlencoded": {"a": "{b}"}}, 1, "application/x-www-form-urlencoded", b'{"a":1}'),
        ({"text": "a", "content_type": "text/csv"}, 1, "text/csv", b'{"a":1}'),
        ({"form": "ndjson", "content_type": "text/plain"}, 5, "text/plain", b'{"a":1}\n'),
    ],
    ids=str,
)
def test_the_form_follows_from_what_is_written(options: Any, rows: int, content_type: str, body: bytes) -> None:
    """A call that happens to have one row looks like the others of its sink."""
    made = BodyOptions.model_validate(options).make_body(rows, json=True, compressed=False)

    assert isinstance(made, Body)
    assert made.headers == {"Content-Type": content_type}
    assert made.join_rows([b'{"a":1}']) == body


def test_a_template_is_json_with_fields() -> None:
    """A field alone keeps its type; within a longer text it is text."""
    pieces = parse_json({"n": "{event.n}", "text": "of {event.user}!", "at": [1, None, True, "x", {}, []], "k{}": "y"})

    assert pieces == (
        '{"n":',
        Placeholder("event.n"),
        ',"text":',
        Text(("of ", Placeholder("event.user"), "!")),
        ',"at":[1,null,true,"x",{},[]],"k{}":"y"}',
    )


def test_doubled_braces_are_braces() -> None:
    """Without it a query of GraphQL, or JSON inside of a text, cannot be written in a template."""
    mutation = 'mutation {{ add(name: "{event.user}") {{ id }} }}'

    assert parse_json([mutation]) == (
        "[",
        Text(('mutation { add(name: "', Placeholder("event.user"), '") { id } }')),
        "]",
    )
    assert parse_json("{{}} {{{{") == ('"{} {{"',)
    assert parse_text("{{{a}}}") == (Text(("{", Placeholder("a"), "}"), plain=True),)
    with pytest.raises(ValueError, match="no partner"):
        parse_json("mutation { add }}")


def test_a_text_with_a_line_break_spoils_no_other() -> None:
    """Without it a value with a line break is a row of its own, which nobody has sent."""
    made = BodyOptions.model_validate({"text": "{a}\n{b}"}).make_body(5, json=True, compressed=False)

    assert made.row_fault(b"a\nb") is None
    assert "line break" in str(made.row_fault(b"a\nb\nc"))
    assert made.join_rows([b"a\nb", b"c\nd"]) == b"a\nb\nc\nd\n"


@given(json_of(st.text(st.characters(exclude_characters="{}"))))
def test_a_template_without_fields_is_itself(node: Any) -> None:
    """What is not a field goes out as it was written."""
    assert json.loads("".join(map(str, parse_json(node)))) == node
