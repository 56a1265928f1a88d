"""Every run of every cell, kept in one JSON file that grows cell by cell."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from benchmarks.cells import Cell, Scale
from benchmarks.runs import Run
from router_bench.machine import NOISY, Label

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class CellResult:
    """The runs of a cell, where they were measured, and what disturbed them."""

    cell: Cell
    runs: tuple[Run, ...]
    load: float = 0.0
    foreign_cores: float = 0.0
    label: Label = field(default_factory=Label)

    @property
    def problem(self) -> str:
        """Return why this cell has no figure, or ""."""
        problems = [run.problem for run in self.runs if run.problem]
        if problems:
            return problems[0]
        return "" if self.counted else "no run was finished"

    @property
    def counted(self) -> list[Run]:
        """Return the runs that make the figure: of a warm cell all but the first ones."""
        warm_up = self.cell.warm_up if self.cell.mode == "warm" else 0
        return list(self.runs[warm_up:])

    @property
    def first(self) -> Run | None:
        """Return the first run of the process of a warm cell: its cold batch."""
        return next((run for run in self.runs if run.first), None)

    @property
    def noisy(self) -> bool:
        """Return whether other processes used so much of the machine that the cell should be repeated."""
        return self.foreign_cores > NOISY


@dataclass
class Results:
    """Results by cell; `add` saves the file at once, so that an interrupted session can be continued.

    `command` is the last one that wrote them. Machine, commit and date are those of each cell, not of the file: a file
    grows over sessions, and may be copied to other machines.
    """

    path: Path
    scale: Scale
    command: str
    cells: dict[str, CellResult] = field(default_factory=dict)

    def add(self, result: CellResult) -> None:
        """Add a result, in place of an older one of the same cell."""
        self.cells[result.cell.key] = result
        self.save()

    def of(self, cell: Cell) -> CellResult | None:
        """Return the result of a cell; None if it was not measured."""
        return self.cells.get(cell.key)

    def complete(self, cell: Cell) -> bool:
        """Return whether a cell was measured without a problem, as often as it requires."""
        result = self.of(cell)
        return result is not None and not result.problem and len(result.counted) >= cell.repeat

    def save(self, findings: dict[str, Any] | None = None) -> None:
        """Write everything so that a crash leaves the old file or the new one."""
        cells = []
        for key, result in self.cells.items():
            summary = {"key": key, "median_seconds": median(result), "problem": result.problem}
            cells.append({**summary, **asdict(result)})
        content = {"command": self.command, "scale": asdict(self.scale), "cells": cells}
        if findings is not None:
            content["findings"] = findings
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1))
        part.replace(self.path)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Return the results in a file."""
        content = json.loads(path.read_text())
        results = cls(path, Scale(**content["scale"]), content["command"])
        for item in content["cells"]:
            result = _cell_result(item)
            results.cells[result.cell.key] = result
        return results


def median(result: CellResult | None, value: str = "seconds") -> float | None:
    """Return the median of a field of the counted runs; None if there is no valid figure."""
    if result is None or result.problem:
        return None
    values = []
    for run in result.counted:
        number = getattr(run, value)
        if number is not None:
            values.append(number)
    return statistics.median(values) if values else None


def last_run(result: CellResult | None) -> Run | None:
    """Return the last of the counted runs; None if there is no valid figure."""
    if result is None or result.problem:
        return None
    return result.counted[-1]


def median_steps(runs: list[Run]) -> dict[str, float]:
    """Return the median seconds of each step over runs, in the order of the first run."""
    names: dict[str, None] = {}
    for run in runs:
        names |= dict.fromkeys(run.steps)
    medians = {}
    for name in names:
        medians[name] = statistics.median(run.steps.get(name, 0.0) for run in runs)
    return medians


def ratio(slower: float | None, faster: float | None) -> float | None:
    """Return how many times longer the first took; None if one of the two has no figure."""
    if slower is None or not faster:
        return None
    return slower / faster


def _cell_result(item: dict[str, Any]) -> CellResult:
    # Files of earlier versions have fields that cells no longer have.
    names = {cell_field.name for cell_field in fields(Cell)}
    cell = {name: value for name, value in item["cell"].items() if name in names}
    cell["options"] = tuple((name, value) for name, value in cell.get("options", ()))
    runs = tuple(Run.of(run) for run in item["runs"])
    return CellResult(Cell(**cell), runs, item["load"], item["foreign_cores"], Label.of(item.get("label")))
