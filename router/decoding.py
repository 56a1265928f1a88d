"""Decode a record batch in a task: the one place that calls a decoder's function and checks what it returns.

| the function | what happens |
|---|---|
| raises on the batch | the batch is halved until the rows that raise are found: these get an `_error`, no event |
| panics (Rust behind Python, which is no `Exception`) | the same |
| lacks memory or a module, or is asked to end | the task fails: that is no fault of a row |
| returns other columns or another number of rows | the task fails with a PluginError that names the function |

Halving finds the same rows as going row by row, because a decoder decides on a row without looking at its neighbours;
n rows take at most 2n calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from router.errors import PluginError

if TYPE_CHECKING:
    from router.parts import ArrowDecoding

RAISED = "the decoder raises "
"""What the `_error` of a row begins with on which a function raised."""
SHOWN = 300
"""Characters of an exception's text that an `_error` quotes."""


def decode_batch(records: pa.RecordBatch, made: ArrowDecoding) -> pa.RecordBatch:
    """Return the columns that a decoding adds to records; a row that it raises on has no event and an `_error`.

    `records` have the columns of `RAW_SCHEMA` and those of `made.before`. Never raises for what a row holds; raises
    PluginError where the function breaks its contract. Runs on executors.
    """
    parts = _parts(records, made)
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    schema = next((part.schema for part in parts if not isinstance(part, str)), None) or to_arrow_schema(made.adds)
    return _joined([_failed(part, schema) if isinstance(part, str) else part for part in parts], schema)


def _parts(records: pa.RecordBatch, made: ArrowDecoding) -> list[Any]:
    """Return batches of what the function makes of the records, and the reasons of rows on which it raises."""
    try:
        added = made.function(records, made.argument)
    except BaseException as error:
        if not _is_of_a_row(error) or not records.num_rows:
            raise
        if records.num_rows == 1:
            return [f"{RAISED}{type(error).__name__}: {error}"[:SHOWN]]
    else:
        _check(added, records, made)
        return [added]
    half = records.num_rows // 2
    return [*_parts(records[:half], made), *_parts(records[half:], made)]


def _is_of_a_row(error: BaseException) -> bool:
    """Say whether a row can have caused the error: not a missing module, a lack of memory or a requested end."""
    panic = type(error).__name__ == "PanicException"
    return panic or (isinstance(error, Exception) and not isinstance(error, (ImportError, MemoryError)))


def _check(added: pa.RecordBatch, records: pa.RecordBatch, made: ArrowDecoding) -> None:
    """Raise PluginError where the function did not return the columns of `adds` for every row."""
    names = made.adds.fieldNames()
    if not isinstance(added, pa.RecordBatch):
        what = f"returns a {type(added).__name__}, not a pyarrow.RecordBatch"
    elif added.schema.names != names:
        what = f"returns the columns {', '.join(added.schema.names)}, and `adds` says {', '.join(names)}"
    elif added.num_rows != records.num_rows:
        what = f"returns {added.num_rows} rows for {records.num_rows} records"
    else:
        return
    function = made.function
    raise PluginError(
        str(getattr(function, "__module__", "?")), f"{getattr(function, '__qualname__', function)} {what}"
    )


def _failed(reason: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row without an event."""
    columns = [
        pa.array([reason], field.type) if field.name == "_error" else pa.nulls(1, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _joined(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.concat_arrays([part.column(at) for part in parts]) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)
