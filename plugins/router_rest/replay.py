"""Send rows of a REST sink again: what went out in one call as the same call, by the same key. Runs on the driver.

A key is made of what a call says: its rows' places and its body. Rows that were in one call before are one again, so
that its key is the one of their receipts; where a row is missing, or the body is another one by now, so is the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from router import Resent, StartError
from router_encoders.outbox_rows import PLACE
from router_rest.batch import cut_of, owner_of, posting, responses_of, tasks_of
from router_rest.delivery.feeder import FORMER
from router_rest.delivery.job import planned
from router_rest.delivery.outcome import RANKS, counted, outcome
from router_rest.delivery.receipts import PLACES, SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router import Batch, Parts
    from router_rest.delivery.partitioner import PartitionPlan
    from router_rest.sink import Rest

FIRST = "_first"
"""The first offset of a row's former call: calls go out in the order of it, and rows of one call follow each other."""


def resend(sink: Rest, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
    """Send rows again, and write their receipts; return what became of them."""
    parts, left = batch.parts(sink.receipts), ""
    if not parts.committed():
        try:
            _deliver(sink, events, aside, batch)
        except (StartError, ConnectionError) as error:
            left = str(error)
    if (responses := responses_of(sink, batch)) is not None:
        responses.commit()
    found = outcome(events, parts)
    parts.commit(SCHEMA)
    refused = None if found.refused is None else _with(found.refused, aside.filter(F.col("status") == "parked"))
    return Resent(_moved(aside, parts), refused, found.in_doubt, left)


def _deliver(sink: Rest, events: DataFrame, aside: DataFrame, batch: Batch) -> None:
    parts, tasks = batch.parts(sink.receipts), tasks_of(sink, events.sparkSession)
    plan = planned(events, parts, cut_of(sink), owner_of(batch), tasks, said=sink.tasks is not None, whole=True)
    with posting(sink, events, batch, plan, _share(sink, aside, plan)) as opened:
        opened.events, opened.columns = _in_calls(opened.columns(opened.events), aside), _as_they_are
        opened.order = ("_topic", "_partition", FIRST, "_offset")
        opened.deliver()


def _share(sink: Rest, aside: DataFrame, plan: PartitionPlan) -> float:
    """Return what share of the rows may be refused: of those that were parked as ever, and all that were dead."""
    dead = aside.filter(F.col("status") == "dead").count()
    most = dead + sink.poison_share * (plan.rows - dead)
    return min(1.0, (most + 0.5) / max(1, plan.rows))  # half a row, for a product of fractions may fall short of `dead`


def _in_calls(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return rows with the call that each was in, and the offset that this begins with."""
    calls = aside.select(*(F.col(name).alias(f"_of_{name}") for name in PLACES), F.col("call").alias(FORMER))
    of_call = Window.partitionBy("_topic", "_partition", FORMER)
    own = F.col(FORMER).isNull()
    first = F.when(own, F.col("_offset")).otherwise(F.min("_offset").over(of_call))
    found = rows.join(calls, [F.col(new).eqNullSafe(F.col(f"_of_{old}")) for new, old in _PAIRS])
    return found.withColumn(FIRST, first).drop(*(f"_of_{name}" for name in PLACES))


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


def _with(rows: DataFrame, aside: DataFrame) -> DataFrame:
    """Return those of some rows that are in another frame."""
    return rows.join(aside, [F.col(new).eqNullSafe(F.col(old)) for new, old in _PAIRS], "left_semi")


def _moved(aside: DataFrame, parts: Parts) -> dict[tuple[str, str], int]:
    """Count rows by what they were and what they are."""
    found = counted(parts)
    if not found.num_rows:
        return {}
    columns = {f"_of_{name}": found.column(name) for name in PLACES}
    now = pa.table({**columns, "now": pa.array(RANKS).take(found.column("rank"))})
    same = [F.col(name).eqNullSafe(F.col(f"_of_{name}")) for name in PLACES]
    both = aside.join(aside.sparkSession.createDataFrame(now), same).groupBy("status", "now").count()
    return {(row["status"], row["now"]): row["count"] for row in both.collect()}


_PAIRS = tuple(zip(PLACE, PLACES, strict=True))


def set_aside(receipts: DataFrame, query: str, route: str, sink: str) -> DataFrame:
    """Return what the last receipt says of each row of a sink that has none which says `delivered`.

    Columns: `topic`, `partition`, `offset`, `status`, `code`, `at`, `reason`, `call`. Most rows of a table of receipts
    are delivered: only the receipts of others are shuffled.
    """
    mine = receipts.filter((F.col("query") == query) & (F.col("route") == route) & (F.col("sink") == sink))
    open_ = mine.filter(F.col("status") != "delivered").select(*(F.col(name).alias(f"_{name}") for name in PLACES))
    same = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in PLACES]
    theirs = mine.join(open_.distinct(), same, "left_semi")
    receipt = F.struct("status", F.col("http_status").alias("code"), "at", "reason", F.col("call_id").alias("call"))
    last = theirs.groupBy(*PLACES).agg(F.max_by(receipt, F.struct(F.col("status") == "delivered", "at")).alias("last"))
    return last.select(*PLACES, "last.*").filter(F.col("status") != "delivered")
