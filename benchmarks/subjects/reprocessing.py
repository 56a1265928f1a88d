"""The router's steps that process records again, over records that came in a number of batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from router.api.sinks import KeyedTable
from router.config.models import Config
from router.delta.commit import TableCommit, to_delta
from router.delta.file_statistics import statistics_json
from router.delta.lake import Lake
from router.delta.replace import PROPERTIES
from router.delta.staged_files import StagedFile
from router.engine.label.layout import quarantine_of
from router.engine.quarantine.table import quarantined_in
from router.engine.reprocess.records import SPANS, ArrivedBatch, with_batches
from router.engine.reprocess.upsert_rebuild import UpsertRebuild
from router.engine.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Task

KEYS = 50_000
FILES = 8


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="reprocessing", spark=settings()))


def _run(spark: SparkSession, task: Task) -> Run:
    """Give records their batches, merge them, and list them in a quarantine; each is timed by itself."""
    batches = int(task.options["batches"])
    lake = Lake.at(str(task.lake))
    _join(spark, task.events, 10)  # compiles what it needs
    joining, joined = _join(spark, task.events, batches)
    merging, merged = _merge(spark, lake, task.events, batches)
    listing, listed = _list(lake, task.events, batches)
    steps = {"batches of a topic": joining, "merge again": merging, "list quarantine": listing}
    problem = ""
    if not joined == merged == listed == task.events:
        problem = f"of {task.events:,} records {joined:,}, {merged:,} and {listed:,} were found"
    return Run(sum(steps.values()), read=task.events, batches=batches, tables=1, steps=steps, problem=problem)


def _join(spark: SparkSession, records: int, batches: int) -> tuple[float, int]:
    """Return the seconds in which records of a topic are given their batches, and how many got one."""
    # Each batch has read as many offsets of the topic as the others.
    length = records // batches
    firsts = np.arange(batches) * length
    spans = pa.table(
        [
            pa.array(np.arange(batches)),
            pa.array(["events"] * batches),
            pa.array(np.zeros(batches, np.int32)),
            pa.array(firsts),
            pa.array(firsts + length - 1),
        ],
        schema=SPANS,
    )
    began = time.monotonic()
    topic = spark.range(records).selectExpr("'events' AS topic", "0 AS partition", "id AS offset")
    joined = with_batches(topic, spans).selectExpr("count(batch_id)").collect()[0][0]
    return time.monotonic() - began, int(joined)


def _merge(spark: SparkSession, lake: Lake, records: int, batches: int) -> tuple[float, int]:
    """Return the seconds in which the staged rows of an outbox are merged, and how many were."""
    numbers = np.arange(records)
    arrivals = numbers // (records // batches)
    rows = pa.table({
        "_arrival": pa.array(arrivals),
        "_topic": pa.array(["events"] * records),
        "_partition": pa.array(np.zeros(records, np.int32)),
        "_offset": pa.array(numbers),
        "_timestamp": pa.array(numbers, pa.timestamp("us", "UTC")),
        "_key": pa.nulls(records, pa.binary()),
        "_table": pa.array(["silver.latest"] * records),
        "_deleted": pa.array(np.zeros(records, np.bool_)),
        "id": pa.array(numbers % KEYS),
    })  # fmt: skip
    path = "_staged/rows.parquet"
    lake.files.create_dir("_staged", recursive=True)
    footers: list[pq.FileMetaData] = []
    with lake.files.open_output_stream(path) as stream:
        pq.write_table(rows, stream, row_group_size=records // FILES, metadata_collector=footers)
        size = stream.tell()
    file = StagedFile(
        target="all/upsert",
        table="silver.latest",
        path=path,
        bytes=size,
        rows=records,
        columns=tuple(rows.column_names),
        statistics=statistics_json(footers[0]),
    )
    work = TableCommit(
        target="all/upsert",
        table="silver.latest",
        app_id="reprocessing",
        version=0,
        files=(file,),
        columns=to_delta(rows.schema),
    )
    arrived = [ArrivedBatch(batch, records // batches) for batch in range(batches)]
    merging = UpsertRebuild(spark, lake, KeyedTable(keys=("id",)), "silver.latest", None)
    began = time.monotonic()
    merging.merge((work,), arrived)
    return time.monotonic() - began, merging.merged


def _list(lake: Lake, records: int, batches: int) -> tuple[float, int]:
    """Return the seconds in which quarantined rows are listed, and how many these are."""
    quarantine = quarantine_of("games", "all", "tables")
    batch_of = np.arange(records) // (records // batches)
    for part in np.array_split(batch_of, FILES):
        rows = pa.table({
            "_table": pa.array(["silver.uno"] * len(part)),
            "_query": pa.array(["games:run"] * len(part)),
            "_batch_id": pa.array(part),
            "_cause": pa.nulls(len(part), pa.string()),
            "game": pc.cast(pa.array(part), pa.string()),
        })  # fmt: skip
        write_deltalake(lake.address(quarantine), rows, mode="append", configuration=PROPERTIES)
    handle = lake.open(quarantine)
    assert handle is not None  # it was written
    began = time.monotonic()
    listed = list(quarantined_in(lake, handle, ("all", "tables", quarantine)))
    return time.monotonic() - began, sum(quarantined.rows for quarantined in listed)


REPROCESSING = Subject("reprocessing", "router, processing again", _session, _run, lambda task, run: run.problem)
