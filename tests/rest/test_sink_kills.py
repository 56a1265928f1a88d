"""Batches whose workers are killed, or lose their driver: every row arrives, and what may have come twice is told."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from router_rest.batch import driver_hosts
from router_rest.limits.lease_server import lease_server
from tests.rest.killing import TaskWorker, keys_by_row, most_in_a_second, workers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from router_demo.api import Api

KEY = "Idempotency-Key"
LIMIT = 150
IN_FLIGHT = 8
OPTIONS = {"calls_per_second": LIMIT, "max_in_flight": IN_FLIGHT, "tasks": 2}
slow = pytest.mark.slow


@pytest.fixture
def task_worker(api: Api, spark: SparkSession, lake: Lake, tmp_path: Path) -> TaskWorker:
    """Return a batch for an API that remembers nothing yet."""
    api.reset()
    return TaskWorker(api, spark, lake, tmp_path, 450)


def _settled_once(task_worker: TaskWorker, in_doubt: int) -> None:
    """Assert that every row arrived, has one receipt, and is in doubt if it arrived more than once."""
    arrived, receipts = task_worker.arrived(), task_worker.receipts()
    assert set(arrived) == set(range(task_worker.rows))
    assert sorted(row["id"] for row in receipts) == list(range(task_worker.rows))
    assert {row["status"] for row in receipts} == {"delivered"}
    doubtful = {row["id"] for row in receipts if row["in_doubt"]}
    assert len(doubtful) == in_doubt
    assert {row for row, times in arrived.items() if times > 1} <= doubtful
    assert sum(arrived.values()) - len(arrived) <= in_doubt
    assert {len(keys) for keys in keys_by_row(task_worker.api, "id").values()} == {1}
    assert most_in_a_second(task_worker.api) <= LIMIT


@pytest.mark.parametrize(
    ("honoured", "rows_per_call"),
    [
        pytest.param(True, 1, id="keys are honoured"),
        pytest.param(False, 1, id="keys are ignored", marks=slow),
        pytest.param(False, 4, id="by four, keys are ignored"),
        pytest.param(True, 4, id="by four, keys are honoured", marks=slow),
    ],
)
def test_a_worker_that_is_killed_loses_nothing(task_worker: TaskWorker, honoured: bool, rows_per_call: int) -> None:
    """Without it the rows of a worker that ran out of memory are lost, or come twice and nobody knows."""
    # The API takes so long that each worker always has calls in flight: a kill between two calls would show nothing.
    task_worker.api.play(latency=0.1, idempotency=KEY if honoured else "")

    with task_worker.midway(40, **OPTIONS, rows_per_call=rows_per_call) as outcome:
        victim = workers(task_worker.api.port)[0]
        victim.send_signal(signal.SIGKILL)

    applied = outcome.result()
    assert not victim.is_running()
    assert (applied.applied, applied.refused, applied.parked) == (task_worker.rows, None, 0)
    assert 0 < applied.in_doubt < task_worker.rows
    _settled_once(task_worker, applied.in_doubt)
    twice = sum(task_worker.arrived().values()) - task_worker.rows
    if honoured:
        assert twice == 0
    else:  # the worker's calls in flight may have arrived or not, and all of its others are known
        assert applied.in_doubt <= twice + IN_FLIGHT // OPTIONS["tasks"] * rows_per_call


def test_a_driver_that_serves_no_leases_any_more_sends_nothing(task_worker: TaskWorker) -> None:
    """Without it tasks go on without a limit, or a batch waits for ever, when the thread that leads them has died."""
    task_worker.api.play(latency=0.03)

    with task_worker.midway(40, **OPTIONS) as outcome:
        lease_server(*driver_hosts(task_worker.spark)).stop()
        stopped = task_worker.api.stats().arrived

    with pytest.raises(ConnectionError, match="leases"):
        outcome.result()
    assert task_worker.api.stats().arrived - stopped <= IN_FLIGHT
    again = task_worker.apply(**OPTIONS)

    assert (again.applied, again.refused, again.parked, again.in_doubt) == (task_worker.rows, None, 0, 0)
    _settled_once(task_worker, 0)
