"""Decode keys and values of record batches. Runs on executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from router_decoders.record_keys import KEY_NAMES, OF_A_KEY, OF_KEY

if TYPE_CHECKING:
    from router import ArrowDecoding


def both_events(records: pa.RecordBatch, both: tuple[ArrowDecoding, ArrowDecoding, tuple[str, ...]]) -> pa.RecordBatch:
    """Return the columns `names` for the records: what both decodings add, of the key under other names."""
    value, key, names = both
    of_value = _columns(value.function(records, value.argument))
    of_key = _columns(key.function(_keys(records), key.argument))
    has_key = records.column("key").is_valid()
    found = {**of_value, **{KEY_NAMES[name]: column for name, column in of_key.items() if name in KEY_NAMES}}
    for name in ("_error", "_wanted"):
        if name in of_key:
            told = pc.if_else(has_key, pc.binary_join_element_wise(OF_A_KEY, of_key[name], ""), _nothing(pa.string()))
            found[name] = pc.coalesce(of_value[name], told) if name in of_value else told
    event = of_value["event"]
    found["event"] = pc.if_else(found["_error"].is_valid(), _nothing(event.type), event)
    return pa.RecordBatch.from_arrays([found[name] for name in names], names=list(names))


def _keys(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with their keys as values, and with the native columns of keys under the names they had."""
    columns = {**_columns(records), "value": records.column("key")}
    own = {name.removeprefix(OF_KEY): name for name in columns if name.startswith(f"{OF_KEY}_")}
    columns |= {name: columns[under] for name, under in own.items()}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _nothing(kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(None, kind)
