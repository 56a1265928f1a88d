"""Processes end with all they started, and a checkpoint is a clock."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from benchmarks.harness import ROOT
from benchmarks.runs import Job, batches_done, processing_seconds, read_runs
from router_bench import machine
from router_bench.machine import Footprint, bytes_on_disk
from router_bench.processes import run_command
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.cells import Sample
    from benchmarks.runs import Task


def test_the_checkpoint_is_the_clock_of_a_cold_process(tmp_path: Path, touch: Callable[[str, float], None]) -> None:
    assert batches_done(tmp_path) == 0
    assert processing_seconds(tmp_path) is None
    touch("spark/metadata", 100.0)
    touch("spark/commits/9", 107.0)
    touch("spark/commits/10", 109.5)
    touch("spark/commits/.10.crc", 200.0)

    assert batches_done(tmp_path) == 11
    assert processing_seconds(tmp_path) == 9.5


STUB = """
from unittest.mock import MagicMock
from benchmarks.runs import Run
from benchmarks.subjects import Subject
STUB = Subject("stub", "stub", lambda task: MagicMock(), lambda spark, task: Run(1.5), lambda task, run: "")
"""
PEAKS: dict[Sample, set[str]] = {
    "": set(),
    "footprint": {"pss_mb", "disk_mb"},
    "workers": {"worker_mb", "workers_mb", "workers", "java_mb"},
}


@pytest.fixture
def touch(tmp_path: Path) -> Callable[[str, float], None]:
    def make(name: str, time: float) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (time, time))

    return make


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    ended = run_command(["sh", "-c", "echo broken; exit 3"], tmp_path / "output.log", 10)

    assert ended.code == 3
    assert "code 3" in ended.problem()
    assert ended.problem().endswith("broken")


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"set -m; sleep 60 & echo $! > {pid}; sleep 60"]  # -m: a group of its own
    ended = run_command(command, tmp_path / "output.log", 0.5)

    assert ended.code is None
    assert "the time was up" in ended.problem()
    left = int(pid.read_text())
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_a_command_ends_with_the_process_that_runs_it_even_by_sigkill(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    inner = ["sh", "-c", f"echo $$ > {pid}; sleep 60"]
    code = (
        f"from pathlib import Path; from router_bench.processes import *; run_command({inner}, Path('{pid}.log'), 60)"
    )
    harness = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the process id is written", seconds=20)
    harness.kill()
    harness.wait()

    wait_until(lambda: not psutil.pid_exists(int(pid.read_text())), "the process ends", seconds=20)


def test_a_command_is_watched_from_outside_while_it_runs(tmp_path: Path) -> None:
    seen: list[Footprint] = []

    def watch(pid: int) -> Footprint:
        seen.append(Footprint(pid))
        return seen[0]

    code = "import time; held = bytearray(80 << 20); time.sleep(1.5)"
    run_command([sys.executable, "-c", code], tmp_path / "output.log", 20, watch=watch)

    assert 80 <= seen[0].megabytes < 200


@pytest.mark.parametrize("inside", [True, False], ids=["a checkout", "installed into somebody's project"])
def test_a_label_has_the_commit_of_the_code_only(tmp_path: Path, inside: bool) -> None:
    """A package in somebody's virtual environment is no part of the repository around it."""
    for words in (["init", "-q"], ["config", "user.email", "a@example"], ["config", "user.name", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "__init__.py").touch()
    (tmp_path / "other.py").touch()
    subprocess.run(["git", "-C", str(tmp_path), "add", "__init__.py" if inside else "other.py"], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "commit", "-qm", "one"], check=True)
    commit, dirty = machine._commit(tmp_path)

    assert (len(commit), dirty) == ((40, True) if inside else (0, False))
    for file in ("other.py", "__init__.py"):
        subprocess.run(["git", "-C", str(tmp_path), "add", file], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "commit", "-qm", "two"], check=True)
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "benchmarks/results/results.json").touch()

    assert machine._commit(tmp_path)[1] is False, "results that are written down are no change of the code"


def test_bytes_on_disk_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"678")

    assert bytes_on_disk(tmp_path) == 8


@pytest.mark.parametrize("sample", ["", "footprint", "workers"])
def test_a_worker_does_its_job_and_writes_every_run_down(tmp_path: Path, task: Task, sample: Sample) -> None:
    (tmp_path / "stub.py").write_text(STUB)
    Job("stub", "stub", task, 2, sample, str(tmp_path / "runs.jsonl")).write(tmp_path / "job.json")
    command = [sys.executable, "-m", "benchmarks.worker", str(tmp_path / "job.json")]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    runs = read_runs(tmp_path / "runs.jsonl")
    assert [(run.seconds, run.first) for run in runs] == [(1.5, True), (1.5, False)]
    assert set(runs[0].peaks) == PEAKS[sample]


def test_a_cold_contender_does_not_import_the_router() -> None:
    """What is held against the router must not pay for its modules."""
    code = "import sys, benchmarks.worker, benchmarks.subjects.baselines; sys.exit('router' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
