"""Settings of a Spark that runs little and ends soon, and how much is drawn by property tests."""

from hypothesis import settings

LIGHT = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Nothing is compiled that does not run long enough to pay for it: neither expressions nor Spark's own code twice.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Plans for a few rows are not planned again while they run, and the state of a table is one task.
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # With one compiler the JVM reserves 48 MB for compiled code, and stops compiling after some minutes of tests.
    # Room for classes at once: the JVM would look for garbage in all of its memory whenever it makes more, four times.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m",
}


def drawn(count: int) -> int:
    """Return how many examples or tables a test has: all of them in `make test-all`, in other runs a third."""
    return max(1, count * settings.default.max_examples // 100)
