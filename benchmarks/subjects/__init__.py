"""The contenders: the router and what a good engineer would ship without it, one module per idea."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from benchmarks.runs import Run, Task


@dataclass(frozen=True)
class Subject:
    """One way to do a task.

    `session(task)` starts Spark and `run(spark, task)` does the work, both in a process of their own; `verify(task,
    run)` runs in the harness afterwards and says what is wrong with the result, or "". `command(task)` is the public
    command line for cold figures, where there is one. `label` is the name in tables and plots.
    """

    name: str
    label: str
    session: Callable[[Task], SparkSession]
    run: Callable[[SparkSession, Task], Run]
    verify: Callable[[Task, Run], str]
    command: Callable[[Task], list[str]] | None = None
