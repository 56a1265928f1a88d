"""Send batches through Spark that something is done to while they are sent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from router import Batch, Opening, Sink
from router.delta.commit import StagedParts
from router.registry import load_registry
from tests.lake_rows import read_rows
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router import Outcome
    from router.delta.lake import Lake
    from router_demo.api import Api


def workers(port: int) -> list[psutil.Process]:
    """Return the processes below this one that are connected to a port of this machine."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(one.raddr and one.raddr.port == port for one in process.net_connections("tcp")):
                found.append(process)
    return found


@dataclass
class TaskWorker:
    """Send the same rows, with an `id` of their own from three source partitions, as often as it is asked."""

    api: Api
    spark: SparkSession
    lake: Lake
    folder: Path
    rows: int

    @property
    def events(self) -> DataFrame:
        """Return the events, as an outbox has them."""
        place = ["'events' AS _topic", "CAST(id % 3 AS INT) AS _partition", "id DIV 3 AS _offset"]
        more = ["current_timestamp() AS _timestamp", "CAST(CAST(id AS STRING) AS BINARY) AS _key"]
        return self.spark.range(0, self.rows, 1, 3).selectExpr("id", *place, *more)

    def apply(self, **options: Any) -> Outcome:
        """Apply the batch."""
        opened = load_registry().resolve(Sink, {"rest": {"url": f"{self.api.url}/wins", **options}})
        sink = opened.prepare(Opening(self.folder, self.events.limit(0)))
        return sink.apply(self.events, Batch("games", 3, "wins", "rest", keeps=self.keeps))

    def keeps(self, table: str) -> StagedParts:
        """Return where the sink keeps rows."""
        return StagedParts(self.lake, table, "games:run/wins/rest", 3)

    @contextmanager
    def midway(self, calls: int, **options: Any) -> Iterator[Future[Outcome]]:
        """Apply the batch in a thread, for a `with` block that begins when so many calls have arrived."""
        with ThreadPoolExecutor(1) as thread:
            outcome = thread.submit(self.apply, **options)
            wait_until(lambda: outcome.done() or self.api.stats().processed >= calls, "so many calls arrive")
            assert not outcome.done(), outcome
            yield outcome

    def arrived(self) -> Counter[int]:
        """Return how often each row took effect."""
        return self.api.rows("id")

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts in their table, each with the `id` of its row."""
        found = read_rows(self.lake, "ops.receipts")
        return [{**row, "id": row["offset"] * 3 + row["partition"]} for row in found]


def most_in_a_second(api: Api) -> float:
    """Return the most calls of any second, less what may only seem so because the API itself was held up."""
    lag = api.stats().lag
    return api.stats(window=max(0.1, 1.0 - lag)).highest


def keys_by_row(api: Api, name: str) -> dict[Any, set[str]]:
    """Return the idempotency keys under which each row was sent, by a field of the rows."""
    found: dict[Any, set[str]] = {}
    for call in api.requests(1 << 20):
        body = json.loads(call["body"])
        for row in body if isinstance(body, list) else [body]:
            found.setdefault(row[name], set()).add(call["key"])
    return found
