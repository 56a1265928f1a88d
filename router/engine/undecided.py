"""Records that a landing task could not decide: they travel to the driver, which lands them in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable


class Undecided:
    """Gather the records of one task, as many as have `most` bytes; with more, none."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0

    @property
    def overflow(self) -> bool:
        """Say whether there were too many."""
        return self.bytes > self.most

    def add(self, records: pa.RecordBatch) -> None:
        """Take records."""
        self.bytes += records.nbytes
        self.batches = [] if self.overflow else [*self.batches, records]

    def whole(self) -> bytes | None:
        """Return all records as an Arrow stream, None where there are none."""
        if not self.batches:
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batches[0].schema) as stream:
            for batch in self.batches:
                stream.write_batch(batch)
        return bytes(sink.getvalue())


def records(parts: Iterable[bytes]) -> pa.Table:
    """Return the records of several tasks."""
    return pa.concat_tables([pa.ipc.open_stream(part).read_all() for part in parts])
