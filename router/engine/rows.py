"""Be one Arrow batch of labelled rows: where each row came from, and which table it goes to. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from router.engine.layout import RAW_COLUMNS, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

WANTED = 10_000
"""Different things that a source partition of a task wants at once; more are wanted when the batch lands again."""
GATHERED = 32 << 20
"""Bytes of rows, at most, that are sorted into tables at once: what a table costs, it costs once for each such part."""
Numbers = npt.NDArray[np.int64]
"""Row numbers within a batch."""


@dataclass
class Counts:
    """Count the rows of one source partition in one task, by what became of them."""

    topic: str
    partition: int
    first: int
    last: int
    read: int = 0
    failed: int = 0
    bare: int = 0
    unmatched: int = 0
    matched: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    warned: dict[str, int] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    landed: dict[str, int] = field(default_factory=dict)
    turned: dict[str, int] = field(default_factory=dict)
    frozen: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)


def gathered(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Join batches that follow each other until they have `most` bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.get_total_buffer_size()
        if size >= most:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


class Rows:
    """Be one Arrow batch with its rows' source partitions known."""

    def __init__(self, batch: pa.RecordBatch, counts: dict[tuple[str, int], Counts]) -> None:
        self.batch = batch
        self.all = np.arange(batch.num_rows, dtype=np.int64)
        self.codes, self.sources = _sources(batch)
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        self.of = []
        for code, source in enumerate(self.sources):
            mine = offsets if len(self.sources) == 1 else offsets[self.codes == code]
            first, last = int(mine.min()), int(mine.max())
            count = counts.setdefault(source, Counts(*source, first, last))
            count.first, count.last = min(count.first, first), max(count.last, last)
            count.read += len(mine)
            self.of.append(count)

    def mask(self, column: str) -> Numbers:
        """Return the rows where a boolean column is true."""
        chosen = self.batch.column(column)
        if not chosen.true_count:
            return self.all[:0]
        return np.flatnonzero(chosen.to_numpy(zero_copy_only=False))

    def where(self, at: Numbers | None) -> Numbers:
        """Return row numbers for a choice of rows, where None is all of them."""
        return self.all if at is None else at

    def add(self, kind: str, key: str | None, at: Numbers | None) -> None:
        """Count chosen rows under their source partitions."""
        found = np.bincount(self.codes[self.where(at)], minlength=len(self.sources))
        for count, more in zip(self.of, found.tolist(), strict=True):
            if key is None:
                setattr(count, kind, getattr(count, kind) + more)
            elif more:
                by = getattr(count, kind)
                by[key] = by.get(key, 0) + more

    def want(self, values: list[str]) -> None:
        """Note what the decoder wants, with any of the source partitions: it is asked for once for all of them."""
        have = self.of[0].wanted
        have += [value for value in values[: WANTED - len(have)] if value not in have]

    def name(self, key: str, tables: list[str]) -> None:
        """Note the tables that rows of a lane are for, with any of the source partitions."""
        have = self.of[0].named.setdefault(key, [])
        have += [table for table in tables if table not in have]

    def raw(self, at: Any) -> pa.RecordBatch:
        """Return the records as received."""
        raw = self.batch.select(list(RAW_COLUMNS))
        return raw if at is None else raw.take(pa.array(at) if isinstance(at, np.ndarray) else at)

    def struct(self, column: str, at: Numbers | None) -> pa.RecordBatch:
        """Return the fields of a struct column for chosen rows."""
        struct = self.batch.column(column)
        return pa.RecordBatch.from_struct_array(struct if at is None else struct.take(pa.array(at)))


def _sources(batch: pa.RecordBatch) -> tuple[Numbers, list[tuple[str, int]]]:
    """Return the source partition of each row as a code, and the (topic, partition) of each code."""
    topics = batch.column("topic").dictionary_encode()
    partitions = batch.column("partition").dictionary_encode()
    names, numbers = topics.dictionary.to_pylist(), partitions.dictionary.to_pylist()
    if len(names) == len(numbers) == 1:
        return np.zeros(batch.num_rows, dtype=np.int64), [(names[0], numbers[0])]
    pairs = topics.indices.to_numpy().astype(np.int64) * len(numbers) + partitions.indices.to_numpy()
    present, codes = np.unique(pairs, return_inverse=True)
    return codes.astype(np.int64), [(names[pair // len(numbers)], numbers[pair % len(numbers)]) for pair in present]


def groups(rows: Rows, target: Target) -> Iterator[tuple[str, Numbers | None]]:
    """Split the rows of a target by table: one stable sort, whatever the number of tables. None: every row."""
    goes = rows.batch.column(target.goes)
    if target.table is not None:
        at = rows.mask(target.goes)
        if len(at):
            yield target.table, None if len(at) == len(goes) else at
        return
    coded = goes.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if not names:
        return
    codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(-1, len(names)), side="right")
    for code, name in enumerate(names):
        yield name, order[ends[code] : ends[code + 1]]
