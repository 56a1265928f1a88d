"""A circuit breaker: tells an API that is out from one that fails now and then. Pure; runs on the driver."""

from __future__ import annotations

from math import inf

FEWEST = 10
"""Calls in a row that failed, of all tasks together."""
SILENCE = 0.5
"""Seconds without any success: ten failures in a row mean little at a thousand calls per second."""
PROBES = 1.0
"""Seconds from probe to probe."""
RAMP = 2.0
"""Seconds from the first success to the full pace."""
START = 0.1
"""The part of the full pace to begin with."""


class CircuitBreaker:
    """A circuit that opens after failures without a success, closes with the first success, and then goes up a ramp."""

    def __init__(self) -> None:
        self.since: float | None = None
        """Open since; None: closed."""
        self._row = 0
        self._good = -inf
        self._probed = -inf
        self._closed = -inf

    def heard(self, now: float, good: int, bad: int) -> bool:
        """Count what came back; say whether this opened the circuit."""
        if good:
            self._row, self._good = 0, now
            if self.since is not None:
                self.since, self._closed = None, now
            return False
        self._row += bad
        if not bad or self.since is not None or self._row < FEWEST or now - self._good < SILENCE:
            return False
        # The calls that failed were probe enough: the next one is due in a while.
        self.since = self._probed = now
        return True

    def next_probe(self) -> float:
        """Return when the next probe is due."""
        return self._probed + PROBES

    def probe(self, now: float) -> None:
        """Note that a probe goes out."""
        self._probed = now

    def pace(self, now: float) -> float:
        """Return the part of the full pace to go at."""
        return min(1.0, START + (1 - START) * max(0.0, now - self._closed) / RAMP)
