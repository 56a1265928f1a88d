"""Be a lane: rows with where each came from, and, of rows that wait, which table they wait for. Runs on executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from router.engine.layout import COORDINATES, VERSIONS, WAITING

if TYPE_CHECKING:
    from router.engine.layout import Target
    from router.engine.rows import Numbers, Rows

SOURCES = COORDINATES | VERSIONS


def placed(
    rows: Rows, target: Target, have: tuple[pa.RecordBatch, Numbers | None], told: dict[str, Any]
) -> pa.RecordBatch:
    """Return rows of a lane with the lane's columns before theirs; `told` has the values of those of waiting rows."""
    part, at = have
    names = target.schema.names[: len(target.schema) - rows.batch.schema.field(target.rows).type.num_fields]
    own = rows.struct(target.extra, at) if target.extra else None
    more = dict(zip(own.schema.names, own.columns, strict=True)) if own else {}
    columns = {
        name: more[name]
        if name in more
        else pa.repeat(pa.scalar(told[name], WAITING[name]), part.num_rows)
        if name in WAITING
        else rows.batch.column(SOURCES[name]).take(pa.array(rows.where(at)))
        for name in names
    }
    return pa.RecordBatch.from_arrays([*columns.values(), *part.columns], names=[*columns, *part.schema.names])
