"""Merge a lane into keyed tables: one Spark job in which every task merges the tables it owns with delta-rs.

Everything here but `Merger` runs on executors. A task holds the rows of one table at a time. A table that cannot be
written does not keep the others from theirs.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from router.archives import keep_archives
from router.delta.commit import LandedFile
from router.delta.row_checks import REASON, Unfit
from router.delta.row_order import LANE_ONLY, PLACE
from router.delta.upsert import Merged, NeedsSpark, Upsert, upsert
from router.engine.label.layout import COORDINATES, DEAD_SCHEMA
from router.engine.land.parquet_writer import attempt
from router.engine.upsert_columns import TABLE
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from router.engine.land.parquet_writer import Staging
    from router.merging import Keyed


REPORT = "report string"
COUNTS = ("applied", "refused", "late", "inserted", "updated", "deleted")
"""What a report counts of one table, whichever engine merged it."""


@dataclass(frozen=True)
class Job:
    """Be what every task of a merging job is given. `app` and the table's name make a transaction id; `known` are the
    tables that the sink has merged into before."""

    staging: Staging
    keyed: Keyed
    app: str
    batch: int
    route: str
    sink: str
    dead_letters: str
    notes: dict[str, str]
    known: frozenset[str] = frozenset()

    def upsert(self, table: str) -> Upsert:
        """Return the work of one table."""
        return Upsert(table, f"{self.app}/{table}", self.batch, self.keyed, self.notes, table in self.known)


@dataclass
class Outcomes:
    """Be what a job reports: what became of the rows of each table, and the files of the refused ones.

    `spark` are the tables that are left to Delta on Spark, with the reason; `failed` those that could not be written,
    with the number of rows that are `left` for each.
    `unfit` are those of them that must not be written.
    """

    counts: dict[str, int] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)
    files: list[LandedFile] = field(default_factory=list)
    spark: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    unfit: set[str] = field(default_factory=set)

    def add(self, report: dict[str, Any]) -> None:
        """Take one report of a task."""
        if "path" in report:
            self.files.append(LandedFile.of(report))
        elif "spark" in report:
            self.spark[report["table"]] = report["spark"]
        elif "failed" in report:
            self.failed[report["table"]] = report["failed"]
            self.left[report["table"]] = report["rows"]
            self.unfit |= {report["table"]} if report["unfit"] else set()
        else:
            self.tables.add(report["table"])
            for name, count in report["counts"].items():
                self.counts[name] = self.counts.get(name, 0) + count


def outcomes(events: DataFrame, job: Job, tasks: int) -> Outcomes:
    """Run the job on the rows of a lane; one task is for a lane of one table, and needs no shuffle."""
    by_table = events.repartition(tasks, TABLE).sortWithinPartitions(TABLE) if tasks > 1 else events.coalesce(1)
    found = Outcomes()
    for row in by_table.mapInArrow(task(job), REPORT).collect():  # a row per table, and per file of refused rows
        found.add(json.loads(row["report"]))
    return found


def task(job: Job) -> Any:
    """Return the function of one task, for mapInArrow. Needs rows sorted by table."""

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        letters = job.staging.writer(job.batch, f"refused-{attempt()}")
        reports: list[dict[str, Any]] = []
        for table, rows in tables(batches):
            report, refused = merged(job, table, rows)
            reports.append({"table": table, **report})
            if refused is not None and len(refused):
                letters.hold("/dead_letters", job.dead_letters, buried(refused, job.route, job.sink, job.batch))
                letters.flush()
        reports += [asdict(file) for file in letters.close()]
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(one) for one in reports], pa.string())], ["report"])

    return merge


def tables(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
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


def merged(job: Job, table: str, rows: pa.Table) -> tuple[dict[str, Any], pa.Table | None]:
    """Merge one table; return the report, and the refused rows."""
    try:
        found = upsert(job.staging.lake, job.upsert(table), rows)
    except NeedsSpark as why:
        return {"spark": str(why)}, None
    except TableError as error:
        return {"failed": error.what, "unfit": isinstance(error, Unfit), "rows": len(rows)}, None
    except Exception as error:  # whatever it is, it is this table's and not that of the others
        return {"failed": f"{type(error).__name__}: {error}", "unfit": False, "rows": len(rows)}, None
    return {"counts": counts(found)}, found.refused


def counts(found: Merged) -> dict[str, int]:
    """Return what a report says of one table."""
    return {**{name: getattr(found, name) for name in COUNTS}, "refused": len(found.refused)}


def buried(refused: pa.Table, route: str, sink: str, batch: int) -> pa.RecordBatch:
    """Return refused rows as dead letters: the record itself is in bronze under the same coordinates."""
    hidden = {*LANE_ONLY, *PLACE, REASON}
    names = [name for name in refused.column_names if name not in hidden and not name.startswith("_newest_")]
    count = len(refused)
    given = {old: refused.column(new) for new, old in COORDINATES.items()}
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
