import pytest
from pyspark.sql import SparkSession
from router.testing import check_decoder

from own_parts.decoder import Pairs, parse_pairs


def test_the_decoder_keeps_its_contract(spark: SparkSession) -> None:
    """Garbage stands between these values: it must not raise, nor lose a row."""
    good_values = [b"order_id=1;shop=rome", b"shop=", b"other=1"]

    check_decoder(spark, Pairs(fields=("order_id", "shop")), good_values)


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        (b"order_id=1;shop=rome", {"order_id": "1", "shop": "rome"}),
        (b"sum=1+1=2", {"sum": "1+1=2"}),
        (b"rome", None),
        (b"\xff=1", None),
        (b"", None),
        (None, None),
    ],
)
def test_a_text_of_pairs_is_parsed(
    value: bytes | None, pairs: dict[str, str] | None
) -> None:
    assert parse_pairs(value) == pairs
