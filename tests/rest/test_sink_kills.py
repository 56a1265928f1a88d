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
def sending(api: Api, spark: SparkSession, lake: Lake, tmp_path: Path) -> TaskWorker:
    """Return a batch for an API that remembers nothing yet."""
    api.reset()
    return TaskWorker(api, spark, lake, tmp_path, 450)


def _settled_once(sending: TaskWorker, in_doubt: int) -> None:
    """Assert that every row arrived, has one receipt, and is in doubt if it arrived more than once."""
    arrived, receipts = sending.arrived(), sending.receipts()
    assert set(arrived) == set(range(sending.rows))
    assert sorted(row["id"] for row in receipts) == list(range(sending.rows))
    assert {row["status"] for row in receipts} == {"delivered"}
    doubtful = {row["id"] for row in receipts if row["in_doubt"]}
    assert len(doubtful) == in_doubt
    assert {row for row, times in arrived.items() if times > 1} <= doubtful
    assert sum(arrived.values()) - len(arrived) <= in_doubt
    assert {len(keys) for keys in keys_by_row(sending.api, "id").values()} == {1}
    assert most_in_a_second(sending.api) <= LIMIT


@pytest.mark.parametrize(
    ("honoured", "rows_per_call"),
    [
        pytest.param(True, 1, id="keys are honoured"),
        pytest.param(False, 1, id="keys are ignored", marks=slow),
        pytest.param(False, 4, id="by four, keys are ignored"),
        pytest.param(True, 4, id="by four, keys are honoured", marks=slow),
    ],
)
def test_a_worker_that_is_killed_loses_nothing(sending: TaskWorker, honoured: bool, rows_per_call: int) -> None:
    """Without it the rows of a worker that ran out of memory are lost, or come twice and nobody knows."""
    # The API takes so long that each worker always has calls in flight: a kill between two calls would show nothing.
    sending.api.play(latency=0.1, idempotency=KEY if honoured else "")

    with sending.midway(40, **OPTIONS, rows_per_call=rows_per_call) as outcome:
        victim = workers(sending.api.port)[0]
        victim.send_signal(signal.SIGKILL)

    applied = outcome.result()
    assert not victim.is_running()
    assert (applied.applied, applied.refused, applied.parked) == (sending.rows, None, 0)
    assert 0 < applied.in_doubt < sending.rows
    _settled_once(sending, applied.in_doubt)
    twice = sum(sending.arrived().values()) - sending.rows
    if honoured:
        assert twice == 0
    else:  # the worker's calls in flight may have arrived or not, and all of its others are known
        assert applied.in_doubt <= twice + IN_FLIGHT // OPTIONS["tasks"] * rows_per_call


def test_a_driver_that_serves_no_leases_any_more_sends_nothing(sending: TaskWorker) -> None:
    """Without it tasks go on without a limit, or a batch waits for ever, when the thread that leads them has died."""
    sending.api.play(latency=0.03)

    with sending.midway(40, **OPTIONS) as outcome:
        lease_server(*driver_hosts(sending.spark)).stop()
        stopped = sending.api.stats().arrived

    with pytest.raises(ConnectionError, match="leases"):
        outcome.result()
    assert sending.api.stats().arrived - stopped <= IN_FLIGHT
    again = sending.apply(**OPTIONS)

    assert (again.applied, again.refused, again.parked, again.in_doubt) == (sending.rows, None, 0, 0)
    _settled_once(sending, 0)
