from pathlib import Path

from pyspark.sql import SparkSession
from router.testing import check_applying_sink

from own_parts.sink import OrderFiles


def test_each_order_is_written_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    values = [("1", "rome"), (None, "paris"), ("3", None)]
    rows = spark.createDataFrame(values, "order_id string, shop string")

    check_applying_sink(spark, OrderFiles(folder=Path("out")), rows, tmp_path)

    file = tmp_path / "out" / "contract" / "route" / "sink" / "0.jsonl"
    expected = ['{"order_id":"1","shop":"rome"}', '{"order_id":"3"}']
    assert file.read_text().splitlines() == expected
