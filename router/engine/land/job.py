"""The landing job: one Spark job that stages the files of a batch. Runs on the driver."""

from __future__ import annotations

import json
import logging
import time
import uuid
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyarrow import fs
from pyspark.sql import functions as F

from router.delta.parquet_writer import Staging
from router.delta.staged_files import StagedFile
from router.engine.label.layout import TRACED
from router.engine.land.record_ages import TableAges
from router.engine.land.task import MAX_WANTED_SCHEMAS, LandingWork, landing_task
from router.engine.spark.executors import Executors, refusal_by_executors
from router.engine.spark.session import BATCH_BYTES, UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import Column, DataFrame, SparkSession

    from router.config.models import Landing as Options
    from router.delta.lake import Lake
    from router.engine.label.layout import Demands
    from router.engine.label.planner import Plan, Planner

log = logging.getLogger("router")
TINY_FILE = 5_000
MANY_FILES = 500
FEW_CORES = 5
"""When tasks x tables would make more than MANY_FILES files of fewer than TINY_FILE rows, the next batch is shuffled
by table first, so that a table's rows meet in one task. With fewer cores the shuffle costs more than the files."""

BOUNDED_BATCH_BYTES = 32 << 20
BIG_RECORD_BYTES = 16 << 10
BIG_SHARE = 0.01
"""Batches of bytes: Spark 4.0 bounds an Arrow batch in bytes by measuring every column after every row, a third of all
JVM time in landing, and without the bound 10 000 rows of 5 MB are one batch that kills the JVM. So the bound is off
and the first job leaves out the rare records above BIG_ROW bytes: a second job of the same code lands them with the
bound on. Where more than BIG_SHARE of a batch is big, the next batch is one job with the bound on."""


@dataclass(frozen=True)
class Landed:
    """What a landing job reports: staged files, and counts per task and source partition.

    `big` counts the records that it left out for a second job; `failed` says by place why files of a table could not
    be written, and `defects` by route which expressions Spark should evaluate: the batch has to be landed again for
    both. `ages` has by place how old records were when the job `began`
    (seconds since 1970); it is empty if nothing reads them.
    """

    files: list[StagedFile] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    big: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    defects: dict[str, str] = field(default_factory=dict)
    ages: dict[str, TableAges] = field(default_factory=dict)
    began: float = 0.0

    def __add__(self, other: Landed) -> Landed:
        failed = {**self.failed, **other.failed}
        ages = dict(self.ages)
        for place, of_table in other.ages.items():
            ages[place] = ages.get(place, TableAges()) + of_table
        return Landed(
            files=self.files + other.files,
            counts=self.counts + other.counts,
            big=self.big + other.big,
            failed=failed,
            defects={**self.defects, **other.defects},
            ages=ages,
            began=self.began or other.began,
        )

    def collect_values(self, name: str) -> frozenset[str]:
        """Return the values that the counts list under a name."""
        values: set[str] = set()
        for count in self.counts:
            values.update(count.get(name) or ())
        return frozenset(values)

    @property
    def tables_by_outbox(self) -> dict[str, set[str]]:
        """Return the tables that the rows of each outbox are for."""
        tables_by_outbox: dict[str, set[str]] = {}
        for count in self.counts:
            for key, tables in count.get("named", {}).items():
                tables_by_outbox.setdefault(key, set()).update(tables)
        return tables_by_outbox


@dataclass
class LandingJob:
    """The landing of a query's batches.

    The files and records of one batch decide how the next one is landed: whether rows are shuffled by table (`tiny`),
    and whether Spark bounds its Arrow batches in bytes (`measured`). `only` are the tables that get rows, None for all.
    `run` raises StartError if an executor lacks something that the driver has; nothing is staged there then. With
    `counts_ages` tasks count how old records are, with `traced` rows have the place of their record.
    `not_found` are the schemas that the last batch with such records named in vain: the log says it once.
    """

    spark: SparkSession
    lake: Lake
    options: Options
    query: str
    folder: str | None = None
    tiny: bool = False
    measured: bool = False
    only: frozenset[str] | None = None
    executors: Executors = field(default_factory=Executors)
    counts_ages: bool = False
    traced: bool = False
    not_found: frozenset[str] = frozenset()

    def run(self, plan: Plan, demands: Demands, batch: int, asked: frozenset[str] = frozenset()) -> Landed:
        """Stage the files of a batch; see `Batches of bytes` for the second job that it may take.

        Tasks do not report again that they want what is in `asked`.
        """
        began = time.time()  # one moment for both jobs: their ages are added up
        if self.measured:
            landed = self._run_once(plan, plan.raw, demands, batch, began, asked, bounded=True)
        else:
            landed = self._run_once(plan, _without_big(plan.raw), demands, batch, began, asked)
            if landed.big:
                landed += self._run_once(
                    plan, plan.raw.filter(_is_big_record()), demands, batch, began, asked, bounded=True
                )
        self.measured = landed.big > BIG_SHARE * max(1, sum(count["read"] for count in landed.counts))
        tables, rows = len({file.table for file in landed.files}), sum(file.rows for file in landed.files)
        self.tiny = (
            self._cores >= FEW_CORES and tables * self._cores > MANY_FILES and rows < TINY_FILE * tables * self._cores
        )
        return landed

    def run_decoded(
        self,
        planner: Planner,
        plan: Plan,
        demands: Demands,
        batch: int,
        step: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> tuple[Plan, Landed]:
        """Stage the files of a batch, and again while the decoder finds schemas that its rows need.

        Again as well if an expression fails in tasks: Spark evaluates those of its route then.

        Rows whose schemas it does not find keep the `_error` that they have. `step` times `land` and `plan`.
        """
        name = self.query.partition(":")[0]
        asked: frozenset[str] = frozenset()
        while True:
            with step("land"):
                landed = self.run(plan, demands, batch, asked)
            if planner.leave_to_spark(landed.defects):
                self.discard_files(landed)
                with step("plan"):
                    plan = replace(planner.plan_batch(plan.raw, plan.arrival), nulls=plan.nulls)
                continue
            wanted = landed.collect_values("wanted")
            if not wanted:
                return plan, landed
            decoder = planner.decoder
            try:
                with step("plan"):
                    planner.fetch_schemas(wanted)
            except BaseException:
                self.discard_files(landed)
                raise
            asked |= wanted
            # A decoder that has found nothing is the same object, and would decode every row as before. Only if a task
            # had no room to report all that its rows want, the others are still to be asked for.
            is_complete = all(len(count.get("wanted") or ()) < MAX_WANTED_SCHEMAS for count in landed.counts)
            if planner.decoder is decoder and is_complete:
                if not wanted <= self.not_found:
                    message = "%s, batch %d: records name %s, which cannot be found: they become dead letters"
                    log.info(message, name, batch, describe_names(wanted))
                self.not_found = wanted
                return plan, landed
            self.discard_files(landed)
            log.info(
                "%s, batch %d: records name %s, new here: the batch is read again", name, batch, describe_names(wanted)
            )
            with step("plan"):
                plan = replace(planner.plan_batch(plan.raw, plan.arrival), nulls=plan.nulls)

    def discard_files(self, landed: Landed) -> None:
        """Delete files that will not be committed."""
        self.lake.delete(*(file.path for file in landed.files))

    def _delete_staged_files(self, token: str) -> None:
        """Delete what the tasks of a job that failed have staged: their reports are lost, but its token is in names."""
        files = self.lake.files
        roots = [self.folder] if self.folder else self.lake.layer_names()
        with suppress(OSError):  # the storage may be what failed
            for root in roots:
                for folder in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
                    for info in files.get_file_info(fs.FileSelector(folder.path, allow_not_found=True)):
                        if info.is_file and f"-{token}-" in info.base_name:
                            self.lake.delete(info.path)

    @property
    def _cores(self) -> int:
        return self.spark.sparkContext.defaultParallelism

    def _run_once(
        self,
        plan: Plan,
        raw: DataFrame,
        demands: Demands,
        batch: int,
        began: float,
        asked: frozenset[str],
        *,
        bounded: bool = False,
    ) -> Landed:
        by_table = self.options.spread == "by_table" or (self.tiny and self.options.spread != "keep")
        by_table = by_table and plan.spreads_by_table
        if not by_table and self.options.spread != "keep":
            raw = raw.coalesce(self._cores)  # more tasks gain nothing but files
        frame, labelling = plan.frame_for_landing(raw, self._cores if by_table else None)
        token = uuid.uuid4().hex[:8]
        staging = Staging(self.lake, self.options.file_bytes, self.options.buffer_bytes, self.folder, token=token)
        began_for_ages = began if self.counts_ages else None
        work = LandingWork(
            labelling=labelling,
            demands=demands,
            staging=staging,
            batch=batch,
            query=self.query,
            only=self.only,
            began=began_for_ages,
            arrival=plan.arrival,
            asked=asked,
            traced=self.traced,
        )
        task = self.executors.guard_task(landing_task(work), reports=True)
        self.spark.conf.set(BATCH_BYTES, str(BOUNDED_BATCH_BYTES) if bounded else UNBOUNDED)
        try:
            rows = frame.mapInArrow(task, "report string").collect()  # one per file and source partition of a task
            reports = self.executors.without_looks(json.loads(row["report"]) for row in rows)
        except Exception as error:
            self._delete_staged_files(token)
            if refused := refusal_by_executors(error):
                raise refused from error
            raise
        finally:
            self.spark.conf.set(BATCH_BYTES, UNBOUNDED)
        landed = _add_up_reports(reports, began)
        if self.traced:
            files = [replace(file, columns=tuple(n for n in file.columns if n not in TRACED)) for file in landed.files]
            landed = replace(landed, files=files)
        return landed


def describe_names(names: frozenset[str]) -> str:
    """Return the first few of many names as text."""
    text = ", ".join(sorted(names)[:5])
    if len(names) > 5:
        text += f" and {len(names) - 5} more"
    return text


def _add_up_reports(reports: Any, began: float) -> Landed:
    landed = Landed(began=began)
    for report in reports:
        if "path" in report:
            landed.files.append(StagedFile.from_dict(report))
        elif "big" in report:
            ages = {place: TableAges.from_report(of_table) for place, of_table in report["ages"].items()}
            landed += Landed(big=report["big"], failed=report["failed"], defects=report["defects"], ages=ages)
        else:
            landed.counts.append(report)
    return landed


def _is_big_record() -> Column:
    return F.coalesce(F.length("value"), F.lit(0)) + F.coalesce(F.length("key"), F.lit(0)) > BIG_RECORD_BYTES


def _without_big(raw: DataFrame) -> DataFrame:
    """Return all records, the big ones emptied of key and value and marked in `_big`."""
    big = _is_big_record()
    return raw.withColumns({"_big": big, "key": F.when(~big, F.col("key")), "value": F.when(~big, F.col("value"))})
