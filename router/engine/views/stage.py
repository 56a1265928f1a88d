"""Stage the rows of a view: one Spark job writes files for all its tables, and reports what is in them.

A task adds up, for each table, the rows, their hashes, and the expectations that they violate. Readers see nothing of
the files before the refresh commits them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from router.api.columns import quote_identifier
from router.delta.parquet_writer import attempt_name
from router.delta.staged_files import StagedFile
from router.delta.unreadable_values import unreadable_in
from router.engine.land.task import GATHERED_BYTES, gather_batches
from router.engine.views.row_hash import row_hash
from router.spark_internals import map_in_arrow
from router.table_names import fold_name
from router.templates import parse_template

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame

    from router.config.models import View
    from router.delta.parquet_writer import Staging
    from router.engine.spark.executors import Executors

TARGET = "_target"
"""The column with the name of the table that a row goes into."""
HASH = "_hash"
VIOLATED_COLUMN = "_violated"
"""Before the number of an expectation: the column that is true if a row violates it."""


@dataclass
class StagedTable:
    """The rows that were staged for one table of a view.

    `hash` is the sum of their hashes, None if they have none. `violated`: expectation -> how many rows violate it,
    those that were `dropped` included. `refused`: the first value that readers of the table would refuse; a text.
    """

    files: list[StagedFile] = field(default_factory=list)
    rows: int = 0
    hash: int | None = 0
    violated: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    refused: str = ""

    def add_rows(self, count: int, hash_sum: int | None) -> None:
        """Count more rows."""
        self.rows += count
        if self.hash is None or hash_sum is None:
            self.hash = None
        else:
            self.hash = (self.hash + hash_sum) % 2**64

    def add_report(self, report: dict[str, Any]) -> None:
        """Add what a task has reported of the table: a file, or its counts."""
        if "path" in report:
            self.files.append(StagedFile.from_dict(report))
            return
        self.add_rows(report["rows"], report["hash"])
        self.violated.update(report["violated"])
        self.dropped += report["dropped"]
        self.refused = self.refused or report.get("refused", "")


class _Check(NamedTuple):
    """An expectation of a view in a task: its name, and whether it drops rows."""

    expectation: str
    drops: bool


def stage_rows(
    view: View, rows: DataFrame, number: int, staging: Staging, executors: Executors, *, spread: bool
) -> dict[str, StagedTable]:
    """Stage the rows of a refresh in one job; return them by table, under "" those without a table name.

    With `spread` the tables of a template are spread over tasks, each table in one.
    """
    frame = rows.withColumns({TARGET: target_name(view.into), HASH: row_hash(rows), **violation_columns(view)})
    if spread and "{" in view.into:
        frame = frame.repartition(rows.sparkSession.sparkContext.defaultParallelism, TARGET)
    checks = [_Check(expectation.name, expectation.otherwise == "drop") for expectation in view.expect]
    task = _staging_task(staging, rows.columns, f"view/{view.name}", number, checks)
    reports = map_in_arrow(frame, executors.guard_task(task, reports=True), "report string").collect()
    staged: dict[str, StagedTable] = {}
    for report in executors.without_looks(json.loads(row["report"]) for row in reports):
        staged.setdefault(report["table"], StagedTable()).add_report(report)
    return staged


def target_name(into: str) -> Column:
    """Return the name of the table that a row belongs to, before its case is folded."""
    parts = []
    for piece in parse_template(into):
        parts.append(F.lit(piece) if isinstance(piece, str) else F.col(quote_identifier(piece.path)).cast("string"))
    return F.concat(*parts)


def violation_columns(view: View) -> dict[str, Column]:
    """Return a column for each expectation: true if a row violates it. One that cannot be evaluated is violated."""
    columns = {}
    for number, expectation in enumerate(view.expect):
        columns[f"{VIOLATED_COLUMN}{number}"] = ~F.coalesce(F.expr(expectation.sql).cast("boolean"), F.lit(False))
    return columns


def _staging_task(staging: Staging, columns: list[str], target: str, number: int, checks: list[_Check]) -> Any:
    """Return the function of one task, for mapInArrow: it stages rows by table, and reports files and counts."""

    def stage_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = staging.open_writer(number, attempt_name())
        tables: dict[str, StagedTable] = defaultdict(StagedTable)
        try:
            for batch in gather_batches(batches, min(GATHERED_BYTES, staging.buffer_bytes // 2)):
                kept = _check_expectations(batch, checks, tables)
                for table, rows, hash_sum in _by_table(kept, columns):
                    tables[table].add_rows(rows.num_rows, hash_sum)
                    if not tables[table].refused:
                        tables[table].refused = next((values.reason for values in unreadable_in(rows)), "")
                    if table:
                        writer.hold_rows(target, table, rows)
                writer.flush()
            files = writer.close()
        except BaseException:
            writer.abandon()
            raise
        reports = [asdict(file) for file in files]
        for name, counted in tables.items():
            counts: dict[str, Any] = {"rows": counted.rows, "hash": counted.hash, "violated": counted.violated}
            if counted.refused:
                counts["refused"] = counted.refused
            reports.append({"table": name, "dropped": counted.dropped, **counts})
        texts = [json.dumps(report) for report in reports]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["report"])

    return stage_batches


def _check_expectations(batch: pa.RecordBatch, checks: list[_Check], tables: dict[str, StagedTable]) -> pa.RecordBatch:
    """Count the rows that violate expectations, by table; return those that none of these drops."""
    dropped = pa.repeat(pa.scalar(False), batch.num_rows)
    for number, check in enumerate(checks):
        violated = batch.column(f"{VIOLATED_COLUMN}{number}")
        for table, count in _count_by_table(batch.filter(violated)):
            tables[table].violated[check.expectation] += count
        if check.drops:
            dropped = pc.or_(dropped, violated)
    for table, count in _count_by_table(batch.filter(dropped)):
        tables[table].dropped += count
    return batch.filter(pc.invert(dropped))


def _count_by_table(batch: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Yield tables with a number of their rows; one twice if its names differ by case, "" for rows without a name."""
    for entry in pc.value_counts(batch.column(TARGET)).to_pylist():
        yield fold_name(entry["values"]) or "", entry["counts"]


def _by_table(batch: pa.RecordBatch, columns: list[str]) -> Iterator[tuple[str, pa.RecordBatch, int | None]]:
    """Yield each table of a batch with its rows and the sum of their hashes; "" for the rows without a name."""
    if not batch.num_rows:
        return
    names = batch.column(TARGET).dictionary_encode()
    tables = [fold_name(name) or "" for name in names.dictionary.to_pylist()]
    table_numbers = names.indices.fill_null(len(tables)).to_numpy(zero_copy_only=False)
    tables.append("")
    hashes = None
    if not batch.column(HASH).null_count:
        # Sums of unsigned integers wrap around, as the sum of all tasks does.
        hashes = batch.column(HASH).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    rows = batch.select(columns)
    # Sort the rows by table once; each table is then one slice of the order.
    order = np.argsort(table_numbers, kind="stable")
    starts = np.searchsorted(table_numbers[order], np.arange(len(tables) + 1))
    for number, table in enumerate(tables):
        row_numbers = order[starts[number] : starts[number + 1]]
        if len(row_numbers) == 0:
            continue
        hash_sum = None if hashes is None else int(hashes[row_numbers].sum(dtype=np.uint64))
        yield table, rows.take(pa.array(row_numbers)), hash_sum
