"""Find out from receipts which rows were never delivered. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from router_rest.receipts import PLACES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def set_aside(receipts: DataFrame, query: str, route: str, sink: str) -> DataFrame:
    """Return what the last receipt says of each row of a sink that has none which says `delivered`.

    Columns: `topic`, `partition`, `offset`, `status`, `code`, `at`, `reason`, `call`. Most rows of a table of receipts
    are delivered: only the receipts of others are shuffled.
    """
    mine = receipts.filter((F.col("query") == query) & (F.col("route") == route) & (F.col("sink") == sink))
    open_ = mine.filter(F.col("status") != "delivered").select(*(F.col(name).alias(f"_{name}") for name in PLACES))
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in PLACES]
    theirs = mine.join(open_.distinct(), same, "left_semi")
    told = F.struct("status", F.col("http_status").alias("code"), "at", "reason", F.col("call_id").alias("call"))
    last = theirs.groupBy(*PLACES).agg(F.max_by(told, F.struct(F.col("status") == "delivered", "at")).alias("told"))
    return last.select(*PLACES, "told.*").filter(F.col("status") != "delivered")
