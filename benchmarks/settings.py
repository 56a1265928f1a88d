"""The Spark settings that every contender gets, so that no figure comes from a better tuned session."""

from __future__ import annotations

import os


def settings() -> dict[str, str]:
    """Return the settings; shuffle partitions and snapshot partitions fit a small machine with many small tables."""
    cores = os.cpu_count() or 1
    return {
        "spark.driver.memory": "4g",
        # the router's own choice; here, so that every contender has it
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
