"""Merge an outbox into its tables with delta-rs: one Spark job in which every task merges the tables it owns.

A task holds the rows of one table at a time. A small outbox is merged by the same functions in the driver, where that
is the only machine. A table that cannot be written does not keep the others from theirs.
"""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from router.decoding import keep_archives
from router.delta.casting import cast_to
from router.delta.commit import StagedFile, to_arrow_schema
from router.delta.history import log_damage
from router.delta.keyed.row_checks import REASON, EvolutionForbidden
from router.delta.keyed.row_order import OUTBOX_ONLY, POSITION
from router.delta.keyed.upsert import NeedsRewrite, NeedsSpark, TableUpsert, UpsertResult, upsert
from router.delta.parquet_writer import attempt
from router.delta.schema_diff import delta_schema
from router.delta.table_cache import THREADS
from router.delta.transaction_id import table_id
from router.delta.widening import rewrite
from router.engine.label.layout import DEAD_SCHEMA, MERGED_COORDINATES, TABLE
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.delta.parquet_writer import Staging
    from router.engine.spark.executors import Executors
    from router.sinks import KeyedTable

    Merge = tuple[str, dict[str, Any], pa.Table | None]


REPORT = "report string"
SMALL_ROWS, SMALL_BYTES = 50_000, 16 << 20
"""Rows and bytes of an outbox up to which it is merged without a Spark job, on one machine. Of a cold batch of 10 000
rows for 7 tables the job took 5 s (Python workers, a shuffle, code compiled for it), on two cores that were busy."""
COUNTS = ("applied", "refused", "late", "inserted", "updated", "deleted")
"""What a report counts of one table, whichever engine merged it."""


@dataclass(frozen=True)
class MergeJob:
    """What every merge of a batch's outbox is given. `app` is the sink's transaction id; `known` are the tables
    that the sink has merged into before, `merged` those of this process with the last batch that they have."""

    staging: Staging
    keyed: KeyedTable
    app: str
    batch: int
    route: str
    sink: str
    dead_letters: str
    notes: dict[str, str]
    known: frozenset[str] = frozenset()
    merged: Mapping[str, int] = field(default_factory=dict)

    def upsert(self, table: str) -> TableUpsert:
        """Return the work of one table."""
        about = table, table_id(self.app, table), self.batch, self.keyed, self.notes
        return TableUpsert(*about, table in self.known, self.merged.get(table))


@dataclass
class MergeOutcomes:
    """What merges report: what became of the rows of each table, and the files of the refused ones.

    `spark` are the tables that are left to Delta on Spark, with the reason; `failed` those that could not be written,
    with the number of rows that are `left` for each; `committed` those that have the batch's transaction id.
    `forbidden` are those of them that would have to change and must not.
    """

    counts: dict[str, int] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    files: list[StagedFile] = field(default_factory=list)
    spark: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)

    def add(self, report: dict[str, Any]) -> None:
        """Take one report of a task."""
        if "path" in report:
            self.files.append(StagedFile.of(report))
        elif "spark" in report:
            self.spark[report["table"]] = report["spark"]
        elif "failed" in report:
            self.failed[report["table"]] = report["failed"]
            self.left[report["table"]] = report["rows"]
            self.forbidden |= {report["table"]} if report["forbidden"] else set()
        else:
            self.tables.add(report["table"])
            self.committed |= {report["table"]} if report["committed"] else set()
            for name, count in report["counts"].items():
                self.counts[name] = self.counts.get(name, 0) + count


def merge_by_tasks(events: DataFrame, job: MergeJob, tasks: int, executors: Executors) -> MergeOutcomes:
    """Merge the rows of an outbox in a Spark job; one task is for an outbox of one table, and needs no shuffle.

    Raises StartError where an executor lacks something that the driver has.
    """
    by_table = events.repartition(tasks, TABLE).sortWithinPartitions(TABLE) if tasks > 1 else events.coalesce(1)
    found = MergeOutcomes()
    task = executors.guarded(merge_task(job), reports=True)
    rows = by_table.mapInArrow(task, REPORT).collect()  # a row per table, and per file of refused rows
    for report in executors.without_looks(json.loads(row["report"]) for row in rows):
        found.add(report)
    return found


def merge_task(job: MergeJob) -> Any:
    """Return the function of one task, for mapInArrow. Needs rows sorted by table."""

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        found = [json.dumps(report) for report in reports(job, map(partial(merge_table, job), rows_by_table(batches)))]
        yield pa.RecordBatch.from_arrays([pa.array(found, pa.string())], ["report"])

    return merge


def is_small(work: TableCommit) -> bool:
    """Say whether an outbox has so few rows that a Spark job would cost more than it divides, on one machine."""
    return work.rows <= SMALL_ROWS and sum(file.bytes for file in work.files) <= SMALL_BYTES


def merge_here(work: TableCommit, job: MergeJob) -> MergeOutcomes:
    """Merge the rows of an outbox's staged files in this process, several tables at a time."""
    rows, found = staged_rows(job.staging.lake, work).sort_by(TABLE), MergeOutcomes()
    with ThreadPoolExecutor(THREADS) as pool:
        for report in reports(job, pool.map(partial(merge_table, job), rows_by_table(rows.to_batches()))):
            found.add(report)
    return found


def staged_rows(lake: Lake, work: TableCommit) -> pa.Table:
    """Return the rows of a commit from its staged files."""
    schema, found = delta_schema(to_arrow_schema(work.columns)), []
    for file in work.files:
        try:
            with lake.files.open_input_file(file.path) as source:
                found.append(cast_to(pq.read_table(source), schema))
        except (OSError, pa.ArrowInvalid) as error:
            raise TableError(work.table, f"its file {file.path} cannot be read: {first_line(error)}") from error
    return pa.concat_tables(found)


def reports(job: MergeJob, merges: Iterable[Merge]) -> list[dict[str, Any]]:
    """Return what became of some tables: a report of each, and of each file of refused rows, which are written here."""
    dead = job.staging.writer(job.batch, f"refused-{attempt()}")
    found: list[dict[str, Any]] = []
    for table, report, refused in merges:
        found.append({"table": table, **report})
        if refused is not None and len(refused):
            dead.hold("/dead_letters", job.dead_letters, as_dead_letters(refused, job.route, job.sink, job.batch))
            dead.flush()
    return [*found, *(asdict(file) for file in dead.close())]


def rows_by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Return the rows of one table after the other; they come sorted by table."""
    held: list[pa.RecordBatch] = []
    current: str | None = None
    for batch in batches:
        coded = batch.column(TABLE).dictionary_encode()
        codes = coded.indices.to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(cuts):
            if start == end:
                continue
            table = coded.dictionary[int(codes[start])].as_py()
            if current is not None and table != current:
                yield current, pa.Table.from_batches(held)
                held = []
            current = table
            held.append(batch.slice(start, end - start))
    if current is not None:
        yield current, pa.Table.from_batches(held)


def merge_table(job: MergeJob, given: tuple[str, pa.Table]) -> Merge:
    """Merge one table; return its name, the report, and the refused rows."""
    table, rows = given
    try:
        found = _upserted(job, table, rows)
    except NeedsSpark as why:
        return table, {"spark": str(why)}, None
    except TableError as error:
        what, forbidden = error.what, isinstance(error, EvolutionForbidden)
    except Exception as error:  # whatever is raised concerns this table only
        damaged = log_damage(job.staging.lake, table)
        what, forbidden = damaged or f"{type(error).__name__}: {first_line(error)}", False
    else:
        return table, {"counts": counts(found), "committed": found.committed}, found.refused
    return table, {"failed": what, "forbidden": forbidden, "rows": len(rows)}, None


def _upserted(job: MergeJob, table: str, rows: pa.Table) -> UpsertResult:
    """Merge one table, which is rewritten first where it needs wider types and may have them so."""
    lake, work = job.staging.lake, job.upsert(table)
    try:
        return upsert(lake, work, rows)
    except NeedsRewrite as needed:
        if (handle := lake.open(table)) is not None:
            rewrite(lake, table, handle, needed.columns, work.app_id)
        return upsert(lake, work, rows)


def counts(found: UpsertResult) -> dict[str, int]:
    """Return what a report says of one table."""
    return {**{name: getattr(found, name) for name in COUNTS}, "refused": len(found.refused)}


def as_dead_letters(refused: pa.Table, route: str, sink: str, batch: int) -> pa.RecordBatch:
    """Return refused rows as dead letters: the record itself is in bronze under the same coordinates."""
    hidden = {*OUTBOX_ONLY, *POSITION, REASON}
    names = [name for name in refused.column_names if name not in hidden and not name.startswith("_newest_")]
    count = len(refused)
    given = {old: refused.column(new) for new, old in MERGED_COORDINATES.items()}
    given |= {name: pa.array([text] * count, pa.string()) for name, text in (("route", route), ("sink", sink))}
    given["stage"] = pa.array(["apply"] * count, pa.string())
    given["reason"] = refused.column(REASON)
    given["value"] = pa.array([_json(row) for row in refused.select(names).to_pylist()], pa.binary())
    given["batch_id"] = pa.array([batch] * count, pa.int64())
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in DEAD_SCHEMA]
    return pa.Table.from_arrays(columns, schema=DEAD_SCHEMA).combine_chunks().to_batches()[0]


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in row.items() if value is not None}, default=_text).encode()


def _text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
