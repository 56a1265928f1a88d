"""The server of leases on a real port: tasks in processes of their own, strangers, credentials, a driver that ends."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from router_rest.channel.client import Gone
from router_rest.limits import lease_server as module
from router_rest.limits.lease_client import LeaseClient, Leave
from router_rest.limits.lease_server import EarlierCall, LeaseServer, lease_server
from router_rest.limits.messages import Pace, TaskReport
from router_rest.limits.sliding_window import RateLimit
from router_rest.sink import Rest
from tests.rest.tasks import pace_per_second

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from router_rest.channel.protocol import ServerAddress
    from router_rest.channel.server import TaskSession

SECRET = "hush-hush"


def secret_credentials(refused: str) -> dict[str, str]:
    return {"secret": SECRET}


def within(story: Coroutine[Any, Any, Any]) -> Any:
    """Run a story that ends at some time."""
    return asyncio.run(asyncio.wait_for(story, 60))


class Caller:
    """A task in a process of its own."""

    def __init__(self, address: ServerAddress, sink: str, workers: int = 8) -> None:
        command = [sys.executable, "-m", "tests.rest.caller", sink, str(workers)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(base64.b64encode(pickle.dumps(address)).decode() + "\n")
        self.process.stdin.flush()
        self.calls: list[float] = []

    def make(self, many: int) -> Caller:
        """Wait for so many more calls."""
        assert self.process.stdout is not None
        self.calls += [float(self.process.stdout.readline()) for _ in range(many)]
        return self

    def end(self) -> str:
        """Wait for its end, and return what it said last; "" for one that was killed."""
        said, _ = self.process.communicate(timeout=60)
        *calls, last = said.split() or [""]
        whole = [last] if last and not last.isalpha() and said.endswith("\n") else []
        self.calls += map(float, calls + whole)
        return last if last.isalpha() else ""


def highest(times: list[float]) -> int:
    times = sorted(times)
    return max(sum(1 for one in times if end - 1.0 < one <= end) for end in times)


def test_processes_share_a_limit_and_a_killed_one_takes_nothing_along(lease_server: LeaseServer) -> None:
    """What a lost worker had in hand must neither be used twice nor be missing for long."""
    address = lease_server.admit_sink("sink", "api", pace_per_second(150))
    callers = [Caller(address, "sink") for _ in range(3)]
    for caller in callers:
        caller.make(40)

    killed, *others = callers
    killed.process.kill()
    killed.end()
    for caller in others:
        caller.make(60)
    assert lease_server.outlook("api").tasks == 2
    lease_server.stop()

    assert [caller.end() for caller in others] == ["Gone", "Gone"]
    assert highest([one for caller in callers for one in caller.calls]) <= 150


def test_a_message_to_a_task_whose_connection_is_lost_raises_nothing(lease_server: LeaseServer) -> None:
    """Without it (before Python 3.11) what is dealt with it is lost, and the other tasks wait for it without end."""
    address = lease_server.admit_sink("sink", "api", pace_per_second(10))
    sessions = lease_server._limits["api"]

    async def story() -> TaskSession:
        lease = await LeaseClient.open(address, "sink")
        await lease.acquire()  # the driver knows the session at the latest when it grants a token
        (session,) = sessions._sessions.values()
        await lease.close()
        return session

    session = within(story())
    while sessions._sessions:
        time.sleep(0.01)
    lease_server.call_on_loop(lambda: session.send_message({}))
    assert lease_server.is_running


def test_two_sinks_share_one_limit(lease_server: LeaseServer) -> None:
    addresses = {sink: lease_server.admit_sink(sink, "api", pace_per_second(100)) for sink in ("one", "other")}
    callers = [Caller(address, sink).make(70) for sink, address in addresses.items()]
    lease_server.stop()

    assert {caller.end() for caller in callers} == {"Gone"}
    assert highest([one for caller in callers for one in caller.calls]) <= 100


def test_a_sink_that_stops_ends_its_own_tasks_only(lease_server: LeaseServer) -> None:
    stop = threading.Event()
    stopped = Caller(lease_server.admit_sink("stops", "api", pace_per_second(100), stop=stop.is_set), "stops").make(5)
    other = Caller(lease_server.admit_sink("goes on", "api", pace_per_second(100)), "goes on").make(5)
    stop.set()

    assert stopped.end() == "Leave"
    other.make(100)
    lease_server.stop()
    assert other.end() == "Gone"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda address: replace(address, secret=bytes(32)),
        lambda address: replace(address, secret=b""),
        lambda address: replace(address, name="another"),
        lambda address: replace(address, port=1),
    ],
    ids=["secret", "no secret", "limit", "port"],
)
def test_who_is_not_of_this_driver_gets_nothing(
    lease_server: LeaseServer, wrong: Callable[[ServerAddress], ServerAddress], caplog: pytest.LogCaptureFixture
) -> None:
    address = lease_server.admit_sink("sink", "api", pace_per_second(10), credentials=secret_credentials)

    with pytest.raises(Gone):
        within(LeaseClient.open(wrong(address), "sink"))
    with pytest.raises(Gone):
        within(LeaseClient.open(address, "no such sink"))
    assert lease_server.outlook("api").tasks == 0
    assert address.secret.hex() not in caplog.text


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        b'{"secret": 1}\n',
        b'{"secret": "no hex"}\n',
        b'{"secret": "00"}\n',
        b"x" * (1 << 17),
        b"",
    ],
    ids=["http", "bytes", "list", "empty", "number", "text", "short", "endless", "nothing"],
)
@pytest.mark.parametrize("encrypted", [True, False], ids=["TLS", "plain"])
def test_a_stranger_gets_nothing_and_harms_nobody(lease_server: LeaseServer, said: bytes, *, encrypted: bool) -> None:
    address = lease_server.admit_sink("sink", "api", pace_per_second(1000), credentials=secret_credentials)
    answer = b""
    with suppress(OSError), connected(address, encrypted) as stranger:
        stranger.sendall(said)
        if not encrypted:
            stranger.shutdown(socket.SHUT_WR)
        if said.endswith(b"\n"):
            answer = stranger.recv(1000)

    assert answer[:1] in (b"", TLS_ALERT)

    async def task() -> None:
        lease = await LeaseClient.open(address, "sink")
        await lease.acquire()
        await lease.close()

    within(task())


TLS_ALERT = b"\x15"
"""The first byte of a record with an alert (RFC 8446, 5.1): to bytes that are no TLS."""


@contextmanager
def connected(address: ServerAddress, encrypted: bool) -> Iterator[socket.socket]:
    """Connect to a server as somebody who trusts any server."""
    with socket.create_connection((address.host, address.port), timeout=30) as plain:
        if not encrypted:
            yield plain
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(plain) as protected:
            yield protected


def test_a_task_talks_to_the_server_with_its_certificate_only(lease_server: LeaseServer) -> None:
    """Whoever can redirect a connection on the network could otherwise raise a limit, or learn the secret."""
    address = lease_server.admit_sink("sink", "api", pace_per_second(10))
    other = LeaseServer().start()
    try:
        port = other.admit_sink("sink", "api", pace_per_second(10)).port
        with pytest.raises(Gone, match="certificate"):
            within(LeaseClient.open(replace(address, port=port), "sink"))
    finally:
        other.stop()


async def relayed(address: ServerAddress, heard: list[bytes]) -> tuple[asyncio.Server, int]:
    """Pass on what is said to and by a server, and keep it."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(address.host, address.port)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while part := await source.read(1 << 16):
                heard.append(part)
                target.write(part)
            target.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    relay = await asyncio.start_server(meet, "127.0.0.1", 0)
    return relay, relay.sockets[0].getsockname()[1]


def test_credentials_are_handed_out_and_not_seen_on_the_network(lease_server: LeaseServer) -> None:
    asked: list[str] = []
    heard: list[bytes] = []

    def credentials(refused: str) -> dict[str, object]:
        asked.append(refused)
        return {"version": str(len(asked)), "headers": {"Authorization": f"Bearer {SECRET}"}}

    address = lease_server.admit_sink("sink", "api", pace_per_second(10), credentials=credentials)

    async def task() -> list[Any]:
        relay, port = await relayed(address, heard)
        lease = await LeaseClient.open(replace(address, port=port), "sink")
        client = lease
        first = await client.fetch_credentials()
        given = [first, *await asyncio.gather(*(client.fetch_credentials(first["version"]) for _ in range(3)))]
        await lease.close()
        relay.close()
        return given

    given = within(task())
    assert sorted(one["version"] for one in given) == ["1", "2", "3", "4"]
    assert {one["headers"]["Authorization"] for one in given} == {f"Bearer {SECRET}"}
    assert asked == ["", "1", "1", "1"]
    whole = b"".join(heard)
    assert len(whole) > 1000
    for word in (SECRET.encode(), b"credentials", b"grant", address.secret, address.secret.hex().encode()):
        assert word not in whole


def test_credentials_that_fail_say_so_and_no_more(lease_server: LeaseServer, caplog: pytest.LogCaptureFixture) -> None:
    def credentials(refused: str) -> dict[str, object]:
        raise PermissionError("the secret server says no")

    address = lease_server.admit_sink("fails", "a", pace_per_second(10), credentials=credentials)

    async def task() -> str:
        lease = await LeaseClient.open(address, "fails")
        with pytest.raises(LookupError) as caught:
            await lease.fetch_credentials()
        await lease.acquire()
        await lease.close()
        return str(caught.value)

    assert "PermissionError" in within(task())
    assert "the secret server says no" in caplog.text


def test_an_address_travels_but_shows_no_token(lease_server: LeaseServer) -> None:
    address = lease_server.admit_sink("sink", "api", pace_per_second(10))

    assert pickle.loads(pickle.dumps(address)) == address
    assert repr(address.secret) not in repr(address)
    assert address.secret.hex() not in repr(address)


def test_a_limit_is_stated_once(lease_server: LeaseServer) -> None:
    """Two sinks that mean different limits would otherwise keep neither."""
    lease_server.admit_sink("one", "api", pace_per_second(10))
    lease_server.admit_sink("one", "api", pace_per_second(10))
    with pytest.raises(ValueError, match="one"):
        lease_server.admit_sink("other", "api", pace_per_second(20))

    lease_server.dismiss_sink("one")
    lease_server.admit_sink("other", "api", pace_per_second(20))


def test_a_limit_that_is_stated_anew_knows_what_went_out(lease_server: LeaseServer) -> None:
    hour = RateLimit(5, None, 3600.0)
    lease_server.admit_sink("sink", "api", Pace((hour,)))
    lease_server.count_earlier("api", [EarlierCall(10.0, "", 5, 5)])
    assert lease_server.outlook("api").retry_after > 3000

    lease_server.admit_sink("sink", "api", Pace((hour, RateLimit(1, None, 1.0))))
    assert lease_server.outlook("api").retry_after > 3000


def test_tasks_of_an_old_statement_end(lease_server: LeaseServer) -> None:
    """They would call beside those of the new one."""
    old = Caller(lease_server.admit_sink("sink", "api", pace_per_second(50)), "sink").make(3)
    lease_server.admit_sink("sink", "api", pace_per_second(60))

    assert old.end() == "Leave"


def test_what_tasks_saw_adds_up(lease_server: LeaseServer) -> None:
    address = lease_server.admit_sink("sink", "api", pace_per_second(1000))

    async def task() -> None:
        lease = await LeaseClient.open(address, "sink")
        for status in (200, 429, 503, None):
            await lease.acquire()
            ok, throttled = status == 200, status == 429
            lease.release(status, ok=ok, throttled=throttled, timeout=status is None, seconds=0.5)
        await lease.close()
        while lease_server.outlook("api").tasks:
            await asyncio.sleep(0.01)

    within(task())
    totals = lease_server.report_totals("api")
    assert {name: totals[name] for name in ("sent", "ok", "throttled", "failed", "timeouts", "seconds")} == {
        "sent": 4,
        "ok": 1,
        "throttled": 1,
        "failed": 2,
        "timeouts": 1,
        "seconds": 2.0,
    }


def test_an_address_that_is_not_of_this_machine_is_said_at_once() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        LeaseServer("192.0.2.1").start()


def test_queries_of_a_driver_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_servers", {})
    server = lease_server()
    assert lease_server() is server
    server.stop()
    assert lease_server() is not server
    lease_server().stop()


def test_a_question_that_fails_ends_nobody(lease_server: LeaseServer, caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    def stop() -> bool:
        asked.set()
        raise RuntimeError("no idea")

    address = lease_server.admit_sink("sink", "api", pace_per_second(100), stop=stop)
    assert asked.wait(30)

    async def task() -> None:
        lease = await LeaseClient.open(address, "sink")
        await lease.acquire()
        await lease.close()

    within(task())


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (Leave(3.0), "nothing may go out for 3.0 s or more"),
        (Leave(0.0), "no call could go out for some seconds; the rest follows at once"),
        (Leave(-2.5), "no call could go out for some seconds; the rest follows at once"),
        (Leave(0.0, stopped=True), "the sink stops"),
    ],
    ids=["a pause", "no pause", "a pause that has passed", "a stop"],
)
def test_leave_says_why_and_for_how_long(leave: Leave, words: str) -> None:
    """Without it somebody at night reads that nothing may go out for 0.0 s or more."""
    assert str(leave) == words


def test_the_state_of_a_limit_is_known_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, lease_server: LeaseServer
) -> None:
    """Without it nobody sees which API is away, or why rows go out slowly."""
    monkeypatch.setitem(module._servers, ("127.0.0.1", "test"), lease_server)
    assert module.api_state("api-of-a-test") is None, "nothing was sent to it"

    lease_server.admit_sink("a", "api-of-a-test", Pace((RateLimit(10, None, 60.0),), 4))
    lease_server.count_earlier("api-of-a-test", [EarlierCall(1.0, "", 4, 0)])
    state = module.api_state("api-of-a-test")
    assert state is not None
    assert (state.circuit_open, state.limit_used) == (False, 0.4)

    coordinator = lease_server._limits["api-of-a-test"].coordinator
    coordinator.add_task("task")
    coordinator.on_report("task", TaskReport(sent=9, ok=4, throttled=2, failed=3, timeouts=1, bad_status=503))
    state = module.api_state("api-of-a-test")
    assert state is not None
    assert state.failure == "answers 503"
    assert Rest(url="https://api.test/wins?token=secret", limit_name="api-of-a-test").api_state() == replace(
        state, url="https://api.test/wins"
    )
    assert state.answers == {"ok": 4, "throttled": 2, "failed": 2, "timed out": 1}, "each call counts once"

    lease_server.admit_sink("b", "without-a-limit", Pace((), 4))
    unlimited = module.api_state("without-a-limit")
    assert unlimited is not None
    assert unlimited.limit_used is None
