"""Write receipts of rows that are parked. Runs on executors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from router_rest.cutting import Call
from router_rest.feeding import stretches
from router_rest.receipts import Known, Settled, receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router import Parts
    from router_rest.receipts import Owner

COUNTED = "rows bigint"
"""What these tasks return: rows that got a receipt."""


def park(parts: Parts, owner: Owner, reason: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that parks all rows without a receipt, for mapInArrow. Needs `sending.TAKES`."""

    def parked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = Known.of(parts)
        for rows in batches:
            settled = []
            for place, offsets, _ in stretches(rows):
                open_ = offsets[known.open(place, offsets)].tolist()
                call = Call(*place, open_, [b""] * len(open_), doubtful=known.in_doubt(place, open_))
                settled.append(Settled(call, "parked", time.time(), reason=reason))
            table = receipts(owner, settled)
            if table.num_rows:
                parts.write(table)
            yield _counted(table.num_rows)

    return parked


def _counted(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"rows": [rows]}, pa.schema([("rows", pa.int64())]))
