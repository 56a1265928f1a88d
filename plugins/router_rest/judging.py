"""Say what the answer to a call means for its rows, and what of it matters to the lease. Runs on executors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router_rest.policy import Attempt
from router_rest.results import Unreadable
from router_rest.told import Left, left, pause
from router_rest.verdicts import Verdict, doubtful, throttles, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router_rest.cutting import Call
    from router_rest.http_client.response import Response
    from router_rest.policy import Policy

_LOOK = 0.05
"""Seconds between two looks at the headers of answers that say nothing new."""


@dataclass
class Judge:
    """Judge the answers to the calls of one task. `keyed`: they carry idempotency keys."""

    policy: Policy
    keyed: bool
    clock: Callable[[], float] = time.time
    _looked: float = 0.0

    def judged(self, call: Call, answer: Response) -> tuple[Attempt, dict[str, Any]]:
        """Return what an answer means for a call, and what of it matters to the lease."""
        status = answer.status
        meant = verdict(status, keyed=self.keyed, url_of_data=bool(call.url), again=self.policy.again)
        attempt = Attempt(meant, "", status, answer.seconds, answer.body)
        if doubtful(status) or answer.resent:
            call.doubtful = frozenset(call.offsets)
        if meant is Verdict.DONE:
            throttled = self._read(call, attempt)
        else:
            attempt.why = f"the API answers {status}{excerpt(answer.body)}"
            attempt.pause = pause(answer.headers, self.clock()) if meant is Verdict.AGAIN else None
            throttled = throttles(status, attempt.pause is not None)
        return attempt, {
            "status": status,
            "ok": meant in {Verdict.DONE, Verdict.REFUSED, Verdict.SPLIT} and not throttled,
            "throttled": throttled,
            "pause": attempt.pause,
            "left": self._left(answer.headers),
            "seconds": answer.seconds,
        }

    def _read(self, call: Call, attempt: Attempt) -> bool:
        """Read what an answer says of each row; return whether it says that there were too many."""
        if self.policy.results is None:
            return False
        try:
            attempt.results = self.policy.results.by_row(attempt.body, call.rows)
        except Unreadable as error:
            attempt.verdict = Verdict.WRONG
            attempt.why = f"`results` does not go with what the API answers: {error}"
            call.doubtful = frozenset(call.offsets)
            return False
        return any(result.status == 429 for result in attempt.results)

    def _left(self, headers: Mapping[str, str]) -> tuple[float, float] | None:
        """Return what the headers say of the limit, now and then: what they say changes slowly, and is not all used."""
        now = self.clock()
        if now - self._looked < _LOOK:
            return None
        self._looked = now
        told: Left | None = left(headers, now)
        return None if told is None else (told.calls, told.seconds)


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer, for a reason."""
    text = body[:200].decode(errors="replace").strip()
    return f": {text}" if text else ""
