"""Do one job in a process of its own: `python -m benchmarks.worker JOB`; started by the harness."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.runs import Job, append_run
from benchmarks.sampling import sampled
from benchmarks.subjects import Subject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.runs import Run


def main(path: Path) -> None:
    """Do the job in a file, in one Spark session, and append each run to the job's results."""
    job = Job.read(path)
    subject = _subject(job)
    spark = subject.session(job.task.nth(0))
    for number in range(job.runs):
        append_run(Path(job.results), _run(subject, spark, job, number))
    spark.stop()


def _subject(job: Job) -> Subject:
    things = vars(import_module(job.module)).values()
    return next(thing for thing in things if isinstance(thing, Subject) and thing.name == job.subject)


def _run(subject: Subject, spark: SparkSession, job: Job, number: int) -> Run:
    task = job.task.nth(number)
    if number:  # what the run before left must not be cleared away on this run's time
        spark._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        os.sync()
    with sampled(job.sample, spark, task) as add_samples:
        run = subject.run(spark, task)
    return replace(add_samples(run), first=number == 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
