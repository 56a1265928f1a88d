"""A plugin with a decoder whose Python worker meets trouble once, and a sink that keeps what it is given."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typing_extensions import Self

from router import ApplyingSink, Batch, Decoder, Outcome, Preparation, hookimpl

PATIENCE_SECONDS = 120


class Troubled(Decoder):
    """Decode with another decoder, after every value has passed through a Python worker.

    The worker looks for files in `folder`: `fail` makes one task raise, `kill` makes one worker kill itself as soon
    as a landed file of its task is in the lake, and while `hold` is there only the first task goes on.
    """

    inner: Decoder
    folder: Path
    lake: Path

    def prepare(self, preparation: Preparation) -> Self:
        return self.model_copy(update={"inner": self.inner.prepare(preparation)})

    def decode(self, raw: DataFrame) -> DataFrame:
        passed = F.pandas_udf(_passing(self.folder, self.lake), "binary")
        return self.inner.decode(raw.withColumn("value", passed("value")))


def _passing(folder: Path, lake: Path) -> Callable[[Iterator[pd.Series]], Iterator[pd.Series]]:
    def passing(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        task = TaskContext.get()
        assert task is not None
        for index, values in enumerate(batches):
            yield values
            if index and (folder / "fail").exists() and _taken(folder / "fail"):
                raise RuntimeError("this task fails once")
            if task.partitionId() == 0 and (folder / "kill").exists() and _landed(lake) and _taken(folder / "kill"):
                os.kill(os.getpid(), signal.SIGKILL)
        if task.partitionId() > 0:
            _wait_while(folder / "hold")

    return passing


def _taken(file: Path) -> bool:
    """Say whether this process is the one that took the file away."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def _landed(lake: Path) -> bool:
    return any(lake.glob("*/*/part-??????????-0-*.parquet"))


def _wait_while(file: Path) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while file.exists() and time.monotonic() < end:
        time.sleep(0.02)


class Box(ApplyingSink):
    """Keep every batch as a folder of Parquet files."""

    replay_safe: ClassVar[bool] = True
    main_option: ClassVar[str] = "folder"

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
