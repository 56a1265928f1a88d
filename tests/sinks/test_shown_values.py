"""What previews and route tests show of bytes."""

from __future__ import annotations

from typing import Any

import pytest

from router_encoders.outbox_rows import show_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"n": 1}', {"n": 1}),
        (b"ann", "ann"),
        (b"12", 12),
        (b"", ""),
        (b"NaN", "NaN"),
        (b"-Infinity", "-Infinity"),
        (b'{"n": NaN}', '{"n": NaN}'),
        (b"\xff\x00", "/wA="),
        (b"[" * 5000, "[" * 5000),
    ],
)
def test_a_value_is_shown_as_what_json_can_say(value: bytes, shown: Any) -> None:
    """Without it a key that is empty or called NaN ends a preview, or makes a document that is no JSON."""
    assert show_value(value) == shown
    assert type(show_value(value)) is type(shown)
