"""Let the tasks of one driver in, and nobody else: both sides prove that they know a token, which neither sends.

A proof is an HMAC of the token over random texts of both sides, so that nothing that was overheard is of use again.
What is secret is sealed with keys that come from the same texts; all else is numbers, and open.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

BLOCK = 32


@dataclass(frozen=True)
class Address:
    """Say where the authority of a limit is reached. Travels to tasks with the plan; the token is shown nowhere."""

    host: str
    port: int
    name: str
    token: bytes = field(repr=False)


def nonce() -> str:
    """Return a random text."""
    return secrets.token_hex(16)


def proof(token: bytes, side: str, *texts: str) -> str:
    """Return what only those who know the token can say about texts; `side` keeps one side from repeating the other."""
    return hmac.new(token, json.dumps([side, *texts]).encode(), sha256).hexdigest()


class Seal:
    """Seal what is said on one connection: a stream of HMAC blocks over a counter, and an HMAC over the result.

    Each text has a random beginning of its own, so that equal ones do not look alike.
    """

    def __init__(self, token: bytes, *texts: str) -> None:
        self._stream = bytes.fromhex(proof(token, "stream", *texts))
        self._mark = bytes.fromhex(proof(token, "mark", *texts))

    def close(self, value: Any) -> str:
        """Return a JSON value as sealed text."""
        salt, plain = secrets.token_bytes(BLOCK), json.dumps(value).encode()
        hidden = salt + self._mask(salt, plain)
        return base64.b64encode(hmac.digest(self._mark, hidden, "sha256") + hidden).decode()

    def open(self, text: str) -> Any:
        """Return the value of a sealed text. Raises ValueError for a text of somebody else."""
        whole = base64.b64decode(text)
        mark, hidden = whole[:BLOCK], whole[BLOCK:]
        if not hmac.compare_digest(mark, hmac.digest(self._mark, hidden, "sha256")):
            raise ValueError("not sealed on this connection")
        return json.loads(self._mask(hidden[:BLOCK], hidden[BLOCK:]))

    def _mask(self, salt: bytes, text: bytes) -> bytes:
        blocks = range(-(-len(text) // BLOCK))
        stream = b"".join(hmac.digest(self._stream, salt + number.to_bytes(8, "big"), "sha256") for number in blocks)
        return bytes(one ^ other for one, other in zip(text, stream, strict=False))
