"""Avro records as documents."""

from __future__ import annotations

from typing import Any

Json = Any


def avro_record(*fields: Json, name: str = "Event", **more: Json) -> Json:
    """Return a record; a field is a pair of name and type, or an object."""
    listed = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "fields": listed, **more}
