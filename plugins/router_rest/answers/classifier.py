"""What an answer means: what becomes of a call and of each row, and when the API wants to be called again.

Rules of the configuration are asked first, then the status decides on a call, and the results of a bulk API on each
row. Headers say how long to pause, and how many calls are left. Runs on executors, where calls are sent, and on the
driver for `router test`. Sends nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router_rest.answers.actions import (
    FAILED_ACTIONS,
    GONE_STATUSES,
    UNDONE_ACTIONS,
    Action,
    action_for,
    is_doubtful,
    is_throttling,
)
from router_rest.answers.bulk_results import NO_STATUS, UNKNOWN_STATUS, BulkResults, Unreadable
from router_rest.answers.pause_headers import calls_left, retry_after
from router_rest.answers.rules import AnswerRule, apply_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router_rest.answers.bulk_results import Result
    from router_rest.answers.rules import AnswerDecision, Hide
    from router_rest.delivery.batcher import Call
    from router_rest.http_client.response import Response

_LOOK_PAUSE_SECONDS = 0.05
"""Seconds between two readings of the headers about the limit."""


@dataclass(frozen=True)
class Policy:
    """When a call is sent again, and how its answer tells rows apart; it is pickled to tasks.

    `attempts` and `elapsed` (seconds) bound the attempts of a call within one task, waits for the retry budget
    included. `first` and `longest` bound the seconds between two attempts, unless the API asks for more. `again`:
    statuses after which a call is sent again, in place of the usual ones. `rules` have their say before all statuses.
    """

    attempts: int = 5
    elapsed: float = 60.0
    first: float = 0.2
    longest: float = 10.0
    again: frozenset[int] | None = None
    results: BulkResults | None = None
    rules: tuple[AnswerRule, ...] = ()


@dataclass(frozen=True)
class RowResult:
    """What becomes of one row of a call that was taken, and why; `status` and `text` are those of its item.

    `busy`: the API says that there were too many calls.
    """

    action: Action
    why: str
    status: int
    text: bytes
    busy: bool = False


@dataclass
class Attempt:
    """The result of one attempt. `pause`: seconds after which the API wants to be called again; `came`: it went
    out, and did not time out.

    `throttled`: the API says that there were too many calls.
    """

    action: Action
    why: str
    status: int | None = None
    seconds: float | None = None
    body: bytes = b""
    pause: float | None = None
    results: list[RowResult] | None = None
    came: bool = True
    throttled: bool = False


@dataclass
class Classifier:
    """The meaning of answers for the calls of one task."""

    policy: Policy
    clock: Callable[[], float] = time.time
    _looked: float = 0.0

    def classify_answer(
        self, call: Call, answer: Response, hide: Hide = bytes, method: str = ""
    ) -> tuple[Attempt, dict[str, Any]]:
        """Return the attempt that an answer to a `method` makes of a call, and its arguments of `LeaseClient.release`.

        `hide` masks secrets: an API may show all that it was sent.
        """
        status = answer.status
        # A DELETE that may have arrived before, and finds nothing, has taken effect.
        gone = method == "DELETE" and bool(call.doubtful) and status in GONE_STATUSES
        action = Action.DONE
        if not gone:
            url_of_data = bool(call.url.partition("\n")[0])
            action = action_for(status, doubt=bool(call.doubtful), url_of_data=url_of_data, again=self.policy.again)
        attempt = Attempt(action, "", status, answer.seconds, hide(answer.body))
        if is_doubtful(status) or answer.resent:
            call.doubtful = frozenset(call.offsets)
        results = None
        if action is not Action.DONE:
            attempt.why = f"the API answers {status}{answer_excerpt(attempt.body)}"
            if action is Action.AGAIN:  # it holds whatever a rule makes of the call
                attempt.pause = retry_after(answer.headers, self.clock())
            attempt.throttled = is_throttling(status, attempt.pause is not None)
        elif not gone and self.policy.results is not None:
            try:
                results = self.policy.results.by_row(answer.body, call.rows)
            except Unreadable as error:
                attempt.action = Action.PARK
                attempt.why = f"{NO_STATUS}: {error}"
        items = [None] if results is None else [result.item for result in results]
        decided = apply_rules(self.policy.rules, answer, items, hide, method)
        # A decision about the call as a whole needs no results of rows any more.
        first = decided[0]
        if first is not None and first.whole and all(decision == first for decision in decided):
            self._decide_call(call, attempt, first)
        elif results is not None:
            attempt.results = []
            for offset, result, decision in zip(call.offsets, results, decided, strict=True):
                attempt.results.append(self._decide_row(call, offset, result, decision, hide))
            attempt.throttled = any(row.busy for row in attempt.results)
        if attempt.pause is None and (attempt.throttled or attempt.action is Action.AGAIN):
            attempt.pause = retry_after(answer.headers, self.clock())
        some_taken = any(row.action is Action.DONE for row in attempt.results or ())
        return attempt, {
            "status": status,
            "ok": attempt.action not in FAILED_ACTIONS and not attempt.throttled,
            "throttled": attempt.throttled,
            "partly": attempt.throttled and some_taken,
            "pause": attempt.pause,
            "remaining": self._calls_left(answer.headers),
            "seconds": answer.seconds,
        }

    def _decide_call(self, call: Call, attempt: Attempt, decision: AnswerDecision) -> None:
        """Do with the whole call as a rule says."""
        attempt.action = decision.action
        attempt.throttled = decision.then == "pause"
        attempt.why = decision.reason or f"the API answers {attempt.status}{answer_excerpt(attempt.body)}"
        # An API may keep the rows before the one that it refuses, and after a 2xx it may have kept any.
        divided = decision.action is Action.SPLIT and len(call) > 1
        undone = decision.action in UNDONE_ACTIONS and 200 <= (attempt.status or 0) < 300
        if divided or undone:
            call.doubtful = frozenset(call.offsets)

    def _decide_row(
        self, call: Call, offset: int, result: Result, decision: AnswerDecision | None, hide: Hide
    ) -> RowResult:
        """Return what becomes of one row; note that it may still have arrived."""
        text = hide(result.text) if result.status >= 300 else result.text
        why = f"the API answers {result.status}{answer_excerpt(text)}"
        if decision is not None:
            if decision.action in UNDONE_ACTIONS and result.status < 300:
                call.doubtful |= {offset}
            busy = decision.then == "pause"
            return RowResult(decision.action, decision.reason or why, result.status, text, busy)
        if result.status == UNKNOWN_STATUS:
            return RowResult(Action.PARK, f"{NO_STATUS} {text.decode()}", result.status, text)
        action = action_for(result.status, doubt=offset in call.doubtful, again=self.policy.again)
        if action not in {Action.DONE, Action.AGAIN}:
            action = Action.DEAD
        return RowResult(action, why, result.status, text, result.status == 429)

    def _calls_left(self, headers: Mapping[str, str]) -> tuple[float, float] | None:
        """Return the calls left and their seconds by the headers; not for every answer: they change slowly."""
        now = self.clock()
        if now - self._looked < _LOOK_PAUSE_SECONDS:
            return None
        self._looked = now
        return calls_left(headers, now)


def answer_excerpt(body: bytes) -> str:
    """Return the beginning of an answer, for a reason."""
    text = body[:200].decode(errors="replace").strip()
    return f": {text}" if text else ""


def next_steps(policy: Policy, call: Call, answer: Response, method: str = "") -> list[tuple[str, str | None]]:
    """Return, for each row of a call, the next step in the words of rules, and the reason. Sends nothing."""
    attempt, _ = Classifier(policy).classify_answer(call, answer, method=method)
    if attempt.action is not Action.DONE:
        return [(_rule_word(attempt.action, attempt.throttled, len(call)), attempt.why)] * len(call)
    if attempt.results is None:
        return [(_RULE_WORDS[Action.DONE], None)] * len(call)
    steps: list[tuple[str, str | None]] = []
    for row in attempt.results:
        reason = None if row.action is Action.DONE else row.why
        steps.append((_rule_word(row.action, row.busy, 1), reason))
    return steps


_RULE_WORDS = {
    Action.DONE: "deliver",
    Action.DEAD: "dead",
    Action.WRONG: "fail",
    Action.LOGIN: "login",
    Action.PARK: "park",
    Action.SET_ASIDE: "park",
}


def _rule_word(action: Action, busy: bool, rows: int) -> str:
    """Return a step as rules name it."""
    if action in {Action.REFUSED, Action.SPLIT}:
        return "split" if rows > 1 else "dead"
    return _RULE_WORDS.get(action, "pause" if busy else "retry")
