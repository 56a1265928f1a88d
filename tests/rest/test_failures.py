"""Calls that fail in every way: what was sent twice is told, retries are few, and what is wrong is named."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api, Failure, Token
from router_rest.answers.classifier import Policy
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from router_rest.logins.auth import Auth
from tests.rest.scripted import Scripted, polite
from tests.rest.tasks import HTTP, KEYED, PACE, Tasks, changed, rows, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.delta.lake import Lake
    from tests.rest.conftest import Certificates
    from tests.rest.scripted import Talk

THREE = [rows(range(50), partition=partition) for partition in range(3)]
HUNDRED = Pace((RateLimit(100, None, 1.0),), 16, share=0.85, retry_floor=1000.0)
"""Calls that are late for a tenth of a second, on a machine that is busy, are still within the limit."""


@pytest.mark.parametrize(
    ("processed", "keyed"),
    [
        pytest.param(False, False, marks=pytest.mark.slow),
        (True, False),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
    ids=["before it is processed", "after it is processed", "after it is processed, with keys"],
)
def test_connections_that_are_reset_double_nothing_unseen(hurried_tasks: Tasks, processed: bool, keyed: bool) -> None:
    """Without it rows arrive twice and nobody knows; and calls that the client repeats are above the limit."""
    failure = Failure(how="reset", share=0.3, processed=processed)
    hurried_tasks.api.play(failures=[failure], idempotency=KEYED if keyed else "")

    hurried_tasks.drain(hurried_tasks.job(pace=HUNDRED, keyed=KEYED if keyed else None), *THREE)

    hurried_tasks.prove(*THREE, keyed=keyed or not processed, limit=100)
    assert any(row["in_doubt"] for row in hurried_tasks.receipts())


@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_500_double_nothing_unseen(hurried_tasks: Tasks, share: float, keyed: bool) -> None:
    """Half of them come after the call was processed: without it these rows are lost, or arrive twice unseen."""
    failures = [Failure(share=share / 2, processed=True), Failure(share=share / (2 - share))]
    hurried_tasks.api.play(failures=failures, idempotency=KEYED if keyed else "")

    jobs = hurried_tasks.drain(hurried_tasks.job(keyed=KEYED if keyed else None), *THREE)

    assert not any(sent.dead for sent in jobs)
    hurried_tasks.prove(*THREE, keyed=keyed)


def test_retries_are_few_while_every_other_call_fails(hurried_tasks: Tasks) -> None:
    """Without it an API that is overloaded gets twice the calls, and fails them all."""
    hurried_tasks.api.play(failures=[Failure(share=0.5)])
    policy = Policy(attempts=100, elapsed=0.5, first=0.01, longest=0.05)
    began = time.monotonic()

    job = hurried_tasks.job(pace=Pace((), 16, retry_floor=1.0), policy=policy)
    sent = hurried_tasks.together(job, *THREE)

    arrived, seconds = hurried_tasks.api.stats().arrived, time.monotonic() - began
    assert arrived <= 150 * 1.2 + 1.0 * (10 + seconds + 1)
    assert sent.counts["left"] > 0
    hurried_tasks.api.play()
    hurried_tasks.drain(job, *THREE)
    hurried_tasks.prove(*THREE, keyed=True)


def test_a_call_that_always_fails_lets_others_go_on_and_is_named(hurried_tasks: Tasks) -> None:
    """Without it nobody learns which rows hold a batch up."""
    hurried_tasks.api.play(
        failures=[
            Failure(path="/events/bad"),
        ]
    )
    job = hurried_tasks.job(path="/events/bad")
    sent = hurried_tasks.run(job, rows([7]))
    assert [json.loads(one) for one in sent.tried] == [[["events", 0, 7, 7]]]

    sent = hurried_tasks.run(hurried_tasks.job(), rows(range(20)))

    assert (sent.counts["delivered"], sent.tried) == (20, [])


@pytest.mark.parametrize("how", ["huge", "endless", "drip"])
def test_an_answer_that_does_not_end_is_an_answer(hurried_tasks: Tasks, how: Any) -> None:
    """Without it one answer fills the memory of a worker, or holds a task for ever; and its rows are sent again."""
    hurried_tasks.api.play(failures=[Failure(how=how, status=200, processed=True, times=5)])
    client = replace(HTTP, total=0.5, read=0.5, most=10_000)

    sent = hurried_tasks.run(hurried_tasks.job(http=client, keyed=None), rows(range(50)))

    assert (sent.counts["delivered"], sent.counts["left"]) == (50, 0)
    hurried_tasks.prove(rows(range(50)), keyed=True)
    assert max(len(row["response"] or "") for row in hurried_tasks.receipts()) <= 2048


@pytest.mark.parametrize("status", [302, 308])
def test_a_redirect_that_goes_round_is_not_followed(hurried_tasks: Tasks, status: int) -> None:
    """Without it rows, and a token with them, go wherever an answer says; or a call never ends."""
    hurried_tasks.api.play(failures=[Failure(status=status, headers={"Location": "/events"})])

    sent = hurried_tasks.run(hurried_tasks.job(), rows(range(100)))

    assert str(status) in sent.texts["wrong"]
    assert (sent.counts["left"], sent.dead) == (100, [])
    assert hurried_tasks.api.stats().arrived <= 8


def test_a_certificate_of_nobody_gets_no_row(lake: Lake, certificates: Certificates, tmp_path: Path) -> None:
    """Without it whoever is between reads all rows and the token."""
    auth = Auth.model_validate({"bearer": "hush-hush"})
    from pathlib import Path as File

    with Api(certificate=File(certificates.here)) as api, run_tasks(api, lake) as tasks:
        sent = tasks.run(tasks.job(auth=auth), rows(range(20)))
        arrived = api.stats().arrived
        trusting = tasks.job(auth=auth, http=replace(HTTP, verify=certificates.here))
        tasks.drain(trusting, rows(range(20)))
        tasks.prove(rows(range(20)), keyed=True)

    assert "certificate is not trusted" in sent.texts["away"]
    assert (sent.counts["left"], arrived) == (20, 0)
    assert "hush" not in str(sent)


def test_a_token_that_expires_in_time_is_replaced(hurried_tasks: Tasks) -> None:
    """Without it every row after the first token's end is lost, dead, or waits for the next start."""
    # it says an hour, and is good for a moment: only the 401 tells
    hurried_tasks.api.play(token=Token(seconds=0.15, declared=3600), latency=0.01)
    oauth = {"token_url": f"{hurried_tasks.api.url}/token", "client_id": "demo", "client_secret": "demo"}

    jobs = hurried_tasks.drain(hurried_tasks.job(auth=Auth.model_validate({"oauth": oauth})), *THREE)

    assert not any(sent.dead for sent in jobs)
    assert hurried_tasks.api.stats().tokens > 1
    hurried_tasks.prove(*THREE, keyed=True)
    assert not any(row["in_doubt"] for row in hurried_tasks.receipts())


@dataclass
class Expiring:
    """A token server and an API in one, whose tokens are good for `life` seconds; `fault` acts on a token request."""

    life: float
    fault: Callable[[Expiring, Talk], bool]
    asked: int = 0
    refused: int = 0
    born: dict[str, float] = field(default_factory=dict)

    def __call__(self, talk: Talk) -> None:
        while (seen := talk.request()) is not None:
            if "/token" in seen.line:
                self.asked += 1
                if not self.fault(self, talk):
                    token = f"token-{self.asked}"
                    self.born[token] = time.monotonic()
                    talk.answer(json.dumps({"access_token": token, "expires_in": self.life}).encode())
                continue
            age = time.monotonic() - self.born.get(seen.headers["authorization"].removeprefix("Bearer "), 0.0)
            if age <= self.life:
                talk.answer()
                continue
            self.refused += 1
            talk.answer(b"expired", "401 Unauthorized")


def every_third_fails(server: Expiring, talk: Talk) -> bool:
    if server.asked % 3:
        return False
    talk.answer(b"oops", "500 Internal Server Error")
    return True


def all_but_the_first_take_a_second(server: Expiring, talk: Talk) -> bool:
    if server.asked > 1:
        time.sleep(1.0)
    return False


@pytest.mark.parametrize(
    ("life", "fault"), [(2.0, every_third_fails), (6.0, all_but_the_first_take_a_second)], ids=["fails", "is slow"]
)
def test_tokens_are_renewed_ahead_and_used_while_they_are_good(hurried_tasks: Tasks, life: float, fault: Any) -> None:
    """Without it calls are refused around the end of each token, and rows wait for a token server that is slow."""
    expiring = Expiring(life, fault)
    with Scripted(expiring) as server:
        oauth = {"token_url": f"{server.url}/token", "client_id": "demo", "client_secret": "hush-hush"}
        pace = replace(PACE, limits=(RateLimit(20, None, 1.0),))
        job = hurried_tasks.job(auth=Auth.model_validate({"oauth": oauth}), pace=pace)
        sent = hurried_tasks.run(changed(job, form=replace(job.plan.form, url=server.url)), rows(range(130)))
        arrived = [seen for seen in server.seen if "/token" not in seen.line]

    assert (sent.counts["delivered"], expiring.refused, len(arrived)) == (130, 0, 130)
    assert expiring.asked > 1


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request"])
def test_a_token_server_that_gives_none_any_more_stops_the_sink_in_its_words(hurried_tasks: Tasks, status: str) -> None:
    """Without it a sink whose client was removed waits for ever, and nobody can read why."""
    words = {"error": "invalid_client", "error_description": "no\x1b[31m client hush-hush"}
    with Scripted(polite(json.dumps(words).encode(), status=status)) as server:
        oauth = {"token_url": f"{server.url}/token", "client_id": "demo", "client_secret": "hush-hush"}
        sent = hurried_tasks.run(hurried_tasks.job(auth=Auth.model_validate({"oauth": oauth})), rows(range(10)))

    assert f"answers {status[:3]} without a token: invalid_client no [31m client ***; check" in sent.texts["wrong"]
    assert (sent.counts["left"], hurried_tasks.api.stats().arrived) == (10, 0)


def test_a_token_server_that_is_away_for_a_while_makes_rows_wait(hurried_tasks: Tasks) -> None:
    """Without it they become dead letters; or a server that has just come back is asked for a token by every call."""
    hurried_tasks.api.play(wants={"Authorization": "Bearer good"})
    tokens = ["old", *[None] * 3, "good"]
    asked: list[str | None] = []

    def serve(talk: Talk) -> None:
        while talk.request() is not None:
            asked.append(tokens[min(len(asked), len(tokens) - 1)])
            body = json.dumps({"access_token": asked[-1], "expires_in": 3600}).encode()
            talk.answer(body, "503 Service Unavailable" if asked[-1] is None else "200 OK")

    with Scripted(serve) as server:
        oauth = {"token_url": server.url, "client_id": "demo", "client_secret": "hush-hush"}
        job = hurried_tasks.job(auth=Auth.model_validate({"oauth": oauth}))
        jobs = hurried_tasks.drain(job, rows(range(100)))

    assert not any(sent.dead for sent in jobs)
    assert Counter(asked) == Counter({"old": 1, None: 3, "good": 1})
    # it is asked once for all calls in flight, each time
    assert hurried_tasks.api.stats().statuses[401] >= 4
    hurried_tasks.prove(rows(range(100)), keyed=True)
    assert "hush" not in str(jobs)


def test_a_call_that_is_sent_again_takes_a_token(hurried_tasks: Tasks) -> None:
    """Without it a server that closes its connections gets more calls than its limit: a token is for one of them."""
    hurried_tasks.api.play(failures=[Failure(how="hangup", share=0.5)])
    job = hurried_tasks.job(policy=replace(hurried_tasks.job().plan.policy, attempts=100))

    hurried_tasks.drain(job, rows(range(60)))

    while hurried_tasks.leases.outlook("api").tasks:
        time.sleep(0.01)
    totals = hurried_tasks.leases.report_totals("api")
    assert totals["sent"] >= hurried_tasks.api.stats().arrived > 60
