"""The tokens that one task holds, its calls in flight, and what it has to report. Pure; runs on executors."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from router_rest.rate_limit.protocol import TaskReport
from router_rest.rate_limit.sliding_window import LOOSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from router_rest.rate_limit.sliding_window import Run

MORE = 1.25
"""Times the expected use that is asked for ahead while tokens live long."""


@dataclass
class TokenRun:
    """What is left of a run, on this machine's clock."""

    first: float
    step: float
    calls: int
    rows: int
    lives: float


class TaskTokens:
    """Tokens kept until their time and dropped after it, and how many more will probably be used.

    TokenRun are taken in order; a call of few rows may take a token for more.
    """

    def __init__(self) -> None:
        self.cap = 0
        """Calls in flight at most."""
        self.out = 0
        """Calls in flight."""
        self.low = False
        """Few tokens are left for what is expected: ask for more."""
        self._runs: deque[TokenRun] = deque()
        self._held = 0
        self._received = self._number = 0
        self._lives = 0.0
        self._rate = 0.0
        """Tokens used per second."""
        self._used = 0
        self._ticked: float | None = None
        self._counts: dict[str, Any] = {}
        self._retries = 0

    def take(self, now: float, rows: int = 1) -> bool:
        """Take a token for a call now, if there is one and the call may be in flight."""
        if self.out >= self.cap:
            return False
        for run in self._runs:
            if run.first > now:
                break
            if now > run.first + run.lives:
                self._lapse(now)
                return self.take(now, rows)
            if run.rows >= rows:
                self._use(run)
                return True
        return False

    def due(self, now: float) -> float | None:
        """Return when the next token can be used; None: there is none, or no call may be in flight now."""
        self._lapse(now)
        if not self._runs or self.out >= self.cap:
            return None
        return min((run.first for run in self._runs if run.first > now), default=None)

    def give(self, runs: Iterable[Run], offset: float) -> None:
        """Take tokens; `offset` is what this machine's clock is ahead of the driver's."""
        for run in runs:
            self._runs.append(TokenRun(run.first + offset, run.step, run.calls, run.rows, run.lives))
            self._held += run.calls
            self._received += run.calls
            self._lives = run.lives
        self.low = self._held < self._expected() // 2

    def may(self, number: int, cap: int, retries: int) -> None:
        """Take in how many calls may be in flight, and how many more retries be made."""
        if number >= self._number:
            self._number, self.cap = number, cap
        self._retries += retries

    def drop(self) -> None:
        """Let all tokens lapse."""
        self.count("lapsed", self._held)
        self._runs.clear()
        self._held = 0

    def retry(self) -> bool:
        """Take a retry, if there is one."""
        if self._retries < 1:
            self.count("denied", 1)
            return False
        self._retries -= 1
        self.count("retried", 1)
        return True

    def count(self, name: str, many: float) -> None:
        """Add to what is told next."""
        if many:
            self._counts[name] = self._counts.get(name, 0) + many

    def note(self, name: str, value: Any) -> None:
        """Tell this next, and not what it was before."""
        self._counts[name] = value

    @property
    def pause(self) -> float | None:
        """Return the pause that is told next."""
        return self._counts.get("pause")

    @property
    def dirty(self) -> bool:
        """Say whether there is something to tell."""
        return bool(self._counts)

    def tick(self, now: float) -> None:
        """Look at how many tokens were used since the last time."""
        if self._ticked is not None and now > self._ticked:
            self._rate = (self._rate + self._used / (now - self._ticked)) / 2
        self._used, self._ticked = 0, now

    def report(self, now: float, waiting: Sequence[int], *, sized: bool) -> TaskReport:
        """Return what the driver is to be told; `waiting` are the rows of the calls that wait for tokens."""
        self._lapse(now)
        counts, self._counts = self._counts, {}
        self.low = False  # it is asked for now
        return TaskReport(
            **counts,
            received=self._received,
            number=self._number,
            out=self.out,
            waiting=len(waiting),
            wants=self._wants(waiting, sized=sized),
        )

    def _wants(self, waiting: Sequence[int], *, sized: bool) -> tuple[tuple[int, int], ...]:
        usable = max(0, min(len(waiting), self.cap - self.out))
        if sized:  # the size of a call that does not wait yet is not known
            asked = [waiting[place] for place in range(self._held, usable)]
            return tuple((rows, len(list(alike))) for rows, alike in groupby(asked))
        many = max(usable, self._expected()) - self._held
        return ((1, many),) if many > 0 else ()

    def _expected(self) -> int:
        """Return how many tokens will be used while they live."""
        if self.out == 0:
            return 0
        return ceil(self._rate * self._lives * (MORE if self._lives >= LOOSE else 1))

    def _use(self, run: TokenRun) -> None:
        run.first += run.step
        run.calls -= 1
        if not run.calls:
            self._runs.remove(run)
        self._held -= 1
        self._used += 1
        self.out += 1
        self._counts["sent"] = self._counts.get("sent", 0) + 1
        if self._rate and 2 * self._held < self._rate * self._lives:
            self.low = True

    def _lapse(self, now: float) -> None:
        before = self._held
        for run in self._runs:
            late = now - run.lives - run.first
            if late > 0:
                gone = min(run.calls, floor(late / run.step) + 1) if run.step else run.calls
                run.first += gone * run.step
                run.calls -= gone
                self._held -= gone
        if self._held < before:
            self.count("lapsed", before - self._held)
            self._runs = deque(run for run in self._runs if run.calls)
