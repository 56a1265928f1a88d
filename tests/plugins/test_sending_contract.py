"""The contract of applying sinks: one that keeps it passes, one that breaks it is told how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Outcome
from router.testing import check_applying_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Refusing(ApplyingSink):
    """Refuse rows without a game, and break the contract in one way."""

    how: Literal["", "forgets", "reasonless", "changes", "twice"] = ""

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        good = events.filter("game is not null").count()
        refused = events.filter("game is null").withColumn(
            "reason", F.lit("" if self.how == "reasonless" else "no game")
        )
        if self.how == "forgets":
            return Outcome(good)
        if self.how == "changes":
            refused = refused.withColumn("n", F.lit(7))
        if self.how == "twice":
            return Outcome(good - 1, refused.union(refused))
        return Outcome(good, refused)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows with a game and one without."""
    return spark.createDataFrame([("uno", 1), (None, 2), ("poker", None)], "game string, n int")


def test_a_sink_that_counts_and_gives_reasons_passes(rows: DataFrame) -> None:
    """Without it nobody trusts the suite."""
    check_applying_sink(rows.sparkSession, Refusing(), rows)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("forgets", "2 rows are applied and 0 refused, of 3"),
        ("reasonless", "refused without a reason"),
        ("changes", "a refused row is none of the batch"),
        ("twice", "a row is refused twice"),
    ],
)
def test_a_broken_sink_is_told_what_it_breaks(rows: DataFrame, how: str, what: str) -> None:
    """Without it rows vanish, or the stream stops, in production."""
    with pytest.raises(AssertionError, match=what):
        check_applying_sink(rows.sparkSession, Refusing.model_validate({"how": how}), rows)
