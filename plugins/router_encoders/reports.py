"""The reports of a sink's tasks about rows that they sent, and the outcome that is made of them.

A report is a row: `sent` or `refused` rows, or why nothing more was sent: `away`, the other side does not answer now,
or `wrong`, a person has to change something first. Runs on the driver, except for `Reports`.
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

REPORT_COLUMNS = "kind string, rows bigint, topic string, partition int, offset bigint, text string"
MAX_REASON_CHARACTERS = 1000
"""Characters of a reason that are kept."""


@dataclass
class Reports:
    """The reports of one task, which it makes on an executor."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add_sent(self, rows: int) -> None:
        """Report rows that the other side has taken."""
        if rows:
            self.rows.append({"kind": "sent", "rows": rows})

    def add_refused(self, place: dict[str, Any], reason: str) -> None:
        """Report a row that can never be sent; `place` has the columns of PLACE."""
        record = {name[1:]: place[name] for name in PLACE}
        self.rows.append({"kind": "refused", "rows": 1, **record, "text": reason[:MAX_REASON_CHARACTERS]})

    def add_end(self, kind: str, why: str) -> None:
        """Report that the task sends nothing more: the other side is `away`, or something is `wrong`."""
        self.rows.append({"kind": kind, "text": why[:MAX_REASON_CHARACTERS]})

    def take_batch(self) -> pa.RecordBatch:
        """Return the reports since the last time."""
        import pyarrow as pa  # `router check` imports this module, and is quick without it

        schema = pa.schema(
            {
                "kind": pa.string(),
                "rows": pa.int64(),
                "topic": pa.string(),
                "partition": pa.int32(),
                "offset": pa.int64(),
                "text": pa.string(),
            }
        )
        rows = self.rows
        self.rows = []
        return pa.RecordBatch.from_pylist(rows, schema)


def run_tasks(rows: DataFrame, batch: Batch, task: Callable[[Iterable[Any]], Iterator[Any]]) -> DataFrame:
    """Run tasks over rows once, and return their reports."""
    with bounded_batches(rows.sparkSession):
        # Computed once and kept: reading the reports later must not send the rows again.
        return rows.mapInArrow(batch.guarded(task), REPORT_COLUMNS).localCheckpoint(eager=True)


def outcome_of(events: DataFrame, reports: DataFrame, other_side: str) -> Outcome:
    """Return the outcome of a batch; raise StartError or ConnectionError if a task reports why it ended."""
    summed = reports.groupBy("kind").agg(F.sum("rows").alias("rows"), F.max("text").alias("text"))
    by_kind = {report["kind"]: report for report in summed.collect()}
    if "wrong" in by_kind:
        raise StartError(f"{other_side}: {by_kind['wrong']['text']}")
    if "away" in by_kind:
        raise ConnectionError(f"{other_side} does not take rows: {by_kind['away']['text']}")
    sent = by_kind["sent"]["rows"] if "sent" in by_kind else 0
    refused = None
    if "refused" in by_kind:
        refused = refused_rows(events, reports)
    return Outcome(sent, refused)


def refused_rows(events: DataFrame, reports: DataFrame) -> DataFrame:
    """Return the whole rows that tasks report as refused, each with its `reason`."""
    place = ("topic", "partition", "offset")
    place_of_reason = [F.col(name).alias(f"_of_{name}") for name in place]
    refused = reports.filter(F.col("kind") == "refused")
    reasons = refused.select(*place_of_reason, F.col("text").alias("reason"))
    is_same_place = [F.col(f"_{name}").eqNullSafe(F.col(f"_of_{name}")) for name in place]
    return events.join(F.broadcast(reasons), is_same_place).drop(*(f"_of_{name}" for name in place))
