"""Give results without measuring anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.cells import SHORT, Cell
from benchmarks.feeds.json_events import JSON
from benchmarks.results import CellResult, Results
from benchmarks.runs import Run, Task
from router_bench.machine import Label

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LABEL = Label(
    {"processor": "Zeta 9", "cores": "2", "memory": "24 GB", "system": "Linux 6"}, "a" * 40, False, "2026-11-21"
)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Return empty results of the short version."""
    return Results(tmp_path / "results.json", SHORT, "python -m benchmarks")


@pytest.fixture
def measured(results: Results) -> Callable[..., CellResult]:
    """Put runs of so many seconds into the results; the first of a warm cell is its cold batch."""

    def add(
        cell: Cell,
        *seconds: float,
        problem: str = "",
        foreign_cores: float = 0.0,
        label: Label | None = None,
        **more: object,
    ) -> CellResult:
        runs = [Run(value, first=not index or cell.mode == "cold", **more) for index, value in enumerate(seconds)]  # type: ignore[arg-type]
        runs += [Run(0.0, first=False, problem=problem)] if problem else []
        result = CellResult(cell, tuple(runs), 0.5, foreign_cores, label or LABEL)
        results.add(result)
        return result

    return add


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """Return a task of three events for two games."""
    names = ("127.0.0.1:9092", "json-3-2-4", JSON.schema, JSON.decode())
    return Task(*names, 3, 2, 4, 3, {"game_0000": 2, "game_0001": 1}, str(tmp_path))
