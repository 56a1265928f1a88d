"""A sink: the rows of a batch are sent somewhere, here to a file."""

from pathlib import Path
from typing import Any

from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from router import ApplyingSink, Batch, Opening, Outcome, Sink, hookimpl


class OrderFiles(ApplyingSink):
    """Write the orders of each batch to a file, one JSON object a line.

    An order without an id is refused: it becomes a dead letter.

    Delivery: at least once. A batch that comes again replaces its file.
    """

    replay_safe = True
    previews = True
    folder: Path = Field(description="where files go, relative to the configuration")

    def prepare(self, opening: Opening) -> "OrderFiles":
        """Return a copy that is ready to apply. Called once, before the stream."""
        return self.model_copy(update={"folder": opening.folder / self.folder})

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Write the rows of a batch, and count them. Runs on the driver.

        Raise an OSError if the other side is unavailable: the stream waits.
        """
        # Every attempt at a batch has the same name; a replay counts its own batches.
        path = self.folder / batch.key / (batch.resending or "") / f"{batch.id}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        written = 0
        with path.open("w", encoding="utf-8") as file:
            for row in lines_of(events).toLocalIterator():
                file.write(f"{row['line']}\n")
                written += 1
        without_id = events.where("order_id IS NULL")
        refused = without_id.withColumn("reason", F.lit("the order has no id"))
        return Outcome(written, refused)

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return what `apply` would write, for route tests; write nothing."""
        return [row.asDict() for row in lines_of(events).collect()]


def lines_of(events: DataFrame) -> DataFrame:
    """Return a column `line`: the orders as JSON, without where they came from."""
    orders = events.where("order_id IS NOT NULL")
    orders = orders.drop("_topic", "_partition", "_offset", "_timestamp", "_key")
    return orders.select(F.to_json(F.struct("*")).alias("line"))


@hookimpl
def router_sinks() -> dict[str, type[Sink]]:
    """Offer the sink under the name that configurations use."""
    return {"own_parts_files": OrderFiles}
