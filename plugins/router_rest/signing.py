"""Signatures of requests: HMAC with a key that both sides know, SigV4 of AWS, and tokens that a private key signs.

An HMAC and SigV4 are made in tasks, of the bytes that are sent, for each attempt a new one. A JWT is made on the
driver, where the private key stays.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests.auth import AuthBase

from router import StartError
from router_encoders.templates import Placeholder, parse
from router_http.client import TokenSource, signed_jwt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import requests

    from router_rest.auth import Jwt, SigV4


def sent_body(request: requests.PreparedRequest) -> bytes:
    """Return the body of a request as it is sent, compressed where it is."""
    body = request.body or b""
    assert isinstance(body, (bytes, str))  # the sink streams no bodies
    return body.encode() if isinstance(body, str) else body


class HmacSignature(AuthBase):
    """A login that signs each request, in its headers.

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
        """Return the values of all fields that can be signed: see `router_rest.auth.SIGNED`."""
        url, held = urlsplit(str(request.url)), sent_body(request)
        return {
            "id": str(request.headers.get(self._given["id_header"] or "", "")).encode(),
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


S3 = frozenset({"s3", "s3express", "s3-outposts", "s3-object-lambda"})
"""Services whose paths are signed as they are written; those of all others are escaped once more."""


class AwsSignature(AuthBase):
    """A login that signs each request as AWS wants it (Signature Version 4), by botocore.

    `given` is what `AwsKeys.current` returned. All headers are signed but those that servers on the way may change.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        from botocore.auth import S3SigV4Auth, SigV4Auth
        from botocore.credentials import ReadOnlyCredentials

        logging.getLogger("botocore.auth").setLevel(logging.INFO)  # below it writes requests to the log, with the token
        keys = ReadOnlyCredentials(given["access_key_id"], given["secret_access_key"], given["session_token"])
        kind = S3SigV4Auth if given["service"] in S3 else SigV4Auth
        self._signer = kind(keys, given["service"], given["region"])

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        from botocore.awsrequest import AWSRequest

        request.url = str(request.url).replace("*", "%2A")  # AWS reads URLs so, and signs what it read
        body = sent_body(request)
        kept = {name: value for name, value in request.headers.items() if name.lower() not in CHANGED}
        # some services want the hash in a header, the others take it
        kept["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
        signed = AWSRequest(request.method, request.url, kept, body)
        self._signer.add_auth(signed)
        for name, value in signed.headers.items():
            request.headers[name] = value
        return request


CHANGED = frozenset({"accept", "accept-encoding", "connection", "content-length", "user-agent"})
"""Headers that proxies write anew."""
AWS_SECONDS = 300.0
"""Seconds for which a task keeps keys of a role: botocore renews them ten minutes before they end."""


class AwsKeys:
    """The keys of a sink for AWS: those of its options, else those that botocore finds on the driver."""

    def __init__(self, options: SigV4) -> None:
        self._options = options
        self._found: Any = None

    @property
    def seconds_left(self) -> float:
        """Return the seconds after which to ask again."""
        return float("inf") if self._options.access_key_id else AWS_SECONDS

    def current(self) -> dict[str, Any]:
        """Return what AwsSignature takes. Raises ConnectionError while there are none, else StartError."""
        options = self._options
        if options.access_key_id is not None:
            given = (options.secret_access_key, options.session_token)
            secret, token = (None if one is None else one.get_secret_value() for one in given)
            key = options.access_key_id
        else:
            found = self._frozen()
            key, secret, token = found.access_key, found.secret_key, found.token
        about = {"service": options.service, "region": options.region}
        return {**about, "access_key_id": key, "secret_access_key": secret, "session_token": token}

    def _frozen(self) -> Any:
        from botocore.exceptions import BotoCoreError, ProfileNotFound
        from botocore.session import Session

        try:
            self._found = self._found or Session(profile=self._options.profile).get_credentials()
            if self._found is None:
                raise StartError("auth: sigv4: no keys of AWS here: give access_key_id, a profile or a role")
            return self._found.get_frozen_credentials()
        except ProfileNotFound:
            raise StartError(f"auth: sigv4: there is no profile {self._options.profile}") from None
        except BotoCoreError as error:
            raise ConnectionError(f"auth: sigv4: no keys of AWS now: {type(error).__name__}") from None


class JwtTokens(TokenSource):
    """The tokens that a private key signs."""

    def __init__(self, options: Jwt, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._options = options

    def _fetch(self) -> tuple[str, float]:
        options = self._options
        named = {"iss": options.issuer, "sub": options.subject, "aud": options.audience}
        claims = {**{name: value for name, value in named.items() if value}, **options.claims}
        key, life = options.private_key, options.lifetime
        try:
            return signed_jwt(key, claims, life, options.key_id, time.time), life
        except ValueError as error:
            raise StartError(f"auth: jwt: {error}") from None
