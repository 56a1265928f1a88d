"""A router killed while it posts a batch goes on with the calls it had begun: none is lost, and doubt is told."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from router_demo.api import Api
from router_rest.batch import driver_hosts
from router_rest.limits.lease_server import lease_server
from tests.chaos import lakes
from tests.chaos.conftest import Topic, configuration
from tests.chaos.posting_driver import POINTS
from tests.chaos.processes import HERE
from tests.rest.killing import workers
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS = 600
MANY = 6000
KILLS = 20
LIMIT = 40
"""Calls per second: so few that a batch takes seconds, whatever the machine."""
IN_FLIGHT = 8
TASKS = 2
CUT, ANOTHER_CUT = 7, 50
BEGUN = 20
"""Calls that have arrived when a kill comes."""
KEY = "Idempotency-Key"
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def topic(new_topic: Callable[[], Topic]) -> Topic:
    topic = new_topic()
    topic.send([json.dumps({"game": "hearts", "gamer_id": f"g{n}", "amount": n}).encode() for n in range(EVENTS)])
    return topic


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """Run one API for all tests of the module."""
    with Api() as running:
        yield running


@dataclass
class Posting:
    """A topic that is posted, and what can be seen of it in the API and in the lake."""

    topic: Topic
    api: Api
    folder: Path
    events: int = EVENTS

    def config(self, rows_per_call: int = CUT) -> Path:
        """Write the configuration: a table, and everything once more to the API."""
        rest: dict[str, Any] = {"url": f"{self.api.url}/all", "rows_per_call": rows_per_call, "tasks": TASKS}
        rest |= {"calls_per_second": LIMIT, "max_in_flight": IN_FLIGHT, "body": "array"}
        route = {"name": "all", "match": {"sql": "event.game IS NOT NULL"}}
        sinks = [{"delta": "silver.all"}, {"rest": rest}]
        return configuration(self.folder, self.topic, routes=[{**route, "sinks": sinks}])

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def receipts(self) -> list[dict[str, Any]]:
        return lakes.read(self.lake, "ops.receipts")

    @property
    def records(self) -> list[dict[str, Any]]:
        return lakes.read(self.lake, "bronze.events")

    @property
    def twice(self) -> set[str]:
        """Return the rows that arrived more than once."""
        return {row for row, times in self.api.rows("gamer_id").items() if times > 1}

    def booked(self) -> Counter[str]:
        """Return what the ledger says of the sink, summed."""
        found: Counter[str] = Counter()
        for row in lakes.read(self.lake, "ops.ledger"):
            if row["sink"] == "rest":
                found.update({name: row[name] or 0 for name in (*BALANCE, "landed", "in_doubt")})
        return found

    def keys(self) -> dict[str, set[str]]:
        """Return the keys that each row was sent under."""
        found: dict[str, set[str]] = {}
        for call in self.api.requests(1 << 20):
            for row in json.loads(call["body"]):
                found.setdefault(row["gamer_id"], set()).add(call["key"])
        return found

    def settled(self) -> int:
        """Assert that all is where it should be, and what cannot be known is told; return the rows in doubt."""
        arrived, receipts, booked = self.api.rows("gamer_id"), self.receipts, self.booked()
        everything = lakes.places(self.lake, "bronze.events")
        assert set(arrived) == {f"g{n}" for n in range(self.events)}
        assert Counter((row["partition"], row["offset"]) for row in receipts) == everything
        assert everything.total() == lakes.rows(self.lake, "silver.all").total() == self.events
        assert {row["status"] for row in receipts} == {"delivered"}
        at = {(row["partition"], row["offset"]): json.loads(row["value"])["gamer_id"] for row in self.records}
        doubtful = {at[row["partition"], row["offset"]] for row in receipts if row["in_doubt"]}
        in_doubt = len(doubtful)
        assert self.twice <= doubtful
        assert booked["landed"] == sum(booked[name] for name in BALANCE) == self.events
        assert (booked["applied"], booked["backlog"], booked["in_doubt"]) == (self.events, 0, in_doubt)
        assert max(Counter(row["call_id"] for row in receipts).values()) == CUT, "it was cut anew"
        assert {len(keys) for keys in self.keys().values()} == {1}
        assert self.api.stats(window=max(0.1, 1 - self.api.stats().lag)).highest <= LIMIT
        return in_doubt


DRIVER = (str(HERE / "posting_driver.py"),)
BALANCE = ("applied", "dead", "parked", "backlog")


@pytest.fixture
def posting(topic: Topic, api: Api, tmp_path: Path) -> Posting:
    """Return a posting to an API that remembers nothing yet."""
    api.reset()
    return Posting(topic, api, tmp_path)


def _killed_midway(posting: Posting, router_run: Callable[..., Any], *, whole: bool) -> None:
    """Run until some more calls have arrived, and kill the router: the driver, or its JVM and workers as well."""
    before = posting.api.stats().arrived
    router = router_run(posting.config(), "--once")
    wait_until(lambda: router.process.poll() is not None or posting.api.stats().arrived >= before + BEGUN, "calls")
    assert router.process.poll() is None, router.said
    if whole:
        router.clear()
    else:
        router.send(signal.SIGKILL)
    assert router.ended() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("honoured", "kills", "whole"),
    [
        pytest.param(False, 1, False, id="driver, keys are ignored", marks=slow),
        pytest.param(True, 1, False, id="driver, keys are honoured", marks=slow),
        pytest.param(False, 3, True, id="everything three times, keys are ignored", marks=slow),
        pytest.param(True, 1, True, id="everything, keys are honoured", marks=slow),
    ],
)
def test_a_router_that_is_killed_while_it_posts_loses_nothing(
    posting: Posting, router_run: Callable[..., Any], drain: Callable[..., Any], honoured: bool, kills: int, whole: bool
) -> None:
    """Without it a crash loses the rest of a batch, sends all of it again, or under keys that nobody knows."""
    posting.api.play(latency=0.1, idempotency=KEY if honoured else "")
    for _ in range(kills):
        _killed_midway(posting, router_run, whole=whole)

    drain(posting.config(ANOTHER_CUT))  # at once, as a supervisor would: the killed one's workers may still be there

    posting.settled()
    if honoured:
        assert set(posting.api.rows("gamer_id").values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_router_that_is_killed_between_two_steps_sends_nothing_twice(
    posting: Posting, start: Callable[..., Any], drain: Callable[..., Any], point: str
) -> None:
    """Without it a batch whose last step is missing is posted from its start."""
    killed = start(posting.config(), "--kill", point, command=(str(HERE / "posting_driver.py"),))
    assert killed.ended() == -signal.SIGKILL, killed.said
    sent = posting.api.stats().arrived
    assert (sent > 0) == (point != "plan"), "the kill came at another point"

    drain(posting.config(ANOTHER_CUT))

    assert posting.settled() == 0
    assert posting.api.rows("gamer_id").total() == EVENTS
    assert point == "plan" or posting.api.stats().arrived == sent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_of_everything_at_random_lose_nothing(
    new_topic: Callable[[], Topic], api: Api, start: Callable[..., Any], tmp_path: Path
) -> None:
    """Without it two faults that come together do what none of them does alone. POSTING_KILLS is the seed."""
    topic, dice = new_topic(), random.Random(os.environ.get("POSTING_KILLS", "18"))
    topic.send([json.dumps({"game": "hearts", "gamer_id": f"g{n}", "amount": n}).encode() for n in range(MANY)])
    api.reset()
    posting, killed = Posting(topic, api, tmp_path, MANY), Counter[str]()
    posting.api.play(latency=0.1)
    router = None
    while killed.total() < KILLS:
        if router is None or router.process.poll() is not None:
            router = start(posting.config(), command=DRIVER)
        wanted = posting.api.stats().arrived + dice.randrange(5, 25)
        wait_until(lambda: router.process.poll() is not None or posting.api.stats().arrived >= wanted, "calls")  # noqa: B023
        if router.process.poll() is None:
            what = dice.choice(("task", "driver", "leases"))
            killed[what] += _killed(posting, router, what)
    ends = [router.process.poll()]
    while ends[-1] != 0 and len(ends) < KILLS:
        router = router if router.process.poll() is None else start(posting.config(), command=DRIVER)
        ends.append(router.ended())

    in_doubt, twice = posting.settled(), len(posting.twice)
    # a driver takes both tasks along; who loses the leases is answered, and knows
    under_way = (killed["driver"] + killed["task"] / TASKS) * IN_FLIGHT * CUT
    assert twice <= in_doubt <= twice + under_way, killed
    print(f"{dict(killed)}: {twice} rows twice, {in_doubt} in doubt")  # noqa: T201 - what a kill costs


def _killed(posting: Posting, router: Any, what: str) -> int:
    """Kill a task, or the driver, or end the leases; return how many were."""
    if what == "task":
        found = [one for one in workers(posting.api.port) if one.ppid() != router.process.pid]
        if found:
            found[0].send_signal(signal.SIGKILL)
        return len(found[:1])
    router.send(signal.SIGKILL if what == "driver" else signal.SIGUSR1)
    if what == "driver":
        router.clear()
    return 1


def test_a_run_goes_on_by_itself_when_its_leases_have_ended(
    posting: Posting, spark: Any, drain: Callable[..., Any]
) -> None:
    """Without it a thread that died keeps an outbox from being sent until somebody starts the router again."""
    posting.api.play(latency=0.1)
    run = threading.Thread(target=drain, args=[posting.config()])
    run.start()
    wait_until(lambda: not run.is_alive() or posting.api.stats().arrived >= BEGUN, "calls")
    assert posting.api.stats().arrived < EVENTS // CUT, "it was over before"

    lease_server(*driver_hosts(spark)).stop()
    run.join()

    assert posting.settled() == 0
    assert posting.api.rows("gamer_id").total() == EVENTS
