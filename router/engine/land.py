"""Land a batch: one Spark job in which every task writes one Parquet file per target.

Everything here but `landed` runs on executors. A task holds Arrow batches by table up to `buffer_bytes`, then writes
the largest tables as row groups, so its memory does not grow with the batch. A task that fails leaves files that
nothing references; its successor writes others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from router.delta.commit import LandedFile
from router.engine.layout import (
    BRONZE_SCHEMA,
    COORDINATES,
    DEAD_SCHEMA,
    RAW_COLUMNS,
    Layout,
    RouteLabels,
    Ruling,
    Target,
)
from router.engine.write import Landing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = npt.NDArray[np.int64]
REPORT = "report string"


@dataclass(frozen=True)
class Job:
    """Be what every task of a landing job is given."""

    layout: Layout
    ruling: Ruling
    landing: Landing
    batch: int


def landed(frame: DataFrame, job: Job) -> tuple[list[LandedFile], list[dict[str, Any]]]:
    """Run the job; return the files and the counts per task and source partition."""
    files: list[LandedFile] = []
    counts: list[dict[str, Any]] = []
    for row in frame.mapInArrow(task(job), REPORT).collect():  # one row per file and source partition of a task
        report = json.loads(row["report"])
        if "path" in report:
            files.append(LandedFile(**{**report, "columns": tuple(report["columns"])}))
        else:
            counts.append(report)
    return files, counts


def task(job: Job) -> Any:
    """Return the function of one task, for mapInArrow."""

    def land(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        attempt = f"{context.partitionId()}-{context.taskAttemptId()}" if context else "0-0"
        work = _Task(job, attempt)
        for batch in batches:
            work.take(batch)
        reports = work.finish()
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

    return land


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


class _Task:
    """Sort the rows of one task into tables and count them."""

    def __init__(self, job: Job, attempt: str) -> None:
        self.job = job
        self.writer = job.landing.writer(job.batch, attempt)
        self.counts: dict[tuple[str, int], Counts] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Sort one Arrow batch."""
        if not batch.num_rows:
            return
        rows = _Batch(batch, self.counts)
        self._raw(rows)
        for route in self.job.layout.routes:
            self._route(rows, route)
        self.writer.flush()

    def finish(self) -> list[str]:
        """Write what is held; return the reports as JSON, files first."""
        files = [json.dumps(asdict(file)) for file in self.writer.close()]
        return files + [json.dumps(asdict(counts)) for counts in self.counts.values()]

    def _raw(self, rows: _Batch) -> None:
        layout = self.job.layout
        for name in ("failed", "bare", "unmatched"):
            rows.add(name, None, rows.mask(f"_{name}"))
        if layout.bronze:
            self.writer.hold("/bronze", layout.bronze, _numbered(rows.raw(None), self.job.batch, BRONZE_SCHEMA))
        dead = rows.batch.column("_dead")
        if dead.null_count < len(dead):
            parents = pc.list_parent_indices(dead)
            why = dead.flatten()
            self._dead(rows, parents, [why.field(i) for i in range(4)])

    def _dead(self, rows: _Batch, at: pa.Array, why: list[pa.Array]) -> None:
        letters = pa.RecordBatch.from_arrays([*why, *rows.raw(at).columns], names=DEAD_SCHEMA.names[:-1])
        self.writer.hold("/dead_letters", self.job.layout.dead_letters, _numbered(letters, self.job.batch, DEAD_SCHEMA))

    def _route(self, rows: _Batch, route: RouteLabels) -> None:
        for kind, columns in (
            ("matched", {route.name: route.matched}),
            ("refused", {route.name: route.refused}),
            ("dropped", {route.name: route.dropped}),
            ("warned", {f"{route.name}/{name}": column for name, column in route.warned.items()}),
            ("failing", {f"{route.name}/{name}": column for name, column in route.failing.items()}),
        ):
            for key, column in columns.items():
                rows.add(kind, key, rows.mask(column))
        for target in route.targets:
            if target.misnamed:
                rows.add("turned", target.key, rows.mask(target.misnamed))
            for table, at in _groups(rows, target):
                self._land(rows, target, table, at)

    def _land(self, rows: _Batch, target: Target, table: str, at: Rows | None) -> None:
        allowed = self.job.ruling.allowed.get(target.key)
        if allowed is not None and table not in allowed:
            reason = f"table {table}: the sink may have {target.at_most} tables and has them"
            self._refuse(rows, target, rows.where(at), "name", reason)
            return
        part = rows.struct(target.rows, at)
        for column, reason in self.job.ruling.conflicts.get(table, {}).items():
            if column in part.schema.names:
                part, at = self._without(rows, target, (part, at), column, f"table {table}: {reason}")
        if not part.num_rows:
            return
        rows.add("landed", target.key, at)
        if target.lane:
            raw = rows.raw(at)
            coordinates = [raw.column(old) for old in COORDINATES.values()]
            part = pa.RecordBatch.from_arrays([*coordinates, *part.columns], names=[*COORDINATES, *part.schema.names])
        casts = self.job.ruling.casts.get(table, {})
        schema = pa.schema([pa.field(f.name, casts.get(f.name, f.type)) for f in target.schema if f.name in part.schema.names])
        self.writer.hold(target.key, table, _cast(part, schema), seen=target.seen)

    def _without(
        self, rows: _Batch, target: Target, have: tuple[pa.RecordBatch, Rows | None], column: str, reason: str
    ) -> tuple[pa.RecordBatch, Rows]:
        """Turn the rows that hold a value in a conflicting column into dead letters; drop the column."""
        part, at = have
        index = rows.where(at)
        valued = part.column(column).is_valid().to_numpy(zero_copy_only=False)
        if valued.any():
            self._refuse(rows, target, index[valued], "schema", reason)
        kept = part.filter(pa.array(~valued)).drop_columns([column])
        return kept, index[~valued]

    def _refuse(self, rows: _Batch, target: Target, at: Rows, stage: str, reason: str) -> None:
        rows.add("turned", target.key, at)
        why = [pa.array([text] * len(at), pa.string()) for text in (stage, reason, target.route, target.sink)]
        self._dead(rows, pa.array(at), why)


class _Batch:
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

    def mask(self, column: str) -> Rows:
        """Return the rows where a boolean column is true."""
        chosen = self.batch.column(column)
        if not chosen.true_count:
            return self.all[:0]
        return np.flatnonzero(chosen.to_numpy(zero_copy_only=False))

    def where(self, at: Rows | None) -> Rows:
        """Return row numbers for a choice of rows, where None is all of them."""
        return self.all if at is None else at

    def add(self, kind: str, key: str | None, at: Rows | None) -> None:
        """Count chosen rows under their source partitions."""
        found = np.bincount(self.codes[self.where(at)], minlength=len(self.sources))
        for count, more in zip(self.of, found.tolist(), strict=True):
            if key is None:
                setattr(count, kind, getattr(count, kind) + more)
            elif more:
                by = getattr(count, kind)
                by[key] = by.get(key, 0) + more

    def raw(self, at: Any) -> pa.RecordBatch:
        """Return the records as received."""
        raw = self.batch.select(list(RAW_COLUMNS))
        return raw if at is None else raw.take(pa.array(at) if isinstance(at, np.ndarray) else at)

    def struct(self, column: str, at: Rows | None) -> pa.RecordBatch:
        """Return the fields of a struct column for chosen rows."""
        struct = self.batch.column(column)
        return pa.RecordBatch.from_struct_array(struct if at is None else struct.take(pa.array(at)))


def _sources(batch: pa.RecordBatch) -> tuple[Rows, list[tuple[str, int]]]:
    """Return the source partition of each row as a code, and the (topic, partition) of each code."""
    topics = batch.column("topic").dictionary_encode()
    partitions = batch.column("partition").dictionary_encode()
    names, numbers = topics.dictionary.to_pylist(), partitions.dictionary.to_pylist()
    if len(names) == len(numbers) == 1:
        return np.zeros(batch.num_rows, dtype=np.int64), [(names[0], numbers[0])]
    pairs = topics.indices.to_numpy().astype(np.int64) * len(numbers) + partitions.indices.to_numpy()
    present, codes = np.unique(pairs, return_inverse=True)
    return codes.astype(np.int64), [(names[pair // len(numbers)], numbers[pair % len(numbers)]) for pair in present]


def _groups(rows: _Batch, target: Target) -> Iterator[tuple[str, Rows | None]]:
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


def _numbered(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Append the batch id and give the columns the table's types."""
    numbers = pa.array(np.full(batch.num_rows, number, dtype=np.int64))
    return _cast(pa.RecordBatch.from_arrays([*batch.columns, numbers], names=schema.names), schema)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
