"""What Spark is set to do with workers, and a task cannot live with."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from router import StartError
from router_demo.api import Api
from router_rest.batch import IDLE_TIMEOUT_SETTINGS, KILL_SETTINGS, check_spark
from router_rest.delivery.worker import send_task
from tests.rest.tasks import HTTP, rows, run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Let settings, named with __ for dots, hold for a `with` block, also those that only a start can change."""
    conf = spark._jsparkSession.sessionState().conf()
    for name, value in values.items():
        conf.setConfString(name.replace("__", "."), value)
    try:
        yield
    finally:
        for name in values:
            conf.unsetConf(name.replace("__", "."))


def _named(kill: str, silent: str, seconds: str) -> dict[str, str]:
    return {kill.replace(".", "__"): "true", silent.replace(".", "__"): seconds}


@pytest.mark.parametrize("seconds", ["1", "9s"])
@pytest.mark.parametrize(
    ("kill", "silent"), list(zip(KILL_SETTINGS, IDLE_TIMEOUT_SETTINGS, strict=True)), ids=["of SQL", "of workers"]
)
def test_workers_that_are_killed_for_waiting_stop_the_start(
    spark: SparkSession, kill: str, silent: str, seconds: str
) -> None:
    """Without it Spark kills every task that waits for a slow API, and its rows come again and again."""
    with settings(spark, **_named(kill, silent, seconds)), pytest.raises(StartError, match="idleTimeoutSeconds"):
        check_spark(spark)


@pytest.mark.parametrize("seconds", ["0", "1m"])
def test_workers_that_may_wait_long_enough_do_not(spark: SparkSession, seconds: str) -> None:
    """Without it a job that is set up with care does not start."""
    with settings(spark, **_named(KILL_SETTINGS[1], IDLE_TIMEOUT_SETTINGS[1], seconds)):
        check_spark(spark)
    with settings(spark, **{IDLE_TIMEOUT_SETTINGS[1].replace(".", "__"): "1"}):  # it is told, and nobody is killed
        check_spark(spark)


def test_spark_hears_of_a_task_that_waits(lake: Lake) -> None:
    """Without it what a task says stays in a buffer, and Spark takes it for dead."""
    reading, writing = os.pipe()
    with Api() as api, run_tasks(api, lake) as tasks:
        api.play(latency=600)
        job = tasks.job(http=replace(HTTP, read=300.0, total=300.0))

        def work() -> None:
            with os.fdopen(writing, "wb", 65536) as out:  # as Spark's worker writes
                writer = None
                for report in send_task(job)(iter([rows(range(3))])):
                    writer = writer or pa.RecordBatchStreamWriter(out, report.schema)
                    writer.write_batch(report)

        working = threading.Thread(target=work)
        working.start()
        heard = os.read(reading, 1)
        waiting = api.stats().in_flight
        api.play(outage="refused")  # which ends the calls
        api.play()
        with os.fdopen(reading, "rb") as rest:
            told = pa.ipc.open_stream(pa.BufferReader(heard + rest.read())).read_all()
        working.join()

    assert waiting > 0
    kinds = told.column("kind").to_pylist()
    assert "tick" in kinds
    assert json.loads(told.column("text").to_pylist()[kinds.index("end")])["counts"]["delivered"] == 3
