import pyarrow as pa
from pyspark.sql import SparkSession
from router.testing import check_encoder

from own_parts.encoder import ToPairs, encode_pairs


def test_the_encoder_keeps_its_contract(spark: SparkSession) -> None:
    values = [("1", "rome"), (None, "paris"), ("3", "a;b")]
    rows = spark.createDataFrame(values, "order_id string, shop string")

    check_encoder(spark, ToPairs(), rows)


def test_a_row_is_a_text_of_pairs() -> None:
    rows = [{"order_id": "1", "shop": "rome"}, {"order_id": "2", "shop": "a;b"}]

    encoded = encode_pairs(pa.array(rows), None)

    assert encoded.values == [b"order_id=1;shop=rome", None]
    assert encoded.reasons == {1: "a value contains a semicolon"}
