"""Write down what containment catches in a process of Python: it is first on the path of the workers of one test.

Each process imports this module before anything else. A line has the class of an error, its text and its place.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import planted  # beside this module

from router.api import halving

if TYPE_CHECKING:
    from collections.abc import Callable

_halves = halving._run_by_halves
_is_caused_by_a_row = halving.is_caused_by_a_row


def write(line: str) -> None:
    """Append a line to the file of the test."""
    with Path(os.environ["ROUTER_CATCHES"]).open("a", encoding="utf-8", errors="replace") as file:
        file.write(line + "\n")


def describe(error: BaseException) -> str:
    """Return an error with the last lines of code that it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = " < ".join(
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )
    return f"{type(error).__name__}: {str(error)[:300]!r} at {places}"


def watched_halves(step: Callable[[int, int], Any], is_caused: Any, start: int, stop: int) -> list[halving.Halved[Any]]:
    """Look for the rows on which a step raises; write down each."""
    pieces = _halves(step, is_caused, start, stop)
    if stop == start + 1 and pieces[0].error is not None:
        write(describe(pieces[0].error))
    return pieces


def watched_question(error: BaseException) -> bool:
    """Return whether a row can have caused an error; write it down."""
    if "note_failure" in "".join(traceback.format_stack(limit=3)):
        write(f"of a file: {describe(error)}")
    return _is_caused_by_a_row(error)


if os.environ.get(planted.VARIABLE):
    planted.plant_named_bug()
else:
    halving._run_by_halves = watched_halves
halving.is_caused_by_a_row = watched_question
write("watching")
