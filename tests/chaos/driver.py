"""Run one configuration until its topic is drained, or until this process kills itself at a point of a batch.

`python driver.py CONFIG --plugin FILE --kill landing --batch 1`: SIGKILL, so nothing is flushed, closed or undone.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from router.config.loader import load
from router.config.models import Trigger
from router.engine import commit, session, spark, stream
from router.registry import load_registry

POINTS = ("plan", "landing", "manifest", "commits", "apply", "ledger")
"""`landing`: as soon as a file of the batch is in the lake; `commits`: half of them done; else the end of that step."""


def main() -> None:
    asked = _arguments()
    registry = load_registry(asked.plugin)
    loaded = load(asked.config, registry)
    # one commit after another, so that a kill comes between two of them
    commit.THREADS = spark.THREADS = 1
    session_ = session.build_session(loaded.config, "local[2,4]")

    def watch(batch: int, step: str, done: int, of: int) -> None:
        if batch == asked.batch and _reached(asked.kill, step, done, of):
            os.kill(os.getpid(), signal.SIGKILL)
        if (batch, step, done, asked.kill) == (asked.batch, "land", 0, "landing"):
            asked.hold.touch()
            threading.Thread(target=_kill_at_first_file, args=(Path(loaded.config.lake), batch), daemon=True).start()

    stream.run(loaded, registry, session_, stream.Options(trigger=Trigger(once=True), watch=watch))
    session.stop_session(session_)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    parser.add_argument("--kill", choices=POINTS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--hold", type=Path, help="file that keeps a task of the decoder `troubled` waiting")
    return parser.parse_args()


def _reached(point: str | None, step: str, done: int, of: int) -> bool:
    if point == "commits":
        return step == "commit" and done >= of // 2
    return step == point and done == of


def _kill_at_first_file(lake: Path, batch: int) -> None:
    while not any(lake.glob(f"*/*/part-{batch:010d}-*.parquet")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
