"""Make dead letters of the rows that a table refused. Runs on executors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from router.delta.fitted import REASON
from router.delta.newer import LANE_ONLY
from router.delta.order import PLACE
from router.engine.layout import COORDINATES, DEAD_SCHEMA


def buried(refused: pa.Table, route: str, sink: str, batch: int) -> pa.RecordBatch:
    """Return refused rows as dead letters: the record itself is in bronze under the same coordinates."""
    hidden = {*LANE_ONLY, *PLACE, REASON}
    names = [name for name in refused.column_names if name not in hidden and not name.startswith("_newest_")]
    count = len(refused)
    given = {old: refused.column(new) for new, old in COORDINATES.items()}
    given |= {name: pa.array([text] * count, pa.string()) for name, text in (("route", route), ("sink", sink))}
    given["stage"] = pa.array(["apply"] * count, pa.string())
    given["reason"] = refused.column(REASON)
    given["value"] = pa.array([_json(row) for row in refused.select(names).to_pylist()], pa.binary())
    given["batch_id"] = pa.array([batch] * count, pa.int64())
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in DEAD_SCHEMA]
    return pa.Table.from_arrays(columns, schema=DEAD_SCHEMA).combine_chunks().to_batches()[0]


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in row.items() if value is not None}, default=_text).encode()


def _text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
