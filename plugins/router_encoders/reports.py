"""What the tasks of a sink report about rows that they sent, and what an outcome is made of.

A report is a row: `sent` or `refused` rows, or why nothing more was sent: `away`, the other side does not answer now,
or `wrong`, somebody has to change something first. Runs on the driver, but for `Reports`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from router import Outcome, StartError
from router_encoders.outbox_rows import PLACE, bounded_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from router import Batch

REPORT = "kind string, rows bigint, topic string, partition int, offset bigint, text string"
LONGEST = 1000
"""Characters of a reason that are kept."""


@dataclass
class Reports:
    """The reports of one task, which it makes on an executor."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def sent(self, rows: int) -> None:
        """Report rows that the other side has taken."""
        if rows:
            self.rows.append({"kind": "sent", "rows": rows})

    def refused(self, place: dict[str, Any], reason: str) -> None:
        """Report a row that can never be sent; `place` has the columns of PLACE."""
        at = {name[1:]: place[name] for name in PLACE}
        self.rows.append({"kind": "refused", "rows": 1, **at, "text": reason[:LONGEST]})

    def ended(self, kind: str, why: str) -> None:
        """Report that the task sends nothing more: the other side is `away`, or something is `wrong`."""
        self.rows.append({"kind": kind, "text": why[:LONGEST]})

    def taken(self) -> pa.RecordBatch:
        """Return the reports since the last time."""
        import pyarrow as pa  # `router check` imports this module, and is quick without it

        places = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
        schema = pa.schema({"kind": pa.string(), "rows": pa.int64(), **places, "text": pa.string()})
        found, self.rows = self.rows, []
        blank: dict[str, Any] = dict.fromkeys(schema.names)
        return pa.RecordBatch.from_pylist([{**blank, **row} for row in found], schema)


def reported(rows: DataFrame, batch: Batch, task: Callable[[Iterable[Any]], Iterator[Any]]) -> DataFrame:
    """Run tasks over rows once, and return their reports."""
    with bounded_batches(rows.sparkSession):
        # computed once and kept: reading the reports later must not send the rows again
        return rows.mapInArrow(batch.guarded(task), REPORT).localCheckpoint(eager=True)


def outcome(events: DataFrame, reports: DataFrame, other_side: str) -> Outcome:
    """Return what became of a batch; raise StartError or ConnectionError where a task says why it ended."""
    summed = reports.groupBy("kind").agg(F.sum("rows").alias("rows"), F.max("text").alias("text")).collect()
    found = {one["kind"]: one for one in summed}
    if wrong := found.get("wrong"):
        raise StartError(f"{other_side}: {wrong['text']}")
    if away := found.get("away"):
        raise ConnectionError(f"{other_side} does not take rows: {away['text']}")
    sent = found["sent"]["rows"] if "sent" in found else 0
    return Outcome(sent, refused_rows(events, reports) if "refused" in found else None)


def refused_rows(events: DataFrame, reports: DataFrame) -> DataFrame:
    """Return the whole rows that tasks report as refused, each with its `reason`."""
    old = ("topic", "partition", "offset")
    why = reports.filter(F.col("kind") == "refused").select(*old, F.col("text").alias("reason"))
    why = why.toDF(*(f"_of_{name}" for name in old), "reason")
    same = [F.col(new).eqNullSafe(F.col(f"_of_{name}")) for new, name in zip(PLACE, old, strict=True)]
    return events.join(F.broadcast(why), same).drop(*(f"_of_{name}" for name in old))
