from pyspark.sql import SparkSession
from router.testing import check_rule

from own_parts.rule import InShops


def test_orders_of_the_shops_match(spark: SparkSession) -> None:
    values = [(("rome",),), (("paris",),), ((None,),), (None,)]
    events = spark.createDataFrame(values, "event struct<shop: string>")
    rule = InShops(shops=("rome", "milan"))

    check_rule(spark, rule, events)

    matching = events.where(rule.matches()).collect()
    assert [row.event.shop for row in matching] == ["rome"]
