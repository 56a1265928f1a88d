"""Decode alone, on one core: what a value costs before it is matched and landed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.ours import start_session, write_configuration
from benchmarks.verify import records_read
from router import Preparation
from router.config.loader import load
from router.engine.checkpoint_store import LearntSchemas
from router.engine.source import sample
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.runs import Task
    from router import ArrowDecoding, Decoder

ROWS = 10_000
"""Records of a batch as Spark hands them to Python by default."""


def _run(spark: SparkSession, task: Task) -> Run:
    """Decode the topic's records from memory: in this thread, or as Spark's expressions in one task."""
    config = load(write_configuration(task), load_registry()).config
    raw = sample(spark, config, task.events).coalesce(1).cache()
    read = raw.count()
    nothing = Preparation(Path(task.folder), False, raw.limit, LearntSchemas())
    decoder = config.decode.prepare(nothing).refresh(frozenset())
    decoding = decoder.decoding()
    seconds = _native(decoder, raw) if decoding is None else _in_python(decoding, raw)
    raw.unpersist()
    return Run(seconds, read=read)


def _in_python(decoding: ArrowDecoding, raw: DataFrame) -> float:
    batches = raw.toArrow().combine_chunks().to_batches(max_chunksize=ROWS)
    began = time.perf_counter()
    for records in batches:
        decoding.function(records, decoding.argument)
    return time.perf_counter() - began


def _native(decoder: Decoder, raw: DataFrame) -> float:
    """Return what decoding adds to reading the same records from memory; the first of each warms the JVM up."""
    reading, decoding = raw, decoder.decode(raw).select("event", "_error")
    for _ in range(2):
        both = _seconds(lambda: _drain(decoding)), _seconds(lambda: _drain(reading))
    return both[0] - both[1]


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


DECODING = Subject("decoding", "decoding alone", start_session, _run, records_read)
