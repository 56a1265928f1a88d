"""The HTTP client against servers that do all that servers do, on loopback."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router_rest.http_client import client as module
from router_rest.http_client.client import HttpClient
from router_rest.http_client.response import InDoubt, Response, Unsent
from tests.rest.calls import MOST, OPTIONS, ask, hooked, open_count, outcome, post
from tests.rest.scripted import PATIENCE, Scripted, Talk, polite, server_tls, silent, then_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rest.conftest import Certificates

HUSH = "hush-hush"


def test_a_request_arrives_as_it_was_prepared(server: Scripted) -> None:
    server.act = then_waits(b"HTTP/1.1 201 Created\r\nX-Id: 7\r\nx-id: 8\r\nContent-Length: 2\r\n\r\nok")
    request = post(f"{server.url}/a%2Fb?c=%C3%A4#d", "{\u00e4}".encode(), Authorization=f"Bearer {HUSH}", X_Call="1")

    (answer,) = ask(request)

    (seen,) = server.seen
    assert (seen.line, seen.body) == ("POST /events/a%2Fb?c=%C3%A4 HTTP/1.1", "{\u00e4}".encode())
    assert seen.headers == {
        "host": f"127.0.0.1:{server.port}",
        "authorization": f"Bearer {HUSH}",
        "x-call": "1",
        "content-length": "4",
    }
    assert (answer.status, answer.body, answer.whole, answer.headers["X-ID"]) == (201, b"ok", True, "7, 8")
    assert answer.seconds > 0


def test_an_answer_is_shown_and_pickled_without_what_it_holds() -> None:
    """Answers and errors end up in logs and travel between processes."""
    answer = Response(200, {"Set-Cookie": HUSH}, HUSH.encode(), 0.1, True)
    error = pickle.loads(pickle.dumps(InDoubt("no answer", timeout=True)))

    assert HUSH not in repr(answer)
    assert (error.what, error.timeout) == ("no answer", True)
    assert pickle.loads(pickle.dumps(Unsent("refused"))).what == "refused"


def test_calls_share_a_connection(server: Scripted) -> None:
    answers = ask(*[post(server.url, str(number).encode()) for number in range(10)])

    assert [answer.status for answer in answers] == [200] * 10
    assert (server.accepted, server.bodies) == (1, [str(number).encode() for number in range(10)])


@pytest.mark.parametrize("prepare", [post, hooked])
def test_many_calls_are_in_flight_and_never_more_than_allowed(server: Scripted, prepare: Any) -> None:
    """One call at a time is what makes others slow; a connection too many is what an API may forbid."""
    together = threading.Barrier(4)

    def gathering(talk: Talk) -> None:
        while talk.request() is not None:
            together.wait(PATIENCE)
            talk.answer()

    async def all_at_once() -> list[Response]:
        client = HttpClient(OPTIONS)
        try:
            return await asyncio.gather(*[client.send(prepare(server.url)) for _ in range(40)])
        finally:
            await client.close()

    server.act = gathering
    answers = asyncio.run(all_at_once())

    assert [answer.status for answer in answers] == [200] * 40
    assert server.accepted == server.most_open == 4


def test_connections_to_many_hosts_are_limited_together() -> None:
    """A template of a URL may lead anywhere; an idle connection makes room for one that is needed."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Scripted()) for _ in range(3)]
        open_at = []

        async def in_turn() -> list[Response]:
            client = HttpClient(replace(OPTIONS, in_flight=2))
            answers = []
            for _ in range(2):
                for server in servers:
                    answers.append(await client.send(post(server.url)))
                    open_at.append(open_count(client))
            await client.close()
            return answers

        assert [answer.status for answer in asyncio.run(in_turn())] == [200] * 6
        assert [len(server.seen) for server in servers] == [2, 2, 2]
        assert max(open_at) == 2


def test_a_connection_that_was_idle_for_long_is_not_used(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is between may have forgotten it: the call would wait for the whole timeout."""
    monkeypatch.setattr(module, "MAX_IDLE_SECONDS", -1.0)

    answers = ask(post(server.url), post(server.url))

    assert [answer.status for answer in answers] == [200, 200]
    assert server.accepted == 2


@pytest.mark.parametrize("ending", ["closes", "resets", "says close"])
def test_a_server_may_close_after_an_answer(server: Scripted, ending: str) -> None:
    def once(talk: Talk) -> None:
        talk.request()
        talk.answer(b"ok", "200 OK", *(["Connection: close"] if ending == "says close" else []))
        if ending == "resets":
            talk.reset()

    server.act = once
    answers = ask(*[post(server.url, str(number).encode()) for number in range(5)])

    assert [answer.status for answer in answers] == [200] * 5
    assert server.bodies == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("ending", ["closes", "resets"])
def test_a_call_on_a_stale_connection_is_sent_again_once(server: Scripted, ending: str) -> None:
    """The server closed an idle connection while the call was on its way: nobody is to blame."""

    def stale(talk: Talk) -> None:
        talk.request()
        talk.answer(str(talk.number).encode())
        if talk.number == 0 and talk.request() is not None:
            if ending == "resets":
                talk.reset()
            return
        polite()(talk)

    server.act = stale
    first, second = ask(post(server.url, b"1"), post(server.url, b"2", Idempotency_Key="k"))

    assert (first.body, second.body) == (b"0", b"1")
    assert (first.resent, second.resent) == (False, True)
    assert server.bodies == [b"1", b"2", b"2"]
    assert server.seen[1].headers == server.seen[2].headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("allowed", [True, False])
def test_who_sends_is_asked_before_a_call_is_sent_again(server: Scripted, allowed: bool, method: str) -> None:
    """The server may have counted it: a second call takes its part of a limit, or does not go out.

    aiohttp by itself sends some methods again, and asks nobody.
    """
    asked: list[int] = []

    def stale(talk: Talk) -> None:
        talk.request()
        talk.answer()
        if talk.number == 0 and talk.request() is not None:
            return
        polite()(talk)

    async def again() -> None:
        asked.append(len(server.seen))
        if not allowed:
            raise LookupError("nothing may go out")

    async def story() -> Any:
        client = HttpClient(OPTIONS)
        await client.send(post(server.url, b"1", method), again)
        try:
            return await client.send(post(server.url, b"2", method), again)
        except LookupError as error:
            return error
        finally:
            await client.close()

    server.act = stale
    told = asyncio.run(story())

    assert asked == [2]
    assert server.bodies == ([b"1", b"2", b"2"] if allowed else [b"1", b"2"])
    assert isinstance(told, Response if allowed else LookupError)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_call_is_asked_for_when_it_has_its_connection(server: Scripted, allowed: bool) -> None:
    """A new connection takes as long as it likes: by then the token of a call has expired, and others go out."""
    asked: list[tuple[int, int]] = []

    async def ready() -> None:
        while not server.accepted:
            await asyncio.sleep(0.001)
        asked.append((server.accepted, len(server.seen)))
        if not allowed:
            raise LookupError("nothing may go out")

    async def story() -> tuple[Any, int]:
        client = HttpClient(OPTIONS)
        try:
            return await client.send(post(server.url), ready=ready), open_count(client)
        except LookupError as error:
            return error, open_count(client)
        finally:
            await client.close()

    told, still_open = asyncio.run(story())

    assert asked == [(1, 0)]
    assert isinstance(told, Response if allowed else LookupError)
    assert (len(server.seen), still_open) == ((1, 1) if allowed else (0, 0))


def test_a_call_that_is_sent_again_does_not_try_stale_connections_one_by_one(server: Scripted) -> None:
    """When a server closes its idle connections they all go at once."""
    together = threading.Barrier(2)

    def stale(talk: Talk) -> None:
        talk.request()
        if talk.number < 2:
            together.wait(PATIENCE)
            talk.answer()
            talk.request()
        else:
            talk.answer(b"fresh")

    async def story() -> Response:
        client = HttpClient(OPTIONS)
        await asyncio.gather(*[client.send(post(server.url)) for _ in range(2)])
        answer = await client.send(post(server.url))
        await client.close()
        return answer

    server.act = stale

    assert asyncio.run(story()).body == b"fresh"
    assert len(server.seen) == 4


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_call_is_not_sent_a_third_time(server: Scripted, method: str) -> None:
    def closing(talk: Talk) -> None:
        if talk.number == 0:
            talk.request()
            talk.answer()
        talk.request()

    server.act = closing
    _, error = ask(post(server.url), post(server.url, b"2", method))

    assert isinstance(error, InDoubt)
    assert not error.timeout
    assert server.bodies[1:] == [b"2", b"2"]


def test_a_stale_call_to_a_server_that_is_gone_is_in_doubt() -> None:
    """It may have arrived the first time, so it is not simply unsent."""
    with Scripted() as server:

        def gone(talk: Talk) -> None:
            talk.request()
            talk.answer()
            talk.request()
            server._listening.shutdown(socket.SHUT_RDWR)

        server.act = gone
        _, error = ask(post(server.url), post(server.url))

    assert isinstance(error, InDoubt)


@pytest.mark.parametrize("ending", ["closes", "resets"])
def test_a_new_connection_that_ends_without_an_answer_leaves_a_call_in_doubt(server: Scripted, ending: str) -> None:
    """The server may have done it all, and crashed: whoever sends it again must know."""

    def crash(talk: Talk) -> None:
        talk.request()
        if ending == "resets":
            talk.reset()

    server.act = crash
    (error,) = ask(post(server.url, Authorization=HUSH))

    assert isinstance(error, InDoubt)
    assert not error.timeout
    assert HUSH not in error.what
    assert len(server.seen) == 1


def test_a_reset_before_the_request_was_read_is_told(server: Scripted) -> None:
    server.act = Talk.reset

    (error,) = ask(post(server.url))

    assert isinstance(error, (InDoubt, Unsent))
    assert server.seen == []


def test_a_refused_connection_leaves_a_call_unsent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]

    (error,) = ask(post(f"http://127.0.0.1:{port}/"))

    assert isinstance(error, Unsent)
    assert error.what == "Connection refused"


@pytest.mark.parametrize("hook", [False, True], ids=["aiohttp", "requests"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_name_that_nobody_knows_leaves_a_call_unsent(scheme: str, hook: bool) -> None:
    """Without its cause an operator reads "Unknown error -2"."""
    call = post(f"{scheme}://nobody.invalid/")
    if hook:
        call.register_hook("response", lambda answer, **_: None)

    (error,) = ask(call)

    assert isinstance(error, Unsent)
    assert "its name is not known" in error.what


def test_a_server_that_does_not_accept_leaves_a_call_unsent() -> None:
    """A black hole: the address is there, and nothing ever comes back."""
    with ExitStack() as stack:
        hole = stack.enter_context(socket.socket())
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for _ in range(8):  # until its queue is full
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())

        (error,) = ask(post(f"http://127.0.0.1:{hole.getsockname()[1]}/"), connect=0.3)

    assert isinstance(error, Unsent)
    assert error.what == "no connection in time"


@pytest.mark.parametrize("bound", ["read", "total"])
def test_a_server_that_does_not_answer_leaves_a_call_in_doubt(server: Scripted, bound: str) -> None:
    server.act = silent

    (error,) = ask(post(server.url), **{bound: 0.3})

    assert isinstance(error, InDoubt)
    assert error.timeout


class Skipping(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_the_time_of_a_call_begins_with_the_call(server: Scripted) -> None:
    """One timer serves all calls of a connection; one that is left of an early call must not end a later one."""
    answered = [threading.Event() for _ in range(3)]

    def on_demand(talk: Talk) -> None:
        for event in answered:
            talk.request()
            event.wait(PATIENCE)
            talk.answer()

    async def story(loop: Skipping) -> list[Any]:
        client = HttpClient(replace(OPTIONS, read=1000, total=1500))
        outcomes = []
        for number, skips in enumerate([[500, 400], [500, 400], [500, 600]]):
            call = asyncio.create_task(outcome(client, post(server.url)))
            while len(server.seen) <= number:
                await asyncio.sleep(0.001)
            for skip in skips:
                loop.ahead += skip
                await asyncio.sleep(0.01)  # lets the loop see what is due
            answered[number].set()
            outcomes.append(await call)
        await client.close()
        return outcomes

    server.act = on_demand
    loop = Skipping()
    try:
        first, second, third = loop.run_until_complete(story(loop))
    finally:
        loop.close()

    assert [first.status, second.status, server.accepted] == [200, 200, 1]
    assert isinstance(third, InDoubt)
    assert third.timeout


@pytest.mark.parametrize(
    "extra", [b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", b"garbage"], ids=["answer", "garbage"]
)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_what_nobody_asked_for_is_never_an_answer(server: Scripted, extra: bytes, later: bool) -> None:
    """A server out of step would have every receipt say what became of the call before."""
    sent = threading.Event()

    def ahead(talk: Talk) -> None:
        seen = talk.request()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + (seen.body if seen else b"")
        if talk.number or not later:
            talk.send(answer + extra)
        else:
            talk.send(answer)
            sent.wait(PATIENCE)
            talk.send(extra)
        talk.wait()

    async def two() -> list[Any]:
        client = HttpClient(OPTIONS)
        first = await outcome(client, post(server.url, b"1"))
        sent.set()
        if later:
            await asyncio.sleep(0.3)  # it arrives, and is seen when the connection is asked for
        second = await outcome(client, post(server.url, b"2"))
        await client.close()
        return [first, second]

    server.act = ahead
    first, second = asyncio.run(two())

    # aiohttp takes nothing from what is broken further on: such a call is in doubt, and sent again by the same key
    broken = [error for error in (first, second) if isinstance(error, InDoubt)]
    assert all(extra == b"garbage" and not error.timeout for error in broken)
    answers = {body: one for body, one in ((b"1", first), (b"2", second)) if one not in broken}
    assert all((one.status, one.body) == (200, body) for body, one in answers.items())
    assert len(broken) == (0 if extra != b"garbage" else 1 if later else 2)
    assert server.accepted == 2


def test_a_request_that_is_still_going_out_is_not_given_up(server: Scripted) -> None:
    """The seconds of silence begin when the server has it all: until then it may be busy with taking it."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(talk: Talk) -> None:
        talk._more()
        begun.set()
        go_on.wait(PATIENCE)
        talk.request()
        talk.answer()

    async def story(loop: Skipping) -> Any:
        client = HttpClient(replace(OPTIONS, read=1000, total=5000))
        call = asyncio.create_task(outcome(client, post(server.url, b"a" * (16 << 20))))
        await asyncio.to_thread(begun.wait, PATIENCE)
        for _ in range(4):
            loop.ahead += 600
            await asyncio.sleep(0.01)
        go_on.set()
        answer = await call
        await client.close()
        return answer

    server.act = slow
    loop = Skipping()
    try:
        answer = loop.run_until_complete(story(loop))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    assert answer.status == 200


def test_a_wrong_length_cannot_make_two_requests_of_one(server: Scripted) -> None:
    """Whoever authorises a request may change its body; its end would be read as a request of its own."""
    request = post(server.url, b"abcGET /other HTTP/1.1\r\n\r\n")
    request.headers["content-length"] = "3"

    ask(request)

    assert server.bodies == [request.body]
    assert server.seen[0].headers["content-length"] == str(len(request.body or b""))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", f"{HUSH}\r\nX: 1"),
        ("X\r\nY", "1"),
        ("X", f"{HUSH}\n"),
        ("X: Y", "1"),
        ("X", "\u20ac"),
        ("X", "\0"),
    ],
)
def test_a_header_cannot_make_a_second_one(server: Scripted, name: str, value: str) -> None:
    request = post(server.url)
    request.headers[name] = value

    (error,) = ask(request)

    assert isinstance(error, Unsent)
    assert HUSH not in error.what
    assert server.accepted == 0


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "http:///", f"http://127.0.0.1:x/{HUSH}", f"http://127.0.0.1/{HUSH} HTTP/1.1\r\nX: 1"]
)
def test_a_url_that_is_none_leaves_a_call_unsent(server: Scripted, url: str) -> None:
    request = post(server.url)
    request.url = url

    (error,) = ask(request)

    assert isinstance(error, Unsent)
    assert HUSH not in error.what


def test_a_cancelled_call_leaves_no_connection_and_no_place_behind(server: Scripted) -> None:
    """A late answer on its connection would be the next call's."""
    arrived, cancelled = threading.Event(), threading.Event()

    def late(talk: Talk) -> None:
        talk.request()
        if talk.number:
            talk.answer(b"second")
        else:
            arrived.set()
            cancelled.wait(PATIENCE)
            talk.answer(b"first")
        talk.wait()

    async def cancel() -> tuple[Response, int, int]:
        client = HttpClient(replace(OPTIONS, in_flight=1))
        task = asyncio.create_task(client.send(post(server.url)))
        await asyncio.to_thread(arrived.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        answer = await client.send(post(server.url))
        left = open_count(client)
        await client.close()
        return answer, left, open_count(client)

    server.act = late
    answer, left, at_the_end = asyncio.run(cancel())

    assert (answer.body, left, at_the_end) == (b"second", 1, 0)


@pytest.mark.parametrize("rounds", range(6))
def test_a_call_is_cancelled_at_any_moment(server: Scripted, rounds: int) -> None:
    """While it waits for a place, for a connection, or for the answer."""

    async def cancel() -> tuple[Response, int]:
        client = HttpClient(replace(OPTIONS, in_flight=2))
        tasks = [asyncio.create_task(client.send(post(server.url))) for _ in range(6)]
        for _ in range(rounds):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        answer = await client.send(post(server.url))
        left = open_count(client)
        await client.close()
        return answer, left

    answer, left = asyncio.run(cancel())

    assert answer.status == 200
    assert left <= 2


def test_closing_ends_what_is_under_way(server: Scripted) -> None:
    async def close() -> list[Any]:
        client = HttpClient(OPTIONS)
        task = asyncio.create_task(outcome(client, post(server.url)))
        while not server.seen:
            await asyncio.sleep(0.01)
        await client.close()
        return [await task, await outcome(client, post(server.url))]

    server.act = silent
    under_way, afterwards = asyncio.run(close())

    assert isinstance(under_way, InDoubt)
    assert isinstance(afterwards, Unsent)


def slow_answer(head: bytes, part: bytes) -> Callable[[Talk], None]:
    """Begin an answer, and send its body in parts for ever."""

    def act(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        talk.pour(part, 0.01)

    return act


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize(
    ("head", "part"),
    [(b"Content-Length: 100000\r\n", b"x"), (b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n"), (b"", b"x")],
    ids=["of a known length", "in chunks", "until the end of the connection"],
)
def test_closing_ends_an_answer_that_still_comes(
    certificates: Certificates, head: bytes, part: bytes, tls: bool
) -> None:
    """Without it an API that sends a byte now and then holds up a run that ends."""

    async def close_while_reading(server: Scripted) -> tuple[Any, bool]:
        client = HttpClient(replace(OPTIONS, verify=certificates.here))
        call = asyncio.create_task(outcome(client, post(server.url)))
        while not server.seen or not open_count(client):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not call.done()
        await client.close()
        done, _ = await asyncio.wait([call], timeout=PATIENCE / 3)
        call.cancel()
        (ended,) = await asyncio.gather(call, return_exceptions=True)
        return ended, bool(done)

    context = server_tls(certificates.here) if tls else None
    with Scripted(slow_answer(head, part), context=context) as server:
        ended, in_time = asyncio.run(close_while_reading(server))

    assert in_time
    assert isinstance(ended, InDoubt) or (not head and ended.status == 200)


def test_the_environment_has_no_say(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    (answer,) = ask(post(server.url))

    assert answer.status == 200


def test_a_name_may_have_an_address_where_nobody_listens(server: Scripted) -> None:
    (answer,) = ask(post(f"http://localhost:{server.port}/"))

    assert answer.status == 200
    assert server.seen[0].headers["host"] == f"localhost:{server.port}"


def test_a_connection_ends_with_its_age(server: Scripted) -> None:
    """Without it a service that moves to another address is called at the old one for ever."""
    ask(*[post(server.url)] * 3, age=30.0)
    assert server.accepted == 1

    ask(*[post(server.url)] * 3, age=-1.0)

    assert server.accepted == 4


def test_a_long_answer_is_read_to_its_end(server: Scripted) -> None:
    """Without it each answer that is longer than a receipt needs costs a new connection."""
    server.act = polite(b"a" * (MOST + 300_000))

    answers = ask(*[post(server.url)] * 3)

    assert [(one.status, len(one.body), one.whole) for one in answers] == [(200, MOST, False)] * 3
    assert server.accepted == 1


@pytest.mark.parametrize(("without", "direct"), [("127.0.0.1", True), ("*", True), ("api.test", False), ("", False)])
def test_proxies_of_the_environment_are_asked_where_they_are_to_be(
    server: Scripted, without: str, direct: bool
) -> None:
    """Without it a cluster that reaches the world by a proxy alone cannot reach an API."""
    proxies = {"http": "http://127.0.0.1:1", "no": without}

    (answer,) = ask(post(server.url), proxies=proxies)

    assert isinstance(answer, Unsent) is not direct
