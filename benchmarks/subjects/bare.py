"""What no start of a router can be faster than: PySpark that reads the same topic, and does nothing with it.

The process has the session settings and the consumer options of the router, and imports nothing but PySpark: run as
`python -m benchmarks.subjects.bare JOB`, where the subject's command wrote the job.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.runs import Task


def main(path: Path) -> None:
    """Read a topic once, to nowhere."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  the harness imports this module too

    job: dict[str, Any] = json.loads(path.read_text())
    builder = SparkSession.builder
    for name, value in job["session"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.format("kafka").options(**job["source"]).load()
    writer = stream.writeStream.format("noop").trigger(availableNow=True)
    writer.option("checkpointLocation", job["checkpoint"]).start().awaitTermination()
    spark.stop()


def command(task: Task, session: dict[str, str], consumer: dict[str, str]) -> list[str]:
    """Write a job; return what does it."""
    source = {"kafka.bootstrap.servers": task.servers, "subscribe": task.topic, "startingOffsets": "earliest"}
    source |= {"maxOffsetsPerTrigger": str(task.rows_per_batch), "includeHeaders": "true", **consumer}
    path = Path(task.folder, "bare.json")
    path.write_text(json.dumps({"session": session, "source": source, "checkpoint": str(task.checkpoint)}))
    return [sys.executable, "-m", "benchmarks.subjects.bare", str(path)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
