"""Send a server one request, within limits of time and size, and log in: by password, fixed token or token server."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import requests
import urllib3
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import BaseModel, Field, ValidationError
from requests.auth import AuthBase, HTTPBasicAuth

from router_http.causes import causes_of
from router_http.options import ExchangeError, Secret, mask_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from router_http.options import Basic, OAuth


MAX_ANSWER_BYTES = 64 << 20
"""Bytes of an answer: schemas of 10 MB are legal and grow in JSON, but a body must end."""
READ_BLOCK_BYTES = 1 << 16


class Away(ExchangeError):  # noqa: N818 - the two names say what happened
    """A server that cannot answer now: ask again later."""


class Refuses(ExchangeError):  # noqa: N818
    """An answer that will not change until a configuration is changed."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server. `login` is the Authorization header that was sent."""

    status: int
    location: str
    body: bytes
    login: str = field(repr=False)


def send_request(session: requests.Session, method: str, url: str, *, seconds: float, **arguments: Any) -> Answer:
    """Send one request, follow no redirect, read the whole answer; `arguments` as for `requests`.

    Raises Away when no whole answer comes in time, Refuses when none ever will.
    """
    try:
        sent = session.request(method, url, timeout=seconds, allow_redirects=False, stream=True, **arguments)
        with sent as response:
            body = b"".join(_read_blocks(url, response, seconds))
            login = response.request.headers.get("Authorization", "")
            return Answer(response.status_code, response.headers.get("Location", ""), body, str(login))
    # the causes may hold headers, so the new errors hide them
    except (requests.Timeout, urllib3.exceptions.TimeoutError):
        raise Away(url, f"no answer within {seconds:g} s") from None
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise _error_for(url, error) from None


def is_busy(status: int) -> bool:
    """Say whether a status means that the server may take the request later."""
    return status in {408, 425, 429} or status >= 500


def _read_blocks(url: str, response: requests.Response, seconds: float) -> Iterator[bytes]:
    """Yield the body as it arrives, by `read1`: `iter_content` waits for whole blocks, however slowly they come."""
    end = time.monotonic() + seconds
    size = 0
    while block := response.raw.read1(READ_BLOCK_BYTES, decode_content=True):
        size += len(block)
        if size > MAX_ANSWER_BYTES:
            raise Away(url, f"the answer does not end within {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > end:
            raise Away(url, f"the answer does not end within {seconds:g} s")
        yield block


def _error_for(url: str, error: Exception) -> ExchangeError:
    """Return the error for a failed request; `requests` wraps the cause several times."""
    causes = list(causes_of(error))
    untrusted = next((cause for cause in causes if isinstance(cause, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        return Refuses(url, f"its certificate is not trusted ({untrusted.verify_message}); name its authority in `ca`")
    if isinstance(error, ValueError):
        return Refuses(url, f"no request can be made of it ({type(error).__name__}); check url and headers")
    reason = next((cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
    return Away(url, f"no answer: {reason or type(error).__name__}")


def basic_auth(login: Basic) -> AuthBase:
    """Return the login with user and password."""
    # bytes, for requests would write Latin-1 where RFC 7617 wants UTF-8
    return HTTPBasicAuth(login.user.encode(), login.password.get_secret_value().encode())


class NoAuth(AuthBase):
    """No login; without an auth object `requests` would take a login from ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class BearerAuth(AuthBase):
    """A login by one token, sent with every request (RFC 6750, 2.1)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class ClientCredentialsAuth(AuthBase):
    """A login by a token of a token server; after a 401 the request is sent again, with a new token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._tokens.current_token().text}"
        request.register_hook("response", self._send_again)
        return request

    def _send_again(self, response: requests.Response, **arguments: Any) -> requests.Response:
        """Send a request again that was answered with 401, with a new token; the hook does not run for it."""
        if response.status_code != 401:
            return response
        refused = str(response.request.headers["Authorization"]).removeprefix("Bearer ")
        response.close()  # without reading it: the body may be of any length
        request = response.request.copy()
        request.headers["Authorization"] = f"Bearer {self._tokens.other_than(refused).text}"
        again: requests.Response = response.connection.send(request, **arguments)
        again.history.append(response)
        again.request = request
        return again


def printable_excerpt(text: str, secrets: Iterable[str]) -> str:
    """Return the first 200 characters of a server's words in one printable line, with secrets masked."""
    masked = mask_secrets(text, secrets)
    printable = "".join(sign if sign.isprintable() else " " for sign in masked)
    line = " ".join(printable.split())
    if len(line) > 200:
        return f"{line[:200]}..."
    return line or "(nothing)"


EARLY_RENEWAL_SHARE = 0.2
"""The part of a token's life that is left unused: requests take time, clocks differ."""
MAX_EARLY_RENEWAL_SECONDS = 60.0
"""Seconds of a token's life that are left unused, at most."""
MIN_RENEWAL_PAUSE_SECONDS = 0.25
"""Seconds between two requests for a new token, at least, unless the old one was refused or has ended."""


@dataclass(frozen=True)
class Token:
    """A token; `number` counts the fetched ones, and may be shown instead of the token."""

    text: str = field(repr=False)
    number: int


class _Granted(BaseModel):
    """The answer of a token server (RFC 6749, 5.1 and 5.2), which names an error if it has no `access_token`.

    A new refresh token takes the place of the old one (6).
    """

    access_token: str = Field(default="", pattern=r"^[\x21-\x7e]+$")
    refresh_token: str | None = None
    expires_in: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    error: Any = None
    error_description: Any = None


PASSING_ERRORS = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
"""Errors of a token server that may pass, whatever status they come with (RFC 6749, 4.1.2.1; RFC 8628, 3.5)."""


class TokenSource(ABC):
    """The current token of one client, for all threads of the driver; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._token = Token("", 0)
        self._good_until = 0.0
        self._renew_at = 0.0

    @abstractmethod
    def _fetch_token(self) -> tuple[str, float]:
        """Return a new token, and its life in seconds."""

    def current_token(self) -> Token:
        """Return a token; a new one when there is none, or when it is about to expire."""
        with self._lock:
            return self._renewed_if_due()

    def other_than(self, refused: str | int) -> Token:
        """Return another token than the one with this text, or number, which a server has refused."""
        with self._lock:
            if refused in (self._token.text, self._token.number):
                return self._renew_token()
            return self._renewed_if_due()

    @property
    def seconds_to_renewal(self) -> float:
        """Return the seconds after which there may be a newer token than the current one."""
        return max(0.0, self._renew_at - self._clock())

    @property
    def seconds_good(self) -> float:
        """Return the seconds for which the current token is good."""
        return max(0.0, self._good_until - self._clock())

    def _renewed_if_due(self) -> Token:
        """Return a new token when it is time for one; the old one if there is none now, for as long as it is good."""
        if self._token.text and self._clock() < self._renew_at:
            return self._token
        try:
            return self._renew_token()
        except ExchangeError:
            if not self.seconds_good:
                raise
            self._renew_at = self._clock() + max(MIN_RENEWAL_PAUSE_SECONDS, self.seconds_good / 4)
            return self._token

    def _renew_token(self) -> Token:
        text, life = self._fetch_token()
        now = self._clock()
        self._good_until = now + life
        self._renew_at = now + max(
            MIN_RENEWAL_PAUSE_SECONDS, life - min(MAX_EARLY_RENEWAL_SECONDS, EARLY_RENEWAL_SHARE * life)
        )
        self._token = Token(text, self._token.number + 1)
        return self._token


class Tokens(TokenSource):
    """The tokens that a token server gives.

    Raises Away when the token server does not answer, Refuses when it refuses; `seconds`, `verify` and `proxies` as
    for requests to it.
    """

    def __init__(
        self,
        options: OAuth,
        *,
        seconds: float,
        verify: bool | str,
        proxies: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._options = options
        self._refresh = options.refresh_token
        self._seconds = seconds
        self._verify = verify
        self._proxies = dict(proxies or {})

    def _fetch_token(self) -> tuple[str, float]:
        granted = self._request_grant()
        if self._refresh is not None and granted.refresh_token:
            self._refresh = Secret(granted.refresh_token)
        # Servers that say 0 do not limit it; if a token has ended nevertheless, a 401 brings the next one.
        return granted.access_token, granted.expires_in or float("inf")

    def _request_grant(self) -> _Granted:
        where = self._options.token_url
        with requests.Session() as session:
            session.auth = self._client_login()
            answer = send_request(
                session,
                "POST",
                where,
                seconds=self._seconds,
                verify=self._verify,
                cert=self._options.tls.cert,
                proxies=self._proxies,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
                data={name: value for name, value in self._grant_form().items() if value},
            )
        try:
            granted = _Granted.model_validate_json(answer.body)
        except ValidationError:
            granted = _Granted()
        if answer.status == 200 and granted.access_token:
            return granted
        secrets = [secret.get_secret_value() for secret in (*self._options.secrets, self._refresh) if secret]
        words = f"{granted.error or ''} {granted.error_description or ''}"
        words = printable_excerpt(words, [*secrets, answer.login.rpartition(" ")[2]])
        problem = f"the token server answers {answer.status} without a token: {words}"
        # A body that is none of a token server comes from something before it, which may be away.
        nameless = answer.status == 200 and not granted.error
        if is_busy(answer.status) or nameless or str(granted.error) in PASSING_ERRORS:
            raise Away(where, problem, answer.status)
        hint = "check token_url, client_id, its secret or key, and scope"
        raise Refuses(where, f"{problem}; {hint}", answer.status)

    def _client_login(self) -> AuthBase:
        secret = self._options.client_secret
        if secret is None or self._options.client_auth == "post":
            return NoAuth()
        # both are form-encoded inside the header: RFC 6749, 2.3.1
        return HTTPBasicAuth(quote_plus(self._options.client_id), quote_plus(secret.get_secret_value()))

    def _grant_form(self) -> dict[str, str]:
        options = self._options
        form = {"grant_type": "client_credentials", "scope": options.scope, "audience": options.audience}
        if self._refresh is not None:
            form |= {"grant_type": "refresh_token", "refresh_token": self._refresh.get_secret_value()}
        if options.private_key is not None:
            kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            form |= {"client_assertion_type": kind, "client_assertion": client_assertion(options)}
        if options.client_auth == "post" or options.client_secret is None:
            form["client_id"] = options.client_id
        if options.client_auth == "post" and options.client_secret is not None:
            form["client_secret"] = options.client_secret.get_secret_value()
        return form | {name: value.get_secret_value() for name, value in options.parameters.items()}


def client_assertion(options: OAuth, clock: Callable[[], float] = time.time) -> str:
    """Return a JWT that proves who the client is (RFC 7523, 2.2 and 3), good for five minutes.

    Raises Refuses for a key that is none; its text is not quoted.
    """
    assert options.private_key is not None
    who = {"iss": options.client_id, "sub": options.client_id, "aud": options.token_url}
    try:
        return signed_jwt(options.private_key, who, 300, options.key_id, clock)
    except ValueError as error:
        raise Refuses(options.token_url, str(error)) from None


def signed_jwt(
    private_key: Secret, claims: Mapping[str, Any], life: float, key_id: str | None, clock: Callable[[], float]
) -> str:
    """Return a JWT (RFC 7519) with some claims, good for `life` seconds: RS256 or ES256, as the key is.

    Raises ValueError for a key that is none; its text is not quoted.
    """
    try:
        key = load_pem_private_key(private_key.get_secret_value().encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("private_key is no PEM key without a password") from None
    elliptic = isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
    if not elliptic and not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("private_key is neither an RSA key nor one of the curve P-256")
    now = int(clock())
    head = {"alg": "ES256" if elliptic else "RS256", "typ": "JWT"} | ({"kid": key_id} if key_id else {})
    all_claims = {"iat": now, "exp": now + int(life), "jti": str(uuid.uuid4()), **claims}
    signed = f"{_jwt_part(head)}.{_jwt_part(all_claims)}"
    if isinstance(key, rsa.RSAPrivateKey):
        return f"{signed}.{_encode_base64url(key.sign(signed.encode(), padding.PKCS1v15(), SHA256()))}"
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
    return f"{signed}.{_encode_base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _jwt_part(value: Mapping[str, Any]) -> str:
    return _encode_base64url(json.dumps(value).encode())


def _encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
