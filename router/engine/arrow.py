"""The arrow engine: tasks write files into the tables' folders, the driver commits them with delta-rs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyarrow import fs
from pyspark.errors import PythonException
from pyspark.sql import functions as F

from router.engine.commit import Committer
from router.engine.land import Job, Landed, landed
from router.engine.layout import RAW_COLUMNS
from router.engine.write import Landing

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

    from router.config.models import Landing as Options
    from router.delta.commit import LandedFile, TableCommit
    from router.delta.lake import Lake
    from router.engine.layout import Ruling, Target
    from router.engine.manifest import Manifest
    from router.engine.plan import Plan

log = logging.getLogger("router")
TINY_FILE = 5_000
MANY_FILES = 500
FEW_CORES = 5
"""When tasks x tables would make more than MANY_FILES files of fewer than TINY_FILE rows, the next batch is shuffled
by table first, so that a table's rows meet in one task. With fewer cores the shuffle costs more than the files."""


HANDED_OVER = 64 << 20
"""Bytes of undecided records, at most, that the tasks of a batch hand over to the driver."""
MANY_TASKS = 1_000
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = str(2**31 - 1)
BOUNDED = 32 << 20
BIG_ROW = 16 << 10
BIG_SHARE = 0.01
"""Batches of bytes: Spark 4.0 bounds an Arrow batch in bytes by measuring every column after every row, a third of all
JVM time in landing, and without the bound 10 000 rows of 5 MB are one batch that kills the JVM. So the bound is off,
the rare rows above BIG_ROW bytes are set aside, and land in a job of their own with the bound on. Where more than
BIG_SHARE of a batch is big, the next one has the bound on for all."""


def _big() -> Column:
    return F.coalesce(F.length("value"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0)) > BIG_ROW


def _set_aside(raw: DataFrame) -> DataFrame:
    """Return the records with nothing in the big ones but a mark."""
    big = _big()
    return raw.withColumns({"_aside": big, "key": F.when(~big, F.col("key")), "value": F.when(~big, F.col("value"))})


def _cause(error: Exception) -> str:
    """Return the last line of what a Python task raised."""
    return str(error).strip().split("\n")[-1].strip()[:300]


def _named(planned: Plan) -> str | None:
    """Return the column of a sink that names a table per row."""
    return next((target.goes for target in planned.layout.targets if target.table is None), None)


@dataclass
class ArrowEngine:
    """Land a batch in one Spark job; commit it with one Delta commit per table."""

    spark: SparkSession
    lake: Lake
    options: Options
    query: str = ""
    tiny: bool = False
    measured: bool = False
    fuses: bool = True

    def land(self, planned: Plan, ruling: Ruling, batch: int) -> tuple[list[LandedFile], list[dict[str, Any]]]:
        """Write the batch's files; return them and the counts per task and source partition.

        Rows above BIG_ROW bytes are set aside and land in a second job, if there are any; see `Batches of bytes` below.
        """
        landing = Landing(self.lake, self.options.file_bytes, self.options.buffer_bytes)
        job = Job(planned.layout, ruling, landing, batch, query=self.query)
        found = self._fused(planned, job) or self._whole(planned, job)
        files, counts = found.files, found.counts
        self.measured = found.aside > BIG_SHARE * max(1, sum(count["read"] for count in counts))
        tables, rows = len({file.table for file in files}), sum(file.rows for file in files)
        cores = self.spark.sparkContext.defaultParallelism
        self.tiny = cores >= FEW_CORES and tables * cores > MANY_FILES and rows < TINY_FILE * tables * cores
        return files, counts

    def discard(self, files: list[LandedFile]) -> None:
        """Delete files that will not be committed."""
        for file in files:
            self.lake.files.delete_file(file.path)

    def commit(
        self,
        planned: Plan,
        manifest: Manifest,
        handles: dict[str, DeltaTable | None],
        notes: dict[str, str],
        tell: Callable[[int], None],
    ) -> None:
        """Make the commits that are not there yet."""
        Committer(self.lake, self.spark).commit(manifest.commits, handles, notes, tell)

    def events(self, planned: Plan, manifest: Manifest, target: Target, work: TableCommit) -> DataFrame:
        """Return the rows that a lane got in this batch, from its landed files."""
        files = [f"{self.lake.root}/{file.path}" for file in work.files]
        return self.spark.read.option("mergeSchema", "true").parquet(*files)

    def keeps(self, works: list[TableCommit]) -> bool:
        """Say whether the rows of decided commits still lie in their files: a VACUUM takes what no commit refers to."""
        found = self.lake.files.get_file_info([file.path for work in works for file in work.files])
        return all(info.type is fs.FileType.File for info in found)

    def release(self) -> None:
        """Forget the batch."""

    def _whole(self, planned: Plan, job: Job) -> Landed:
        """Land with Spark labelling the rows."""
        if self.measured:
            return self._measured(self._arranged(planned, planned.raw), job)
        found = landed(self._arranged(planned, _set_aside(planned.raw)), job)
        if found.aside:
            found = found + self._measured(self._arranged(planned, planned.raw.filter(_big())), job)
        return found

    def _fused(self, planned: Plan, job: Job) -> Landed | None:
        """Land with tasks labelling the rows; None where that cannot be, or is not worth it.

        What tasks cannot decide, and rows above BIG_ROW bytes, land in a second job with Spark labelling them.
        """
        if isinstance(planned.fused, str) or not self.fuses or self.measured or self._by_table:
            return None
        raw, tasks = _set_aside(planned.raw.select(*RAW_COLUMNS)), MANY_TASKS
        if self.options.spread != "keep":
            tasks = self.spark.sparkContext.defaultParallelism
            raw = raw.coalesce(tasks)
        try:
            found = landed(raw, replace(job, fused=planned.fused, hands_over=HANDED_OVER // max(8, tasks)))
        except PythonException as error:
            log.warning("landing in two stages, one stage failed: %s", _cause(error))
            whole = self._whole(planned, job)
            self.fuses = False  # two stages could: the fault is in the one, and would be there again
            return whole
        if found.overflow:
            self.discard(found.files)
            self.fuses = False  # records like these will come again
            return None
        if found.left:
            rest = self.spark.createDataFrame(found.records)
            found = found + landed(planned.label(rest), job)
        if found.aside:
            found = found + self._measured(self._arranged(planned, planned.raw.filter(_big())), job)
        return found

    @property
    def _by_table(self) -> bool:
        """Say whether rows are shuffled so that a table's meet in one task."""
        return self.options.spread == "by_table" or (self.tiny and self.options.spread != "keep")

    def _measured(self, frame: DataFrame, job: Job) -> Landed:
        """Land with Arrow batches bounded in bytes."""
        conf = self.spark.conf
        conf.set(BATCH_BYTES, str(BOUNDED))
        try:
            return landed(frame, job)
        finally:
            conf.set(BATCH_BYTES, UNBOUNDED)

    def _arranged(self, planned: Plan, raw: DataFrame) -> DataFrame:
        """Return labelled records in the partitions that make the fewest files worth having."""
        frame, named = planned.label(raw), _named(planned)
        if named and self._by_table:
            return frame.repartition(self.spark.sparkContext.defaultParallelism, named)
        if named is None or self.options.spread == "keep":
            return frame
        return frame.coalesce(self.spark.sparkContext.defaultParallelism)  # more tasks gain nothing but files
