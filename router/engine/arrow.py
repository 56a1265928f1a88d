"""The arrow engine: tasks write files into the tables' folders, the driver commits them with delta-rs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.engine.commit import Committer
from router.engine.land import Job, landed
from router.engine.write import Landing

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Landing as Options
    from router.delta.commit import LandedFile, TableCommit
    from router.delta.lake import Lake
    from router.engine.layout import Ruling, Target
    from router.engine.manifest import Manifest
    from router.engine.plan import Plan

TINY_FILE = 5_000
MANY_FILES = 500
FEW_CORES = 5
"""When tasks x tables would make more than MANY_FILES files of fewer than TINY_FILE rows, the next batch is shuffled
by table first, so that a table's rows meet in one task. With fewer cores the shuffle costs more than the files."""


@dataclass
class ArrowEngine:
    """Land a batch in one Spark job; commit it with one Delta commit per table."""

    spark: SparkSession
    lake: Lake
    options: Options
    tiny: bool = False

    def land(self, planned: Plan, ruling: Ruling, batch: int) -> tuple[list[LandedFile], list[dict[str, Any]]]:
        """Write the batch's files; return them and the counts per task and source partition."""
        landing = Landing(self.lake, self.options.file_bytes, self.options.buffer_bytes)
        files, counts = landed(self._arranged(planned), Job(planned.layout, ruling, landing, batch))
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

    def release(self) -> None:
        """Forget the batch."""

    def _arranged(self, planned: Plan) -> DataFrame:
        """Return the frame in the partitions that make the fewest files worth having."""
        named = next((target.goes for target in planned.layout.targets if target.table is None), None)
        if named is None or self.options.spread == "keep":
            return planned.frame
        cores = self.spark.sparkContext.defaultParallelism
        if self.options.spread == "by_table" or self.tiny:
            return planned.frame.repartition(cores, named)
        return planned.frame.coalesce(cores)  # tasks beyond the cores gain nothing but files
