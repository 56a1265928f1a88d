"""Sign calls with a key that both sides know. Runs on executors."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests.auth import AuthBase

from router_templates.pieces import Placeholder, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests


class Signature(AuthBase):
    """Sign each request as it is then, and write the signature into its headers.

    `given` holds what the driver made of the options `router_rest.auth.Hmac`; `clock` returns seconds since 1970.
    """

    def __init__(self, given: Mapping[str, Any], clock: Callable[[], float] = time.time) -> None:
        self._given = given
        self._key = base64.b64decode(given["key"])
        self._signed, self._value = parse(given["signed"]), parse(given["value"])
        self._clock = clock

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        given, algorithm = self._given, self._given["algorithm"]
        said = self._said(request)
        text = b"".join(said[one.path] if isinstance(one, Placeholder) else one.encode() for one in self._signed)
        signature = self._written(hmac.new(self._key, text, algorithm).digest())
        filled = {"signature": signature.decode(), "timestamp": said["timestamp"].decode()}
        request.headers[given["header"]] = "".join(
            filled[one.path] if isinstance(one, Placeholder) else one for one in self._value
        )
        for header, part in ((given["timestamp_header"], "timestamp"), (given["body_hash_header"], "body_hash")):
            if header:
                request.headers[header] = said[part].decode()
        return request

    def _said(self, request: requests.PreparedRequest) -> dict[str, bytes]:
        """Return everything that can be signed: see `router_rest.auth.SIGNED`."""
        url, body = urlsplit(str(request.url)), request.body or b""
        assert isinstance(body, (bytes, str))  # the sink's bodies are made, not streamed
        held = body.encode() if isinstance(body, str) else body
        return {
            "method": str(request.method).encode(),
            "host": url.netloc.encode(),
            "path": url.path.encode(),
            "query": url.query.encode(),
            "target": request.path_url.encode(),
            "timestamp": self._now().encode(),
            "body": held,
            "body_hash": self._written(hashlib.new(self._given["algorithm"], held).digest()),
        }

    def _now(self) -> str:
        now = self._clock()
        if self._given["timestamp"] == "iso":
            return datetime.fromtimestamp(int(now), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return str(int(now * 1000 if self._given["timestamp"] == "milliseconds" else now))

    def _written(self, digest: bytes) -> bytes:
        return digest.hex().encode() if self._given["encoding"] == "hex" else base64.b64encode(digest)
