"""What is measured: a cell is one contender on one topic in one way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["warm", "cold", "single"]
Sample = Literal["", "workers", "driver", "footprint"]


@dataclass(frozen=True)
class Cell:
    """One thing to measure; equal cells of several measurements run once.

    `mode` says how: `warm` runs `warm_up` + `repeat` times in one session and its figure leaves the first ones out,
    `cold` starts `repeat` fresh processes, `single` is one run in one process, for what is sampled rather than timed.
    `rows_per_batch` of 0 means that all events come in one batch; a `feed` of "" that the subject needs no topic.
    Cold cells of the same `turns` run their processes in turns, so that a machine that slows down slows all of them.
    """

    subject: str
    mode: Mode
    events: int
    games: int
    partitions: int = 4
    repeat: int = 1
    rows_per_batch: int = 0
    sample: Sample = ""
    feed: str = "json"
    options: tuple[tuple[str, str], ...] = ()
    warm_up: int = 1
    turns: str = ""

    @property
    def key(self) -> str:
        """Return the name of this cell in results; `repeat` is no part of it."""
        sizes = [f"{self.events}ev", f"{self.games}t", f"{self.partitions}p"]
        parts = [self.mode, self.subject, self.feed or "no topic", *sizes]
        if self.rows_per_batch:
            parts.append(f"{self.rows_per_batch}rows")
        if self.sample:
            parts.append(self.sample)
        parts += [f"{name}={value}" for name, value in self.options]
        if self.warm_up > 1:
            parts.append(f"after {self.warm_up}")
        return "/".join(parts)

    @property
    def processes(self) -> int:
        """Return how many processes this cell starts, one after the other."""
        return self.repeat if self.mode == "cold" else 1

    @property
    def runs(self) -> int:
        """Return how often one process of this cell does the work."""
        return self.warm_up + self.repeat if self.mode == "warm" else 1


@dataclass(frozen=True)
class Scale:
    """How much is measured: the short version or everything."""

    events: int
    repeat: int
    full: bool
    timeout: float

    def of_size(self, short: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
        """Return the points of a measurement at this scale."""
        return full if self.full else short

    def warm(self, subject: str, games: int, partitions: int = 4) -> Cell:
        """Return the usual warm cell: all events in one batch."""
        if subject != "router" and games >= 1000:
            # One run where a single one takes ten minutes: beside that, what a first run costs more is noise.
            return Cell(subject, "single", self.events, games, partitions)
        return Cell(subject, "warm", self.events, games, partitions, self.repeat)

    def cold(self, subject: str, games: int) -> Cell:
        """Return the usual cold cell: a fresh process each time."""
        return Cell(subject, "cold", self.events, games, repeat=self.repeat)


SHORT = Scale(events=300_000, repeat=1, full=False, timeout=300)
FULL = Scale(events=1_000_000, repeat=3, full=True, timeout=5400)


def in_turns(cells: list[Cell]) -> list[list[Cell]]:
    """Return the cells in groups that are measured together, in order of first mention."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        group = f"turns of {cell.turns}" if cell.turns else cell.key
        groups.setdefault(group, []).append(cell)
    return list(groups.values())


def distinct(cells: list[Cell]) -> list[Cell]:
    """Return each cell once, in order of first mention, with the largest `repeat` asked for."""
    chosen: dict[str, Cell] = {}
    for cell in cells:
        earlier = chosen.get(cell.key)
        if earlier is None or cell.repeat > earlier.repeat:
            chosen[cell.key] = cell
    return list(chosen.values())
