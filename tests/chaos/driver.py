"""Run one configuration until its topic is drained, or until this process kills itself at a point of a batch.

`python driver.py CONFIG --plugin FILE --kill landing --batch 1`: SIGKILL, so nothing is flushed, closed or undone. With
`--victim jvm` its JVM is killed in place of it, with `--victim workers` a Python worker at every step of the batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from router.config.loader import load_config
from router.config.models import Trigger
from router.delta.keyed import row_versions
from router.engine import stream
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit import committers
from router.engine.merge import delta_rs, delta_spark
from router.engine.quarantine import table as quarantine
from router.engine.spark import session
from router.errors import RouterError, TableError
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable

IN_MERGES = ("merges", "deletions", "merged")
POINTS = ("plan", "landing", "decide", "manifest", "commits", "quarantine", *IN_MERGES, "apply", "ledger")
"""`landing`: as soon as a file of the batch is in the lake; `commits`: half of them done; `quarantine`: before rows are
moved whose table takes none (BLOCKED, in that batch); `merges`: as soon as one table is merged; `deletions`: before the
first memory of what is deleted; `merged`: before it is noted that all tables are; else the end of that step."""
BLOCKED = "silver.rummy"
"""The table that takes no rows in the batch of the kill, at the point `quarantine`."""


def main() -> None:
    asked = _arguments()
    registry = load_registry(asked.plugin)
    loaded = load_config(asked.config, registry)
    # one commit after another, so that a kill comes between two of them
    committers.THREADS = delta_rs.THREADS = delta_spark.THREADS = 1
    if asked.by_tasks:
        delta_rs.SMALL_ROWS = -1
    if asked.kill in IN_MERGES:
        _die_in_merges(asked.kill, asked.batch)
    if asked.kill == "quarantine":
        _die_before_quarantine(asked.batch, asked.victim)
    session_ = session.build_session(loaded.config, "local[2,4]")

    def watch(batch: int, step: str, done: int, of: int) -> None:
        if batch == asked.batch and asked.victim == "workers" and done == 0:
            kill("workers")
        elif batch == asked.batch and _reached(asked.kill, step, done, of):
            kill(asked.victim)
        if (batch, step, done, asked.kill) == (asked.batch, "land", 0, "landing"):
            asked.hold.touch()
            threading.Thread(target=_kill_at_first_file, args=(asked, loaded.config.lake), daemon=True).start()

    try:
        stream.run(loaded, registry, session_, stream.RunOptions(trigger=Trigger(once=True), watch=watch))
    except RouterError as error:  # as the command line does
        print(f"router: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(error.exit_code) from None
    finally:
        session.stop_session(session_)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    parser.add_argument("--kill", choices=POINTS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--victim", choices=("driver", "jvm", "workers"), default="driver")
    parser.add_argument("--by-tasks", action="store_true", help="let tasks merge small outboxes, too")
    parser.add_argument("--hold", type=Path, help="file that keeps a task of the decoder `troubled` waiting")
    return parser.parse_args()


def _reached(point: str | None, step: str, done: int, of: int) -> bool:
    if point == "commits":
        return step == "commit" and done >= of // 2
    return step == point and done == of


def _kill_at_first_file(asked: argparse.Namespace, lake: str) -> None:
    while not any(Path(lake).glob(f"*/*/part-{asked.batch:010d}-*.parquet")):
        time.sleep(0.01)
    kill(asked.victim)
    asked.hold.unlink(missing_ok=True)


def kill(victim: str) -> None:
    """Kill this process, its JVM, or one of the Python workers that wait for a task."""
    if victim == "driver":
        os.kill(os.getpid(), signal.SIGKILL)
    (jvm,) = [child for child in psutil.Process().children() if "java" in child.name()]
    if victim == "jvm":
        jvm.kill()
        jvm.wait()
        return
    daemons = [child for child in jvm.children() if "worker_daemon" in " ".join(child.cmdline())]
    for worker in [worker for daemon in daemons for worker in daemon.children()][:1]:
        worker.kill()


def _die_before_quarantine(batch: int, victim: str) -> None:
    """Let a table take no rows in a batch, and kill before these are moved into the quarantine."""

    def refuse(_: Any, works: list[Any], *__: Any) -> None:
        if (works[0].table, works[0].version) == (BLOCKED, batch):
            raise TableError(BLOCKED, "it takes no rows in this test")

    _around(committers.Committers, "_commit_table", before=refuse)
    _around(quarantine.Quarantine, "take_rows", before=lambda *_: kill(victim))


def _die_in_merges(point: str, batch: int) -> None:
    """Let the very worker or thread that merges a table kill this process, with either engine."""
    pid = os.getpid()

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        time.sleep(600)  # a worker that has killed its driver must not go on

    if point == "merged":
        _around(CheckpointStore, "mark_applied", before=lambda _, version, *__: version == batch and kill())
    elif point == "deletions":
        _around(
            delta_spark.TableMerge,
            "_remember_deletions",
            before=lambda table, *_: table.work.version == batch and kill(),
        )
    else:
        _around(delta_spark.SparkMerger, "_merge_table", after=lambda merger, *_: merger.job.batch == batch and kill())
    real = delta_rs.merge_task

    def task(job: delta_rs.MergeJob) -> Any:
        run = real(job)

        def merging(batches: Any) -> Any:  # in a worker, where its modules are as they were
            if job.batch == batch:
                _die_in_delta_rs(point, batch, kill)
            yield from run(batches)

        return merging

    delta_rs.merge_task = task
    _die_in_delta_rs(point, batch, kill)  # a small outbox is merged in this process


def _die_in_delta_rs(point: str, batch: int, kill: Callable[[], None]) -> None:
    if point == "merges":
        _around(delta_rs, "upsert_rows", after=lambda _, work, *__: work.version == batch and kill())
    elif point == "deletions":
        _around(row_versions, "remember_deletions", before=lambda *given: given[-1].version == batch and kill())


def _nothing(*_: Any) -> None:
    pass


def _around(owner: Any, name: str, before: Callable[..., Any] = _nothing, after: Callable[..., Any] = _nothing) -> None:
    real = getattr(owner, name)

    def instead(*given: Any) -> Any:
        before(*given)
        found = real(*given)
        after(*given)
        return found

    setattr(owner, name, instead)


if __name__ == "__main__":
    main()
