"""Calls whose login has hooks on the response, such as a digest login."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from hashlib import md5
from typing import TYPE_CHECKING, Any

import pytest
import requests
from requests.auth import HTTPDigestAuth
from requests.utils import parse_dict_header

from router_rest.http_client.client import HttpClient
from router_rest.http_client.response import InDoubt, Unsent
from tests.rest.calls import OPTIONS, ask, hooked, outcome, post
from tests.rest.scripted import PATIENCE, Scripted, Talk, polite, server_tls, silent, then_waits

if TYPE_CHECKING:
    from tests.rest.conftest import Certificates

HUSH = "hush-hush"


def test_a_call_is_tried_once(server: Scripted) -> None:
    """How often a call is tried is for the policy to say: what `urllib3` adds is beyond every limit."""
    server.act = then_waits(b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n")

    answers = ask(*[hooked(server.url)] * 3)

    assert [answer.status for answer in answers] == [503] * 3
    assert len(server.seen) == 3
    assert server.accepted == 1


def test_a_hook_sees_the_answer(server: Scripted) -> None:
    """Authorisation of others may answer a challenge by sending the request again."""
    seen = []
    request = post(server.url)
    request.register_hook("response", lambda response, **_: seen.append(response.content))

    (answer,) = ask(request)

    assert (answer.status, answer.body, seen) == (200, b"ok", [b"ok"])


def digest_of(authorization: str, password: str) -> bool:
    """Return whether a login knows the password (RFC 7616, 3.4.1)."""
    told = parse_dict_header(authorization.removeprefix("Digest "))
    secret = md5(f"{told['username']}:{told['realm']}:{password}".encode()).hexdigest()
    target = md5(f"POST:{told['uri']}".encode()).hexdigest()
    whole = f"{secret}:{told['nonce']}:{told['nc']}:{told['cnonce']}:{told['qop']}:{target}"
    return told["response"] == md5(whole.encode()).hexdigest()


def test_a_digest_login_answers_the_challenge_of_the_server(server: Scripted) -> None:
    """Without it the login that the manual names fails for each call, and leaves its rows in doubt."""

    def challenging(talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            if "authorization" in seen.headers and digest_of(seen.headers["authorization"], HUSH):
                talk.answer()
            else:
                talk.answer(b"who?", "401 Unauthorized", 'WWW-Authenticate: Digest realm="r", nonce="n", qop="auth"')

    server.act = challenging
    login = HTTPDigestAuth("me", HUSH)

    answers = ask(*[login(post(server.url)) for _ in range(3)], login(post(f"{server.url}/other")))
    (refused,) = ask(HTTPDigestAuth("me", "wrong")(post(server.url)))

    assert [answer.status for answer in answers] == [200] * 4
    assert refused.status == 401
    assert server.accepted == 2, "the challenge is answered on the connection on which it came"


def test_cookies_are_not_kept(server: Scripted) -> None:
    """They would tie one call to another, and grow."""
    server.act = polite(b"ok", "Set-Cookie: a=b")

    ask(*[hooked(server.url)] * 2)

    assert [seen.headers.get("cookie") for seen in server.seen] == [None, None]


def test_a_refused_connection_leaves_a_call_unsent() -> None:
    (error,) = ask(hooked("http://127.0.0.1:9/"))

    assert isinstance(error, Unsent)
    assert error.what == "Connection refused"


def test_a_server_with_an_unknown_certificate_gets_nothing(certificates: Certificates) -> None:
    with Scripted(context=server_tls(certificates.here)) as server:
        (error,) = ask(hooked(server.url))

        assert isinstance(error, Unsent)
        assert "not trusted" in error.what
        assert server.seen == []


@pytest.mark.parametrize("ending", ["closes", "resets", "garbage"])
def test_a_connection_that_breaks_leaves_a_call_in_doubt(server: Scripted, ending: str) -> None:
    def crash(talk: Talk) -> None:
        talk.request()
        if ending == "resets":
            talk.reset()
        if ending == "garbage":
            talk.send(b"220 smtp.example.com\r\n")

    server.act = crash
    (error,) = ask(hooked(server.url, Authorization=HUSH))

    assert isinstance(error, InDoubt)
    assert not error.timeout
    assert HUSH not in error.what
    assert len(server.seen) == 1


def test_a_server_that_does_not_answer_leaves_a_call_in_doubt(server: Scripted) -> None:
    server.act = silent

    (error,) = ask(hooked(server.url), read=0.3)

    assert isinstance(error, InDoubt)
    assert error.timeout


def test_a_head_that_trickles_ends_with_the_time_of_the_call(server: Scripted) -> None:
    def trickle(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
        talk.pour(b"a", pause=0.02)

    server.act = trickle
    (error,) = ask(hooked(server.url), connect=0.2, total=0.3)

    assert isinstance(error, InDoubt)
    assert error.timeout


def test_a_cancelled_call_leaves_its_thread_to_end(server: Scripted) -> None:
    release = threading.Event()

    def late(talk: Talk) -> None:
        while talk.request() is not None:
            release.wait(PATIENCE)
            talk.answer()

    async def cancel() -> Any:
        client = HttpClient(replace(OPTIONS, in_flight=1))
        task = asyncio.create_task(client.send(hooked(server.url, b"1")))
        while not server.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        answer = await outcome(client, hooked(server.url, b"2"))
        await client.close()
        return answer

    server.act = late

    assert asyncio.run(cancel()).status == 200
    assert (server.bodies, server.accepted) == ([b"1", b"2"], 1)


def test_a_hook_that_waits_for_ever_ends_its_call(server: Scripted) -> None:
    """Without it a login that asks a server of its own without a timeout holds up a sink, and the end of its task."""
    free = threading.Event()
    request = post(server.url)
    request.register_hook("response", lambda response, **_: free.wait(PATIENCE))

    try:
        (found,) = ask(request, connect=0.1, total=0.2)
    finally:
        free.set()

    assert isinstance(found, InDoubt)
    assert found.timeout


def test_a_hook_may_change_the_answer_or_bring_another(server: Scripted) -> None:
    """Without it what a login makes of an answer has no effect, or ends the task."""

    def change(response: requests.Response, **_: Any) -> None:
        response.raw.release_conn()
        response.status_code = 401

    def replace_answer(response: requests.Response, **_: Any) -> requests.Response:
        other = requests.Response()
        other.status_code = 204
        other._content = b"other"
        return other

    found = []
    for hook in (change, replace_answer):
        request = post(server.url)
        request.register_hook("response", hook)
        (answer,) = ask(request)
        found.append((answer.status, answer.body))

    assert found == [(401, b"ok"), (204, b"other")]
