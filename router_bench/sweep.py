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
from router_bench.machine import Label, Neighbours, Sampler
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
        times = [run.process_seconds if self.cold else run.seconds for run in self.counted]
        known = [time for time in times if time is not None]
        return statistics.median(known) if known and not self.problem else None

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
    with ExitStack() as held:
        servers = held.enter_context(payload.broker(sweep.servers))
        folder = Path(
            held.enter_context(tempfile.TemporaryDirectory(prefix="router-bench-", ignore_cleanup_errors=True))
        )
        topics = {each: held.enter_context(_filled(sweep, servers, each, progress)) for each in sweep.partitions}
        bar = progress.add_task("runs", total=len(topics) * sweep.runs)
        with Neighbours() as neighbours:
            runs, problem = _runs(sweep, _job(sweep, servers, topics, folder), progress, bar)
    label, noise = Label.now(), neighbours.foreign_cores
    return [_cell(sweep, each, runs, label, noise, problem) for each in sweep.partitions]


@contextmanager
def _filled(sweep: Sweep, servers: str, partitions: int, progress: Progress) -> Iterator[str]:
    """Give the name of a filled topic, for as long as a block."""
    bar = progress.add_task(f"fill {partitions} partition{'s' * (partitions > 1)}", total=sweep.rows)
    settings = sweep.producer or {}
    with payload.topic(servers, payload.topic_name(), partitions, settings) as name:
        records = sweep.payload.repeated(sweep.rows)
        payload.fill(servers, name, partitions, records, settings, lambda sent: progress.update(bar, completed=sent))
        yield name


def _job(sweep: Sweep, servers: str, topics: dict[int, str], folder: Path) -> Job:
    file, plugins = str(sweep.loaded.path.resolve()), tuple(str(path.resolve()) for path in sweep.plugins)
    results = str(folder / "runs.jsonl")
    embedded = sweep.servers is None
    where = (file, plugins, servers, embedded, topics, sweep.rows, sweep.runs, sweep.send, str(folder), results)
    return Job(*where, sweep.master, sweep.lake)


def _runs(sweep: Sweep, job: Job, progress: Progress, bar: TaskID) -> tuple[list[BenchRun], str]:
    """Return the runs, and why some are missing, or ""."""
    if not sweep.cold:
        return _process(sweep, job, progress, bar)[:2]
    done: list[BenchRun] = []
    for _ in range(sweep.repeat):
        for each, name in job.topics.items():
            folder = Path(job.folder, f"process-{len(done)}")
            folder.mkdir()
            one = replace(job, topics={each: name}, runs=1, folder=str(folder), results=str(folder / "runs.jsonl"))
            runs, problem, seconds = _process(sweep, one, progress, bar, before=len(done))
            if problem:
                return done, problem
            done += [replace(run, process_seconds=seconds) for run in runs]
    return done, ""


def _process(
    sweep: Sweep, job: Job, progress: Progress, bar: TaskID, before: int = 0
) -> tuple[list[BenchRun], str, float]:
    """Do a job in a process of its own; return its runs, what went wrong, and how long the process lived."""
    folder, results = Path(job.folder), Path(job.results)
    job.write(folder / "job.json")
    command = [sys.executable, "-m", "router_bench.worker", str(folder / "job.json")]
    look = Sampler(lambda: progress.update(bar, completed=before + len(read_runs(results))), LOOK_SECONDS)
    ended = run_command(command, folder / "output.log", sweep.timeout * len(job.topics), watch=lambda _: look)
    runs = read_runs(results)
    progress.update(bar, completed=before + len(runs))
    return runs, ended.problem() and f"{ended.problem()}\n{_kept(ended.output)}", ended.seconds


def _kept(output: Path) -> str:
    """Keep what a process said where a user finds it when the temporary folder is gone."""
    place = Path(tempfile.gettempdir(), f"{output.parent.name}.log")
    shutil.copy(output, place)
    return f"{place} has its output"


def _cell(sweep: Sweep, partitions: int, every: Sequence[BenchRun], label: Label, noise: float, problem: str) -> Cell:
    runs = tuple(run for run in every if run.partitions == partitions)
    odd = [run.read for run in runs if run.read != sweep.rows]
    if odd:
        problem = f"{odd[0]:,} records were read, {sweep.rows:,} were sent"
    elif len(runs) == sweep.runs:
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
    """Return the sinks that are not measured since they would send to somebody."""
    return [] if sweep.send else quiet_routes(sweep.loaded.config)[1]


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
    seconds = [f"{value:.1f} s" for value in (cell.seconds, min(times), max(times))]
    last = cell.counted[-1]
    return (
        str(cell.partitions),
        f"{cell.events_per_second:,.0f}",
        *seconds,
        str(last.tables),
        f"{last.dead_letters:,}",
    )


def remarks(sweep: Sweep, cells: Sequence[Cell]) -> list[str]:
    """Return what a reader must know before believing the table."""
    said = [f"not measured, since it would send for real: {name} (--send measures it)" for name in left_out(sweep)]
    said += sorted({f"{cell.partitions} partitions: {cell.problem}" for cell in cells if cell.problem})
    letters = max((run.dead_letters for cell in cells for run in cell.counted), default=0)
    if letters:
        share = letters / sweep.rows
        said.append(f"{share:.0%} of the records became dead letters: does the payload fit the configuration?")
    if cells and (noise := cells[0].foreign_cores) > 0.15:
        said.append(f"other processes used {noise:.1f} cores meanwhile: measure again on a quiet machine")
    return said


def chart(sweep: Sweep, cells: Sequence[Cell]) -> Chart:
    """Return the chart of the results; raise ModuleNotFoundError without matplotlib."""
    from router_bench.chart import Chart  # noqa: PLC0415  an extra, which table and JSON do without

    points = [(cell.partitions, speed) for cell in cells if (speed := cell.events_per_second)]
    title = f"{sweep.loaded.config.name}: events per second by partitions of the topic"
    return Chart(title, "partitions", {sweep.loaded.config.name: points}, below=cells[0].label.text())


def checked(loaded: Loaded) -> Loaded:
    """Return a configuration that can be measured; raise StartError when it reads no Kafka topic."""
    try:
        kafka_source(loaded.config)
    except ValueError as error:
        raise StartError(f"{loaded.path}: {error}") from None
    return loaded
