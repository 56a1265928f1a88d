"""Decide which task gets which rows: the same ones whenever a batch is sent again. Runs on the driver."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

from router_rest.delivery.batcher import CallSize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_RANGES = 256
"""Ranges that each row is compared with at most; where there would be more, source partitions are hashed to tasks."""
MIN_CALLS_PER_TASK = 32
"""Calls that a task has at least, where the configuration says how many tasks there are."""
CALLS_WORTH_A_TASK = 2000
"""Calls that justify a task otherwise: one process sends them in about the time that Spark takes for a shuffle."""
ROWS_WORTH_A_TASK = 50_000
"""Rows that justify a task, however few their calls are."""
MAX_TASK_SHARE = 1.05
"""The largest part of a task, in even shares: the one that ends last is alone, with its part of the calls in flight."""


class Extent(NamedTuple):
    """The rows of a batch from one source partition."""

    topic: str | None
    partition: int
    first: int
    last: int
    rows: int


class Piece(NamedTuple):
    """A range of offsets, and the task that gets it."""

    topic: str | None
    partition: int
    first: int
    last: int
    task: int


@dataclass(frozen=True)
class PartitionPlan:
    """How a batch is cut and which task sends what, kept until it is done: a new configuration must not cut it again.

    Without `pieces` source partitions are hashed to tasks.
    """

    cut: CallSize
    tasks: int
    rows: int
    pieces: tuple[Piece, ...] = ()

    def to_note(self) -> str:
        """Return this as the text of a note."""
        return json.dumps(asdict(self))

    @classmethod
    def from_note(cls, note: str) -> PartitionPlan:
        """Return the plan of a note."""
        written = json.loads(note)
        pieces = tuple(Piece(*piece) for piece in written["pieces"])
        return cls(_read_size(written["cut"]), written["tasks"], written["rows"], pieces)

    def partition_key(self) -> str | None:
        """Return SQL for the number by whose hash Spark sends a row to its task; None: hash topic and partition."""
        if not self.pieces:
            return None
        keys = keys_of(self.tasks)
        cases = [f"WHEN {_range_condition(piece)} THEN {keys[piece.task]}" for piece in self.pieces]
        return f"CASE {' '.join(cases)} ELSE {keys[0]} END"


def _read_size(written: dict[str, int]) -> CallSize:
    """Return the size of calls in a note; a batch that was begun before an upgrade has `lanes` for `orders`."""
    if "lanes" in written:
        written["orders"] = written.pop("lanes")
    return CallSize(**written)


def make_plan(
    extents: Iterable[Extent], cut: CallSize, tasks: int, *, said: bool = True, whole: bool = False
) -> PartitionPlan:
    """Assign rows to tasks: whole source partitions if they fit, the largest first.

    `tasks` is how many tasks there are where the configuration has `said` so, else how many there may be; for few calls
    there are fewer. Partitions are divided by offsets where tasks would be uneven without it; not where rows keep an
    order (`cut.orders`), and not with `whole`.
    """
    extents = sorted(extents, key=lambda extent: (extent.topic or "", extent.partition))
    rows = sum(extent.rows for extent in extents)
    calls = rows // cut.rows
    worth = calls // MIN_CALLS_PER_TASK
    if not said:
        worth = max(calls // CALLS_WORTH_A_TASK, rows // ROWS_WORTH_A_TASK)
    tasks = max(1, min(tasks, worth))
    if tasks == 1 or len(extents) > MAX_RANGES:
        return PartitionPlan(cut, tasks, rows)
    # Partitions that stay whole have one task each at most.
    together = whole or cut.orders > 0
    if together:
        tasks = min(tasks, len(extents))
    if tasks == 1:
        return PartitionPlan(cut, 1, rows)
    pieces, heaviest = _whole_partitions(extents, tasks)
    if heaviest > MAX_TASK_SHARE * rows / tasks and not together:
        pieces = _cut_pieces(extents, rows, tasks)
    pieces.sort(key=lambda piece: (piece.topic or "", *piece[1:]))
    return PartitionPlan(cut, tasks, rows, tuple(pieces))


def _whole_partitions(extents: Sequence[Extent], tasks: int) -> tuple[list[Piece], int]:
    """Return a task for each whole partition, the largest first; and the rows of the task that has most."""
    load = [0] * tasks
    pieces = []
    for extent in sorted(extents, key=lambda extent: (-extent.rows, extent.topic or "", extent.partition)):
        task = load.index(min(load))
        load[task] += extent.rows
        pieces.append(Piece(extent.topic, extent.partition, extent.first, extent.last, task))
    return pieces, max(load)


def _cut_pieces(extents: Iterable[Extent], rows: int, tasks: int) -> list[Piece]:
    """Return source partitions, one after the other, divided into as many parts of equal size as there are tasks.

    The number of rows in a range of offsets is not known; they count as evenly spread within a partition.
    """
    pieces = []
    task = 0
    dealt = 0.0
    for topic, partition, first, last, many in extents:
        rows_of_offset = many / (last - first + 1)
        begin = first
        while begin <= last:
            end = last + 1
            # The last task takes all that is left; each of the others as much as makes its share full.
            if task < tasks - 1:
                missing = (task + 1) * rows / tasks - dealt
                end = min(end, begin + max(1, round(missing / rows_of_offset)))
            pieces.append(Piece(topic, partition, begin, end - 1, task))
            dealt += (end - begin) * rows_of_offset
            begin = end
            if task < tasks - 1 and dealt >= (task + 1) * rows / tasks - rows_of_offset / 2:
                task += 1
    return pieces


def _range_condition(piece: Piece) -> str:
    """Return SQL that is true for the rows of a range. The topic comes from data, so it is written as bytes."""
    topic = "NULL"
    if piece.topic is not None:
        topic = f"CAST(X'{piece.topic.encode().hex()}' AS STRING)"
    return f"_topic <=> {topic} AND _partition = {piece.partition} AND _offset BETWEEN {piece.first} AND {piece.last}"


def keys_of(tasks: int) -> list[int]:
    """Return for each task a number that Spark's hash partitioning of an int column sends to it."""
    number_of_task: dict[int, int] = {}
    number = 0
    while len(number_of_task) < tasks:
        number_of_task.setdefault(_spark_hash(number) % tasks, number)
        number += 1
    return [number_of_task[task] for task in range(tasks)]


def _spark_hash(number: int) -> int:
    """Return Spark's `hash` of an int: Murmur3 (x86, 32 bits) of four bytes, with the seed 42."""

    def mix_bits(value: int, left: int) -> int:
        return ((value << left) | (value >> (32 - left))) & 0xFFFFFFFF

    scrambled = mix_bits(number * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    value = (mix_bits(42 ^ scrambled, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        value = (value ^ (value >> shift)) * factor & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
