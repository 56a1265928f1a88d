"""One odd answer among good ones: what becomes of its row, how often it went out, and what `requests` makes of it.

docs/evidence/rest-answers.md has the table; REST_ANSWERS=write writes it anew.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import requests
from pydantic import SecretStr

from router import StartError
from router.delta.lake import Lake
from router_rest.delivery.batcher import CallSize
from router_rest.delivery.send_plan import policy_of
from router_rest.logins.credentials import Credentials
from router_sinks import Rest
from tests.api_answers.answers import ANSWERS, EARLY, PRESETS, QUICK
from tests.api_answers.ways import QUICK_WAYS, WAYS, Way
from tests.rest.scripted import Scripted
from tests.rest.tasks import HTTP, OWNER, changed, rows, run_tasks, shorten_rounds, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router_rest.answers.rules import AnswerRule
    from tests.rest.conftest import Certificates
    from tests.rest.scripted import Talk

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "rest-answers.md"
ODD = b'"offset":7}'
ROWS = 12
REFUSAL = re.compile(r"[34]\d\d\b|501")
"""Answers that say themselves that the call was not taken."""
LONGEST = 5.0
"""Seconds after which a row that waits is taken to do so for as long as the API does."""
TIMES = {"connect": 2.0, "read": 0.4, "total": 0.4, "most": 1 << 16, "in_flight": 1}
EACH_WAY = [name if name in QUICK_WAYS else pytest.param(name, marks=pytest.mark.slow) for name in WAYS]
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ANSWERS]


@dataclass(frozen=True)
class Played:
    """What became of the odd row: its status, whether it is in doubt, and how often it arrived."""

    outcome: str
    in_doubt: bool
    arrived: int
    others: bool
    """All other rows are delivered."""

    def __str__(self) -> str:
        return (
            f"{self.outcome}{', in doubt' if self.in_doubt else ''} | {self.arrived if self.outcome != 'waits' else ''}"
        )


def acts(name: str) -> Callable[[Talk], None]:
    """Answer calls with the odd row in this way, and all others well."""

    def act(talk: Talk) -> None:
        while ahead := talk.peek():
            odd = ODD in ahead
            if name not in EARLY or not odd:
                talk.request()
            if not odd:
                talk.answer()
            elif not ANSWERS[name](talk):
                return

    return act


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], Played]]:
    """Return what plays an answer, to calls of one row or of several."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_rounds(patch)

        @cache
        def played(name: str, size: int) -> Played:
            return _played(name, size, Lake.at(str(tmp_path_factory.mktemp("wild"))))

        yield played


def _played(name: str, size: int, lake: Lake) -> Played:
    with Scripted(acts(name)) as server:
        return _sent(lake, size, Way(server, server.url.removesuffix("/events")), rules_for(name))


def _sent(lake: Lake, size: int, way: Way, rules: tuple[AnswerRule, ...] = ()) -> Played:
    """Send twelve rows to a server; return what becomes of the odd one."""
    stopped, api = "", SimpleNamespace(url=way.url, reset=lambda: None)
    with run_tasks(cast("Any", api), lake) as running:
        job = running.job(cut=CallSize(rows=size), http=replace(HTTP, **TIMES, **way.client))
        if way.proxy is not None:
            behind = Credentials(None, proxy=SecretStr(way.proxy))
            running.leases.admit_sink(OWNER.name, "api", running.pace, credentials=behind.current_credentials)
        policy = replace(job.plan.policy, attempts=2, elapsed=1.0, rules=rules)
        batch = whole(running, rows(range(ROWS)), job=changed(job, policy=policy))
        ending = threading.Timer(LONGEST, batch.batch.stop.set)
        ending.start()
        try:
            batch.deliver_all()
        except ConnectionError:
            stopped = "waits"
        except StartError:
            stopped = "stops the sink"
        finally:
            ending.cancel()
        receipts = {row["offset"]: row for row in running.receipts()}
    arrived = sum(ODD in body for body in way.server.bodies)
    odd = receipts.get(7)
    others = sum(row["status"] == "delivered" for at, row in receipts.items() if at // size != 7 // size)
    of_others = ROWS - min(size, ROWS)
    return Played(stopped or str(odd and odd["status"]), bool(odd and odd["in_doubt"]), arrived, others == of_others)


def rules_for(name: str) -> tuple[AnswerRule, ...]:
    """Return the rules with which an answer is read: those of a preset, or none."""
    if name not in PRESETS:
        return ()
    return policy_of(Rest.model_validate({"url": "http://api.test", "preset": PRESETS[name][0]})).rules


def by_requests(name: str) -> str:
    """Return what `requests` makes of an answer."""
    with Scripted(acts(name)) as server:
        return _by_requests(Way(server, server.url.removesuffix("/events")))


def _by_requests(way: Way) -> str:
    with requests.Session() as session:
        session.trust_env, session.verify = False, way.client.get("verify", True)
        session.proxies = {"http": way.proxy, "https": way.proxy} if way.proxy else {}
        odd, url = b"{" + ODD, f"{way.url}/events"
        try:
            with session.post(url, data=odd, timeout=0.4, allow_redirects=False, stream=True) as found:
                for _ in found.iter_content(1 << 16):
                    if found.raw.tell() > 1 << 20:
                        return f"{found.status_code}, no end"
                return str(found.status_code)
        except (requests.RequestException, ValueError) as error:
            return type(error).__name__


@pytest.mark.parametrize("size", [1, 4], ids=["one row", "bulk"])
@pytest.mark.parametrize("name", EACH)
def test_no_answer_loses_a_row_or_sends_it_for_ever(play: Callable[[str, int], Played], name: str, size: int) -> None:
    """Without it a server of a kind that nobody has thought of loses rows, doubles them unseen, or stops the others."""
    played = play(name, size)

    assert played.outcome in {"delivered", "dead", "parked", "waits", "stops the sink"}
    if played.outcome in {"delivered", "parked"} and played.arrived > 1:
        assert played.in_doubt or REFUSAL.match(name)
    if played.outcome != "stops the sink":
        assert played.others
        # Three rounds of two attempts, and in the first one two more for each time that a call is halved. Where it ends
        # without an answer, a call over a connection that was used before goes out once more.
        halvings = size.bit_length() - 1
        assert played.outcome == "waits" or played.arrived <= 3 * 2 + 1 + 3 * halvings


@pytest.fixture(scope="module")
def go(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Callable[[str, int], tuple[Played, str]]]:
    """Return what takes a way to a server, with calls of one row or of several, and by `requests`."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_rounds(patch)

        @cache
        def gone(name: str, size: int) -> tuple[Played, str]:
            with WAYS[name](certificates) as way:
                sent = _sent(Lake.at(str(tmp_path_factory.mktemp("ways"))), size, way)
                return sent, _by_requests(way)

        yield gone


REFUSED_LOGIN = "a proxy that wants a login"
"""The way that a setting opens, and no wait."""


@pytest.mark.parametrize("size", [1, 4], ids=["one row", "bulk"])
@pytest.mark.parametrize("name", EACH_WAY)
def test_no_way_to_a_server_loses_a_row_or_sends_it_twice(
    go: Callable[[str, int], tuple[Played, str]], name: str, size: int
) -> None:
    """Without it rows are lost, or arrive twice unseen, where a certificate has expired or an address is dead."""
    played, _ = go(name, size)

    assert played.outcome in {"delivered", "parked", "waits"} or (name, played.arrived) == (REFUSED_LOGIN, 0)
    assert played.outcome != "delivered" or (played.arrived, played.in_doubt, played.others) == (1, False, True)
    assert played.arrived <= 1 or played.in_doubt or played.outcome == "waits"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_says_what_was_found(
    play: Callable[[str, int], Played], go: Callable[[str, int], tuple[Played, str]]
) -> None:
    answers = {name: f"{play(name, 1)} | {play(name, 4)} | {status_or(by_requests(name), name)}" for name in ANSWERS}
    ways = {name: f"{go(name, 1)[0]} | {go(name, 4)[0]} | {go(name, 1)[1]}" for name in WAYS}
    text = "\n".join((*HEAD, *lines_by_result(answers), *HEAD_OF_WAYS, *lines_by_result(ways), ""))
    if os.environ.get("REST_ANSWERS") == "write":
        PAGE.write_text(text)
    assert PAGE.read_text() == text


def status_or(by_requests: str, name: str) -> str:
    """Return what `requests` makes of an answer, or in words that it is the status which the answer begins with."""
    return "that status" if name.startswith(by_requests) else by_requests


def lines_by_result(results: dict[str, str]) -> list[str]:
    """Return a line of the table for each result, with the names of all that have it."""
    names: dict[str, list[str]] = {}
    for name, result in results.items():
        names.setdefault(result, []).append(name)
    return [f"| {'; '.join(names[result])} | {result} |" for result in names]


HEAD = (
    "# Answers that APIs give",
    "",
    "What `tests/api_answers` found with the versions this project is tested with: a batch of twelve rows, of which",
    "one always gets an answer of the line (semicolons part them), and all others a good one; in calls of one row, and",
    "of four. Two attempts a round, three rounds, calls of 0.4 s at most, one in flight. *Calls* are those with that",
    "row: each but the first is a duplicate where the API took it in spite of its answer, and then the row is marked",
    "`in_doubt`. *Waits*: for as long as the API does not take it; the rows of other calls are delivered. The last",
    "column is what `requests` makes of the answer: an error or a status (*that status*: the one that the answer",
    "begins with).",
    "",
    "| answer | one row: the row is | calls | four rows: the row is | calls | requests |",
    "|---|---|---|---|---|---|",
)
HEAD_OF_WAYS = (
    "",
    "## Ways to a server",
    "",
    "The same batch to servers that are reached, or not: all calls go the same way.",
    "",
    "| way | one row: the row is | calls | four rows: the row is | calls | requests |",
    "|---|---|---|---|---|---|",
)
