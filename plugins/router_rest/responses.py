"""Land what an API answered, beside the events that it answered to, as records that another query can read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router import Parts
    from router_rest.receipts import Settled

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_type", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of a raw record. `key` is the call's id, `topic`, `partition` and `offset` are the event's."""


@dataclass(frozen=True)
class Responses:
    """Write records of calls that were taken: `{"event": ..., "response": ...}`; travels to tasks.

    An event that is not JSON, and a response that is not, become texts. Rows of one call have its whole response each.
    """

    parts: Parts

    def __call__(self, settled: Sequence[Settled]) -> None:
        """Write the records of some calls as one part."""
        rows = [
            {
                "key": (one.id or "").encode(),
                "value": b'{"event":%b,"response":%b}' % (_json(row), response),
                "topic": one.call.topic,
                "partition": one.call.partition,
                "offset": offset,
                "timestamp": int(one.at * 1_000_000),
            }
            for one in settled
            for response in [_json(one.response)]
            for offset, row in zip(one.call.offsets, one.call.rows, strict=True)
        ]
        self.parts.write(pa.Table.from_pylist(rows, SCHEMA))

    def commit(self) -> None:
        """Add the records of the batch to their table. Runs on the driver."""
        self.parts.commit(SCHEMA)


def _json(text: bytes) -> bytes:
    """Return JSON as it is, and anything else as a JSON string."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return json.dumps(text.decode(errors="replace")).encode() if text else b"null"
    return text
