"""Write receipts of rows that are parked. Runs on executors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pyarrow as pa

from router_rest.cutting import Call, Cutter
from router_rest.receipts import Known, Settled, receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from router_rest.feeding import Taken
    from router_rest.receipts import Range
    from router_rest.sending import Job

COUNTED = "rows bigint"
"""What these tasks return: rows that got a receipt."""


def park(
    job: Job, reason: str, only: Sequence[Range] | None = None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that parks rows without a receipt, for mapInArrow. Needs `feeding.TAKES`.

    Calls are cut as for sending: what is in doubt went out in them, and whoever sends the rows again does it by the
    same keys. only: the ranges of the rows that are parked; None: all.
    """

    def parked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known, cutter = Known.of(job.parts), Cutter(job.cut)
        for rows in batches:
            calls = (call for row in job.reader.rows(rows) for call in _calls(cutter, row))
            yield _parked(job, known, _among(calls, only), reason)
        yield _parked(job, known, _among(cutter.end(), only), reason)

    return parked


def _among(calls: Iterable[Call], only: Sequence[Range] | None) -> Iterator[Call]:
    """Yield calls with those of their rows that are in one of the ranges."""
    for call in calls:
        if only is None:
            yield call
            continue
        here = [
            (first, last)
            for topic, partition, first, last in only
            if (topic, partition) == (call.topic, call.partition)
        ]
        yield call.of([at for at, offset in enumerate(call.offsets) if any(a <= offset <= b for a, b in here)])


def _calls(cutter: Cutter, row: Taken) -> Iterable[Call]:
    return cutter.add(*row[:5]) if row.why is None else (Call.alone(row.place),)


def _parked(job: Job, known: Known, calls: Iterable[Call], reason: str) -> pa.RecordBatch:
    left = (known.rest(call) for call in calls)
    table = receipts(job.owner, [_settled(job, call, reason) for call in left if len(call)])
    if table.num_rows:
        job.parts.write(table)
    return _counted(table.num_rows)


def _settled(job: Job, call: Call, reason: str) -> Settled:
    """Return what is known of a call that does not go out now; its rows are not needed any more."""
    if call.rows == [b""]:  # no call can be made of it
        return Settled(call, "parked", time.time(), reason=reason)
    name = call.id(job.form.body.join(call.rows), job.owner.name.encode())
    call.rows = [b""] * len(call)
    return Settled(call, "parked", time.time(), id=name, key=name if job.form.key_header else None, reason=reason)


def _counted(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"rows": [rows]}, pa.schema([("rows", pa.int64())]))
