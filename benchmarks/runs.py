"""What passes between the harness and its processes: a job out, runs back.

Spark's own checkpoint is the clock of a command line that reports nothing, and the count of its batches.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.cells import Sample
    from router_bench.machine import Footprint


@dataclass(frozen=True)
class Task:
    """What one run does and where it writes.

    `schema` and `decode` describe the events as their feed does; `expected` is the number of events by table.
    """

    servers: str
    topic: str
    schema: str
    decode: dict[str, Any]
    events: int
    games: int
    partitions: int
    rows_per_batch: int
    expected: dict[str, int]
    folder: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def lake(self) -> Path:
        """Return the folder of the tables."""
        return Path(self.folder, "lake")

    @property
    def checkpoint(self) -> Path:
        """Return the folder below which Spark's checkpoints are."""
        return Path(self.folder, "checkpoint")

    def nth(self, number: int) -> Task:
        """Return the same task with fresh folders of its own."""
        return replace(self, folder=f"{self.folder}/run-{number}")


@dataclass(frozen=True)
class Job:
    """A task that one process does `runs` times in one session; it appends each run to `results`.

    `module` is where the subject is defined: a cold process must not pay for importing the other contenders.
    """

    subject: str
    module: str
    task: Task
    runs: int
    sample: Sample
    results: str

    def write(self, path: Path) -> None:
        """Write this job for the process that will do it."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        """Return the job in a file."""
        content = json.loads(path.read_text())
        return cls(**{**content, "task": Task(**content["task"])})


@dataclass(frozen=True)
class Run:
    """One run: `seconds` from the start of the query to the end of its last batch, `read` in records.

    `process_seconds` is the life of the whole process where that is part of the question, `cpu_seconds` what a warm
    run used of all cores, with its JVM and Python workers, without the broker; `steps` are seconds,
    `peaks` and `samples` whatever was sampled, `counts` what the other side counted; `problem` says why the figures
    must not be used.
    """

    seconds: float
    first: bool = True
    process_seconds: float | None = None
    cpu_seconds: float | None = None
    read: int = 0
    batches: int = 0
    tables: int = 0
    steps: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def of(cls, content: dict[str, Any]) -> Run:
        """Return a run from JSON; fields of another version are left out."""
        names = {run_field.name for run_field in fields(cls)}
        return cls(**{name: value for name, value in content.items() if name in names})


def footprint(memory: Footprint, task: Task) -> dict[str, float]:
    """Return the peak memory of the processes of a run and what it left on disk, in megabytes."""
    from router_bench.machine import MB, bytes_on_disk  # noqa: PLC0415  a cold contender must not import the router

    disk_bytes = bytes_on_disk(task.lake) + bytes_on_disk(task.checkpoint)
    return {"pss_mb": memory.megabytes, "disk_mb": disk_bytes / MB}


def append_run(path: Path, run: Run) -> None:
    """Add a run to a file of JSON lines, so that what was done survives a killed process."""
    with path.open("a") as lines:
        lines.write(json.dumps(asdict(run)) + "\n")


def read_runs(path: Path) -> list[Run]:
    """Return the runs of a file of JSON lines; none when it is not there."""
    if not path.exists():
        return []
    return [Run.of(json.loads(line)) for line in path.read_text().splitlines()]


def batches_done(folder: Path) -> int:
    """Return how many batches the checkpoint below a folder has finished; old entries may be gone, numbers stay."""
    return max((int(commit.name) + 1 for commit in _commits(folder)), default=0)


def processing_seconds(folder: Path) -> float | None:
    """Return the time from the start of the query to the end of its last batch; None when no batch was finished."""
    commits = _commits(folder)
    if not commits:
        return None
    started = (commits[0].parent.parent / "metadata").stat().st_mtime  # the first file that a query writes
    return max(commit.stat().st_mtime for commit in commits) - started


def _commits(folder: Path) -> list[Path]:
    return [commit for commit in folder.glob("**/commits/*") if commit.name.isdigit()]
