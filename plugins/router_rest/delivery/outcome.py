"""What became of a batch, counted by its receipts, whoever wrote them, in however many attempts. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from router import Outcome
from router_rest.delivery.receipts import PLACES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router import Parts

RANKS = ("parked", "dead", "delivered")
"""Statuses, the one that counts the most last: two attempts may have had the same row at the same time."""


def outcome(events: DataFrame, parts: Parts) -> Outcome:
    """Return what the receipts of a batch say; `events` are its rows."""
    found = counted(parts)
    ranks = found.column("rank").to_pylist()
    delivered, dead, parked = (ranks.count(RANKS.index(name)) for name in ("delivered", "dead", "parked"))
    doubtful = pc.sum(found.column("in_doubt").cast(pa.int64())).as_py() or 0
    refused = _refused(events, found) if dead else None
    return Outcome(delivered, refused, parked=parked, in_doubt=doubtful)


def counted(parts: Parts) -> pa.Table:
    """Return one row for each row with a receipt: its place, rank, reason, and whether it is in doubt."""
    read = [rows for _, rows in parts.read([*PLACES, "status", "reason", "in_doubt"]) if rows.num_rows]
    if not read:
        return pa.table(
            {**{name: [] for name in PLACES}, "rank": [], "reason": [], "in_doubt": pa.array([], pa.bool_())}
        )
    whole = pa.concat_tables([one.replace_schema_metadata() for one in read])
    ranks = pc.index_in(whole.column("status"), value_set=pa.array(RANKS))
    whole = whole.append_column("rank", ranks).append_column("times", pa.repeat(1, whole.num_rows))
    by_row = whole.group_by([*PLACES]).aggregate(
        [("rank", "max"), ("reason", "max"), ("in_doubt", "any"), ("times", "sum")]
    )
    doubt = pc.or_(by_row.column("in_doubt_any"), pc.greater(by_row.column("times_sum"), 1))
    columns = {name: by_row.column(name) for name in PLACES}
    return pa.table({**columns, "rank": by_row["rank_max"], "reason": by_row["reason_max"], "in_doubt": doubt})


def _refused(events: DataFrame, found: pa.Table) -> DataFrame:
    """Return the rows that are dead, whole, with the `reason`."""
    dead = found.filter(pc.equal(found.column("rank"), RANKS.index("dead"))).select([*PLACES, "reason"])
    names = [f"_of_{name}" for name in PLACES]
    why = events.sparkSession.createDataFrame(dead.rename_columns([*names, "reason"]))
    pairs = zip(("_topic", "_partition", "_offset"), names, strict=True)
    same = [F.col(new).eqNullSafe(F.col(old)) for new, old in pairs]
    return events.join(F.broadcast(why), same).drop(*names)
