"""The parts of a coordinator, each on a clock of its own: circuit breaker, budget, calls in flight, adaptive rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_rest.rate_limit.backpressure import (
    BELOW,
    BUDGET_SPAN,
    FEWEST_FAILURES,
    PROBE_PAUSE,
    RAMP,
    RAMP_START,
    RATE_CALM,
    SILENCE,
    AdaptiveRate,
    CircuitBreaker,
    ConcurrencyLimit,
    RetryBudget,
)
from router_rest.rate_limit.coordinator import AHEAD, CREDIT, LONGEST_WAIT, Coordinator
from router_rest.rate_limit.protocol import Grant, Pace, TaskReport, Want
from router_rest.rate_limit.sliding_window import RateLimit, Run


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Tasks:
    """Tasks of a coordinator that want tokens and say what they saw; `told` is what each was told last."""

    def __init__(self, coordinator: Coordinator, *names: str) -> None:
        self.coordinator = coordinator
        self.received: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.told: dict[str, list[Grant]] = {}
        for name in names:
            self.enter(name)

    def enter(self, who: str) -> None:
        self.coordinator.enter(who)
        self.received[who] = self.numbers[who] = 0
        self.told[who] = []

    def say(self, who: str, *, wants: int = 0, out: int = 0, **seen: object) -> None:
        """Tell what one saw, and hand out what all are to be told."""
        asked = ((1, wants),) if wants else ()
        told = TaskReport(received=self.received[who], number=self.numbers[who], out=out, wants=asked, **seen)  # type: ignore[arg-type]
        self.coordinator.receive(who, told)
        self.deal()

    def deal(self) -> None:
        for who, grant in self.coordinator.deal().items():
            self.told[who].append(grant)
            self.received[who] += sum(run.calls for run in grant.runs)
            self.numbers[who] = grant.number

    def states(self, who: str) -> list[str]:
        return [grant.state for grant in self.told[who]]


def limited(calls: float, in_flight: int = 64) -> Pace:
    return Pace((RateLimit(calls, None, 1.0),), in_flight)


# ---- circuit


def opened(now: float = 100.0) -> CircuitBreaker:
    circuit = CircuitBreaker()
    assert circuit.heard(now, 0, FEWEST_FAILURES)
    return circuit


def test_failures_among_successes_leave_the_circuit_closed() -> None:
    """Half of the calls fail: retries do, and a pause for all would halve what is left."""
    circuit = CircuitBreaker()

    assert not any(circuit.heard(100 + number / 100, number % 2, (number + 1) % 2) for number in range(1000))
    assert circuit.since is None


def test_many_failures_in_a_moment_are_no_outage() -> None:
    circuit = CircuitBreaker()
    circuit.heard(100.0, 1, 0)

    assert not circuit.heard(100 + SILENCE / 2, 0, 100)
    assert circuit.heard(100 + SILENCE, 0, 1)


def test_one_success_closes_the_circuit_and_the_pace_goes_up_a_ramp() -> None:
    circuit = opened()
    circuit.heard(110.0, 1, 0)

    assert circuit.since is None
    assert circuit.pace(110.0) == pytest.approx(RAMP_START)
    assert circuit.pace(110 + RAMP / 2) == pytest.approx((1 + RAMP_START) / 2)
    assert circuit.pace(110 + RAMP) == 1


def test_probes_are_apart() -> None:
    circuit = opened(100.0)
    assert circuit.next_probe() == 100 + PROBE_PAUSE
    circuit.probe(103.0)
    assert circuit.next_probe() == 103 + PROBE_PAUSE


# ---- budget


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 3.0, 20.0]), st.integers(0, 500), st.integers(0, 500)), max_size=60)
)
def test_retries_stay_a_share_of_the_calls(steps: list[tuple[float, int, int]]) -> None:
    """Retries of retries are what turns a slow API into one that is down."""
    budget, now, calls, given_ = RetryBudget(0.2, 10), 100.0, 0, 0
    for wait, more, wanted in steps:
        now += wait
        budget.earned(now, more)
        calls += more
        given_ += budget.take(now, wanted)

    assert given_ <= 0.2 * calls + 10 * (now - 100 + BUDGET_SPAN)


def test_a_task_leaves_retries_for_the_others() -> None:
    budget = RetryBudget(0.2, 10)

    assert [budget.take(100.0, 1000, among=2), budget.take(100.0, 1000, among=1)] == [50, 50]
    assert budget.take(100.0, 1) == 0
    assert budget.take(100.0 + BUDGET_SPAN, 1) == 1


# ---- permits


STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.booleans()), max_size=80)


@given(st.integers(1, 40), STEPS)
def test_tasks_never_have_more_in_flight_than_allowed(total: int, steps: list[tuple[int, int, bool]]) -> None:
    """Whatever is on its way: a task uses what it has read, and reads late."""
    permits, now = ConcurrencyLimit(total), 100.0
    tasks = [str(number) for number in range(5)]
    post: dict[str, list[tuple[int, int]]] = {who: [(0, 0)] for who in tasks}
    out = dict.fromkeys(tasks, 0)
    for who in tasks:
        permits.enter(who)
    for number, demand, reads in steps:
        who, now = tasks[number], now + 0.3
        if reads:
            post[who] = post[who][-1:]
        message, cap = post[who][0]
        # what is above a lowered cap is still under way, and calls end one by one
        out[who] = min(demand, cap) if demand >= out[who] or reads else out[who]
        permits.heard(now, who, number=message, out=out[who], demand=demand)
        for other, told in permits.deal(1.0).items():
            post[other].append(told)
        held = {one: max(out[one], post[one][0][1]) for one in tasks}
        assert sum(held.values()) <= total


def test_a_task_with_most_of_the_rows_gets_what_others_leave() -> None:
    permits = ConcurrencyLimit(40)
    for who in ("big", "small"):
        permits.enter(who)
    permits.heard(100.0, "small", number=0, out=0, demand=4)
    permits.heard(100.0, "big", number=0, out=0, demand=100)

    assert {who: cap for who, (_, cap) in permits.deal(1.0).items()} == {"big": 36, "small": 4}

    permits.leave("small")
    assert {who: cap for who, (_, cap) in permits.deal(1.0).items()} == {"big": 40}


def test_timeouts_make_room_and_give_it_back_soon() -> None:
    """A constant timeout looks like a steady latency: more in flight would make it worse."""
    permits, now = ConcurrencyLimit(100), 100.0
    for _ in range(20):
        now += 0.5
        permits.timeouts(now, 3, 0)
    assert 0.05 < permits.part < 0.2

    for _ in range(10):
        now += 0.5
        permits.timeouts(now, 0, 3)
    assert permits.part == 1


# ---- throttle


def test_the_limit_is_what_was_let_through() -> None:
    throttle, now = AdaptiveRate(1000.0), 100.0
    for _ in range(30):
        now += 0.1
        throttle.heard(now, sent=100, ok=40, throttled=0)
    assert throttle.heard(now, sent=0, ok=0, throttled=60)

    # not in one step: a moment in which little was asked for would say too little
    rate = throttle.current(now)
    assert rate is not None
    assert rate == pytest.approx(500, rel=0.02)
    for _ in range(15):
        now += 0.1
        throttle.heard(now, sent=50, ok=40, throttled=1)
    assert throttle.current(now) == pytest.approx(400 * BELOW, rel=0.03)


def test_more_is_tried_again_and_later_each_time() -> None:
    throttle, now, waits = AdaptiveRate(None), 100.0, []
    for _ in range(4):
        for _ in range(11):
            now += 0.1
            throttle.heard(now, sent=40, ok=40, throttled=0)
        assert throttle.heard(now, sent=0, ok=0, throttled=1)
        found, cut = throttle.current(now), now
        while throttle.current(now) == found:
            now += 0.1
        waits.append(round(now - cut))

    assert waits[0] == RATE_CALM
    assert waits == sorted(waits)
    assert waits[-1] > 2 * waits[0]


def test_a_limit_that_is_gone_is_forgotten_within_seconds() -> None:
    throttle, now = AdaptiveRate(1000.0), 100.0
    throttle.heard(now, sent=100, ok=90, throttled=10)
    assert throttle.current(now) is not None

    assert throttle.current(now + 15) is None


@pytest.mark.parametrize(("stated", "cut"), [(1000.0, False), (None, True)], ids=["stated", "not stated"])
def test_a_call_in_a_thousand_that_is_refused_says_nothing_against_a_stated_limit(
    stated: float | None, cut: bool
) -> None:
    throttle = AdaptiveRate(stated)
    for tick in range(10):
        throttle.heard(100.0 + tick / 10, sent=98, ok=97, throttled=0)

    assert throttle.heard(101.0, sent=98, ok=97, throttled=1) is cut
    assert (throttle.current(101.0) is not None) is cut


def test_a_few_calls_that_are_refused_in_a_moment_say_nothing_against_a_stated_limit() -> None:
    """Three at once are no ten per second: a pause of all for them costs a thousand calls."""
    throttle = AdaptiveRate(1000.0)
    for tick in range(10):
        throttle.heard(100.0 + tick / 10, sent=98, ok=97, throttled=0)

    assert not throttle.heard(101.0, sent=98, ok=90, throttled=8)
    assert throttle.tolerated(101.0)
    assert throttle.heard(101.1, sent=98, ok=90, throttled=8)


def test_what_is_refused_after_a_rest_cuts_a_stated_limit_by_little() -> None:
    """In its first moments a task has sent few calls: as a rate that would be nearly nothing."""
    throttle = AdaptiveRate(1000.0)
    throttle.heard(100.0, sent=980, ok=980, throttled=0)
    assert throttle.heard(200.0, sent=20, ok=10, throttled=20)

    assert throttle.current(200.0) == pytest.approx(1000 * BELOW)


def test_refusals_without_a_success_say_nothing_about_a_rate() -> None:
    throttle = AdaptiveRate(1000.0)

    assert not throttle.heard(100.0, sent=500, ok=0, throttled=500)
    assert throttle.current(100.0) is None


# ---- all together


def test_tokens_are_dealt_ahead_but_not_far(clock: Clock) -> None:
    """What is dealt to a task that dies is lost to the others."""
    tasks = Tasks(Coordinator(limited(1000), clock), "a")
    tasks.say("a", wants=5000)

    runs = [run for grant in tasks.told["a"] for run in grant.runs]
    assert 60 <= sum(run.calls for run in runs) <= 1000 * AHEAD
    assert max(run.first + run.step * (run.calls - 1) for run in runs) <= clock.now + AHEAD


def test_what_is_on_its_way_is_not_dealt_twice(clock: Clock) -> None:
    tasks = Tasks(Coordinator(Pace((), 64), clock), "a")
    tasks.say("a", wants=10)
    tasks.received["a"] = 0  # the next message was under way before the tokens arrived
    tasks.say("a", wants=12)

    assert tasks.received["a"] == 2


def test_tasks_take_turns(clock: Clock) -> None:
    """A task with seventy percent of the rows must not keep the others from theirs."""
    tasks = Tasks(Coordinator(limited(100), clock), "big", "b", "c", "d")
    for _ in range(100):
        for who, wants in (("big", 1000), ("b", 50), ("c", 50), ("d", 50)):
            tasks.say(who, wants=wants)
        clock.now += 0.05

    got = tasks.received
    assert sum(got.values()) >= 0.93 * 100 * 5
    assert max(got.values()) <= 1.3 * min(got.values())


@pytest.mark.parametrize("partly", [True, False])
def test_an_api_that_takes_a_part_of_each_call_is_not_away(clock: Clock, partly: bool) -> None:
    """A bulk API whose queue is full refuses a few documents of each call: the others are delivered."""
    coordinator = Coordinator(Pace((), 64), clock)
    tasks = Tasks(coordinator, "a")
    for _ in range(20):
        tasks.say("a", throttled=1, partly=int(partly))
        clock.now += 0.1

    assert coordinator.outlook().out is not partly


def test_jobs_wait_until_a_key_may_be_called_again(clock: Clock) -> None:
    """Without it a batch with rows of one account is read anew every three seconds, for as long as its hour lasts."""
    coordinator = Coordinator(Pace((RateLimit(1, None, 20.0),), 64, keyed=True), clock)
    tasks = Tasks(coordinator, "a")
    for _ in range(3):
        coordinator.receive("a", TaskReport(received=tasks.received["a"], wants=(Want(1, 3, "hot"),)))
        tasks.deal()
        clock.now += 1.5

    assert (tasks.received["a"], tasks.states("a")[-1]) == (1, "leave")
    assert 14 <= coordinator.outlook().again <= 17.5
    tasks.enter("b")  # another batch has rows of others
    coordinator.receive("b", TaskReport(wants=(Want(1, 1, "cold"),)))
    tasks.deal()
    assert tasks.received["b"] == 1


def test_tasks_that_send_late_leave_more_of_the_limit(clock: Clock) -> None:
    """The driver knows how late calls go out; the API sees those of a moment in which all stood still at once."""

    def got(late: float) -> int:
        tasks = Tasks(Coordinator(limited(200), clock), "a", "b")
        for turn in range(200):
            if turn == 100:
                before = sum(tasks.received.values())
            for who in ("a", "b"):
                tasks.say(who, wants=1000, late=late)
            clock.now += 0.05
        return sum(tasks.received.values()) - before

    assert got(0.004) >= 0.975 * 1000
    assert 0.94 * 1000 <= got(0.05) <= 0.955 * 1000


@pytest.mark.parametrize(("said", "kept"), [(2.0, 2.0), (1e9, 300.0), (0.0, 0.0)])
def test_retry_after_stops_all_but_not_for_ever(clock: Clock, said: float, kept: float) -> None:
    """Never earlier than was asked for; and an absurd number must not stop a table for years."""
    coordinator = Coordinator(limited(100), clock, chance=lambda: 0.5)
    tasks = Tasks(coordinator, "a", "b")
    tasks.say("a", wants=1)
    tasks.say("a", throttled=1, pause=said)
    before = dict(tasks.received)

    tasks.say("b", wants=5)
    if kept:
        assert tasks.received == before
        assert "hold" in tasks.states("b")
        assert kept <= coordinator.outlook().again <= kept * 1.1
        clock.now += kept * 1.1
        tasks.say("b", wants=5)
    assert tasks.received["b"] > 0


def test_a_stray_call_that_is_refused_stops_nobody(clock: Clock) -> None:
    """One in a thousand says that somebody was a little early: a pause of all for it costs a thousand calls."""
    coordinator = Coordinator(limited(1000), clock)
    tasks = Tasks(coordinator, "a", "b")
    tasks.say("a", sent=500, ok=499, throttled=1, pause=1.0)
    tasks.say("b", wants=5)
    assert tasks.received["b"] > 0

    tasks.say("a", sent=20, ok=0, throttled=20, pause=1.0)
    assert coordinator.outlook().again >= 1.0


@pytest.mark.parametrize(
    "message",
    [{"pause": float("nan")}, {"pause": float("inf")}, {"pause": -5}, {"left": [float("nan"), 1]}, {"left": [-1, 9]}],
    ids=str,
)
def test_garbage_of_headers_changes_nothing(message: dict[str, object]) -> None:
    assert TaskReport.read(message) == TaskReport()


def test_what_is_left_is_not_overdrawn(clock: Clock) -> None:
    """RateLimit headers say when the API will refuse: calls that are under way count."""
    tasks = Tasks(Coordinator(limited(1000), clock), "a")
    tasks.say("a", wants=10)
    tasks.say("a", wants=50, sent=10, ok=1, left=(20.0, 2.5))
    assert tasks.received["a"] == 10 + 20 - 9

    clock.now += 1
    tasks.say("a", wants=50)
    assert tasks.received["a"] == 21
    clock.now += 1.5
    tasks.say("a", wants=50)
    assert tasks.received["a"] > 21


def test_a_bucket_that_is_refilled_all_the_time_stops_nobody(clock: Clock) -> None:
    tasks = Tasks(Coordinator(limited(1000), clock), "a")
    tasks.say("a", wants=50, sent=1, ok=1, left=(0.0, 1.0))

    assert tasks.received["a"] == 50


def fail(tasks: Tasks, clock: Clock) -> None:
    for who in tasks.told:
        tasks.say(who, wants=20)
    clock.now += 1
    for who in tasks.told:
        tasks.say(who, sent=20, failed=20)


def test_an_outage_is_probed_by_one_call_a_second(clock: Clock) -> None:
    tasks = Tasks(Coordinator(limited(1000), clock), "a", "b")
    fail(tasks, clock)
    opened_at, before = clock.now, sum(tasks.received.values())
    assert {"hold"} <= set(tasks.states("a")) & set(tasks.states("b"))

    for number in range(1, 70):
        clock.now = opened_at + number / 16 * PROBE_PAUSE
        if number % 16 == 1:
            tasks.enter(f"later {number}")
        for who in tasks.told:
            if "leave" not in tasks.states(who):
                tasks.say(who, wants=10)
        assert sum(tasks.received.values()) - before == number // 16


def test_tasks_leave_an_api_that_is_out_and_new_ones_probe_it(clock: Clock) -> None:
    """Waiting tasks hold cores that the tables of other routes need."""
    coordinator = Coordinator(limited(1000), clock)
    tasks = Tasks(coordinator, "a", "b")
    fail(tasks, clock)
    clock.now += LONGEST_WAIT
    tasks.deal()
    assert [tasks.states(who)[-1] for who in ("a", "b")] == ["leave", "leave"]
    assert coordinator.outlook().out
    for who in ("a", "b"):
        coordinator.leave(who)

    later = Tasks(coordinator, "c")
    later.say("c", wants=5)
    assert later.states("c")[-1] == "probe"
    assert later.received["c"] == 1
    later.say("c", sent=1, ok=1)
    assert not coordinator.outlook().out


def test_a_stop_sends_tasks_away(clock: Clock) -> None:
    coordinator = Coordinator(limited(1000), clock)
    tasks = Tasks(coordinator, "a", "b")
    coordinator.stop("a")
    tasks.deal()

    assert "leave" in tasks.states("a")
    assert "leave" not in tasks.states("b")


def test_a_window_that_is_full_for_long_sends_tasks_away(clock: Clock) -> None:
    """5000 per hour are gone after minutes: nobody holds cores for the rest of the hour."""
    coordinator = Coordinator(Pace((RateLimit(10, None, 3600.0),), 64), clock)
    tasks = Tasks(coordinator, "a")
    tasks.say("a", wants=20)
    clock.now += LONGEST_WAIT
    tasks.deal()

    assert tasks.received["a"] == 10
    assert tasks.told["a"][-1].state == "leave"
    assert 3500 < tasks.told["a"][-1].again < 3700


def test_a_slow_limit_sends_nobody_away(clock: Clock) -> None:
    """One call in two seconds is slow, but it goes on."""
    coordinator = Coordinator(limited(0.5), clock)
    tasks = Tasks(coordinator, "a")
    tasks.say("a", wants=20)
    for _ in range(200):
        clock.now += 0.1
        tasks.deal()

    assert "leave" not in tasks.states("a")
    assert 9 <= tasks.received["a"] <= 11


def test_retries_are_shared_by_all_tasks(clock: Clock) -> None:
    names = [str(number) for number in range(20)]
    tasks = Tasks(Coordinator(Pace((), 64), clock), *names)
    for who in names:
        tasks.say(who, denied=1)

    given_ = [sum(grant.retries for grant in tasks.told[who]) for who in names]
    assert sum(given_) <= 100
    assert min(given_) >= 1
    assert max(given_) <= CREDIT


def test_a_task_holds_few_retries_at_a_time(clock: Clock) -> None:
    """What a task holds and does not use is missing to all others."""
    tasks = Tasks(Coordinator(Pace((), 64), clock), "a", "b")
    for _ in range(10):
        tasks.say("a", denied=1)
    tasks.say("b", denied=1)

    assert [sum(grant.retries for grant in tasks.told[who]) for who in ("a", "b")] == [16, 16]


def test_messages_survive_json() -> None:
    told = TaskReport(
        sent=3, ok=2, pause=1.5, left=(3.0, 4.0), received=7, out=1, wants=(Want(1, 5), Want(3, 1)), seconds=0.5
    )
    grant = Grant("probe", (Run(1.0, 0.5, 3, 1, 0.1),), 2, 3, 4, 0.5)

    assert TaskReport.read(told.message()) == told
    assert Grant.read(grant.message()) == grant


@pytest.mark.parametrize("rate", [None, RateLimit(100, None, 1.0)], ids=["no limit", "100 a second"])
def test_one_call_that_is_always_told_to_wait_stops_no_other(clock: Clock, rate: RateLimit | None) -> None:
    """Without it one row of 4000 that always gets 429 and Retry-After stops every sink of its host."""
    coordinator = Coordinator(Pace((rate,) if rate else (), 8), clock, lambda: 0.5)
    tasks = Tasks(coordinator, "a", "b")
    for _ in range(20):
        tasks.say("a", sent=10, ok=9, throttled=1, pause=15.0, busy=(7,), streak=(7,), wants=5)
        clock.now += 0.5
        tasks.say("b", sent=10, ok=10, wants=5)
        assert coordinator.outlook().again < 1.0
        clock.now += 0.5
    assert coordinator._adaptive_rate.rate is None


def test_two_calls_in_succession_that_are_told_to_wait_stop_all(clock: Clock) -> None:
    """Without it a limit that the API announces is run into by call after call."""
    coordinator = Coordinator(Pace((), 8), clock, lambda: 0.5)
    tasks = Tasks(coordinator, "a", "b")

    tasks.say("a", sent=1, throttled=1, pause=15.0, busy=(7,), streak=(7,))
    assert coordinator.outlook().again < 1.0
    tasks.say("b", sent=1, ok=1)
    tasks.say("b", sent=1, throttled=1, pause=15.0, busy=(8,), streak=(8,))
    assert coordinator.outlook().again < 1.0, "one was taken in between"
    tasks.say("a", sent=1, throttled=1, pause=15.0, busy=(7,), streak=(7,))

    assert coordinator.outlook().again >= 15.0


@pytest.mark.parametrize("stated", [{"in_flight": 0}, {"share": 1.0}, {"longest_pause": 0.0}], ids=str)
def test_a_pace_makes_sense(stated: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a pace has"):
        Pace(**stated)  # type: ignore[arg-type]
