"""The Spark settings that every contender gets, and those that the router sets by itself."""

from __future__ import annotations

import os

TUNED_SESSION = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
TUNED_CONSUMER = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
"""What the router sets without being asked: a loop with the same shows how much of its speed comes from that alone."""


def settings() -> dict[str, str]:
    """Return the settings; shuffle partitions and snapshot partitions fit a small machine with many small tables."""
    cores = os.cpu_count() or 1
    return {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
