"""The router with `ui`, read by Prometheus and three open pages, in turns with the same stream that nobody looks at."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.router import configuration, drain, start_session, write_yaml
from benchmarks.verify import bronze_and_tables
from router.cli.run import serve_status
from router.config.loader import load_config
from router.engine.status.board import StatusBoard
from router.registry import load_registry
from router.spark_internals import collect_garbage
from router_demo.embedded import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from benchmarks.runs import Task

READERS = """
import sys, threading, time, urllib.request
address, pages, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

def page():
    with urllib.request.urlopen(f"http://{address}/api/events") as events:
        while events.read1(65536):
            pass

for _ in range(pages):
    threading.Thread(target=page, daemon=True).start()
while True:
    size = len(urllib.request.urlopen(f"http://{address}/metrics").read())
    print(size, flush=True)
    time.sleep(pause)
"""
"""The readers, in a process of their own whose time does not count: what they cost the driver does."""


def _run(spark: SparkSession, task: Task) -> Run:
    """Drain the topic in pairs, one run of each read by nobody; the first pair does not count."""
    samples: list[dict[str, float]] = []
    last = Run(0.0)
    for pair in range(int(task.options["pairs"]) + 1):
        # Who comes second finds the caches of the system warm: they take turns in that, too.
        ways = ["plain", "watched"] if pair % 2 else ["watched", "plain"]
        sample: dict[str, float] = {}
        for way in ways:
            # The harness verifies the tables of the last run.
            is_last = pair == int(task.options["pairs"]) and way == ways[-1]
            own = task if is_last else replace(task, folder=f"{task.folder}-{pair}-{way}")
            # What the run before left must not be cleared away on this one's time.
            collect_garbage(spark)
            os.sync()
            began = _cpu_seconds()
            last, scrapes = _drain(spark, own, watched=way == "watched")
            sample[f"{way}: cpu"] = _cpu_seconds() - began
            sample[f"{way}: wall"] = last.seconds
            sample[f"{way}: scrapes"] = scrapes
        if pair:
            samples.append(sample)
    return replace(last, samples=samples)


def _drain(spark: SparkSession, task: Task, *, watched: bool) -> tuple[Run, int]:
    """Drain the topic once, the start of the server included; also return how many scrapes were answered."""
    content = configuration(task)
    # Without `ui` in its configuration the router serves no page, and `serve_status` does nothing.
    (port,) = free_ports(1)
    if watched:
        content["ui"] = {"address": f"127.0.0.1:{port}"}
    file = write_yaml(task, content)
    registry = load_registry()
    loaded = load_config(file, registry)
    board = StatusBoard(loaded.config.name)
    answered = Path(task.folder, "scrapes")
    began = time.perf_counter()
    with ExitStack() as readers:
        readers.enter_context(serve_status(loaded.config, board, file))
        if watched:
            readers.enter_context(_readers(port, task.options, answered))
        drained = drain(spark, loaded, registry, board)
        seconds = time.perf_counter() - began
    scrapes = len(answered.read_text().splitlines()) if watched else 0
    return replace(drained, seconds=seconds), scrapes


@contextmanager
def _readers(port: int, options: Mapping[str, str], answered: Path) -> Iterator[None]:
    command = [sys.executable, "-c", READERS, f"127.0.0.1:{port}", options["pages"], options["scrape"]]
    with answered.open("wb") as output:
        process = subprocess.Popen(command, stdout=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, its JVM and its Python workers so far, without those of ended readers."""
    own = os.times()
    seconds = own.user + own.system
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


WATCHED = Subject("watched", "router with a page and metrics", start_session, _run, bronze_and_tables)
