"""Say what an answer means for a call and for each of its rows: the rules' word first, then its status.

Runs on executors, where calls are sent, and on the driver for `router test`. Sends nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from router_rest.delivery.answer_rules import decisions
from router_rest.delivery.response_status import (
    GONE,
    NO_STATUS,
    UNKNOWN,
    Action,
    Remaining,
    Result,
    Unreadable,
    action_for,
    doubtful,
    left,
    pause,
    throttles,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router_rest.delivery.answer_rules import AnswerDecision, AnswerRule
    from router_rest.delivery.batcher import Call
    from router_rest.delivery.response_status import BulkResults
    from router_rest.http_client.response import Response

_FAILED = frozenset({Action.AGAIN, Action.LOGIN, Action.WRONG, Action.LATER})
"""Answers that say that the API is not well, or that it is not called as it wants."""
UNDONE = frozenset({Action.AGAIN, Action.SPLIT, Action.SET_ASIDE, Action.WRONG})
"""Decisions of rules after which rows may be sent once more: after a 2xx these may have arrived."""
_LOOK = 0.05
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


@dataclass
class Attempt:
    """The result of one attempt. `pause`: seconds after which the API wants to be called again; `came`: it went out.

    `throttled`: the API says that there were too many calls.
    """

    action: Action
    why: str
    status: int | None = None
    seconds: float | None = None
    body: bytes = b""
    pause: float | None = None
    results: list[Result] | None = None
    came: bool = True
    throttled: bool = False


@dataclass
class Classifier:
    """The meaning of answers for the calls of one task."""

    policy: Policy
    clock: Callable[[], float] = time.time
    _looked: float = 0.0

    def classified(
        self, call: Call, answer: Response, hide: Callable[[bytes], bytes] = bytes, method: str = ""
    ) -> tuple[Attempt, dict[str, Any]]:
        """Return what an answer to a `method` means for a call, and the arguments of `LeaseClient.saw` for it.

        `hide` masks secrets: an API may show all that it was sent.
        """
        status, doubt = answer.status, bool(call.doubtful)
        of_data = bool(call.url.partition("\n")[0])
        gone = method == "DELETE" and doubt and status in GONE  # an earlier attempt took effect
        meant = Action.DONE if gone else action_for(status, doubt=doubt, url_of_data=of_data, again=self.policy.again)
        attempt = Attempt(meant, "", status, answer.seconds, hide(answer.body))
        if doubtful(status) or answer.resent:
            call.doubtful = frozenset(call.offsets)
        if meant is Action.DONE and not gone:
            self._read(call, attempt, answer.body, hide)
        elif meant is not Action.DONE:
            attempt.why = f"the API answers {status}{excerpt(attempt.body)}"
            attempt.pause = pause(answer.headers, self.clock()) if meant is Action.AGAIN else None
            attempt.throttled = throttles(status, attempt.pause is not None)
        if self.policy.rules:
            self._ask_rules(call, attempt, answer, hide, method)
        return attempt, {
            "status": status,
            "ok": attempt.action not in _FAILED and not attempt.throttled,
            "throttled": attempt.throttled,
            "partly": attempt.throttled and any(map(_is_taken, attempt.results or ())),
            "pause": attempt.pause,
            "left": self._left(answer.headers),
            "seconds": answer.seconds,
        }

    def _read(self, call: Call, attempt: Attempt, body: bytes, hide: Callable[[bytes], bytes]) -> None:
        """Read the result of each row from an answer."""
        if self.policy.results is None:
            return
        try:
            found = self.policy.results.by_row(body, call.rows)
            attempt.results = [one if one.status < 300 else replace(one, text=hide(one.text)) for one in found]
        except Unreadable as error:
            attempt.action = Action.PARK
            attempt.why = f"{NO_STATUS}: {error}"
            return
        attempt.throttled = any(map(_is_busy, attempt.results))

    def _ask_rules(
        self, call: Call, attempt: Attempt, answer: Response, hide: Callable[[bytes], bytes], method: str
    ) -> None:
        """Let rules decide on a call, or on those of its rows that an answer has items for."""
        items = [None] if attempt.results is None else [one.item for one in attempt.results]
        said = decisions(self.policy.rules, answer, items, hide, method)
        if said[0] is not None and said[0].whole and all(one == said[0] for one in said):
            self._decided(call, attempt, said[0])
        elif attempt.results is not None:
            pairs = zip(attempt.results, said, strict=True)
            attempt.results = [one if rule is None else replace(one, decision=rule) for one, rule in pairs]
            attempt.throttled = any(_is_busy(one) for one in attempt.results)
        if attempt.throttled or attempt.action is Action.AGAIN:
            attempt.pause = pause(answer.headers, self.clock())

    def _decided(self, call: Call, attempt: Attempt, said: AnswerDecision) -> None:
        """Do with the whole call as a rule says."""
        attempt.action, attempt.results, attempt.throttled = said.action, None, said.then == "pause"
        attempt.why = said.reason or f"the API answers {attempt.status}{excerpt(attempt.body)}"
        several = said.action is Action.SPLIT and len(call) > 1  # an API may keep the rows before the one it refuses
        if several or (said.action in UNDONE and 200 <= (attempt.status or 0) < 300):
            call.doubtful = frozenset(call.offsets)

    def _left(self, headers: Mapping[str, str]) -> tuple[float, float] | None:
        """Return the calls left and their seconds by the headers; not for every answer: they change slowly."""
        now = self.clock()
        if now - self._looked < _LOOK:
            return None
        self._looked = now
        remaining: Remaining | None = left(headers, now)
        return None if remaining is None else (remaining.calls, remaining.seconds)


def _is_busy(result: Result) -> bool:
    """Return whether the result of a row says that there were too many calls."""
    return result.status == 429 if result.decision is None else result.decision.then == "pause"


def _is_taken(result: Result) -> bool:
    """Return whether a row was taken."""
    return 200 <= result.status < 300 if result.decision is None else result.decision.action is Action.DONE


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer, for a reason."""
    text = body[:200].decode(errors="replace").strip()
    return f": {text}" if text else ""


def row_action(policy: Policy, call: Call, at: int, result: Result) -> Action:
    """Return the next step for one row of a call that was taken; note where it may have arrived all the same."""
    offset = call.offsets[at]
    if (said := result.decision) is not None:
        if said.action in UNDONE and result.status < 300:
            call.doubtful |= {offset}
        return said.action
    if result.status == UNKNOWN:
        return Action.PARK
    meant = action_for(result.status, doubt=offset in call.doubtful, again=policy.again)
    return meant if meant in {Action.DONE, Action.AGAIN} else Action.DEAD


def row_reason(result: Result) -> str:
    """Return why a row was not taken: as a rule says, else as the answer does."""
    given = "" if result.decision is None else result.decision.reason
    return given or f"the API answers {result.status}{excerpt(result.text)}"


def next_steps(policy: Policy, call: Call, answer: Response, method: str = "") -> list[tuple[str, str | None]]:
    """Return, for each row of a call, the next step in the words of rules, and the reason. Sends nothing."""
    attempt, _ = Classifier(policy).classified(call, answer, method=method)
    if attempt.action is not Action.DONE or attempt.results is None:
        word = _word(attempt.action, attempt.throttled, len(call))
        return [(word, None if attempt.action is Action.DONE else attempt.why)] * len(call)
    found: list[tuple[str, str | None]] = []
    for at, result in enumerate(attempt.results):
        action = row_action(policy, call, at, result)
        word = _word(action, _is_busy(result), 1)
        unknown = f"{NO_STATUS} {result.text.decode()}" if action is Action.PARK else row_reason(result)
        found.append((word, None if action is Action.DONE else unknown))
    return found


def _word(action: Action, busy: bool, rows: int) -> str:
    """Return a step as rules name it."""
    if action in {Action.REFUSED, Action.SPLIT}:
        return "split" if rows > 1 else "dead"
    named = {Action.DONE: "deliver", Action.DEAD: "dead", Action.WRONG: "fail", Action.LOGIN: "login"}
    named |= {Action.PARK: "park", Action.SET_ASIDE: "park"}
    return named.get(action, "pause" if busy else "retry")
