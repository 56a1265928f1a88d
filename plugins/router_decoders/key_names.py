"""Name what is decoded of a key beside what is decoded of a value."""

from __future__ import annotations

OF_A_KEY = "key "
"""What the wants and the reasons of the key's decoder begin with."""
SCHEMA = ("schema_id", "schema_version", "subject", "message")
KEY_NAMES = {"event": "event_key", **{name: f"key_{name}" for name in SCHEMA}}
