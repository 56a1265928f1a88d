"""Let the tasks of one driver in and nobody else, and let nobody see or alter what they say to each other.

Both sides know a secret, which neither sends, and draw a random text for each connection. Keys come from all three: who
seals a message with them knows the secret, and what was overheard on one connection is of no use on another.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY = 32
"""Bytes of a key."""
COUNT = 12
"""Bytes of the number of a message, which is its nonce (RFC 8439, 2.8)."""


@dataclass(frozen=True)
class ServerAddress:
    """The place where the coordinator of a limit is reached; travels to tasks. The secret is shown nowhere."""

    host: str
    port: int
    name: str
    secret: bytes = field(repr=False)


def nonce() -> str:
    """Return a random text."""
    return secrets.token_hex(16)


class SecureChannel:
    """One side of a connection: it seals what it says, and opens what the other side said, whole and in order.

    ChaCha20-Poly1305 with a key for each connection and direction, by HKDF (RFC 5869). The nonce of a message is its
    number, so that one that is repeated, left out, sent back or altered is not opened.
    """

    def __init__(self, secret: bytes, side: Literal["driver", "task"], *texts: str) -> None:
        keys = HKDF(SHA256(), 2 * KEY, json.dumps(texts).encode(), b"router leases").derive(secret)
        of_driver, of_task = ChaCha20Poly1305(keys[:KEY]), ChaCha20Poly1305(keys[KEY:])
        self._own, self._other = (of_driver, of_task) if side == "driver" else (of_task, of_driver)
        self._sealed = self._opened = 0

    def seal(self, value: Any) -> bytes:
        """Return a JSON value as the next line."""
        hidden = self._own.encrypt(self._sealed.to_bytes(COUNT, "big"), json.dumps(value).encode(), None)
        self._sealed += 1
        return base64.b64encode(hidden) + b"\n"

    def open(self, line: bytes) -> Any:
        """Return the value of the next line. Raises ValueError for a line that the other side did not send here."""
        try:
            plain = self._other.decrypt(self._opened.to_bytes(COUNT, "big"), base64.b64decode(line), None)
        except (InvalidTag, ValueError):
            raise ValueError("not sealed by the other side as its next message") from None
        self._opened += 1
        return json.loads(plain)
