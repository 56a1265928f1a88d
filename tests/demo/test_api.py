"""The API that sinks are tried against is a real server that says the truth: other proofs rest on its record."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from router_demo.api import Api, Failure, Items, Limit, Poison, Script, Token
from router_demo.api_server.calls import highest, rows, used
from router_demo.api_server.handler import Bucket
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCAL = {"http": "", "https": ""}


def post(session: requests.Session, api: Api, body: Any = None, key: str = "", **more: Any) -> requests.Response:
    headers = {**({"Idempotency-Key": key} if key else {}), **more.pop("headers", {})}
    content = json.dumps({"id": 1} if body is None else body)
    more = {"data": content, "timeout": 20, "allow_redirects": False, **more}
    return session.post(f"{api.url}/events", headers=headers, **more)


def test_every_request_is_counted_with_its_time_and_its_rows(api: Api, session: requests.Session) -> None:
    began = time.monotonic()
    for number in range(3):
        assert post(session, api, {"id": number}).json() == {"call": number}
    post(session, api, [{"id": 3}, {"id": 3}])
    ended = time.monotonic()

    stats = api.stats()
    assert (stats.arrived, stats.statuses, stats.processed) == (4, {200: 4}, 4)
    assert stats.first is not None
    assert stats.last is not None
    assert began < stats.first < stats.last < ended
    assert api.rows("id") == Counter({0: 1, 1: 1, 2: 1, 3: 2})
    assert [call["body"] for call in api.requests(last=2)] == ['{"id": 2}', '[{"id": 3}, {"id": 3}]']


def test_figures_are_of_the_time_that_is_asked_for(api: Api, session: requests.Session) -> None:
    post(session, api, {"id": 0})
    between = time.monotonic()
    post(session, api, {"id": 1})

    assert api.stats(until=between).arrived == api.stats(since=between).arrived == 1
    assert api.rows("id", since=between) == {1: 1}


def test_nothing_is_left_after_a_reset(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(status=503)])
    assert post(session, api).status_code == 503
    api.reset()

    assert (api.stats().arrived, api.stats().connections) == (0, 0)
    assert post(session, api).status_code == 200


def test_connections_are_counted_as_they_are_accepted(api: Api, session: requests.Session) -> None:
    for _ in range(3):
        post(session, api)
    assert api.stats().connections == 1

    for _ in range(3):
        with requests.Session() as another:
            another.trust_env = False
            post(another, api)
    assert api.stats().connections == 4


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        (b'{"id": 1}', "", [{"id": 1}]),
        (b'[{"id": 1}, {"id": 2}]', "", [{"id": 1}, {"id": 2}]),
        (b'{"events": [{"id": 1}]}', "", [{"id": 1}]),
        (b'{"events": 1}', "", [{"events": 1}]),
        (b'{"id": 1}\n{"id": 2}\n', "", [{"id": 1}, {"id": 2}]),
        (gzip.compress(b'[{"id": 1}]', mtime=0), "gzip", [{"id": 1}]),
        (b"no gzip", "gzip", []),
        (b"", "", []),
        (b"<xml/>", "", []),
    ],
)
def test_rows_are_found_in_every_wrapping(body: bytes, encoding: str, expected: list[Any]) -> None:
    assert rows(body, encoding, "events") == expected


def test_rows_are_told_apart_by_several_fields_of_theirs(api: Api, session: requests.Session) -> None:
    post(session, api, [{"at": {"partition": 0, "offset": 7}}, {"at": {"partition": 1, "offset": 7}}])
    post(session, api, {"at": {"partition": 1, "offset": 7}})

    assert api.rows("at.partition", "at.offset") == {(0, 7): 1, (1, 7): 2}


@given(st.lists(st.integers(0, 60), max_size=30).map(sorted), st.integers(1, 20))
def test_of_all_windows_the_fullest_is_found(arrivals: list[int], length: int) -> None:
    """Whole numbers, so that all windows there are can be tried."""
    every = [sum(end - length < at <= end for at in arrivals) for end in range(81)]

    assert highest(np.array(arrivals, dtype=float), length) == max(every)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30).map(sorted), st.integers(1, 20))
def test_of_all_windows_the_heaviest_is_found(arrivals: list[tuple[int, int]], length: int) -> None:
    every = [sum(rows for at, rows in arrivals if end - length < at <= end) for end in range(81)]
    times, weights = (np.array([each[index] for each in arrivals], dtype=float) for index in (0, 1))

    assert highest(times, length, weights) == max(every)


def test_a_burst_over_the_border_of_two_seconds_is_seen() -> None:
    """A limiter of fixed windows lets twice its limit through around the border; steps would miss it."""
    arrivals = np.concatenate([np.linspace(0.95, 0.9999, 600), np.linspace(1.0001, 1.05, 653)])

    assert highest(arrivals, 1.0) == 1253


def test_the_use_of_a_limit_follows_its_changes() -> None:
    hundred_then_forty = np.concatenate([np.arange(0, 1, 0.01), np.arange(1, 2.001, 0.025)])

    assert used(hundred_then_forty, [(-5, 100), (1, 40)]) == pytest.approx(1.0)
    assert used(hundred_then_forty, [(-5, 100)]) == pytest.approx(0.7)
    assert used(np.array([1.0, 2.0]), [(-5, 100), (0, 0)]) is None
    assert used(np.array([1.0]), [(0, 100)]) is None


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(Limit(rate=10, burst=5), 0.0)
    let_in = []
    for now in (tick / 100 for tick in range(200)):
        if bucket.wait(1, now) == 0:
            bucket.take(1)
            let_in.append(now)

    assert let_in[:5] == [0.0, 0.01, 0.02, 0.03, 0.04]
    assert [round(at, 2) for at in let_in[5:8]] == [0.1, 0.2, 0.3]
    assert len(let_in) == 5 + 19


def test_a_window_counts_anew_when_it_is_over() -> None:
    bucket = Bucket(Limit(rate=1, window=10), 0.0)
    for _ in range(10):
        assert bucket.wait(1, 3.0) == 0
        bucket.take(1)

    assert bucket.wait(1, 4.0) == pytest.approx(6.0)
    assert bucket.wait(1, 10.0) == 0


def test_what_is_over_a_limit_gets_429_and_takes_no_effect(api: Api, session: requests.Session) -> None:
    api.play(limits=[Limit(rate=0.01, burst=3)])
    answers = [post(session, api, {"id": number}) for number in range(5)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert 90 <= int(answers[-1].headers["Retry-After"]) <= 100
    stats = api.stats()
    assert (stats.throttled_share, stats.processed) == (0.4, 3)
    assert (stats.highest, stats.highest_let_in) == (5, 3)
    assert set(api.rows("id")) == {0, 1, 2}


def test_what_a_limit_let_in_is_told_as_a_share_of_it(api: Api, session: requests.Session) -> None:
    api.play(limits=[Limit(rate=1000, burst=1000), Limit(name="rows", rate=10_000, burst=1000, unit="rows")])
    for _ in range(20):
        post(session, api, [{"id": 1}] * 5)

    stats = api.stats()
    assert stats.first is not None
    assert stats.last is not None
    allowed = 1000 * (stats.last - stats.first)
    assert stats.limit_used == {"calls": pytest.approx(19 / allowed), "rows": pytest.approx(95 / (10 * allowed))}


def test_a_limit_that_changes_keeps_what_was_used_up(api: Api, session: requests.Session) -> None:
    api.play(limits=[Limit(rate=0.01, burst=3)])
    post(session, api)
    post(session, api)
    api.play(limits=[Limit(rate=0.02, burst=3)], latency=0.001)

    assert [post(session, api).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("form", "told"), [("seconds", "7"), ("absurd", "31536000"), ("malformed", "in a while"), ("none", None)]
)
def test_retry_after_has_the_form_that_is_asked_for(
    api: Api, session: requests.Session, form: Any, told: str | None
) -> None:
    api.play(failures=[Failure(status=429, retry_after=form, wait=7)])

    assert post(session, api).headers.get("Retry-After") == told


def test_retry_after_can_be_a_date(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(status=503, retry_after="date", wait=60)])
    before = time.time()
    at = parsedate_to_datetime(post(session, api).headers["Retry-After"]).timestamp()

    assert before + 60 <= at <= time.time() + 62


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ("draft", {"RateLimit", "RateLimit-Policy"}),
        ("three", {"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}),
        ("x", {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}),
        ("x_epoch", {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}),
        ("", set()),
    ],
)
def test_a_limit_is_told_in_headers(api: Api, session: requests.Session, told: Any, names: set[str]) -> None:
    api.play(limits=[Limit(rate=5, window=3600, headers=told)])
    post(session, api)
    headers = post(session, api).headers

    assert {name for name in headers if "ratelimit" in name.lower()} == names
    if told == "draft":
        assert headers["RateLimit-Policy"] == '"calls";q=18000;w=3600'
        assert headers["RateLimit"].startswith('"calls";r=17998;t=3')
    elif told:
        (left,) = [headers[name] for name in names if name.endswith("Remaining")]
        (reset,) = [float(headers[name]) for name in names if name.endswith("Reset")]
        assert left == "17998"
        assert 3000 < reset - (time.time() if told == "x_epoch" else 0) <= 3601


def test_failures_take_their_share_and_no_more_than_their_number(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(status=503, times=2), Failure(status=500, share=0.5)])
    statuses = [post(session, api).status_code for _ in range(42)]

    assert statuses[:2] == [503, 503]
    assert set(statuses[2:]) == {200, 500}
    assert api.stats().processed == statuses.count(200)


def test_the_same_dice_fall_in_the_same_way(api: Api, session: requests.Session) -> None:
    runs = []
    for _ in range(2):
        api.reset()
        api.play(failures=[Failure(share=0.5)])
        runs.append([post(session, api).status_code for _ in range(12)])

    assert runs[0] == runs[1]


def test_failures_are_of_the_paths_that_are_named(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(status=500, path="/other")])

    assert post(session, api).status_code == 200
    assert session.post(f"{api.url}/other/x", timeout=20).status_code == 500


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("how", ["reset", "hangup", "garbage"])
def test_a_connection_breaks_before_or_after_processing(
    api: Api, session: requests.Session, how: Any, processed: bool
) -> None:
    api.play(failures=[Failure(how=how, processed=processed, times=1)])
    with pytest.raises(requests.ConnectionError):
        post(session, api)

    stats = api.stats()
    assert (stats.statuses, stats.processed, stats.in_flight) == ({0: 1}, int(processed), 0)
    assert post(session, api).status_code == 200


def test_an_answer_is_cut_short(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(how="cut", status=200)])
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        post(session, api)


@pytest.mark.parametrize("how", ["huge", "endless"])
def test_more_comes_than_anybody_wants(api: Api, session: requests.Session, how: Any) -> None:
    api.play(failures=[Failure(how=how, status=200, size=50 << 20, times=1)])
    with post(session, api, stream=True) as answer:
        read = 0
        for piece in answer.iter_content(1 << 20):
            read += len(piece)
            if read >= 40 << 20:
                break

    assert read >= 40 << 20
    assert post(session, api).status_code == 200, "who reads an endless answer must not stop the others"


def test_an_answer_drips(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(how="drip", status=200)])
    with post(session, api, stream=True) as answer:
        pieces = answer.iter_content(1)
        came = [next(pieces) for _ in range(3)]

    assert came == [b"x"] * 3


def test_silence_lasts_until_the_client_gives_up(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(how="silent", times=1)])
    with pytest.raises(requests.Timeout):
        post(session, api, timeout=0.3)

    assert api.stats().statuses == {0: 1}
    assert post(session, api).status_code == 200


def test_a_call_that_nobody_waits_for_is_processed(api: Api) -> None:
    api.play(latency=0.05, idempotency="Idempotency-Key")
    with _sent(api, key=b"k"):
        wait_until(lambda: api.stats().arrived == 1, "the call arrives", seconds=20)
    wait_until(lambda: api.stats().in_flight == 0, "no call is in flight", seconds=20)

    with requests.Session() as client:
        client.trust_env = False
        assert post(client, api, {}, key="k").headers["Idempotent-Replayed"] == "true"
    assert (api.stats().processed, api.stats().replayed) == (1, 1)


def test_what_is_in_flight_is_counted_and_what_is_given_up(api: Api, session: requests.Session) -> None:
    api.play(latency=60, idempotency="Idempotency-Key")
    with _sent(api, key=b"1"), _sent(api, key=b"2"), _sent(api, key=b"3"):
        wait_until(lambda: api.stats().in_flight == 3, "three calls are in flight", seconds=20)
        assert post(session, api, {}, key="2").status_code == 409, "its first request still runs"
        assert api.stats().abandoned == 0
    wait_until(lambda: api.stats().abandoned == 3, "three calls are given up", seconds=20)

    assert (api.stats().in_flight, api.stats().busiest, api.stats().processed) == (3, 4, 3)


def test_a_key_is_processed_once_when_keys_are_honoured(api: Api, session: requests.Session) -> None:
    api.play(idempotency="Idempotency-Key")
    answers = [post(session, api, {"id": 1}, key="a"), post(session, api, {"id": 1}, key="a")]
    other = post(session, api, {"id": 2}, key="a")

    assert answers[0].json() == answers[1].json()
    assert other.status_code == 422
    assert (api.stats().processed, api.stats().replayed, api.stats().repeated_keys) == (1, 1, 0)
    assert api.rows("id") == {1: 1}


@pytest.mark.parametrize("how", ["answer", "reset", "hangup"])
def test_a_call_that_was_processed_and_failed_uses_up_its_key(api: Api, session: requests.Session, how: Any) -> None:
    """Without it nobody can show that a key keeps a row from taking effect twice."""
    api.play(idempotency="Idempotency-Key", failures=[Failure(how=how, processed=True, times=2)])
    for _ in range(2):
        with suppress(requests.ConnectionError):
            assert post(session, api, {"id": 1}, key="a").status_code == 500
    last = post(session, api, {"id": 1}, key="a")

    stats = api.stats()
    assert (last.status_code, last.headers["Idempotent-Replayed"]) == (200, "true")
    assert (stats.processed, stats.repeated_keys, stats.replayed) == (1, 0, 2)


def test_a_poison_row_takes_no_effect_although_its_call_fails_late(api: Api, session: requests.Session) -> None:
    """Without it a row that is refused later on counts as one that arrived."""
    api.play(poison=[Poison(field="id", values=(1,))], failures=[Failure(processed=True, times=1)])

    assert [post(session, api, {"id": 1}).status_code for _ in range(2)] == [500, 400]
    assert api.stats().processed == 0


def test_a_failed_call_does_not_use_up_its_key(api: Api, session: requests.Session) -> None:
    api.play(idempotency="Idempotency-Key", failures=[Failure(status=503, times=1)])

    assert [post(session, api, key="a").status_code for _ in range(2)] == [503, 200]
    assert api.stats().replayed == 0


def test_a_repeated_key_is_told_when_keys_are_ignored(api: Api, session: requests.Session) -> None:
    for _ in range(3):
        post(session, api, key="a")
    post(session, api, key="b")

    assert (api.stats().processed_keys, api.stats().repeated_keys) == (2, 2)
    assert api.rows("id") == {1: 4}


def test_a_key_can_be_needed(api: Api, session: requests.Session) -> None:
    api.play(idempotency="X-Request-Id", key_needed=True)

    assert post(session, api).status_code == 400
    assert post(session, api, headers={"x-request-id": "1"}).status_code == 200


def test_a_call_with_a_poison_row_takes_no_effect(api: Api, session: requests.Session) -> None:
    api.play(poison=[Poison(field="event.amount", values=(-1, "x"), status=422)])
    good, bad = {"event": {"amount": 1}}, {"event": {"amount": "x"}}

    assert post(session, api, [good, bad]).status_code == 422
    assert post(session, api, [good]).status_code == 200
    assert api.rows("event.amount") == {1: 1}


def test_rows_are_answered_one_by_one(api: Api, session: requests.Session) -> None:
    api.play(poison=[Poison(field="id", values=(2,))], items=Items(id="id"))
    answer = post(session, api, [{"id": number} for number in range(4)])

    assert answer.status_code == 207
    assert [(item["id"], item["status"]) for item in answer.json()["items"]] == [(0, 201), (1, 201), (2, 400), (3, 201)]
    assert api.rows("id") == {0: 1, 1: 1, 3: 1}


def test_rows_that_are_busy_take_no_effect_and_results_may_be_shuffled(api: Api, session: requests.Session) -> None:
    api.play(items=Items(id="id", busy=0.5, shuffled=True))
    items = post(session, api, [{"id": number} for number in range(40)]).json()["items"]

    assert [item["id"] for item in items] != sorted(item["id"] for item in items) == list(range(40))
    assert {item["status"] for item in items} == {201, 429}
    assert set(api.rows("id")) == {item["id"] for item in items if item["status"] == 201}


def test_a_long_body_gets_413(api: Api, session: requests.Session) -> None:
    api.play(largest=100)

    assert post(session, api, {"id": "x" * 100}).status_code == 413
    assert post(session, api, {"id": "x"}).status_code == 200


def test_tokens_expire_by_time_and_by_use(api: Api, session: requests.Session) -> None:
    api.play(token=Token(client="me", secret="hush", uses=2, declared=3600))
    form = {"grant_type": "client_credentials", "client_id": "me", "client_secret": "hush"}

    assert post(session, api).status_code == 401
    assert session.post(f"{api.url}/token", data={**form, "client_secret": "no"}, timeout=20).status_code == 401
    given = session.post(f"{api.url}/token", data=form, timeout=20).json()
    assert (given["token_type"], given["expires_in"]) == ("Bearer", 3600)
    shown = {"Authorization": f"Bearer {given['access_token']}"}
    assert [post(session, api, headers=shown).status_code for _ in range(3)] == [200, 200, 401]
    basic = session.post(f"{api.url}/token", auth=("me", "hush"), timeout=20)
    assert basic.status_code == 200
    assert (api.stats().tokens, api.stats().statuses) == (2, {200: 2, 401: 2}), "asking for a token is no call"

    api.play(token=Token(seconds=0))
    short = session.post(f"{api.url}/token", auth=("demo", "demo"), timeout=20).json()["access_token"]
    assert post(session, api, headers={"Authorization": f"Bearer {short}"}).status_code == 401


def test_wanted_headers_are_looked_for(api: Api, session: requests.Session) -> None:
    api.play(wants={"X-Api-Key": "hush"}, show_headers=True)

    assert post(session, api).status_code == 401
    assert post(session, api, headers={"x-api-key": "hush"}).status_code == 200
    assert [call["headers"].get("x-api-key") for call in api.requests()] == [None, "hush"]


def test_headers_are_kept_only_when_that_is_asked_for(api: Api, session: requests.Session) -> None:
    post(session, api, headers={"Authorization": "Bearer hush"})

    assert "hush" not in json.dumps(api.requests())


def test_redirects_go_round_in_circles(api: Api, session: requests.Session) -> None:
    api.play(failures=[Failure(status=307, headers={"Location": "/events"})])
    with pytest.raises(requests.TooManyRedirects):
        post(session, api, allow_redirects=True)

    assert api.stats().statuses == {307: 31}


def test_a_connection_may_end_after_some_calls_or_when_idle(api: Api, session: requests.Session) -> None:
    api.play(calls_per_connection=2)
    last = [post(session, api).headers.get("Connection") for _ in range(4)]
    assert last == [None, "close", None, "close"], "a client must know, or it sends a call into a connection that ends"
    assert api.stats().connections >= 2

    api.play(idle_seconds=0.01)
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as idle:
        assert idle.recv(1) == b""


def test_an_answer_can_repeat_the_body(api: Api, session: requests.Session) -> None:
    api.play(answer="echo", headers={"X-Served-By": "demo"})
    answer = post(session, api, {"id": 5})

    assert (answer.json(), answer.headers["X-Served-By"]) == ({"id": 5}, "demo")


def test_requests_of_one_connection_are_answered_in_order(api: Api) -> None:
    api.play(latency=0.02)
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as pipe:
        pipe.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" * 3)
        came = b""
        while came.count(b'{"call"') < 3:
            came += pipe.recv(4096)

    assert [came.index(b'{"call": %d}' % number) for number in range(3)] == sorted(
        came.index(b'{"call": %d}' % number) for number in range(3)
    )


def test_what_is_no_http_is_refused(api: Api) -> None:
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as pipe:
        pipe.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert pipe.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_nobody_gets_through_while_the_port_is_refused(api: Api, session: requests.Session) -> None:
    post(session, api)
    api.play(outage="refused")
    for _ in range(2):
        with pytest.raises(requests.ConnectionError):
            post(session, api)
    api.play()

    assert post(session, api).status_code == 200
    assert api.stats().arrived == 2


@pytest.mark.skipif(sys.platform != "linux", reason="how a full queue is treated is Linux's own way")
def test_packets_go_nowhere_while_they_are_dropped(api: Api, session: requests.Session) -> None:
    post(session, api)
    api.play(outage="dropped")
    with pytest.raises(requests.ReadTimeout):  # the connection there is
        post(session, api, timeout=(0.3, 0.3))
    with pytest.raises(requests.ConnectTimeout):
        requests.post(api.url, timeout=(0.3, 0.3), proxies=LOCAL)
    api.play()

    wait_until(lambda: _reaches(api), "the API answers", seconds=20)
    assert api.stats().statuses[200] >= 2


def test_a_script_with_a_mistake_is_refused(api: Api, session: requests.Session) -> None:
    with pytest.raises(ValueError, match="latncy"):
        api.play(latncy=1)
    answer = requests.put(f"{api.control_url}/script", data=b'{"latncy": 1}', timeout=20, proxies=LOCAL)

    assert (answer.status_code, "latncy" in answer.json()["error"]) == (400, True)
    assert requests.get(f"{api.control_url}/nothing", timeout=20, proxies=LOCAL).status_code == 404


def test_a_part_of_a_script_that_stays_goes_on_where_it_was(api: Api, session: requests.Session) -> None:
    twice = Failure(status=503, times=2)
    api.play(failures=[twice])
    post(session, api)
    api.play(failures=[twice], latency=0.001)

    assert [post(session, api).status_code for _ in range(2)] == [503, 200]


def test_it_speaks_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    key, made, both = tmp_path / "key.pem", tmp_path / "certificate.pem", tmp_path / "both.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    both.write_text(key.read_text() + made.read_text())
    with Api(certificate=both) as api, requests.Session() as client:
        client.trust_env = False
        with pytest.raises(requests.exceptions.SSLError):
            post(client, api)
        assert post(client, api, verify=str(made)).status_code == 200


def test_the_command_tells_its_ports() -> None:
    command = [sys.executable, "-m", "router_demo.api", "--port", "0", "--script", '{"latency": 0.001}']
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            answer = requests.post(f"http://127.0.0.1:{ports['port']}/x", timeout=20, proxies=LOCAL)
            told = requests.get(f"http://127.0.0.1:{ports['control_port']}/_control/stats", timeout=20, proxies=LOCAL)
        finally:
            process.kill()

    assert (answer.status_code, told.json()["arrived"]) == (200, 1)


def test_a_default_script_asks_for_nothing() -> None:
    assert Script().model_dump(exclude_defaults=True) == {}


@contextmanager
def _sent(api: Api, key: bytes) -> Iterator[None]:
    with socket.create_connection(("127.0.0.1", api.port), timeout=20) as sent:
        sent.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %b\r\nContent-Length: 2\r\n\r\n{}" % key)
        yield


def _reaches(api: Api) -> bool:
    with requests.Session() as client:
        client.trust_env = False
        try:
            return post(client, api, timeout=1).status_code == 200
        except requests.ConnectionError:
            return False
