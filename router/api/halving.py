"""Find the rows on which a step raises, by halving a batch: all other rows keep what the step makes of them.

For pure steps alone, that handle each row independently of the others: nothing is counted, written or sent in one. Then
halving finds the same rows as going row by row. For n rows it takes at most 2n calls, and one if nothing raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from router.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

Made = TypeVar("Made")


@dataclass(frozen=True)
class Halved(Generic[Made]):
    """Consecutive rows, from `start` up to `stop`, and what a step makes of them; or one row on which it raises."""

    start: int
    stop: int
    made: Made | None = None
    error: BaseException | None = None


def is_caused_by_a_row(error: BaseException) -> bool:
    """Return whether a row can have caused the error: not a missing module, a lack of memory or an interrupt."""
    # pyo3 derives its panics from BaseException, and exports no class for them.
    if type(error).__name__ == "PanicException":
        return True
    return isinstance(error, Exception) and not isinstance(error, (ImportError, MemoryError, PluginError))


def by_halves(
    step: Callable[[int, int], Made], rows: int, is_caused: Callable[[BaseException], bool] = is_caused_by_a_row
) -> list[Halved[Made]]:
    """Return the results of a step on a batch, in order: one for the whole if it does not raise, else for its pieces.

    `step(start, stop)` makes something of these rows. Raises what no row has caused, by `is_caused`, and what the step
    raises on a batch without rows.
    """
    return _run_by_halves(step, is_caused, 0, rows)


def _run_by_halves(
    step: Callable[[int, int], Made], is_caused: Callable[[BaseException], bool], start: int, stop: int
) -> list[Halved[Made]]:
    try:
        return [Halved(start, stop, made=step(start, stop))]
    except BaseException as error:
        if stop == start or not is_caused(error):
            raise
        if stop == start + 1:
            return [Halved(start, stop, error=error)]
    # Some row raises: look for it in each half.
    middle = (start + stop) // 2
    return [*_run_by_halves(step, is_caused, start, middle), *_run_by_halves(step, is_caused, middle, stop)]
