"""The parts of a coordinator, each on a clock of its own: circuit breaker, budget, calls in flight, adaptive rate."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_rest.limits.backpressure import (
    CUT_FACTOR,
    FIRST_TRY_WINDOWS,
    MIN_FAILURES_TO_OPEN,
    PROBE_PAUSE,
    RAMP_SECONDS,
    AdaptiveRate,
    CircuitBreaker,
    ConcurrencyLimit,
    RetryBudget,
    SharedPause,
    WindowPace,
)
from router_rest.limits.coordinator import AHEAD_SECONDS, MAX_RETRY_CREDIT, MAX_TOKEN_WAIT_SECONDS, Coordinator
from router_rest.limits.messages import Grant, Pace, TaskReport, Want
from router_rest.limits.sliding_window import USED_LIMIT_SHARE, RateLimit, Run
from tests.rest.tasks import pace_per_second
from tests.rest.virtual import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class CoordinatedTasks:
    """Tasks of a coordinator that want tokens and say what they saw; `told` is what each was told last."""

    def __init__(self, coordinator: Coordinator, *names: str) -> None:
        self.coordinator = coordinator
        self.received: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.told: dict[str, list[Grant]] = {}
        for name in names:
            self.enter(name)

    def enter(self, who: str) -> None:
        self.coordinator.add_task(who)
        self.received[who] = self.numbers[who] = 0
        self.told[who] = []

    def say(self, who: str, *, wants: int = 0, out: int = 0, **seen: object) -> None:
        """Tell what one saw, and hand out what all are to be told."""
        asked = ((1, wants),) if wants else ()
        told = TaskReport(received=self.received[who], number=self.numbers[who], in_flight=out, wants=asked, **seen)  # type: ignore[arg-type]
        self.coordinator.on_report(who, told)
        self.deal()

    def deal(self) -> None:
        for who, grant in self.coordinator.allocate_grants().items():
            self.told[who].append(grant)
            self.received[who] += sum(run.calls for run in grant.runs)
            self.numbers[who] = grant.number

    def states(self, who: str) -> list[str]:
        return [grant.state for grant in self.told[who]]


# ---- circuit


def opened(now: float = 100.0) -> CircuitBreaker:
    circuit = CircuitBreaker()
    assert circuit.on_result(now, 0, MIN_FAILURES_TO_OPEN)
    return circuit


def test_failures_among_successes_leave_the_circuit_closed() -> None:
    """Half of the calls fail: retries do, and a pause for all would halve what is left."""
    circuit = CircuitBreaker()

    assert not any(circuit.on_result(100 + number / 100, number % 2, (number + 1) % 2) for number in range(1000))
    assert circuit.since is None


def test_many_failures_in_a_moment_are_no_outage() -> None:
    circuit = CircuitBreaker()
    circuit.on_result(100.0, 1, 0)

    assert not circuit.on_result(100 + 1.0 / 2, 0, 100)
    assert circuit.on_result(100 + 1.0, 0, 1)


def test_one_success_closes_the_circuit_and_the_pace_goes_up_a_ramp() -> None:
    circuit = opened()
    circuit.on_result(110.0, 1, 0)

    assert circuit.since is None
    assert circuit.pace_factor(110.0) == pytest.approx(0.1)
    assert circuit.pace_factor(110 + RAMP_SECONDS / 2) == pytest.approx((1 + 0.1) / 2)
    assert circuit.pace_factor(110 + RAMP_SECONDS) == 1


def test_probes_are_apart() -> None:
    circuit = opened(100.0)
    assert circuit.next_probe() == 100 + PROBE_PAUSE
    circuit.note_probe(103.0)
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
        budget.count_calls(now, more)
        calls += more
        given_ += budget.allocate_retries(now, wanted)

    assert given_ <= 0.2 * calls + 10 * (now - 100 + 10)


def test_a_task_leaves_retries_for_the_others() -> None:
    budget = RetryBudget(0.2, 10)

    assert [budget.allocate_retries(100.0, 1000, among=2), budget.allocate_retries(100.0, 1000, among=1)] == [50, 50]
    assert budget.allocate_retries(100.0, 1) == 0
    assert budget.allocate_retries(100.0 + 10, 1) == 1


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
        permits.add_task(who)
    for number, demand, reads in steps:
        who, now = tasks[number], now + 0.3
        if reads:
            post[who] = post[who][-1:]
        message, cap = post[who][0]
        # what is above a lowered cap is still under way, and calls end one by one
        out[who] = min(demand, cap) if demand >= out[who] or reads else out[who]
        permits.note_demand(now, who, number=message, in_flight=out[who], demand=demand)
        for other, told in permits.allocate_caps(1.0).items():
            post[other].append(told)
        held = {one: max(out[one], post[one][0][1]) for one in tasks}
        assert sum(held.values()) <= total


def test_a_task_with_most_of_the_rows_gets_what_others_leave() -> None:
    permits = ConcurrencyLimit(40)
    for who in ("big", "small"):
        permits.add_task(who)
    permits.note_demand(100.0, "small", number=0, in_flight=0, demand=4)
    permits.note_demand(100.0, "big", number=0, in_flight=0, demand=100)

    assert {who: cap for who, (_, cap) in permits.allocate_caps(1.0).items()} == {"big": 36, "small": 4}

    permits.remove_task("small")
    assert {who: cap for who, (_, cap) in permits.allocate_caps(1.0).items()} == {"big": 40}


def test_timeouts_make_room_and_give_it_back_soon() -> None:
    """A constant timeout looks like a steady latency: more in flight would make it worse."""
    permits, now = ConcurrencyLimit(100), 100.0
    for _ in range(20):
        now += 0.5
        permits.adapt_limit(now, 3, 0)
    assert 0.05 < permits.part < 0.2

    for _ in range(10):
        now += 0.5
        permits.adapt_limit(now, 0, 3)
    assert permits.part == 1


# ---- pace


def test_all_pause_when_most_answers_ask_for_it() -> None:
    pause = SharedPause()
    assert not pause.on_result(100.0, answers=4, asking=4), "these may be one call's"
    assert pause.on_result(100.1, answers=1, asking=1)
    assert not pause.on_result(100.2, answers=1, asking=1), "those before the pause do not count"

    assert not pause.on_result(200.0, answers=100, asking=50)
    assert pause.on_result(200.1, answers=1, asking=1)


def test_without_a_stated_limit_the_rate_is_cut_and_climbs() -> None:
    rate = AdaptiveRate()
    assert rate.current_limit(100.0) is None
    for tick in range(10):
        rate.on_result(100 + tick / 10, sent=10, refused=0)
    rate.on_result(101.0, sent=0, refused=10)

    assert rate.current_limit(101.0) == pytest.approx(100 * CUT_FACTOR)
    plateau = (100 * (1 - CUT_FACTOR) / 0.4) ** (1 / 3)
    assert rate.current_limit(101 + plateau) == pytest.approx(100)
    assert rate.current_limit(101 + 2 * plateau) == pytest.approx(100 * (2 - CUT_FACTOR))
    assert rate.current_limit(150.0) is None


@pytest.mark.parametrize("refused", [1, 5])
def test_without_a_stated_limit_a_few_refusals_are_no_limit(refused: int) -> None:
    rate = AdaptiveRate()
    rate.on_result(100.0, sent=100, refused=refused)

    assert rate.current_limit(100.0) is None


def use_up(pace: WindowPace, begin: float, calls: int, *, until: float) -> None:
    """Let an API take calls in five seconds, and refuse the others until a time."""
    for second in range(5):
        pace.on_result(begin + second, ok=calls // 5, refused=0)
    pace.on_result(begin + 5, ok=0, refused=10)
    pace.on_result(until - 1, ok=0, refused=1)


def after_one_window() -> WindowPace:
    """Return a pace after a window that was used up: the next one has begun at 120, with five calls."""
    pace = WindowPace()
    use_up(pace, 100, 700, until=120)
    pace.on_result(120, ok=5, refused=0)
    return pace


def test_two_windows_in_a_row_that_are_used_up_tell_their_limit() -> None:
    """One alone may have been an outage."""
    pace = after_one_window()
    assert pace.rate is None

    use_up(pace, 121, 995, until=180)
    pace.on_result(180, ok=1, refused=0)
    assert pace.rate == pytest.approx(USED_LIMIT_SHARE * 1000 / 60)


def test_a_slow_answer_behind_a_refused_call_is_no_new_window() -> None:
    """Without it an API that takes three seconds and refuses a call by chance is called less and less."""
    pace = WindowPace()
    for call in range(200):
        pace.on_result(100 + 3 * call, ok=int(call % 10 > 0), refused=int(call % 10 == 0))

    assert pace.rate is None


def test_outages_now_and_then_are_no_windows() -> None:
    """Without it each one lowers the pace, until nothing is left."""
    pace = WindowPace()
    lowest = 1000.0
    for minute in range(30):
        paced = min(16.0, pace.rate or 16.0)
        for second in range(50):
            pace.on_result(60 * minute + second, ok=round(paced), refused=0)
        for second in range(50, 60):
            pace.on_result(60 * minute + second, ok=0, refused=1)
        lowest = min(lowest, paced)

    assert lowest >= 16 * 0.6


def test_a_window_that_takes_fewer_calls_is_found() -> None:
    pace = after_one_window()
    use_up(pace, 121, 995, until=180)
    pace.on_result(180, ok=5, refused=0)
    use_up(pace, 181, 495, until=240)
    pace.on_result(240, ok=1, refused=0)

    assert pace.rate == pytest.approx(USED_LIMIT_SHARE * 500 / 60)


def test_a_window_without_tasks_tells_no_limit() -> None:
    """Without it a stream with few rows takes its own quiet time for a limit, and two outages slow it down for long."""
    pace = after_one_window()
    pace.note_idle(121)
    pace.note_busy(160)
    use_up(pace, 161, 100, until=180)
    pace.on_result(180, ok=1, refused=0)

    assert pace.rate is None


def test_a_higher_pace_is_tried_and_a_window_that_is_gone_is_forgotten() -> None:
    pace = after_one_window()
    use_up(pace, 121, 995, until=180)
    pace.on_result(180, ok=1, refused=0)
    assert pace.rate is not None
    found = pace.rate

    pace.on_result(180 + 60 * FIRST_TRY_WINDOWS - 1, ok=1, refused=0)
    assert pace.rate == found
    pace.on_result(180 + 60 * FIRST_TRY_WINDOWS, ok=1, refused=0)
    assert pace.rate == pytest.approx(1.1 * found)
    pace.on_result(180 + 2 * 60 * FIRST_TRY_WINDOWS, ok=1, refused=0)
    assert pace.rate is None


# ---- all together


def test_tokens_are_dealt_ahead_but_not_far(clock: ManualClock) -> None:
    """What is dealt to a task that dies is lost to the others."""
    tasks = CoordinatedTasks(Coordinator(pace_per_second(1000), clock), "a")
    tasks.say("a", wants=5000)

    runs = [run for grant in tasks.told["a"] for run in grant.runs]
    assert 60 <= sum(run.calls for run in runs) <= 1000 * AHEAD_SECONDS
    assert max(run.first + run.step * (run.calls - 1) for run in runs) <= clock.now + AHEAD_SECONDS


def test_what_is_on_its_way_is_not_dealt_twice(clock: ManualClock) -> None:
    tasks = CoordinatedTasks(Coordinator(Pace((), 64), clock), "a")
    tasks.say("a", wants=10)
    tasks.received["a"] = 0  # the next message was under way before the tokens arrived
    tasks.say("a", wants=12)

    assert tasks.received["a"] == 2


def test_tasks_take_turns(clock: ManualClock) -> None:
    """A task with seventy percent of the rows must not keep the others from theirs."""
    tasks = CoordinatedTasks(Coordinator(pace_per_second(100), clock), "big", "b", "c", "d")
    for _ in range(100):
        for who, wants in (("big", 1000), ("b", 50), ("c", 50), ("d", 50)):
            tasks.say(who, wants=wants)
        clock.now += 0.05

    got = tasks.received
    assert sum(got.values()) >= 0.93 * 100 * 5
    assert max(got.values()) <= 1.3 * min(got.values())


@pytest.mark.parametrize("partly", [True, False])
def test_an_api_that_takes_a_part_of_each_call_is_not_away(clock: ManualClock, partly: bool) -> None:
    """A bulk API whose queue is full refuses a few documents of each call: the others are delivered."""
    coordinator = Coordinator(Pace((), 64), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    for _ in range(20):
        tasks.say("a", throttled=1, partly=int(partly))
        clock.now += 0.1

    assert coordinator.outlook().is_open is not partly


def test_jobs_wait_until_a_key_may_be_called_again(clock: ManualClock) -> None:
    """Without it a batch with rows of one account is read anew every three seconds, for as long as its hour lasts."""
    coordinator = Coordinator(Pace((RateLimit(1, None, 20.0),), 64, keyed=True), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    for _ in range(3):
        coordinator.on_report("a", TaskReport(received=tasks.received["a"], wants=(Want(1, 3, "hot"),)))
        tasks.deal()
        clock.now += 1.5

    assert (tasks.received["a"], tasks.states("a")[-1]) == (1, "leave")
    assert 14 <= coordinator.outlook().retry_after <= 17.5
    tasks.enter("b")  # another batch has rows of others
    coordinator.on_report("b", TaskReport(wants=(Want(1, 1, "cold"),)))
    tasks.deal()
    assert tasks.received["b"] == 1


@pytest.mark.parametrize(("said", "kept"), [(2.0, 2.0), (1e9, 300.0), (0.0, 0.0)])
def test_retry_after_stops_all_but_not_for_ever(clock: ManualClock, said: float, kept: float) -> None:
    """Never earlier than was asked for; and an absurd number must not stop a table for years."""
    coordinator = Coordinator(pace_per_second(100), clock, chance=lambda: 0.5)
    tasks = CoordinatedTasks(coordinator, "a", "b")
    tasks.say("a", wants=1)
    tasks.say("a", ok=1, throttled=5, asking=5, pause=said)
    before = dict(tasks.received)

    tasks.say("b", wants=5)
    if kept:
        assert tasks.received == before
        assert "hold" in tasks.states("b")
        assert kept <= coordinator.outlook().retry_after <= kept * 1.1
        clock.now += kept * 1.1
        tasks.say("b", wants=5)
    assert tasks.received["b"] > 0


def test_a_few_calls_that_are_told_to_wait_stop_nobody(clock: ManualClock) -> None:
    """A pause of all for half of the answers costs the other half."""
    coordinator = Coordinator(pace_per_second(1000), clock)
    tasks = CoordinatedTasks(coordinator, "a", "b")
    tasks.say("a", sent=20, ok=10, throttled=10, asking=10, pause=1.0)
    tasks.say("b", wants=5)
    assert tasks.received["b"] > 0

    tasks.say("a", sent=1, throttled=1, asking=1, pause=1.0)
    assert coordinator.outlook().retry_after >= 1.0


@pytest.mark.parametrize(
    "message",
    [
        {"pause": float("nan")},
        {"pause": float("inf")},
        {"pause": -5},
        {"remaining": [float("nan"), 1]},
        {"remaining": [-1, 9]},
    ],
    ids=str,
)
def test_garbage_of_headers_changes_nothing(message: dict[str, object]) -> None:
    assert TaskReport.from_message(message) == TaskReport()


def test_what_is_left_is_not_overdrawn(clock: ManualClock) -> None:
    """RateLimit headers say when the API will refuse: calls that are under way count."""
    tasks = CoordinatedTasks(Coordinator(pace_per_second(1000), clock), "a")
    tasks.say("a", wants=10)
    tasks.say("a", wants=50, sent=10, ok=1, remaining=(20.0, 2.5))
    assert tasks.received["a"] == 10 + 20 - 9

    clock.now += 1
    tasks.say("a", wants=50)
    assert tasks.received["a"] == 21
    clock.now += 1.5
    tasks.say("a", wants=50)
    assert tasks.received["a"] > 21


def send_at_one_limiter(clock: ManualClock, stated: float, gap: float, seconds: float) -> list[int]:
    """Let two coordinators send to an API that wants `gap` seconds between calls; return what each got accepted."""
    chances = [random.Random(seed).random for seed in range(2)]
    both = [CoordinatedTasks(Coordinator(pace_per_second(stated), clock, chance), "task") for chance in chances]
    due: list[tuple[float, int]] = []
    accepted = [0, 0]
    last = -math.inf
    dealt = [0, 0]
    until = clock.now + seconds
    while clock.now < until:
        for number, tasks in enumerate(both):
            tasks.say("task", wants=10)
            for grant in tasks.told["task"][dealt[number] :]:
                for run in grant.runs:
                    due += [(run.first + call * run.step, number) for call in range(run.calls)]
            dealt[number] = len(tasks.told["task"])
        for moment, number in sorted(due):
            if moment <= clock.now:
                due.remove((moment, number))
                ok = moment >= last + gap
                last = moment if ok else last
                accepted[number] += ok
                both[number].say("task", wants=10, sent=1, ok=int(ok), throttled=int(not ok))
        clock.now += 0.005
    return accepted


def test_two_processes_whose_calls_come_at_the_same_moments_move_apart(clock: ManualClock) -> None:
    """Both state 20 of 50, so their calls are 50 ms apart: without a shift all calls of one would be refused."""
    accepted = send_at_one_limiter(clock, 20.0, 0.02, 60.0)

    assert min(accepted) >= 0.9 * 20 * 60


def test_a_bucket_that_is_refilled_all_the_time_stops_nobody(clock: ManualClock) -> None:
    tasks = CoordinatedTasks(Coordinator(pace_per_second(1000), clock), "a")
    tasks.say("a", wants=50, sent=1, ok=1, remaining=(0.0, 1.0))

    assert tasks.received["a"] == 50


def fail(tasks: CoordinatedTasks, clock: ManualClock) -> None:
    for who in tasks.told:
        tasks.say(who, wants=20)
    clock.now += 1
    for who in tasks.told:
        tasks.say(who, sent=20, failed=20)


def test_an_outage_is_probed_by_one_call_a_second(clock: ManualClock) -> None:
    tasks = CoordinatedTasks(Coordinator(pace_per_second(1000), clock), "a", "b")
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


def test_tasks_leave_an_api_that_is_out_and_new_ones_probe_it(clock: ManualClock) -> None:
    """Waiting tasks hold cores that the tables of other routes need."""
    coordinator = Coordinator(pace_per_second(1000), clock)
    tasks = CoordinatedTasks(coordinator, "a", "b")
    fail(tasks, clock)
    clock.now += MAX_TOKEN_WAIT_SECONDS
    tasks.deal()
    assert [tasks.states(who)[-1] for who in ("a", "b")] == ["leave", "leave"]
    assert coordinator.outlook().is_open
    for who in ("a", "b"):
        coordinator.remove_task(who)

    later = CoordinatedTasks(coordinator, "c")
    later.say("c", wants=5)
    assert later.states("c")[-1] == "probe"
    assert later.received["c"] == 1
    later.say("c", sent=1, ok=1)
    assert not coordinator.outlook().is_open


def test_a_stop_sends_tasks_away(clock: ManualClock) -> None:
    coordinator = Coordinator(pace_per_second(1000), clock)
    tasks = CoordinatedTasks(coordinator, "a", "b")
    coordinator.stop_task("a")
    tasks.deal()

    assert tasks.states("a")[-1] == "stop"
    assert "stop" not in tasks.states("b")


def test_a_task_that_was_sent_away_is_told_of_a_stop(clock: ManualClock) -> None:
    """Without it a run ends only after the longest time that a call may take, where its API is away."""
    coordinator = Coordinator(pace_per_second(1000), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    fail(tasks, clock)
    clock.now += MAX_TOKEN_WAIT_SECONDS
    tasks.deal()
    assert tasks.states("a")[-1] == "leave"

    coordinator.stop_task("a")
    tasks.deal()
    told = tasks.states("a").count("stop")
    coordinator.stop_task("a")
    tasks.deal()

    assert (tasks.states("a")[-1], told, tasks.states("a").count("stop")) == ("stop", 1, 1)


def test_a_window_that_is_full_for_long_sends_tasks_away(clock: ManualClock) -> None:
    """5000 per hour are gone after minutes: nobody holds cores for the rest of the hour."""
    coordinator = Coordinator(Pace((RateLimit(10, None, 3600.0),), 64), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    tasks.say("a", wants=20)
    clock.now += MAX_TOKEN_WAIT_SECONDS
    tasks.deal()

    assert tasks.received["a"] == 10
    assert tasks.told["a"][-1].state == "leave"
    assert 3500 < tasks.told["a"][-1].retry_after < 3700


def test_a_long_pause_sends_tasks_away_whose_calls_all_wait(clock: ManualClock) -> None:
    """Without it a core is held for as long as the API asks for, by calls that want no token before that."""
    coordinator = Coordinator(pace_per_second(1000), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    tasks.say("a", wants=5)
    tasks.say("a", throttled=5, asking=5, pause=60.0)
    assert tasks.states("a")[-1] != "leave"
    clock.now += MAX_TOKEN_WAIT_SECONDS
    tasks.deal()

    assert tasks.told["a"][-1].state == "leave"
    assert 55 < tasks.told["a"][-1].retry_after < 70


def test_a_slow_limit_sends_nobody_away(clock: ManualClock) -> None:
    """One call in two seconds is slow, but it goes on."""
    coordinator = Coordinator(pace_per_second(0.5), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    tasks.say("a", wants=20)
    for _ in range(200):
        clock.now += 0.1
        tasks.deal()

    assert "leave" not in tasks.states("a")
    assert 9 <= tasks.received["a"] <= 11


def test_retries_are_shared_by_all_tasks(clock: ManualClock) -> None:
    names = [str(number) for number in range(20)]
    tasks = CoordinatedTasks(Coordinator(Pace((), 64), clock), *names)
    for who in names:
        tasks.say(who, denied=1)

    given_ = [sum(grant.retries for grant in tasks.told[who]) for who in names]
    assert sum(given_) <= 100
    assert min(given_) >= 1
    assert max(given_) <= MAX_RETRY_CREDIT


def test_a_task_holds_few_retries_at_a_time(clock: ManualClock) -> None:
    """What a task holds and does not use is missing to all others."""
    tasks = CoordinatedTasks(Coordinator(Pace((), 64), clock), "a", "b")
    for _ in range(10):
        tasks.say("a", denied=1)
    tasks.say("b", denied=1)

    assert [sum(grant.retries for grant in tasks.told[who]) for who in ("a", "b")] == [16, 16]


def test_messages_survive_json() -> None:
    told = TaskReport(
        sent=3,
        ok=2,
        pause=1.5,
        remaining=(3.0, 4.0),
        received=7,
        in_flight=1,
        wants=(Want(1, 5), Want(3, 1)),
        seconds=0.5,
    )
    grant = Grant("probe", (Run(1.0, 0.5, 3, 1, 0.1),), 2, 3, 4, 0.5)

    assert TaskReport.from_message(told.to_message()) == told
    assert Grant.from_message(grant.to_message()) == grant


@pytest.mark.parametrize("rate", [None, RateLimit(100, None, 1.0)], ids=["no limit", "100 a second"])
def test_one_call_that_is_always_told_to_wait_stops_no_other(clock: ManualClock, rate: RateLimit | None) -> None:
    """Without it one row of 4000 that always gets 429 and Retry-After stops every sink of its host."""
    coordinator = Coordinator(Pace((rate,) if rate else (), 8), clock, lambda: 0.5)
    tasks = CoordinatedTasks(coordinator, "a", "b")
    for _ in range(60):
        tasks.say("a", sent=20, ok=19, throttled=1, asking=1, pause=15.0, wants=5)
        clock.now += 0.5
        tasks.say("b", sent=10, ok=10, wants=5)
        assert coordinator.outlook().retry_after < 1.0
        clock.now += 0.5
    assert coordinator._stated_pace.factor == 1.0
    assert coordinator._adaptive_rate.current_limit(clock.now) is None


@pytest.mark.parametrize(("keys", "lowered"), [(1, False), (5, True)])
def test_refusals_of_many_keys_lower_the_pace_of_all(clock: ManualClock, keys: int, lowered: bool) -> None:
    """One account that is refused says nothing of the others; an API that refuses many is short of room."""
    coordinator = Coordinator(Pace((RateLimit(5, None, 1.0),), 64, keyed=True), clock)
    tasks = CoordinatedTasks(coordinator, "a")
    for turn in range(60):
        tasks.say("a", sent=20, ok=12, throttled=8, refused_keys=(turn % keys,))
        clock.now += 0.1

    assert (coordinator._stated_pace.factor < 1) is lowered
