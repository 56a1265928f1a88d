"""The credentials of a sink: the driver holds secrets and fetches tokens, tasks make of them what requests carry."""

from __future__ import annotations

import base64
import html
import importlib
import json
import re
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, quote_plus, unquote, urlsplit
from urllib.request import getproxies_environment

from pydantic import BaseModel
from requests.auth import AuthBase

from router import StartError
from router_http.client import Away, Refuses, Tokens
from router_http.options import Secret
from router_rest.logins.signing import AwsKeys, AwsSignature, HmacSignature, JwtTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import requests

    from router_http.client import TokenSource
    from router_rest.logins.auth import Auth

FIXED_VERSION = "1"
"""The version of credentials that do not change."""
SECRET_MASK = b"***"
MIN_SECRET_CHARS = 4
"""Characters: an answer is not searched for shorter texts, which are found everywhere."""


class Credentials:
    """The credentials of a sink for its API. For the driver and all its threads; never pickled.

    `headers` are those of every call, `proxy` the URL of a proxy, `seconds` is for the token server, whose TLS
    files are relative to `folder`; `clock` returns seconds.
    """

    def __init__(
        self,
        auth: Auth | None,
        headers: Mapping[str, Secret] | None = None,
        *,
        seconds: float = 10.0,
        folder: Path = Path(),
        proxy: Secret | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        written = {name: _reveal_secret(value) for name, value in (headers or {}).items()}
        proxies = proxies_of(_reveal_secret(proxy)) if proxy is not None else None
        self._tokens: TokenSource | None = None
        self._keys: AwsKeys | None = None
        if auth is not None and auth.jwt is not None:
            self._tokens = JwtTokens(auth.jwt, clock)
        if auth is not None and auth.sigv4 is not None:
            self._keys = AwsKeys(auth.sigv4)
        if auth is not None and auth.oauth is not None:
            # The token server has files of its own: those of the API do not count.
            tls = auth.oauth.tls.resolve_paths(folder)
            oauth = auth.oauth.model_copy(update={"tls": tls})
            self._tokens = Tokens(oauth, seconds=seconds, verify=tls.verify, proxies=proxies, clock=clock)
        self._fixed = {
            "version": FIXED_VERSION,
            "headers": written,
            "proxies": proxies,
            "secrets": secrets_of(auth, proxy),
            **_fixed_login(auth, written),
        }

    def current_credentials(self, refused: str = "") -> dict[str, Any]:
        """Return credentials for `make_login`; `refused` is the `version` that was answered with 401.

        If they end, a task asks again after `renewal` seconds, and until `good` seconds it does not wait for the
        answer. May ask a token server. Raises ConnectionError while that is unavailable, StartError when it refuses
        this client.
        """
        # Keys and tokens change, so they are made for each question; all else was made once.
        if self._keys is not None:
            keys = self._keys.current_keys()
            secrets = [*self._fixed["secrets"], keys["secret_access_key"], keys["session_token"] or ""]
            return {**self._fixed, "sigv4": keys, "secrets": secrets, "renewal": self._keys.seconds_left}
        if self._tokens is None:
            return self._fixed
        try:
            if refused.isascii() and refused.isdigit() and int(refused):
                token = self._tokens.other_than(int(refused))
            else:
                token = self._tokens.current_token()
        except Away as fault:
            raise ConnectionError(str(fault)) from None
        except Refuses as fault:
            raise StartError(str(fault)) from None
        headers = {**self._fixed["headers"], "Authorization": f"Bearer {token.text}"}
        times = {"renewal": self._tokens.seconds_to_renewal, "good": self._tokens.seconds_good}
        return {**self._fixed, "version": str(token.number), "headers": headers, **times}

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials stay on the driver")


def _fixed_login(auth: Auth | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of the credentials that a login without renewal adds."""
    if auth is None or auth.oauth or auth.jwt or auth.sigv4:
        return {}
    if auth.hmac is not None:
        _reveal_secret(auth.hmac.key)
        plain = auth.hmac.model_dump(exclude={"key", "key_encoding"})
        return {"hmac": {**plain, "key": base64.b64encode(auth.hmac.key_bytes()).decode()}}
    if auth.plugin is not None:
        options = {}
        for name, value in auth.options.items():
            options[name] = _reveal_secret(value) if isinstance(value, Secret) else value
        return {"plugin": auth.plugin, "options": options}
    if auth.api_key is not None and auth.api_key.query is not None:
        return {"query": {auth.api_key.query: _reveal_secret(auth.api_key.value)}}
    header = "Authorization"
    written = ""
    if auth.api_key is not None:
        header = str(auth.api_key.header)
        written = _reveal_secret(auth.api_key.value)
    elif auth.basic is not None:
        login = f"{auth.basic.user}:{_reveal_secret(auth.basic.password)}".encode()
        written = f"Basic {base64.b64encode(login).decode()}"
    elif auth.bearer is not None:
        written = f"Bearer {_reveal_secret(auth.bearer)}"
    return {"headers": {**headers, header: written}}


def secrets_of(auth: Auth | None, proxy: Secret | None) -> list[str]:
    """Return the texts that no answer may be kept with, in addition to the values of headers, which are also secret."""
    texts = [_reveal_secret(secret) for secret in _find_secrets(auth)]
    if proxy is not None:
        for scheme, url in proxies_of(_reveal_secret(proxy)).items():
            if scheme != "no":
                texts.append(unquote(urlsplit(url).password or ""))
    return texts


def _find_secrets(options: Any) -> Iterator[Secret]:
    """Yield all secrets in options, and in the options and maps in these."""
    if isinstance(options, Secret):
        yield options
    elif isinstance(options, (BaseModel, dict)):
        for value in dict(options).values():
            yield from _find_secrets(value)


def _reveal_secret(secret: Secret) -> str:
    text = secret.get_secret_value()
    if not text:
        raise StartError("secrets do not travel to other processes: ask for credentials on the driver")
    return text


def proxies_of(proxy: str) -> dict[str, str]:
    """Return a proxy as `requests` takes it; or those of the environment, with `no` for hosts that have none."""
    if proxy == "environment":
        return getproxies_environment()
    return {"http": proxy, "https": proxy}


def make_login(credentials: Mapping[str, Any], clock: Callable[[], float] = time.time) -> AuthBase:
    """Return the login that adds what `Credentials.current_credentials` returned to a request. Runs on executors.

    Apply it to a new copy of the request for every attempt: a signature holds the time. Then neither the request nor
    its URL may be logged. `clock` returns seconds since 1970.
    """
    signer: AuthBase | None = None
    if "hmac" in credentials:
        signer = HmacSignature(credentials["hmac"], clock)
    elif "sigv4" in credentials:
        signer = AwsSignature(credentials["sigv4"])
    elif "plugin" in credentials:
        signer = load_auth(credentials["plugin"], credentials["options"])
    return LoginAuth(credentials["headers"], credentials.get("query") or {}, signer)


class LoginAuth(AuthBase):
    """A login by headers and query, and by a signature where there is a `signer`."""

    def __init__(self, headers: Mapping[str, str], query: Mapping[str, str], signer: AuthBase | None) -> None:
        self._headers = headers
        self._query = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        self._signer = signer

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name, value in self._headers.items():  # `update` is slower: it checks the type of its argument
            request.headers[name] = value
        if self._query:
            url = str(request.url)
            separator = "&" if "?" in url else "?"
            request.url = f"{url}{separator}{self._query}"
        return request if self._signer is None else self._signer(request)


def load_auth(named: str, options: Mapping[str, Any]) -> AuthBase:
    """Return the object of a plugin's class; raise StartError, without its text, for it may hold an option."""
    module, _, name = named.partition(":")
    try:
        login = getattr(importlib.import_module(module), name)(**options)
    except Exception as error:
        raise StartError(f"auth: {named} cannot be made: {type(error).__name__}") from None
    if not isinstance(login, AuthBase):
        raise StartError(f"auth: {named} makes no requests.auth.AuthBase")
    return login


@lru_cache(maxsize=256)
def forms_of(secret: str) -> tuple[bytes, ...]:
    """Return the forms in which an API may show a secret that it was sent: as it is, escaped, encoded.

    Base64 of a longer text, such as `user:password`, holds that of the secret in one of three places; the digits at
    its ends also depend on the neighbours, and are left out.
    """
    plain = secret.encode()
    if len(plain) < MIN_SECRET_CHARS:
        return ()
    escaped = {json.dumps(secret)[1:-1], html.escape(secret), quote(secret, safe=""), quote(secret), quote_plus(secret)}
    escaped |= {text.replace("/", "\\/") for text in escaped} | {secret}
    escaped |= {re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), text) for text in escaped}
    forms = {text.encode() for text in escaped} | {plain.hex().encode(), plain.hex().upper().encode()}
    # Base64 takes three bytes at a time, so there are three ways in which the secret can lie in a longer text.
    for before in range(3):
        whole = base64.b64encode(bytes(before) + plain).rstrip(b"=")
        inner = whole[(0, 2, 3)[before] : (len(plain) + before) * 8 // 6]
        forms |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_"), inner.replace(b"/", b"\\/")}
    return _longest_first(form for form in forms if len(form) >= MIN_SECRET_CHARS)


def _longest_first(forms: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the forms of secrets in the order in which they are masked: one may be a part of another."""
    return tuple(sorted(set(forms), key=len, reverse=True))


class SecretMask:
    """A mask over the secrets of a sink in all that is kept of answers: receipts, dead letters, errors, log."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: list[bytes] = []
        for secret in secrets:
            forms += forms_of(secret)
        self._forms = _longest_first(forms)

    @classmethod
    def for_credentials(cls, credentials: Mapping[str, Any]) -> SecretMask:
        """Return the mask over what the driver gave a task."""
        query = credentials.get("query") or {}
        return cls([*credentials.get("secrets", ()), *_secret_words(credentials.get("headers", {})), *query.values()])

    def hide(self, text: bytes) -> bytes:
        """Return a text with SECRET_MASK in place of each secret."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, SECRET_MASK)
        return text

    def and_of(self, headers: Mapping[str, Any]) -> SecretMask:
        """Return a mask also over the values of some headers: those that a plugin has made."""
        mask = SecretMask(_secret_words(headers))
        mask._forms = _longest_first([*mask._forms, *self._forms])
        return mask


def _secret_words(headers: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of headers, and what follows the scheme of a login; of a basic one also the password."""
    for value in headers.values():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        yield text
        scheme, _, secret = text.partition(" ")
        yield secret
        if scheme.lower() == "basic":
            with suppress(ValueError):
                yield base64.b64decode(secret).decode().partition(":")[2]
