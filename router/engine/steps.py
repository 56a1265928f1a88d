"""The steps of a batch: their times, and their progress for an observer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Watch = Callable[[int, str, int, int], None]
"""Called with (batch id, step, done, of): at a step's start (0 done), on progress inside it, and at its end."""


class Stopped(Exception):  # noqa: N818 - an order, no error
    """The end of a query before a batch, or in one, after the order to stop; the next start processes that batch."""


@dataclass
class Steps:
    """The wall seconds of each step of one batch."""

    batch: int
    watch: Watch | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, of: int = 1) -> Iterator[None]:
        """Time a step; the observer sees its start and, unless it failed, its end."""
        self.report_progress(name, 0, of)
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.report_progress(name, of, of)

    def report_progress(self, name: str, done: int, of: int) -> None:
        """Report progress inside a step."""
        if self.watch:
            self.watch(self.batch, name, done, of)
