"""Land a batch: one Spark job in which every task writes one Parquet file per target.

Everything here but `landed` runs on executors. A task holds Arrow batches by table up to `buffer_bytes`, then writes
the largest tables as row groups, so its memory does not grow with the batch. A task that fails leaves files that
nothing references; its successor writes others.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.archives import keep_archives
from router.delta.casting import brought, narrowed
from router.delta.commit import LandedFile
from router.engine.fuse import Fused, labelled
from router.engine.lane import placed
from router.engine.layout import BRONZE_SCHEMA, DEAD_SCHEMA, RAW_COLUMNS, Layout, RouteLabels, Ruling, Target, too_wide
from router.engine.rows import GATHERED, Counts, Numbers, Rows, gathered, groups
from router.engine.undecided import Undecided, records
from router.engine.write import attempt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from router.engine.write import Landing

REPORT = "report string, records binary"


@dataclass(frozen=True)
class Job:
    """Be what every task of a landing job is given.

    `hands_over`: bytes of records that it may leave undecided; they travel to the driver.
    """

    layout: Layout
    ruling: Ruling
    landing: Landing
    batch: int
    fused: Fused | None = None
    hands_over: int = 0
    query: str = ""


@dataclass(frozen=True)
class Landed:
    """Be what a job reports: files, counts per task and source partition, and which rows it left out.

    `aside` counts the rows that it was to leave out, `left` has those that its tasks could not decide, as raw records;
    `overflow` says that these were too many to hand over, so that the job was in vain.
    """

    files: list[LandedFile]
    counts: list[dict[str, Any]]
    aside: int = 0
    left: tuple[bytes, ...] = ()
    overflow: bool = False

    def __add__(self, other: Landed) -> Landed:
        return Landed(
            self.files + other.files,
            self.counts + other.counts,
            self.aside + other.aside,
            self.left + other.left,
            self.overflow or other.overflow,
        )

    @property
    def records(self) -> pa.Table:
        """Return the records that were left undecided."""
        return records(self.left)


def landed(frame: DataFrame, job: Job) -> Landed:
    """Run the job. Needs the columns of the layout, or raw ones if it is fused.

    Rows with a true `_aside`, where there is one, are left out.
    """
    files: list[LandedFile] = []
    counts: list[dict[str, Any]] = []
    rest = Landed([], [])
    for row in frame.mapInArrow(task(job), REPORT).collect():  # one row per file and source partition of a task
        report = json.loads(row["report"])
        if "path" in report:
            files.append(LandedFile.of(report))
        elif "aside" in report:
            left = (bytes(row["records"]),) if row["records"] is not None else ()
            rest = rest + Landed([], [], report["aside"], left, report["overflow"])
        else:
            counts.append(report)
    return Landed(files, counts) + rest


def task(job: Job) -> Any:
    """Return the function of one task, for mapInArrow."""

    def land(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        work = _Task(job, attempt())
        for batch in gathered(batches, min(GATHERED, job.landing.buffer_bytes // 2)):
            work.take(batch)
        reports = work.finish()
        left = [None] * (len(reports) - 1) + [work.left.whole()]
        columns = [pa.array(reports, pa.string()), pa.array(left, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, names=["report", "records"])

    return land


class _Task:
    """Sort the rows of one task into tables and count them."""

    def __init__(self, job: Job, attempt: str) -> None:
        self.job = job
        self.writer = job.landing.writer(job.batch, attempt)
        self.counts: dict[tuple[str, int], Counts] = {}
        self.aside = 0
        self.left = Undecided(job.hands_over)

    def take(self, batch: pa.RecordBatch) -> None:
        """Sort one Arrow batch."""
        batch = self._without_aside(batch)
        if self.job.fused and batch.num_rows:
            batch, left = labelled(batch.select(list(RAW_COLUMNS)), self.job.fused)
            if left is not None:
                self.left.add(left)
        if not batch.num_rows:
            return
        rows = Rows(batch, self.counts)
        self._raw(rows)
        for route in self.job.layout.routes:
            self._route(rows, route)
        self.writer.flush()

    def finish(self) -> list[str]:
        """Write what is held; return the reports as JSON, files first, and last what was left out."""
        files = [json.dumps(asdict(file)) for file in self.writer.close()]
        counts = [json.dumps(asdict(counts)) for counts in self.counts.values()]
        return [*files, *counts, json.dumps({"aside": self.aside, "overflow": self.left.overflow})]

    def _without_aside(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if "_aside" not in batch.schema.names or not (count := batch.column("_aside").true_count):
            return batch
        self.aside += count
        return batch.filter(pc.invert(batch.column("_aside")))

    def _raw(self, rows: Rows) -> None:
        layout = self.job.layout
        for name in ("failed", "bare", "unmatched"):
            rows.add(name, None, rows.mask(f"_{name}"))
        if layout.wanted:
            rows.want(pc.unique(rows.batch.column("_wanted").drop_null()).to_pylist())
        if layout.bronze:
            self.writer.hold("/bronze", layout.bronze, _numbered(rows.raw(None), self.job.batch, BRONZE_SCHEMA))
        dead = rows.batch.column("_dead")
        if dead.null_count < len(dead):
            parents = pc.list_parent_indices(dead)
            why = dead.flatten()
            self._dead(rows, parents, [why.field(i) for i in range(4)])

    def _dead(self, rows: Rows, at: pa.Array, why: list[pa.Array]) -> None:
        letters = pa.RecordBatch.from_arrays([*why, *rows.raw(at).columns], names=DEAD_SCHEMA.names[:-1])
        self.writer.hold("/dead_letters", self.job.layout.dead_letters, _numbered(letters, self.job.batch, DEAD_SCHEMA))

    def _route(self, rows: Rows, route: RouteLabels) -> None:
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
            for table, at in groups(rows, target):
                self._land(rows, target, table, at)

    def _land(self, rows: Rows, target: Target, table: str, at: Numbers | None, whose: str = "") -> None:
        """Land rows in a table; `whose`: the table they wait for, in a lane of waiting rows."""
        allowed = self.job.ruling.allowed.get(target.key)
        if target.names_in_lane:
            at = self._named(rows, target, at)
        elif allowed is not None and table not in allowed:
            self._refuse(rows, target, rows.where(at), "name", target.beyond(table))
            return
        part = rows.struct(target.rows, at)
        for column, reason in self.job.ruling.conflicts.get(target.place(table), {}).items():
            if column in part.schema.names:
                part, at = self._without(rows, target, (part, at), column, f"table {table}: {reason}")
        if not part.num_rows:
            return
        part, at = self._narrowed(rows, target, table, (part, at))
        if not part.num_rows:
            return
        rows.add("landed", target.key, at)
        if target.lane:
            told = {"_table": whose, "_query": self.job.query, "_batch_id": self.job.batch}
            part = placed(rows, target, (part, at), told)
        casts, frozen = (kind.get(target.place(table), {}) for kind in (self.job.ruling.casts, self.job.ruling.frozen))
        kinds = {**{f.name: f.type for f in target.schema}, **frozen, **casts}
        schema = pa.schema([pa.field(f.name, kinds[f.name]) for f in target.schema if f.name in part.schema.names])
        self.writer.hold(target.key, table, _cast(part, schema), seen=target.seen)

    def _named(self, rows: Rows, target: Target, at: Numbers | None) -> Numbers:
        """Return the rows of a lane whose tables the sink may have; note the tables."""
        allowed, index = self.job.ruling.allowed.get(target.key), rows.where(at)
        tables = rows.struct(str(target.extra), at).column("_table")
        if allowed is not None:
            for table in set(pc.unique(tables).to_pylist()) - allowed:
                beyond = pc.equal(tables, table).to_numpy(zero_copy_only=False)
                self._refuse(rows, target, index[beyond], "name", target.beyond(table))
            within = pc.is_in(tables, value_set=pa.array(sorted(allowed), pa.string()))
            tables, index = tables.filter(within), index[within.to_numpy(zero_copy_only=False)]
        rows.name(target.key, pc.unique(tables).to_pylist())
        return index

    def _without(
        self, rows: Rows, target: Target, have: tuple[pa.RecordBatch, Numbers | None], column: str, reason: str
    ) -> tuple[pa.RecordBatch, Numbers]:
        """Turn the rows that hold a value in a conflicting column into dead letters; drop the column."""
        part, at = have
        index = rows.where(at)
        valued = part.column(column).is_valid().to_numpy(zero_copy_only=False)
        if valued.any():
            self._refuse(rows, target, index[valued], "schema", reason)
        kept = part.filter(pa.array(~valued)).drop_columns([column])
        return kept, index[~valued]

    def _narrowed(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch, Numbers | None]
    ) -> tuple[pa.RecordBatch, Numbers | None]:
        """Leave out what a table that may not change has no place for; rows that lose something are counted, or wait.

        A value too wide for its column makes a dead letter of the row where it cannot wait.
        """
        if not (frozen := self.job.ruling.frozen.get(target.place(table))):
            return have
        part, at = have
        index, lost = rows.where(at), np.zeros(part.num_rows, bool)
        for column, kind in frozen.items():
            if column not in part.schema.names:
                continue
            place, values = part.schema.get_field_index(column), part.column(column)
            if kind is None:
                lost |= brought(values, blank=target.blank)
                part = part.remove_column(place)
                continue
            found = narrowed(values, kind, blank=target.blank)
            lost |= found.lost
            part = part.set_column(place, column, found.array)
            if target.waits:
                lost |= found.unfit
            elif found.unfit.any():
                reason = f"table {table}: {too_wide(column, target.schema.field(column).type, kind)}"
                self._refuse(rows, target, index[found.unfit], "schema", reason)
                part, index, lost = part.filter(pa.array(~found.unfit)), index[~found.unfit], lost[~found.unfit]
        if target.waits and lost.any():
            assert target.waits.table is not None  # it is a lane
            rows.add("waiting", target.place(table), index[lost])
            self._land(rows, target.waits, target.waits.table, index[lost], table)
            part, index = part.filter(pa.array(~lost)), index[~lost]
        else:
            rows.add("frozen", target.key, index[lost])
        return part, at if len(index) == have[0].num_rows else index

    def _refuse(self, rows: Rows, target: Target, at: Numbers, stage: str, reason: str) -> None:
        rows.add("turned", target.key, at)
        why = [pa.array([text] * len(at), pa.string()) for text in (stage, reason, target.route, target.sink)]
        self._dead(rows, pa.array(at), why)


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
