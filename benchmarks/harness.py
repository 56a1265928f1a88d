"""Measure cells: fill their topics, start their processes, count what they left, note where and who disturbed."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.discovery import modules, subjects
from benchmarks.results import CellResult
from benchmarks.runs import Job, Run, Task, batches_done, footprint, processing_seconds, read_runs
from router_bench.machine import Footprint, Label, Neighbours
from router_bench.processes import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.cells import Cell
    from benchmarks.topics import Topic, Topics
    from router_bench.processes import Ended

ROOT = Path(__file__).resolve().parents[1]


def measure(cells: Sequence[Cell], topics: Topics, timeout: float, logs: Path, date: str = "") -> list[CellResult]:
    """Return the runs of cells, each verified; several cells run their processes in turns.

    `timeout` is in seconds and per process. What a process said is kept in `logs` when a run has a problem.
    """
    filled = [topics.of(cell) for cell in cells]
    runs: list[list[Run]] = [[] for _ in cells]
    with Neighbours() as neighbours:
        # One process of each cell a turn, so that a machine that slows down slows all cells.
        for turn in range(max(cell.processes for cell in cells)):
            for cell, topic, runs_of_cell in zip(cells, filled, runs, strict=True):
                if turn < cell.processes:
                    runs_of_cell.extend(_turn(cell, topic, topics.servers, timeout, logs))
    label = Label.now(date)
    load = neighbours.load
    foreign_cores = neighbours.foreign_cores
    results = []
    for cell, runs_of_cell in zip(cells, runs, strict=True):
        results.append(CellResult(cell, tuple(runs_of_cell), load, foreign_cores, label))
    return results


def _turn(cell: Cell, topic: Topic, servers: str, timeout: float, logs: Path) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="router-benchmark-", ignore_cleanup_errors=True) as folder:
        task = Task(
            servers=servers,
            topic=topic.name,
            schema=topic.schema,
            decode=topic.decode,
            events=cell.events,
            games=cell.games,
            partitions=cell.partitions,
            rows_per_batch=cell.rows_per_batch or cell.events,
            expected=topic.expected,
            folder=folder,
            options=dict(cell.options),
        )
        runs = _run_process(cell, task, timeout)
        _keep_output(cell, runs, Path(folder), logs)
    return runs


def _keep_output(cell: Cell, runs: list[Run], folder: Path, logs: Path) -> None:
    if any(run.problem for run in runs):
        logs.mkdir(parents=True, exist_ok=True)
        for output in folder.rglob("output.log"):
            shutil.copy(output, logs / f"{cell.key.replace('/', '_')}.log")


def _run_process(cell: Cell, task: Task, timeout: float) -> list[Run]:
    command = subjects()[cell.subject].command
    # Only a cold figure is that of the command line, as a user starts it.
    if cell.mode == "cold" and command:
        return [_by_command(cell, task.nth(0), command, timeout)]
    return _by_worker(cell, task, timeout)


def _by_command(cell: Cell, task: Task, command: Callable[[Task], list[str]], timeout: float) -> Run:
    Path(task.folder).mkdir(parents=True)
    memory: list[Footprint] = []

    def watch(pid: int) -> AbstractContextManager[object]:
        memory.append(Footprint(pid))
        return memory[0] if cell.sample == "footprint" else nullcontext()

    ended = run_command(command(task), Path(task.folder, "output.log"), timeout, cwd=ROOT, watch=watch)
    # The command reports no figures: its checkpoint has the time and the number of its batches.
    seconds = processing_seconds(task.checkpoint) or ended.seconds
    run = Run(
        seconds,
        process_seconds=ended.seconds,
        batches=batches_done(task.checkpoint),
        peaks=footprint(memory[0], task) if cell.sample else {},
        problem=ended.problem(),
    )
    return verified(cell, task, run)


def _by_worker(cell: Cell, task: Task, timeout: float) -> list[Run]:
    folder = Path(task.folder)
    job = Job(cell.subject, modules()[cell.subject], task, cell.runs, cell.sample, str(folder / "runs.jsonl"))
    job.write(folder / "job.json")
    command = [sys.executable, "-m", "benchmarks.worker", str(folder / "job.json")]
    ended = run_command(command, folder / "output.log", timeout, cwd=ROOT)
    runs = [verified(cell, task.nth(number), run) for number, run in enumerate(read_runs(Path(job.results)))]
    runs += _missing(cell, len(runs), ended)
    for number in range(cell.runs):
        shutil.rmtree(task.nth(number).folder, ignore_errors=True)
    process_seconds = ended.seconds if cell.mode == "cold" else None
    return [replace(run, process_seconds=process_seconds) for run in runs]


def _missing(cell: Cell, done: int, ended: Ended) -> list[Run]:
    """Return a run with the reason in place of those that a process did not come to."""
    problem = ended.problem()
    if not problem and done < cell.runs:
        problem = "it ended too early"
    if not problem:
        return []
    return [Run(0.0, first=False, problem=problem)]


def verified(cell: Cell, task: Task, run: Run) -> Run:
    """Return the run with a problem in it when its result is wrong or cannot be counted."""
    if run.problem:
        return run
    try:
        wrong = subjects()[cell.subject].verify(task, run)
    except Exception as error:  # whatever a broken lake makes the readers raise is the finding
        wrong = f"the result cannot be counted: {type(error).__name__}: {error}"[:600]
    return replace(run, problem=wrong and f"wrong result: {wrong}")
