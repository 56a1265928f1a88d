"""Logins as a server sees them, tokens of a real token server, and signatures by published vectors."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from requests.auth import AuthBase

from router import StartError
from router_http.options import Secret
from router_rest.delivery.call import RequestBuilder
from router_rest.delivery.send_plan import form_of
from router_rest.logins.auth import Auth
from router_rest.logins.credentials import Credentials, make_login
from router_rest.logins.task_login import TaskLogin
from router_sinks import Rest
from tests.rest.keys import private_key_pem
from tests.schemas.faulty import FaultyRegistry

if TYPE_CHECKING:
    from tests.schemas.faulty import Seen

HUSH = "hush-hush"
PRODUCT = f"spark-event-router/{version('spark-event-router')}"
NOON = 1_767_268_800.25


class Stamp(AuthBase):
    """The login of somebody's plugin."""

    def __init__(self, key: str, rounds: int = 1) -> None:
        self.text = key[::-1] * rounds

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["X-Stamp"] = self.text
        return request


class Careless(AuthBase):
    """Tell a secret in an error."""

    def __init__(self, key: str) -> None:
        raise ValueError(f"{key} is not good")


def credentials(**options: Any) -> Credentials:
    return Credentials(Auth.model_validate(options))


def send_with_login(
    server: FaultyRegistry, given: dict[str, Any], body: bytes = b"{}", path: str = "/wins/a%20b?x=1"
) -> Seen:
    """Send a call as a task does, with what came over the wire from the driver; return it as it arrived."""
    travelled = json.loads(json.dumps(given))
    request = requests.Request("POST", server.url + path, data=body).prepare()
    with requests.Session() as session:
        session.send(make_login(travelled, clock=lambda: NOON)(request), allow_redirects=False).close()
    return server.seen[-1]


def oauth(server: FaultyRegistry, **options: Any) -> dict[str, Any]:
    return {"token_url": f"{server.url}/token", "client_id": "router", "client_secret": HUSH, **options}


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ({"bearer": HUSH}, "Authorization", f"Bearer {HUSH}"),
        (
            {"basic": {"user": "röuter", "password": "pä:ss"}},
            "Authorization",
            f"Basic {base64.b64encode('röuter:pä:ss'.encode()).decode()}",
        ),
        ({"api_key": {"header": "X-Api-Key", "value": HUSH}}, "X-Api-Key", HUSH),
        (
            {"plugin": "tests.rest.test_credentials:Stamp", "options": {"key": "abc", "rounds": 2}},
            "X-Stamp",
            "cbacba",
        ),
    ],
    ids=["bearer", "basic", "api_key", "plugin"],
)
def test_a_login_arrives_with_the_headers_of_every_call(
    faulty: FaultyRegistry, auth: dict[str, Any], header: str, value: str
) -> None:
    """Without it the API answers 401 to everything."""
    held = Credentials(Auth.model_validate(auth), {"X-Tenant": Secret("games")})

    arrived = send_with_login(faulty, held.current_credentials())

    assert (arrived.headers[header], arrived.headers["X-Tenant"]) == (value, "games")
    assert held.current_credentials("1") == held.current_credentials()


@pytest.mark.parametrize(
    ("path", "arrives"), [("/wins", "/wins?key=a%26b%3Dc%2F%23"), ("/wins?x=1", "/wins?x=1&key=a%26b%3Dc%2F%23")]
)
def test_a_key_in_the_query_stays_one_value(faulty: FaultyRegistry, path: str, arrives: str) -> None:
    """A key with an ampersand must not become two parameters."""
    held = credentials(api_key={"query": "key", "value": "a&b=c/#"})

    assert send_with_login(faulty, held.current_credentials(), path=path).path == arrives


def test_without_a_login_nothing_is_added(faulty: FaultyRegistry) -> None:
    """An API on the inside may have none."""
    arrived = send_with_login(faulty, Credentials(None).current_credentials())

    assert "Authorization" not in arrived.headers
    assert arrived.path == "/wins/a%20b?x=1"


@pytest.mark.parametrize(("headers", "agent"), [({}, PRODUCT), ({"user-agent": "us/1"}, "us/1")])
def test_calls_say_what_sends_them(faulty: FaultyRegistry, headers: dict[str, str], agent: str) -> None:
    """Without it an API that turns away clients without a name refuses everything, or nobody can tell it another."""
    sink = Rest.model_validate({"url": f"{faulty.url}/wins", "headers": headers})
    request = RequestBuilder(form_of(sink)).build_request("", b"{}", "key")
    with requests.Session() as session:
        login = make_login(Credentials(None, sink.fixed_headers).current_credentials())
        session.send(login(request)).close()

    arrived = {name.lower(): value for name, value in faulty.seen[-1].headers.items()}
    assert (arrived["user-agent"], arrived["accept"]) == (agent, "application/json, */*;q=0.5")


def test_a_token_is_fetched_once_and_renewed_before_it_expires(faulty: FaultyRegistry) -> None:
    """A token that expires under way costs a round of 401s at every expiry."""
    faulty.granted = [{"access_token": f"token-{number}", "expires_in": 100} for number in range(1, 4)]
    now = [1000.0]
    held = Credentials(Auth.model_validate({"oauth": oauth(faulty)}), clock=lambda: now[0])
    seen = []

    for now[0] in (1000.0, 1079.0, 1081.0, 1160.0, 1162.0):
        given = held.current_credentials()
        seen.append((given["version"], send_with_login(faulty, given).headers["Authorization"]))

    assert [version for version, _ in seen] == ["1", "1", "2", "2", "3"]
    assert [login for _, login in seen] == [f"Bearer token-{version}" for version, _ in seen]
    assert faulty.paths.count("/token") == 3


def test_a_token_that_cannot_be_renewed_is_used_until_it_ends(faulty: FaultyRegistry) -> None:
    """A token server that fails for a moment must not stop calls whose token is good; nor be asked by each of them."""
    faulty.granted = [{"access_token": "old", "expires_in": 100}, {"status": 503}]
    now = [1000.0]
    held = Credentials(Auth.model_validate({"oauth": oauth(faulty)}), clock=lambda: now[0])
    held.current_credentials()

    for now[0] in (1081.0, 1082.0, 1099.0):
        given = held.current_credentials()
        assert given["headers"]["Authorization"] == "Bearer old"
        assert 0 < given["renewal"] <= 5
    assert faulty.paths.count("/token") == 3

    now[0] = 1101.0
    with pytest.raises(ConnectionError):
        held.current_credentials()
    faulty.granted = [{"access_token": "new", "expires_in": 0, "error": None}]
    assert (
        held.current_credentials()["headers"]["Authorization"]
        == held.current_credentials()["headers"]["Authorization"]
        == "Bearer new"
    )
    assert faulty.paths.count("/token") == 5


def test_many_tasks_that_meet_a_401_fetch_one_token(faulty: FaultyRegistry) -> None:
    """A token server that gets a request for every call in flight locks the client out."""
    faulty.granted = [{"access_token": "old"}, {"access_token": "new"}, {"access_token": "newer"}]
    held = credentials(oauth=oauth(faulty))
    refused = held.current_credentials()["version"]

    with ThreadPoolExecutor(16) as tasks:
        found = list(tasks.map(held.current_credentials, [refused] * 64))

    assert {given["headers"]["Authorization"] for given in found} == {"Bearer new"}
    assert faulty.paths == ["/token", "/token"]
    assert held.current_credentials(found[0]["version"])["headers"]["Authorization"] == "Bearer newer"


@pytest.mark.parametrize("refused", ["", "0", "7", "-1", "²", "None"])
def test_a_version_that_never_was_fetches_nothing(faulty: FaultyRegistry, refused: str) -> None:
    """What a task says does not drive the token server."""
    faulty.granted = [{"access_token": "only"}]
    held = credentials(oauth=oauth(faulty))

    assert [held.current_credentials(refused)["version"] for _ in range(3)] == ["1", "1", "1"]
    assert faulty.paths == ["/token"]


@pytest.mark.parametrize(
    ("granted", "error"),
    [
        ({"status": 503}, ConnectionError),
        ({"token": "x"}, ConnectionError),
        ({"status": 401}, StartError),
        ({"error": "invalid_scope", "error_description": "none"}, StartError),
        ({"status": 400, "error": "temporarily_unavailable"}, ConnectionError),
        ({"status": 500, "error": "invalid_client"}, ConnectionError),
        ({"error": {"message": "no such client"}}, StartError),
        ({"error": ["invalid_scope"]}, StartError),
        ({"error": None, "error_description": 7}, ConnectionError),
    ],
    ids=str,
)
def test_a_token_server_that_is_away_is_told_from_one_that_refuses(
    faulty: FaultyRegistry, granted: dict[str, Any], error: type[Exception]
) -> None:
    """The first is waited for; the second needs somebody."""
    faulty.granted = [granted]

    with pytest.raises(error, match="/token") as caught:
        credentials(oauth=oauth(faulty)).current_credentials()

    assert HUSH not in str(caught.value)


def test_a_token_that_cannot_be_renewed_now_is_renewed_later(faulty: FaultyRegistry) -> None:
    """An outage of the token server must not outlast itself."""
    faulty.granted = [{"status": 503}, {"access_token": "late"}]
    held = credentials(oauth=oauth(faulty))

    with pytest.raises(ConnectionError):
        held.current_credentials()

    assert held.current_credentials()["headers"]["Authorization"] == "Bearer late"


RFC_4231 = {
    "sha256": "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
    "sha512": "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde"
    "daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854",
}


@pytest.mark.parametrize("algorithm", RFC_4231)
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_a_signature_is_the_one_of_the_rfc(faulty: FaultyRegistry, algorithm: str, encoding: str) -> None:
    """Test case 1 of RFC 4231, 4.2; an API that computes another one refuses every call."""
    options = {"key": "0b" * 20, "key_encoding": "hex", "algorithm": algorithm, "encoding": encoding}

    arrived = send_with_login(
        faulty, credentials(hmac={**options, "signed": "{body}"}).current_credentials(), b"Hi There"
    )

    digest = bytes.fromhex(RFC_4231[algorithm])
    written = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
    assert arrived.headers["X-Signature"] == written


def test_everything_that_is_signed_is_what_arrives(faulty: FaultyRegistry) -> None:
    """The API signs what it received: a path before encoding, or another time, would never match."""
    signed = "{method}\n{host}\n{path}\n{query}\n{target}\n{timestamp}\n{body_hash}\n{body}"
    held = credentials(
        hmac={
            "key": HUSH,
            "signed": signed,
            "header": "X-Sig",
            "value": "t={timestamp},v1={signature}",
            "timestamp": "iso",
            "timestamp_header": "X-At",
            "body_hash_header": "X-Hash",
        }
    )

    arrived = send_with_login(faulty, held.current_credentials(), "{'ä': 1}".encode())

    path, _, query = arrived.path.partition("?")
    hashed = hashlib.sha256(arrived.body).hexdigest()
    lines = [arrived.method, arrived.headers["Host"], path, query, arrived.path, arrived.headers["X-At"], hashed]
    text = "\n".join(lines).encode() + b"\n" + arrived.body
    assert arrived.headers["X-At"] == "2026-01-01T12:00:00Z"
    assert arrived.headers["X-Hash"] == hashed
    signature = hmac.new(HUSH.encode(), text, "sha256").hexdigest()
    assert arrived.headers["X-Sig"] == f"t=2026-01-01T12:00:00Z,v1={signature}"


@pytest.mark.parametrize(("unit", "told"), [("seconds", "1767268800"), ("milliseconds", "1767268800250")])
def test_each_attempt_is_signed_with_its_own_time(faulty: FaultyRegistry, unit: str, told: str) -> None:
    """An attempt an hour later with the first one's time is refused as a replay."""
    given = credentials(hmac={"key": HUSH, "timestamp": unit}).current_credentials()
    times = iter([NOON, NOON + 3600])
    login = make_login(given, clock=lambda: next(times))
    request = requests.Request("POST", f"{faulty.url}/wins", data=b"{}").prepare()

    first, second = login(request.copy()), login(request.copy())

    assert first.headers["X-Timestamp"] == told
    assert first.headers["X-Timestamp"] != second.headers["X-Timestamp"]
    assert first.headers["X-Signature"] != second.headers["X-Signature"]
    assert "X-Signature" not in request.headers


@pytest.mark.parametrize(
    ("plugin", "word"),
    [
        ("tests.rest.nowhere:Stamp", "ModuleNotFoundError"),
        ("tests.rest.test_credentials:Nobody", "AttributeError"),
        ("tests.rest.test_credentials:Careless", "ValueError"),
        ("builtins:dict", "makes no requests.auth.AuthBase"),
    ],
)
def test_a_plugin_that_cannot_be_made_is_named_without_its_options(plugin: str, word: str) -> None:
    """Its own text may hold the key."""
    given = credentials(plugin=plugin, options={"key": HUSH}).current_credentials()

    with pytest.raises(StartError, match=word) as caught:
        make_login(given)

    assert plugin in str(caught.value)
    assert HUSH not in str(caught.value)


ALL: list[dict[str, Any]] = [
    {"bearer": HUSH},
    {"basic": {"user": "a", "password": HUSH}},
    {"api_key": {"query": "key", "value": HUSH}},
    {"hmac": {"key": HUSH}},
    {"plugin": "tests.rest.test_credentials:Stamp", "options": {"key": HUSH}},
]


@pytest.mark.parametrize("auth", ALL, ids=lambda auth: next(iter(auth)))
def test_credentials_are_not_seen_and_do_not_travel_by_themselves(auth: dict[str, Any], tmp_path: Path) -> None:
    """A closure that takes them along by accident must fail in a test, not leak in production."""
    sink = Rest.model_validate({"url": "https://api.test", "auth": auth, "headers": {"X-Key": HUSH}})
    held = sink.open_credentials(tmp_path)

    assert HUSH not in f"{held!r} {held} {make_login(held.current_credentials())!r} {sink!r}"
    assert sink.open_credentials(tmp_path) is held
    with pytest.raises(TypeError, match="stay on the driver"):
        pickle.dumps(held)


@pytest.mark.parametrize("auth", [*ALL, {"oauth": {"token_url": "http://a", "client_id": "b", "client_secret": HUSH}}])
def test_a_sink_that_travelled_opens_nothing(auth: dict[str, Any], tmp_path: Path) -> None:
    """An empty password would be sent, and lock the client out."""
    travelled = pickle.loads(pickle.dumps(Rest.model_validate({"url": "https://api.test", "auth": auth})))

    with pytest.raises(StartError, match="on the driver"):
        travelled.open_credentials(tmp_path)


def test_the_proxy_is_told_to_tasks_with_its_password() -> None:
    """The password of a proxy is no less secret than the API's."""
    given = Credentials(None, proxy=Secret(f"http://me:{HUSH}@proxy.test:3128")).current_credentials()

    assert given["proxies"] == dict.fromkeys(("http", "https"), f"http://me:{HUSH}@proxy.test:3128")


class Driver:
    """The driver's side of a lease: one version after the other, or none."""

    def __init__(self, *versions: str | None) -> None:
        self.versions = list(versions)
        self.asked: list[str] = []

    async def fetch_credentials(self, refused: str = "") -> dict[str, Any]:
        self.asked.append(refused)
        await asyncio.sleep(0.01)
        version = self.versions.pop(0)
        if version is None:
            raise LookupError("the token server is away")
        return {"version": version, "headers": {}}


@pytest.mark.parametrize(("second", "got"), [("2", True), (None, False), ("1", False)], ids=["new", "none", "the same"])
def test_calls_that_are_refused_together_ask_once(second: str | None, got: bool) -> None:
    """Without it a token server that comes back is asked by every call that was in flight, and goes away again."""
    driver = Driver("1", second, "3")

    async def story() -> list[bool]:
        lease: Any = driver
        login = TaskLogin(lease)
        await login.open()
        found = await asyncio.gather(*(login.has_renewed("1") for _ in range(8)))
        assert await login.has_renewed("1")  # later it is asked again, unless there is another one by now
        return found

    assert asyncio.run(story()) == [got] * 8
    assert driver.asked == ["", "1"] if got else ["", "1", "1"]


def test_the_environment_names_proxies_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it NO_PROXY has no effect, and the password of a proxy of the environment is shown."""
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{HUSH}@proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.test")
    proxy = Rest.model_validate({"url": "https://a.test", "proxy": "environment"}).proxy

    given = Credentials(None, proxy=proxy).current_credentials()

    assert given["proxies"]["https"] == f"http://me:{HUSH}@proxy.test:3128"
    assert given["proxies"]["no"] == "10.0.0.0/8,.test"
    assert HUSH in given["secrets"]


def posted(faulty: FaultyRegistry) -> dict[str, str]:
    return dict(parse_qsl(faulty.seen[-1].body.decode()))


def asked(faulty: FaultyRegistry, **options: Any) -> tuple[dict[str, str], str]:
    """Return the form, and the header, by which a token is asked for."""
    faulty.granted = [{"access_token": "token"}]
    given = {name: value for name, value in {**oauth(faulty), **options}.items() if value is not None}
    credentials(oauth=given).current_credentials()
    return posted(faulty), faulty.seen[-1].headers.get("Authorization", "")


def test_a_token_is_asked_for_as_its_server_wants_it(faulty: FaultyRegistry) -> None:
    """Without it half of the token servers there are give none."""
    basic, header = asked(faulty, audience="https://api.test", parameters={"resource": "r", "tenant": HUSH})
    post, none = asked(faulty, client_auth="post")

    assert (basic["audience"], basic["resource"], basic["tenant"]) == ("https://api.test", "r", HUSH)
    assert header.startswith("Basic ")
    assert "client_secret" not in basic
    assert (post["grant_type"], "client_id" in post, post["client_secret"]) == ("client_credentials", True, HUSH)
    assert none == ""


def test_a_refresh_token_is_replaced_by_the_one_that_comes_with_a_token(faulty: FaultyRegistry) -> None:
    """Without it the second token is never given: most servers take a refresh token once."""
    faulty.granted = [{"access_token": "a", "refresh_token": "second"}, {"access_token": "b"}]
    held = credentials(oauth={**oauth(faulty), "refresh_token": "first"})

    version = held.current_credentials()["version"]
    first = posted(faulty)
    held.current_credentials(version)

    assert (first["grant_type"], first["refresh_token"]) == ("refresh_token", "first")
    assert posted(faulty)["refresh_token"] == "second"


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
def test_a_private_key_signs_what_says_who_the_client_is(faulty: FaultyRegistry, kind: str) -> None:
    """Without it there is no token where secrets are not allowed."""
    key: Any = ec.generate_private_key(ec.SECP256R1()) if kind == "ES256" else rsa.generate_private_key(65537, 2048)

    form, header = asked(faulty, client_secret=None, private_key=private_key_pem(key), key_id="k-1")

    head, claims, signature = form["client_assertion"].split(".")
    read = [json.loads(base64.urlsafe_b64decode(part + "==")) for part in (head, claims)]
    signed, raw = f"{head}.{claims}".encode(), base64.urlsafe_b64decode(signature + "==")
    assert (read[0], header) == ({"alg": kind, "typ": "JWT", "kid": "k-1"}, "")
    assert {read[1]["iss"], read[1]["sub"]} == {form["client_id"]}
    assert read[1]["aud"] == f"{faulty.url}/token"
    if kind == "ES256":
        half = [int.from_bytes(part, "big") for part in (raw[:32], raw[32:])]
        key.public_key().verify(encode_dss_signature(*half), signed, ec.ECDSA(SHA256()))
    else:
        key.public_key().verify(raw, signed, padding.PKCS1v15(), SHA256())


def test_a_key_that_is_none_is_told_without_its_text(faulty: FaultyRegistry) -> None:
    with pytest.raises(StartError, match="private_key") as caught:
        asked(faulty, client_secret=None, private_key=HUSH)

    assert HUSH not in str(caught.value)


def test_the_token_server_has_a_trust_of_its_own(certificates: Any, tmp_path: Path) -> None:
    """Without it the private authority of an API is all that its public token server may be of, or the other way."""
    with FaultyRegistry(Path(certificates.here)) as tokens:
        tokens.granted = [{"access_token": "token"}]
        options = {"url": "https://api.test", "auth": {"oauth": oauth(tokens)}}
        of_api = Rest.model_validate({**options, "tls": {"ca": certificates.here}})
        own = {"oauth": {**oauth(tokens), "tls": {"ca": certificates.here}}}
        trusting = Rest.model_validate({**options, "auth": own})

        with pytest.raises(StartError, match="not trusted"):
            of_api.open_credentials(tmp_path).current_credentials()
        assert trusting.open_credentials(tmp_path).current_credentials()["version"] == "1"
