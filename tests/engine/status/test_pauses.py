"""The pauses between tries: they grow while nothing succeeds, and begin anew when something has."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from router.engine import stream
from router.engine.retryable_errors import GrowingPauses, RepeatedTrouble
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


def test_a_trouble_that_repeats_is_a_line_when_it_begins_and_when_its_kind_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it an outage of a night is a thousand lines, between which another trouble is lost."""
    monkeypatch.setattr(stream, "is_alive", lambda spark: True)
    nothing: Any = None
    trouble = RepeatedTrouble()
    failures = iter(["500: part-01-3fa9c1d2.parquet", "500: part-02-77ab01ee.parquet", "429: busy", "429: busy", ""])

    def query() -> None:
        failure = next(failures)
        if failure:
            raise OSError(failure)

    config: Any = SimpleNamespace(name="games")
    stream.make_retrying(config, nothing, Impatient(), StatusBoard("games"), trouble=trouble)(query)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(";")[0] for line in lines] == [
        "games: 500: part-01-3fa9c1d2.parquet",
        "games: 429: busy",
    ]
    assert (trouble.is_over(), trouble.is_over()) == (True, False), "its end is one line"
    assert trouble.is_new("429: busy"), "it begins again"


def test_a_run_that_has_recovered_pauses_as_shortly_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a run that lives for months waits a minute at each hiccup of its source."""
    monkeypatch.setattr(stream, "is_alive", lambda spark: True)
    stop, pauses, nothing = Impatient(), GrowingPauses(), Any
    outcomes: Iterator[str] = iter(["", "", "", "", "batch", "", "done"])

    def query() -> None:
        for outcome in outcomes:
            if outcome == "done":
                return
            if outcome == "batch":
                pauses.note_success()
            else:
                raise OSError("away")

    stream.make_retrying(SimpleNamespace(name="games"), nothing, stop, StatusBoard("games"), pauses)(query)  # type: ignore[arg-type]

    assert [next(n for n in range(9) if pause <= 2**n + 1) for pause in stop.pauses] == [0, 1, 2, 3, 0]
    assert all(pause >= least for pause, least in zip(stop.pauses, [1, 2, 4, 8, 1], strict=True))
