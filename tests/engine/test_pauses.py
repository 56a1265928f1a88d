"""The pauses between tries: they grow while nothing succeeds, and begin anew when something has."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from router.engine import stream
from router.engine.retryable_errors import GrowingPauses
from router.engine.status.board import StatusBoard

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class Impatient(threading.Event):
    """A run that is never stopped, and whose waiting takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0)
        return False


def test_a_run_that_has_recovered_pauses_as_shortly_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a run that lives for months waits a minute at each hiccup of its source."""
    monkeypatch.setattr(stream, "alive", lambda spark: True)
    stop, pauses, nothing = Impatient(), GrowingPauses(), Any
    outcomes: Iterator[str] = iter(["", "", "", "", "batch", "", "done"])

    def query() -> None:
        for outcome in outcomes:
            if outcome == "done":
                return
            if outcome == "batch":
                pauses.succeeded()
            else:
                raise OSError("away")

    stream.retrying(SimpleNamespace(name="games"), nothing, stop, StatusBoard("games"), pauses)(query)  # type: ignore[arg-type]

    assert [next(n for n in range(9) if pause <= 2**n + 1) for pause in stop.pauses] == [0, 1, 2, 3, 0]
    assert all(pause >= least for pause, least in zip(stop.pauses, [1, 2, 4, 8, 1], strict=True))
