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

from router import Placeholder, StartError, parse_template
from router_http.client import TokenSource, signed_jwt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import requests

    from router_rest.logins.auth import Jwt, SigV4


def sent_body(request: requests.PreparedRequest) -> bytes:
    """Return the body of a request as it is sent, compressed where it is."""
    body = request.body or b""
    assert isinstance(body, (bytes, str))  # the sink streams no bodies
    return body.encode() if isinstance(body, str) else body


class HmacSignature(AuthBase):
    """A login that signs each request, in its headers.

    `given` holds what the driver made of the options `logins.auth.Hmac`; `clock` returns seconds since 1970.
    """

    def __init__(self, given: Mapping[str, Any], clock: Callable[[], float] = time.time) -> None:
        self._given = given
        self._key = base64.b64decode(given["key"])
        self._signed = parse_template(given["signed"])
        self._value = parse_template(given["value"])
        self._clock = clock

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        options = self._given
        fields = self._field_values(request)
        digest = hmac.new(self._key, _fill_text(self._signed, fields), options["algorithm"]).digest()
        fields_of_header = {"signature": self._encode_digest(digest), "timestamp": fields["timestamp"]}
        request.headers[options["header"]] = _fill_text(self._value, fields_of_header).decode()
        if options["timestamp_header"]:
            request.headers[options["timestamp_header"]] = fields["timestamp"].decode()
        if options["body_hash_header"]:
            request.headers[options["body_hash_header"]] = fields["body_hash"].decode()
        return request

    def _field_values(self, request: requests.PreparedRequest) -> dict[str, bytes]:
        """Return the values of all fields that can be signed: see `router_rest.logins.auth.SIGNED_FIELDS`."""
        url = urlsplit(str(request.url))
        body = sent_body(request)
        return {
            "id": str(request.headers.get(self._given["id_header"] or "", "")).encode(),
            "method": str(request.method).encode(),
            "host": url.netloc.encode(),
            "path": url.path.encode(),
            "query": url.query.encode(),
            "target": request.path_url.encode(),
            "timestamp": self._timestamp_now().encode(),
            "body": body,
            "body_hash": self._encode_digest(hashlib.new(self._given["algorithm"], body).digest()),
        }

    def _timestamp_now(self) -> str:
        now = self._clock()
        if self._given["timestamp"] == "iso":
            return datetime.fromtimestamp(int(now), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self._given["timestamp"] == "milliseconds":
            return str(int(now * 1000))
        return str(int(now))

    def _encode_digest(self, digest: bytes) -> bytes:
        if self._given["encoding"] == "hex":
            return digest.hex().encode()
        return base64.b64encode(digest)


def _fill_text(pieces: Iterable[str | Placeholder], fields: Mapping[str, bytes]) -> bytes:
    """Return a text with the values of its fields."""
    text = b""
    for piece in pieces:
        text += fields[piece.path] if isinstance(piece, Placeholder) else piece.encode()
    return text


S3_SERVICES = frozenset({"s3", "s3express", "s3-outposts", "s3-object-lambda"})
"""Services whose paths are signed as they are written; those of all others are escaped again."""


class AwsSignature(AuthBase):
    """A login that signs each request as AWS requires it (Signature Version 4), by botocore.

    `given` is what `AwsKeys.current_keys` returned. All headers are signed but those that servers on the way may
    change.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        from botocore.auth import S3SigV4Auth, SigV4Auth
        from botocore.credentials import ReadOnlyCredentials

        logging.getLogger("botocore.auth").setLevel(logging.INFO)  # below it writes requests to the log, with the token
        keys = ReadOnlyCredentials(given["access_key_id"], given["secret_access_key"], given["session_token"])
        kind = S3SigV4Auth if given["service"] in S3_SERVICES else SigV4Auth
        self._signer = kind(keys, given["service"], given["region"])

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        from botocore.awsrequest import AWSRequest

        request.url = str(request.url).replace("*", "%2A")  # AWS reads URLs so, and signs what it read
        body = sent_body(request)
        signed_headers = {
            name: value for name, value in request.headers.items() if name.lower() not in PROXY_CHANGED_HEADERS
        }
        # Some services want the hash in a header, the others take it.
        signed_headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
        signed = AWSRequest(request.method, request.url, signed_headers, body)
        self._signer.add_auth(signed)
        for name, value in signed.headers.items():
            request.headers[name] = value
        return request


PROXY_CHANGED_HEADERS = frozenset({"accept", "accept-encoding", "connection", "content-length", "user-agent"})
"""Headers that proxies rewrite."""
AWS_KEYS_KEPT_SECONDS = 300.0
"""Seconds for which a task keeps keys of a role: botocore renews them ten minutes before they end."""


class AwsKeys:
    """The keys of a sink for AWS: those of its options, else those that botocore finds on the driver."""

    def __init__(self, options: SigV4) -> None:
        from botocore.credentials import Credentials

        self._options = options
        self._found: Any = None
        if options.access_key_id is not None:
            assert options.secret_access_key is not None  # `SigV4` takes both or neither
            token = None
            if options.session_token is not None:
                token = options.session_token.get_secret_value()
            self._found = Credentials(options.access_key_id, options.secret_access_key.get_secret_value(), token)

    @property
    def seconds_left(self) -> float:
        """Return the seconds after which to ask again."""
        return float("inf") if self._options.access_key_id else AWS_KEYS_KEPT_SECONDS

    def current_keys(self) -> dict[str, Any]:
        """Return the keys for AwsSignature. Raises ConnectionError while there are none, else StartError."""
        from botocore.exceptions import BotoCoreError, ProfileNotFound
        from botocore.session import Session

        options = self._options
        try:
            self._found = self._found or Session(profile=options.profile).get_credentials()
            if self._found is None:
                raise StartError("auth: sigv4: no keys of AWS here: give access_key_id, a profile or a role")
            keys = self._found.get_frozen_credentials()
        except ProfileNotFound:
            raise StartError(f"auth: sigv4: there is no profile {options.profile}") from None
        except BotoCoreError as error:
            raise ConnectionError(f"auth: sigv4: no keys of AWS now: {type(error).__name__}") from None
        return {
            "service": options.service,
            "region": options.region,
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "session_token": keys.token,
        }


class JwtTokens(TokenSource):
    """The tokens that a private key signs."""

    def __init__(self, options: Jwt, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._options = options

    def _fetch_token(self) -> tuple[str, float]:
        options = self._options
        claims: dict[str, Any] = {"iss": options.issuer, "sub": options.subject, "aud": options.audience}
        claims = {name: value for name, value in claims.items() if value} | options.claims
        try:
            token = signed_jwt(options.private_key, claims, options.lifetime, options.key_id, time.time)
            return token, options.lifetime
        except ValueError as error:
            raise StartError(f"auth: jwt: {error}") from None
