"""Settings of a Spark that runs little and ends soon."""

LIGHT = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Nothing is compiled that does not run long enough to pay for it: neither expressions nor Spark's own code twice.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
