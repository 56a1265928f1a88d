from pyspark.sql import SparkSession

from own_parts.view import OrdersOfShops


def test_orders_are_counted_by_shop(spark: SparkSession) -> None:
    source = spark.createDataFrame([("rome",), ("rome",), ("milan",)], "shop string")

    rows = OrdersOfShops().rows(source, {}).collect()

    assert {row.shop: row.orders for row in rows} == {"rome": 2, "milan": 1}
