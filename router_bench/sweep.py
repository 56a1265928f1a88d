"""Measure a configuration against the partitions of its topic, and say what was found.

A topic is filled once for each number of partitions. Warm (the default): one process drains each topic `repeat + 1`
times, and the first run of each is not counted, since a cold start would hide everything else. Cold: a process for
every run, timed from its start to its end.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from router.errors import StartError
from router_bench import payload
from router_bench.machine import NOISY, Label, Neighbours, Sampler
from router_bench.processes import run_command
from router_bench.worker import BenchRun, Job, kafka_source, quiet_routes, read_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.progress import Progress, TaskID

    from router.config.loader import Loaded
    from router_bench.chart import Chart
    from router_bench.payload import Payload

LOOK_SECONDS = 0.5
CORES = (
    "A flat line means that one partition already keeps every core busy: then the cores are the limit, not the "
    "partitions. With more cores it rises until there are as many partitions as cores."
)


@dataclass(frozen=True)
class Sweep:
    """What is asked for."""

    loaded: Loaded
    plugins: tuple[Path, ...]
    payload: Payload
    partitions: tuple[int, ...]
    rows: int
    repeat: int = 3
    cold: bool = False
    send: bool = False
    servers: str | None = None
    producer: Mapping[str, str] | None = None
    timeout: float = 3600.0
    master: str | None = None
    lake: str | None = None

    @property
    def runs(self) -> int:
        """Return how often each topic is drained."""
        return self.repeat if self.cold else self.repeat + 1


@dataclass(frozen=True)
class Cell:
    """What was found for one number of partitions, with where, from which code and when."""

    partitions: int
    rows: int
    cold: bool
    label: Label
    runs: tuple[BenchRun, ...]
    foreign_cores: float = 0.0
    problem: str = ""

    @property
    def counted(self) -> tuple[BenchRun, ...]:
        """Return the runs that make the figure."""
        return self.runs if self.cold else self.runs[1:]

    @property
    def seconds(self) -> float | None:
        """Return the median: of the whole process when cold, of the query when warm; None without a valid figure."""
        times = []
        for run in self.counted:
            time = run.process_seconds if self.cold else run.seconds
            if time is not None:
                times.append(time)
        if not times or self.problem:
            return None
        return statistics.median(times)

    @property
    def events_per_second(self) -> float | None:
        """Return the throughput."""
        return self.rows / self.seconds if self.seconds else None

    def asdict(self) -> dict[str, Any]:
        """Return what the result file holds."""
        figures = {"median_seconds": self.seconds, "events_per_second": self.events_per_second}
        return {**figures, **asdict(self), "label": self.label.asdict()}


def measure(sweep: Sweep, progress: Progress) -> list[Cell]:
    """Return a cell for each number of partitions; show how far it is."""
    kafka_source(sweep.loaded.config)
    with ExitStack() as resources:
        servers = resources.enter_context(payload.broker(sweep.servers))
        temporary = tempfile.TemporaryDirectory(prefix="router-bench-", ignore_cleanup_errors=True)
        folder = Path(resources.enter_context(temporary))
        # All topics are filled before the first run: filling one would take cores from another's run.
        topics = {}
        for partitions in sweep.partitions:
            topics[partitions] = resources.enter_context(_filled_topic(sweep, servers, partitions, progress))
        bar = progress.add_task("runs", total=len(topics) * sweep.runs)
        with Neighbours() as neighbours:
            runs, problem = _run(sweep, _job(sweep, servers, topics, folder), progress, bar)
    label = Label.now()
    return [_cell(sweep, each, runs, label, neighbours.foreign_cores, problem) for each in sweep.partitions]


@contextmanager
def _filled_topic(sweep: Sweep, servers: str, partitions: int, progress: Progress) -> Iterator[str]:
    """Give the name of a filled topic, for as long as a block."""
    noun = "partition" if partitions == 1 else "partitions"
    bar = progress.add_task(f"fill {partitions} {noun}", total=sweep.rows)
    settings = sweep.producer or {}
    with payload.topic(servers, payload.topic_name(), partitions, settings) as name:
        records = sweep.payload.repeated(sweep.rows)
        payload.fill(servers, name, partitions, records, settings, lambda sent: progress.update(bar, completed=sent))
        yield name


def _job(sweep: Sweep, servers: str, topics: dict[int, str], folder: Path) -> Job:
    return Job(
        file=str(sweep.loaded.path.resolve()),
        plugins=tuple(str(path.resolve()) for path in sweep.plugins),
        servers=servers,
        embedded=sweep.servers is None,
        topics=topics,
        rows=sweep.rows,
        runs=sweep.runs,
        send=sweep.send,
        folder=str(folder),
        results=str(folder / "runs.jsonl"),
        master=sweep.master,
        lake=sweep.lake,
    )


def _run(sweep: Sweep, job: Job, progress: Progress, bar: TaskID) -> tuple[list[BenchRun], str]:
    """Return the runs, and why some are missing, or ""."""
    if not sweep.cold:
        runs, problem, _ = _run_process(sweep, job, progress, bar)
        return runs, problem
    # Turns: what the machine does meanwhile does not fall on one number of partitions alone.
    done: list[BenchRun] = []
    for _ in range(sweep.repeat):
        for partitions, topic in job.topics.items():
            folder = Path(job.folder, f"process-{len(done)}")
            folder.mkdir()
            results = str(folder / "runs.jsonl")
            part = replace(job, topics={partitions: topic}, runs=1, folder=str(folder), results=results)
            runs, problem, seconds = _run_process(sweep, part, progress, bar, before=len(done))
            if problem:
                return done, problem
            done += [replace(run, process_seconds=seconds) for run in runs]
    return done, ""


def _run_process(
    sweep: Sweep, job: Job, progress: Progress, bar: TaskID, before: int = 0
) -> tuple[list[BenchRun], str, float]:
    """Do a job in a process of its own; return its runs, what went wrong, and how long the process lived."""
    folder = Path(job.folder)
    results = Path(job.results)
    job.write(folder / "job.json")

    def show_progress() -> None:
        progress.update(bar, completed=before + len(read_runs(results)))

    ended = run_command(
        [sys.executable, "-m", "router_bench.worker", str(folder / "job.json")],
        folder / "output.log",
        sweep.timeout * len(job.topics),
        watch=lambda _: Sampler(show_progress, LOOK_SECONDS),
    )
    show_progress()
    problem = ended.problem()
    if problem:
        problem += f"\n{_keep_output(ended.output)}"
    return read_runs(results), problem, ended.seconds


def _keep_output(output: Path) -> str:
    """Copy the output of a process to where a user finds it when the temporary folder is gone."""
    place = Path(tempfile.gettempdir(), f"{output.parent.name}.log")
    shutil.copy(output, place)
    return f"{place} has its output"


def _cell(sweep: Sweep, partitions: int, every: Sequence[BenchRun], label: Label, noise: float, problem: str) -> Cell:
    runs = tuple(run for run in every if run.partitions == partitions)
    wrong = [run.read for run in runs if run.read != sweep.rows]
    if wrong:
        problem = f"{wrong[0]:,} records were read, {sweep.rows:,} were sent"
    elif len(runs) == sweep.runs:
        # What ended the process came after the runs of this number of partitions.
        problem = ""
    return Cell(partitions, sweep.rows, sweep.cold, label, runs, noise, problem)


def written(sweep: Sweep, cells: Sequence[Cell], folder: Path) -> Path:
    """Write the results as JSON; return the file."""
    config = sweep.loaded.config
    content = {
        "configuration": {"name": config.name, "file": str(sweep.loaded.path), "fingerprint": sweep.loaded.fingerprint},
        "plugins": [str(path) for path in sweep.plugins],
        "payload": sweep.payload.name,
        "mode": "cold" if sweep.cold else "warm",
        "left_out": left_out(sweep),
        "cells": [cell.asdict() for cell in cells],
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{config.name}.json"
    file.write_text(json.dumps(content, indent=1) + "\n")
    return file


def left_out(sweep: Sweep) -> list[str]:
    """Return the sinks that are not measured since they would send to other systems."""
    if sweep.send:
        return []
    _, names = quiet_routes(sweep.loaded.config)
    return names


def shown(sweep: Sweep, cells: Sequence[Cell]) -> Table:
    """Return the results as a table for the terminal."""
    mode = "each a fresh process" if sweep.cold else "warm, in one session"
    title = f"{sweep.loaded.config.name}: {sweep.rows:,} records ({sweep.payload.name}), {mode}"
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    for column in ("partitions", "events/s", "median", "fastest", "slowest", "tables", "dead letters"):
        table.add_column(column, justify="right")
    for cell in cells:
        table.add_row(*_row(cell))
    table.caption = "\n".join((cells[0].label.text(), CORES)) if cells else ""
    return table


def _row(cell: Cell) -> tuple[str, ...]:
    if cell.seconds is None or cell.events_per_second is None:
        return (str(cell.partitions), "ERROR", "", "", "", "", "")
    times = [run.process_seconds or run.seconds for run in cell.counted]
    last = cell.counted[-1]
    return (
        str(cell.partitions),
        f"{cell.events_per_second:,.0f}",
        f"{cell.seconds:.1f} s",
        f"{min(times):.1f} s",
        f"{max(times):.1f} s",
        str(last.tables),
        f"{last.dead_letters:,}",
    )


def remarks(sweep: Sweep, cells: Sequence[Cell]) -> list[str]:
    """Return what a reader must know before believing the table."""
    lines = [f"not measured, since it would send for real: {name} (--send measures it)" for name in left_out(sweep)]
    lines += sorted({f"{cell.partitions} partitions: {cell.problem}" for cell in cells if cell.problem})
    letters = 0
    for cell in cells:
        letters = max(letters, *(run.dead_letters for run in cell.counted), 0)
    if letters:
        share = letters / sweep.rows
        lines.append(f"{share:.0%} of the records became dead letters: does the payload fit the configuration?")
    if cells and cells[0].foreign_cores > NOISY:
        cores = cells[0].foreign_cores
        lines.append(f"other processes used {cores:.1f} cores meanwhile: measure again on a quiet machine")
    return lines


def chart(sweep: Sweep, cells: Sequence[Cell]) -> Chart:
    """Return the chart of the results; raise ModuleNotFoundError without matplotlib."""
    from router_bench.chart import Chart  # noqa: PLC0415  an extra, which table and JSON do without

    points = []
    for cell in cells:
        if cell.events_per_second:
            points.append((cell.partitions, cell.events_per_second))
    title = f"{sweep.loaded.config.name}: events per second by partitions of the topic"
    return Chart(title, "partitions", {sweep.loaded.config.name: points}, below=cells[0].label.text())


def checked(loaded: Loaded) -> Loaded:
    """Return a configuration that can be measured; raise StartError when it reads no Kafka topic."""
    try:
        kafka_source(loaded.config)
    except ValueError as error:
        raise StartError(f"{loaded.path}: {error}") from None
    return loaded
