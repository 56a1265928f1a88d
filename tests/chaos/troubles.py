"""A plugin with a decoder whose Python worker meets trouble once, and a sink that keeps what it is given."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator  # noqa: TC003 - pandas_udf reads the annotations
from pathlib import Path
from typing import ClassVar

import pandas as pd  # noqa: TC002 - the same
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Decoder, Outcome, Preparation, hookimpl

PATIENCE_SECONDS = 120


class Troubled(Decoder):
    """Decode with another decoder, after every value has passed through a Python worker.

    The worker looks for files in `folder` when it has seen all values of its task. `fail` makes one task raise and
    `kill` makes one worker kill itself, both as soon as a file of that task is in the lake; while `hold` is there
    only the first task ends.
    """

    inner: Decoder
    folder: Path
    lake: Path

    def prepare(self, preparation: Preparation) -> Troubled:
        return self.model_copy(update={"inner": self.inner.prepare(preparation)})

    def decode(self, raw: DataFrame) -> DataFrame:
        passed = F.pandas_udf(_passing(self.folder, self.lake), "binary")
        return self.inner.decode(raw.withColumn("value", passed("value")))


def _passing(folder: Path, lake: Path) -> Callable[[Iterator[pd.Series]], Iterator[pd.Series]]:
    def passing(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() > 0:
            _wait_while((folder / "hold").exists)
            return
        for trouble in ("fail", "kill"):
            if (folder / trouble).exists():
                _wait_while(lambda: not any(lake.glob("*/*/part-??????????-0-*.parquet")))
                (folder / trouble).unlink()
                if trouble == "fail":
                    raise RuntimeError("this task fails once")
                os.kill(os.getpid(), signal.SIGKILL)

    return passing


def _wait_while(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while condition() and time.monotonic() < end:
        time.sleep(0.02)


class Box(ApplyingSink):
    """Keep every batch as a folder of Parquet files."""

    replay_safe: ClassVar[bool] = True
    main_option: ClassVar[str | None] = "folder"

    folder: Path

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        events.write.mode("overwrite").parquet(str(self.folder / f"batch={batch.id}"))
        return Outcome(applied=events.count())


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    return {"troubled": Troubled}


@hookimpl
def router_sinks() -> dict[str, type[ApplyingSink]]:
    return {"box": Box}
