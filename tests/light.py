"""Settings of a Spark that runs little and ends soon."""

LIGHT = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Nothing is compiled that does not run long enough to pay for it: neither expressions nor Spark's own code twice.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # With one compiler the JVM reserves 48 MB for compiled code, and stops compiling after some minutes of tests.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}
