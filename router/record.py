"""The columns of a raw record: bronze, dead letters, receipts, rules and pages take them from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

RECORD = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_type": "int",
    "headers": "array<struct<key: string, value: binary>>",
}
"""The columns, with their types in Spark."""
RAW_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in RECORD.items())
"""The columns of a raw record as DDL; those a source does not know are null."""
PLACE = ("topic", "partition", "offset")
"""The columns that tell a record from all others of its source."""
RECORD_ARRIVAL = "arrival"
"""The column of raw records, bronze and dead letters that orders batches: the ordinal of the run, times 2^40, plus
the batch (`router.engine.source.position`)."""
BATCH = "batch_id"
RAW_COLUMNS = (*RECORD, RECORD_ARRIVAL)
"""The columns of a record that was read."""
RECORD_SCHEMA = f"{RAW_SCHEMA}, {RECORD_ARRIVAL} bigint"
"""The same, as DDL."""
UNREADABLE = "_unreadable"
"""The column with the reason why a record cannot be read, and with what it has: decoder and rules do not see that."""
UNREADABLE_TYPE = "struct<reason: string, key: binary, value: binary, headers: {}>".format(RECORD["headers"])


def raw_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns of a record that was read, and UNREADABLE if it is among some columns."""
    return [*RAW_COLUMNS, *{UNREADABLE}.intersection(columns)]


IN_RULES = (set(RECORD) | {"event"}) - {"timestamp_type"}
"""What rules of every kind may name."""
WHOLE_NUMBERS = frozenset(name for name, kind in RECORD.items() if kind in ("int", "bigint"))


def raw_arrow_schema() -> pa.Schema:
    """Return the columns of a raw record as Arrow has them."""
    import pyarrow as pa  # noqa: PLC0415 - the command line reads the names above without it

    kinds = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        RECORD["headers"]: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in RECORD.items()])
