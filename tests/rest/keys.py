"""Private keys, as their owners hand them to a configuration."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


def private_key_pem(key: Any) -> str:
    """Return a key as a file has it."""
    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode())
