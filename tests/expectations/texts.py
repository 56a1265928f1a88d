"""Values as short texts that are the same in every run."""

from __future__ import annotations

import hashlib
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

LONG = 120
"""Characters; of longer texts the beginning is kept, and a hash of all."""


def plain(value: Any) -> Any:
    """Return a value of a row as JSON has it."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return _single(value)


def _single(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value.astimezone(timezone.utc) if value.tzinfo else value).isoformat()
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, float):
        return value if abs(value) < float("inf") else repr(value)  # NaN and the infinities are no JSON
    if isinstance(value, (date, Decimal)):
        return str(value)
    return _short(value) if isinstance(value, str) else value


def _bytes(value: bytes) -> str:
    """Return bytes as their text, where they are a short one; else in hexadecimal; the beginning and a hash."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    shown = f"b:{text}" if text.isprintable() and (text or not value) else f"x:{value.hex()}"
    return _short(shown, hashlib.sha256(value), 60)


def _short(text: str, digest: Any = None, most: int = LONG) -> str:
    if len(text) <= most:
        return text
    digest = digest or hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    return f"{text[: most // 2]}... {len(text)} characters, sha256 {digest.hexdigest()[:12]}"
