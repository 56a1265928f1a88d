"""Know for how long rows of a batch have waited for an API. Pure; runs on the driver."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router_rest.receipts import Range

Tried: TypeAlias = "tuple[Range, ...]"
"""The rows of a call that was sent, and is left."""


@dataclass
class Patience:
    """Count the time since an API took any row, and the time since each call was first tried in vain.

    The second is for rows that an API never takes while it takes others, such as a call that it answers 500 every time:
    each delivery of another row would start the first count anew, and these would hold their batch for ever. A call is
    told by its first row without a receipt. It counts from the end of the first job that tried it in vain, for as long
    as every job that delivers anything tries it again; its being delivered, or taken for another part, ends the count.
    Rows that were not tried, as those behind a limit of an hour, wait for their turn and not for the API.
    """

    clock: Callable[[], float] = time.monotonic
    _moved: float = field(init=False)
    _tried: dict[tuple[str | None, int, int], tuple[float, Tried]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moved = self.clock()

    def heard(self, tried: Sequence[Tried], *, moved: bool) -> None:
        """Take in what a job came to: whether any row got its receipt, and calls that were tried in vain."""
        now, before = self.clock(), self._tried
        # where nothing was delivered, all that was left before is left
        self._tried = {} if moved else dict(before)
        for rows in tried:
            first = rows[0][:3]
            self._tried[first] = (before[first][0] if first in before else now, rows)
        if moved:
            self._moved = now

    def forget(self) -> None:
        """Count no call any more: those that were left were parked."""
        self._tried = {}

    @property
    def away(self) -> float:
        """Return the seconds since the API took a row; since the beginning where it has taken none."""
        return self.clock() - self._moved

    def stuck(self, seconds: float) -> list[Range]:
        """Return the rows of calls that have been tried in vain for more than so many seconds."""
        now = self.clock()
        return [one for since, rows in self._tried.values() if now - since > seconds for one in rows]
