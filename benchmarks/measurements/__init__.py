"""The questions: one module each. A measurement asks for cells and makes a table, and perhaps a plot, of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.cells import Cell, Scale
    from benchmarks.results import Results
    from router_bench.chart import Chart


@dataclass(frozen=True)
class Table:
    """What a measurement found: text for people, `figures` for machines."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: dict[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """One question.

    `cells(scale)` names what has to be measured, `table(results, scale)` answers, also when cells are missing.
    `order` says where it stands in the output; `short` whether the short version asks it.
    """

    name: str
    title: str
    order: int
    cells: Callable[[Scale], list[Cell]]
    table: Callable[[Results, Scale], Table]
    chart: Callable[[Results, Scale], Chart] | None = None
    short: bool = True
