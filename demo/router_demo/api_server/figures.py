"""Count over arrival times: exact, from every request, with no sampling and no steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def highest(times: NDArray[np.float64], seconds: float, weights: NDArray[np.float64] | None = None) -> float:
    """Return the most that came within any `seconds`, wherever they begin; `times` in order, `weights` 1 by default.

    A window reaches from an arrival back, without its far end: two requests exactly `seconds` apart are in no window
    together. The fullest window always ends at some arrival, so that these are all that need to be looked at.
    """
    if not len(times):
        return 0
    total = np.concatenate([[0.0], np.cumsum(np.ones(len(times)) if weights is None else weights)])
    first = np.searchsorted(times, times - seconds, side="right")
    return float(np.max(total[1:] - total[first]))


def used(
    times: NDArray[np.float64], rates: Sequence[tuple[float, float]], weights: NDArray[np.float64] | None = None
) -> float | None:
    """Return the share of a limit that was used between the first and the last of `times`; None for fewer than two.

    `rates` are the limit's changes, as (time, units per second), in order; 0 is no limit, and what came then is left
    out. The first arrival opens the count: n arrivals fill n - 1 gaps.
    """
    if len(times) < 2 or not rates:
        return None
    starts = np.array([at for at, _ in rates])
    each = np.array([rate for _, rate in rates])
    ends = np.append(starts[1:], np.inf)
    within = np.clip(np.minimum(ends, times[-1]) - np.maximum(starts, times[0]), 0, None)
    allowed = float(np.sum(within * each))
    place = np.searchsorted(starts, times, side="right") - 1
    limited = (place >= 0) & (each[np.clip(place, 0, None)] > 0)
    count = (np.ones(len(times)) if weights is None else weights)[limited]
    return float(np.sum(count[1:])) / allowed if allowed > 0 and len(count) else None
