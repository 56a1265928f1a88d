"""A plugin with a decoder whose Python worker meets trouble once, and a sink that keeps what it is given."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pyspark import TaskContext

from router import ApplyingSink, ArrowDecoder, ArrowDecoding, Batch, Decoder, Opening, Outcome, Preparation, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

PATIENCE_SECONDS = 120


class Troubled(ArrowDecoder):
    """Decode with another decoder, in tasks that meet trouble.

    They look for files in `folder`. `fail` makes one task raise and `kill` makes one worker kill itself, both as soon
    as a file of that task is in the lake; while `hold` is there only the first task goes on.
    """

    inner: Decoder
    folder: Path
    lake: Path

    def prepare(self, preparation: Preparation) -> Troubled:
        return self.model_copy(update={"inner": self.inner.prepare(preparation)})

    def decoding(self) -> ArrowDecoding:
        inner = self.inner.decoding()
        assert inner is not None
        return replace(inner, function=troubled, argument=(inner, self.folder, self.lake))


def troubled(records: pa.RecordBatch, about: tuple[ArrowDecoding, Path, Path]) -> pa.RecordBatch:
    """Decode records, unless this is the task that is to end here."""
    inner, folder, lake = about
    task = TaskContext.get()
    assert task is not None
    if task.partitionId() > 0:
        _wait_while((folder / "hold").exists)
    elif any(lake.glob("*/*/part-??????????-????????-0-*.parquet")):
        _meet_trouble(folder)
    return inner.function(records, inner.argument)


def _meet_trouble(folder: Path) -> None:
    if (folder / "fail").exists():
        (folder / "fail").unlink()
        raise MemoryError("this task fails once")  # which is no fault of a row
    if (folder / "kill").exists():
        (folder / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


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


class Sleeper(ApplyingSink):
    """Sleep for ever, in `prepare`, in `apply`, or in a task (or nowhere); a file says that it does."""

    replay_safe: ClassVar[bool] = True

    where: str
    sign: Path

    def prepare(self, opening: Opening) -> Sleeper:
        if self.where == "prepare" and not opening.trial:
            _sleep(self.sign)
        return self

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        if self.where == "apply":
            _sleep(self.sign)
        if self.where == "task":
            events.foreach(partial(_sleep, self.sign))
        return Outcome(applied=events.count())


def _sleep(sign: Path, row: object = None) -> None:
    sign.touch()
    time.sleep(1_000_000)


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    return {"troubled": Troubled}


@hookimpl
def router_sinks() -> dict[str, type[ApplyingSink]]:
    return {"box": Box, "sleeper": Sleeper}
