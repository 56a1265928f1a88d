"""The REST sink's tasks at real limiters: what holds for every limiter and on the slowest machine."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks.limiter_servers import go, limiter_server
from benchmarks.measurements.limiters import JITTER
from benchmarks.subjects.limiters import IN_FLIGHT, SHARE, most_in_a_second, send_rows, task_rows
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit

if TYPE_CHECKING:
    from pathlib import Path

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None and not os.environ.get("CI"),
    reason="nginx is not installed here (Debian: nginx)",
)
needs_go = pytest.mark.skipif(go() is None, reason="Go is not installed here (Debian: golang-go)")
LIMIT = 50
ROWS = 100
SHORT: dict[str, dict[str, str]] = {
    "no limiter": {"limiter": "none"},
    "no burst, 429": {},
    "2 % at random, Retry-After": {"limiter": "none", "random": "2", "retry_after": "1"},
    "8 calls at a time": {"limiter": "open", "open": "8", "in_flight": "8", "rows": "40"},
}
LONG: dict[str, dict[str, str]] = {
    "no burst, 503": {"status": "503"},
    "burst=10": {"burst": "10"},
    "limit lower than stated": {"limit": "20"},
}
GO = {
    "token bucket": {"limiter": "bucket", "burst": "5"},
    "sliding window": {"limiter": "sliding"},
    "token bucket, behind a network with jitter": {"limiter": "bucket", "burst": "5", **JITTER},
}
WINDOWS = {"fixed window": {"limiter": "fixed"}, "moving window": {"limiter": "moving"}}


def check_delivery(folder: Path, options: dict[str, str], tasks: int) -> None:
    """Send rows at a stated limit, and check what no slow machine changes."""
    rows = int(options.get("rows", ROWS))
    in_flight = int(options.get("in_flight", IN_FLIGHT))
    pace = Pace((RateLimit(LIMIT, None, 1.0),), in_flight, share=SHARE)
    with limiter_server(folder, {"limit": str(LIMIT), **options}) as url:
        batches = [task_rows(f"{url}/router", partition, rows // tasks) for partition in range(tasks)]
        sent, _ = send_rows(folder, pace, batches)
    statuses = [line.split()[1] for line in (folder / "router.log").read_text().splitlines()]

    assert statuses.count("200") == rows, "a row is lost, or was delivered twice"
    assert len(sent) == len(statuses), "a call is missing in the record of one side"
    assert most_in_a_second(sent) <= LIMIT, "the limit was exceeded by the sender's own clock"
    if options.get("limiter") == "none" and "random" not in options:
        assert set(statuses) == {"200"}, "a call was refused without a limiter"


@needs_nginx
@pytest.mark.parametrize("options", SHORT.values(), ids=SHORT)
def test_rows_arrive_and_the_limit_holds(tmp_path: Path, options: dict[str, str]) -> None:
    check_delivery(tmp_path, options, tasks=1)


@pytest.mark.parametrize("options", WINDOWS.values(), ids=WINDOWS)
def test_rows_arrive_at_windows(tmp_path: Path, options: dict[str, str]) -> None:
    check_delivery(tmp_path, options, tasks=2)


@needs_go
@pytest.mark.parametrize("options", GO.values(), ids=GO)
def test_rows_arrive_at_limiters_in_go(tmp_path: Path, options: dict[str, str]) -> None:
    check_delivery(tmp_path, options, tasks=2)


@needs_nginx
@needs_go
@pytest.mark.slow
@pytest.mark.parametrize("options", [*SHORT.values(), *LONG.values()], ids=[*SHORT, *LONG])
def test_rows_arrive_through_a_network_with_jitter(tmp_path: Path, options: dict[str, str]) -> None:
    check_delivery(tmp_path, {**options, **JITTER}, tasks=2)


@needs_nginx
@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("options", [*SHORT.values(), *LONG.values()], ids=[*SHORT, *LONG])
def test_rows_of_several_tasks_arrive_and_the_limit_holds(tmp_path: Path, options: dict[str, str], tasks: int) -> None:
    check_delivery(tmp_path, options, tasks=tasks)
