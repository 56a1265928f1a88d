"""Merge an outbox into its tables with delta-rs: one Spark job in which every task merges the tables it owns.

A task holds the rows of one table at a time. On one machine a small outbox is merged by the same functions in the
driver. A table that cannot be written does not stop the others.
"""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from router.api.decoding import keep_archives
from router.delta.casting import cast_to
from router.delta.commit import to_arrow_schema
from router.delta.history import log_damage
from router.delta.keyed.row_checks import REASON, EvolutionForbidden
from router.delta.keyed.row_order import OUTBOX_ONLY, POSITION
from router.delta.keyed.upsert import NeedsRewrite, NeedsSpark, TableUpsert, UpsertResult, upsert_rows
from router.delta.parquet_writer import attempt_name
from router.delta.schema_diff import delta_schema
from router.delta.staged_files import StagedFile
from router.delta.table_cache import THREADS
from router.delta.transaction_id import table_id
from router.delta.widening import rewrite_table
from router.engine.label.layout import DEAD_SCHEMA, MERGED_COORDINATES
from router.engine.retryable_errors import is_temporary
from router.errors import TableError, first_line
from router.own_names import TABLE
from router.spark_internals import map_in_arrow
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from router.api.sinks import KeyedTable
    from router.delta.commit import TableCommit
    from router.delta.lake import Lake
    from router.delta.parquet_writer import Staging
    from router.engine.spark.executors import Executors

    Merge = tuple[str, dict[str, Any], pa.Table | None]


_REPORT = "report string"
SMALL_ROWS = 50_000
SMALL_BYTES = 16 << 20
"""Rows and bytes of an outbox up to which it is merged without a Spark job, on one machine. Of a cold batch of 10 000
rows for 7 tables the job took 5 s (Python workers, a shuffle, code compiled for it), on two cores that were busy."""
COUNTS = ("applied", "refused", "late", "inserted", "updated", "deleted")
"""The counts of a table in a report, whichever engine merged it."""


@dataclass(frozen=True)
class MergeJob:
    """The settings of all merges of a batch's outbox.

    `app` is the sink's transaction id; `known` are the tables that the sink has merged into before, `merged` those of
    this process with the last batch that they have.
    """

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

    def table_upsert(self, table: str) -> TableUpsert:
        """Return the work of one table."""
        return TableUpsert(
            table=table,
            app_id=table_id(self.app, table),
            version=self.batch,
            keyed=self.keyed,
            notes=self.notes,
            known=table in self.known,
            merged=self.merged.get(table),
        )


@dataclass
class MergeOutcomes:
    """The reports of merges, collected: the counts of rows, also by table, and the files of the refused ones by table.

    `spark` are the tables that are left to Delta on Spark, with the reason; `failed` those that could not be written,
    with the number of rows that are `left` for each; `forbidden` are those of them that would have to change and must
    not. `committed` are the tables that have the batch's transaction id.
    """

    counts: dict[str, int] = field(default_factory=dict)
    by_table: dict[str, dict[str, int]] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    files: dict[str, list[StagedFile]] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)

    def add_report(self, report: dict[str, Any]) -> None:
        """Add one report of a task."""
        if "path" in report:  # a file of refused rows
            self.files.setdefault(report.pop("refused_by"), []).append(StagedFile.from_dict(report))
            return
        table = report["table"]
        if "spark" in report:
            self.spark[table] = report["spark"]
        elif "failed" in report:
            self.failed[table] = report["failed"]
            self.left[table] = report["rows"]
            if report["forbidden"]:
                self.forbidden.add(table)
        else:
            self.tables.add(table)
            if report["committed"]:
                self.committed.add(table)
            self.by_table[table] = report["counts"]
            for name, count in report["counts"].items():
                self.counts[name] = self.counts.get(name, 0) + count


def merge_by_tasks(events: DataFrame, job: MergeJob, tasks: int, executors: Executors) -> MergeOutcomes:
    """Merge the rows of an outbox in a Spark job; one task is for an outbox of one table, and needs no shuffle.

    Raises StartError if an executor lacks something that the driver has.
    """
    by_table = events.coalesce(1)
    if tasks > 1:
        by_table = events.repartition(tasks, TABLE).sortWithinPartitions(TABLE)
    outcomes = MergeOutcomes()
    task = executors.guard_task(merge_task(job), reports=True)
    rows = map_in_arrow(by_table, task, _REPORT).collect()  # a row per table, and per file of refused rows
    for report in executors.without_looks(json.loads(row["report"]) for row in rows):
        outcomes.add_report(report)
    return outcomes


def merge_task(job: MergeJob) -> Any:
    """Return the function of one task, for mapInArrow. Needs rows sorted by table."""

    def merge_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        # One table after the other: a task holds the rows of one table at a time.
        merges = (merge_table(job, table, rows) for table, rows in rows_by_table(batches))
        texts = [json.dumps(report) for report in reports_of_merges(job, merges)]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["report"])

    return merge_tables


def is_small(work: TableCommit) -> bool:
    """Return whether an outbox has so few rows that a Spark job would cost more than it divides, on one machine."""
    return work.rows <= SMALL_ROWS and sum(file.bytes for file in work.files) <= SMALL_BYTES


def merge_here(work: TableCommit, job: MergeJob) -> MergeOutcomes:
    """Merge the rows of an outbox's staged files in this process, several tables at a time."""
    rows = _staged_rows(job.staging.lake, work).sort_by(TABLE)
    outcomes = MergeOutcomes()
    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(merge_table, job, table, part) for table, part in rows_by_table(rows.to_batches())]
        for report in reports_of_merges(job, (future.result() for future in futures)):
            outcomes.add_report(report)
    return outcomes


def _staged_rows(lake: Lake, work: TableCommit) -> pa.Table:
    """Return the rows of a commit from its staged files."""
    schema = delta_schema(to_arrow_schema(work.columns))
    parts = []
    for file in work.files:
        try:
            with lake.files.open_input_file(file.path) as source:
                parts.append(cast_to(pq.read_table(source), schema))
        except (OSError, pa.ArrowInvalid) as error:
            raise TableError(work.table, f"its file {file.path} cannot be read: {first_line(error)}") from error
    return pa.concat_tables(parts)


def reports_of_merges(job: MergeJob, merges: Iterable[Merge]) -> list[dict[str, Any]]:
    """Return a report of each table, and of each file of refused rows; those files are written here."""
    table_reports: list[dict[str, Any]] = []
    file_reports: list[dict[str, Any]] = []
    for number, (table, report, refused) in enumerate(merges):
        table_reports.append({"table": table, **report})
        if refused is not None and len(refused):
            dead = job.staging.open_writer(job.batch, f"refused-{attempt_name()}-{number}")
            dead.hold_rows("/dead_letters", job.dead_letters, as_dead_letters(refused, job.route, job.sink, job.batch))
            file_reports += [{**asdict(file), "refused_by": table} for file in dead.close()]
    return [*table_reports, *file_reports]


def rows_by_table(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of one table after the other. `batches` are sorted by table; a batch may have rows of several."""
    parts: list[pa.RecordBatch] = []
    current: str | None = None
    for batch in batches:
        coded = batch.column(TABLE).dictionary_encode()
        codes = coded.indices.to_numpy()
        # The rows of a table are one run of equal codes: cut the batch where the code changes.
        cuts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(cuts):
            if start == end:
                continue
            table = coded.dictionary[int(codes[start])].as_py()
            if current is not None and table != current:
                yield current, pa.Table.from_batches(parts)
                parts = []
            current = table
            parts.append(batch.slice(start, end - start))
    if current is not None:
        yield current, pa.Table.from_batches(parts)


def merge_table(job: MergeJob, table: str, rows: pa.Table) -> Merge:
    """Merge one table; return its name, the report, and the refused rows."""
    try:
        result = _upsert_or_rewrite(job, table, rows)
    except NeedsSpark as why:
        return table, {"spark": str(why)}, None
    except TableError as error:
        problem = error.what
        forbidden = isinstance(error, EvolutionForbidden)
    except Exception as error:  # whatever is raised concerns this table only
        damage = log_damage(job.staging.lake, table)
        if not damage and not is_temporary(error):
            return table, {"spark": f"delta-rs cannot merge its rows: {first_line(error)}"}, None
        problem = damage or f"{type(error).__name__}: {first_line(error)}"
        forbidden = False
    else:
        return table, {"counts": report_counts(result), "committed": result.committed}, result.refused
    return table, {"failed": problem, "forbidden": forbidden, "rows": len(rows)}, None


def _upsert_or_rewrite(job: MergeJob, table: str, rows: pa.Table) -> UpsertResult:
    """Merge one table; rewrite it first if it needs wider types and a rewrite may give it those."""
    lake = job.staging.lake
    work = job.table_upsert(table)
    try:
        return upsert_rows(lake, work, rows)
    except NeedsRewrite as needed:
        handle = lake.open(table)
        if handle is not None:
            rewrite_table(lake, table, handle, needed.columns, work.app_id)
        return upsert_rows(lake, work, rows)


def report_counts(result: UpsertResult) -> dict[str, int]:
    """Return the counts of a table for its report."""
    by_name = {name: getattr(result, name) for name in COUNTS}
    by_name["refused"] = len(result.refused)
    return by_name


def as_dead_letters(refused: pa.Table, route: str, sink: str, batch: int) -> pa.RecordBatch:
    """Return refused rows as dead letters: the record itself is in bronze under the same coordinates."""
    hidden = {*OUTBOX_ONLY, *POSITION, REASON}
    names = [name for name in refused.column_names if name not in hidden and not name.startswith("_newest_")]
    count = len(refused)
    columns = {record_name: refused.column(name) for name, record_name in MERGED_COORDINATES.items()}
    columns["route"] = pa.array([route] * count, pa.string())
    columns["sink"] = pa.array([sink] * count, pa.string())
    columns["stage"] = pa.array([Stage.APPLY] * count, pa.string())
    columns["reason"] = refused.column(REASON)
    columns["value"] = pa.array([_dump_json(row) for row in refused.select(names).to_pylist()], pa.binary())
    columns["batch_id"] = pa.array([batch] * count, pa.int64())
    arrays = []
    for column in DEAD_SCHEMA:
        if column.name in columns:
            arrays.append(columns[column.name].cast(column.type))
        else:
            arrays.append(pa.nulls(count, column.type))
    return pa.Table.from_arrays(arrays, schema=DEAD_SCHEMA).combine_chunks().to_batches()[0]


def _dump_json(row: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in row.items() if value is not None}, default=_to_text).encode()


def _to_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
