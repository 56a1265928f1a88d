"""Make raw records, as far as a decoder by schema looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def raw(values: Sequence[bytes | None], headers: Sequence[Mapping[str, bytes] | None] | None = None) -> pa.RecordBatch:
    """Return records with these values and headers."""
    given = headers or [None] * len(values)
    entries = [one and [{"key": key, "value": value} for key, value in one.items()] for one in given]
    return pa.record_batch({"value": pa.array(values, pa.binary()), "headers": pa.array(entries, HEADERS)})
