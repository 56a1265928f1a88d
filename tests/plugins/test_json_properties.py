"""The json decoder against Python's json: any bytes, any documents.

Hypothesis draws the examples of a test first, and one Spark job decodes them all; a failure shows the bytes at fault.

Known differences, all documented in the decoder's manual page:
- Python takes NaN and Infinity, and escapes that are half of a surrogate pair; so they are not generated.
- Python takes numbers of any size; a number beyond its field's type does not fit.
- Python takes any nesting and any length; beyond the decoder's limits a text is refused.
- Spark does not see text after the object that continues it as if it were inside another: `{"a":1},"b":{}`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from router_decoders import Json
from tests.plugins.json_documents import SCHEMA, damaged, documents, examples, fitting, is_object, strange, written

if TYPE_CHECKING:
    from tests.plugins.conftest import Decode


def expected(document: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a document whose fields fit."""
    event = {name: document.get(name) for name in fitting}
    if event["real"] is not None:
        event["real"] = float(event["real"])
    if event["player"] is not None:
        event["player"] = {name: event["player"].get(name) for name in ("level", "name")}
    return event


def comparable(event: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded event with its map as a dict."""
    return {**event, "notes": None if event["notes"] is None else dict(event["notes"])}


def test_a_document_that_fits_has_the_values_that_python_reads(decode: Decode) -> None:
    """A value must be the one that the producer wrote."""
    values = examples(written(documents), 600)

    for value, (event, error) in zip(values, decode(Json(schema=SCHEMA), values), strict=True):
        assert error is None, value
        assert comparable(event) == expected(json.loads(value)), value


def test_what_python_refuses_is_no_event(decode: Decode) -> None:
    """A broken record that becomes an event is a lie in a table."""
    values = examples(st.binary(max_size=40) | damaged() | written(strange), 1500)

    found = decode(Json(schema=SCHEMA), values)

    for value, (event, error) in zip(values, found, strict=True):
        assert (event is None) != (error is None), value
        if not is_object(value) and not continues(value):
            assert error, value
        if is_object(value) and event is None:
            assert error.startswith("does not fit the schema"), value


def continues(value: bytes) -> bool:
    """Say whether bytes are an object and go on as if they were inside another: the one thing Spark does not see."""
    text = b'{"value":' + value + b',"end":1}'
    return is_object(text) and isinstance(json.loads(text)["value"], dict)


def test_what_fits_is_never_another_value(decode: Decode) -> None:
    """An overflow that wraps around would be believed."""
    values = examples(written(strange), 600)

    found = decode(Json(schema=SCHEMA), values)

    for value, (event, _) in zip(values, found, strict=True):
        if event is not None:
            document = json.loads(value)
            for name in ("big", "whole", "yes"):
                assert (event[name], type(event[name])) == (document.get(name), type(document.get(name))), value
            real = document.get("real")
            assert event["real"] is None if real is None else math.isclose(event["real"], real), value
