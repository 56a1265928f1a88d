"""A stranger's plugin: a decoder that decodes with another one, and lets one attempt of a task be slow.

The first attempt of the first task waits, once a file of that task is in the lake, while there is a file `slow`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path  # noqa: TC003 - the type of options
from typing import TYPE_CHECKING

from pyspark import TaskContext

from router import ArrowDecoder, ArrowDecoding, Decoder, Preparation, hookimpl

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE_SECONDS = 120


class Strange(ArrowDecoder):
    """Decode with another decoder."""

    inner: Decoder
    slow: Path
    lake: Path

    def prepare(self, preparation: Preparation) -> Strange:
        return self.model_copy(update={"inner": self.inner.prepare(preparation)})

    def decoding(self) -> ArrowDecoding:
        inner = self.inner.decoding()
        assert inner is not None
        return replace(inner, function=strange, argument=(inner, self.slow, self.lake))


def strange(records: pa.RecordBatch, about: tuple[ArrowDecoding, Path, Path]) -> pa.RecordBatch:
    """Decode records, after a while in an attempt that is to be slow."""
    inner, slow, lake = about
    task = TaskContext.get()
    first = task is not None and task.partitionId() == 0 and task.attemptNumber() == 0
    if first and any(lake.glob("*/*/part-??????????-????????-0-*.parquet")):
        end = time.monotonic() + PATIENCE_SECONDS
        while slow.exists() and time.monotonic() < end:
            time.sleep(0.05)
    return inner.function(records, inner.argument)


@hookimpl
def router_decoders() -> dict[str, type[Decoder]]:
    return {"strange": Strange}
