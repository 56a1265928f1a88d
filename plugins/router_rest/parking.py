"""Write receipts of rows that are parked. Runs on executors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from router_rest.cutting import Call
from router_rest.feeding import stretches
from router_rest.receipts import Known, Settled, receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from router import Parts
    from router_rest.receipts import Owner, Range

COUNTED = "rows bigint"
"""What these tasks return: rows that got a receipt."""


def park(
    parts: Parts, owner: Owner, reason: str, only: Sequence[Range] | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that parks rows without a receipt, for mapInArrow. Needs `feeding.TAKES`.

    only: the ranges of those that are parked; None: all.
    """

    def parked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = Known.of(parts)
        for rows in batches:
            settled = []
            for place, offsets, _ in stretches(rows):
                wanted = known.open(place, offsets)
                if only is not None:
                    wanted &= _among(offsets, [one for one in only if one[:2] == place])
                open_ = offsets[wanted].tolist()
                call = Call(*place, open_, [b""] * len(open_), doubtful=known.in_doubt(place, open_))
                settled.append(Settled(call, "parked", time.time(), reason=reason))
            table = receipts(owner, settled)
            if table.num_rows:
                parts.write(table)
            yield _counted(table.num_rows)

    return parked


def _among(offsets: Any, ranges: Sequence[Range]) -> Any:
    """Return, for each offset, whether it is in one of the ranges."""
    found = np.zeros(len(offsets), bool)
    for _, _, first, last in ranges:
        found |= (offsets >= first) & (offsets <= last)
    return found


def _counted(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"rows": [rows]}, pa.schema([("rows", pa.int64())]))
