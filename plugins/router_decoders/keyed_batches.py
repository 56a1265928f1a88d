"""Decode keys and values of record batches. Runs on executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from router_decoders.key_names import KEY_NAMES, OF_A_KEY

if TYPE_CHECKING:
    from router import ArrowDecoding


def decoded(records: pa.RecordBatch, both: tuple[ArrowDecoding, ArrowDecoding, tuple[str, ...]]) -> pa.RecordBatch:
    """Return the columns `names` for the records: what both decodings add, of the key under other names."""
    value, key, names = both
    of_value = _columns(value.function(records, value.argument))
    keys = records.set_column(records.schema.get_field_index("value"), "value", records.column("key"))
    of_key = _columns(key.function(keys, key.argument))
    has_key = records.column("key").is_valid()
    found = {**of_value, **{KEY_NAMES[name]: column for name, column in of_key.items() if name in KEY_NAMES}}
    for name in ("_error", "_wanted"):
        if name in of_key:
            told = pc.if_else(has_key, pc.binary_join_element_wise(OF_A_KEY, of_key[name], ""), _nothing(pa.string()))
            found[name] = pc.coalesce(of_value[name], told) if name in of_value else told
    event = of_value["event"]
    found["event"] = pc.if_else(found["_error"].is_valid(), _nothing(event.type), event)
    doubtful = [of_value.get("_undecided"), of_key.get("_undecided")]
    if doubtful[1] is not None:
        doubtful[1] = pc.and_(doubtful[1], has_key)
    undecided = [mask for mask in doubtful if mask is not None]
    if undecided:
        found["_undecided"] = undecided[0] if len(undecided) == 1 else pc.or_(*undecided)
        names = (*names, "_undecided")
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=list(names))


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _nothing(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(None, kind)
