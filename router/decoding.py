"""Decode record batches in tasks: this is the one place that calls a decoder's function, and it checks the result.

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

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

from router.errors import PluginError
from router.spark_internals import to_arrow_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

RAISED = "the decoder raises "
"""What the `_error` of a row begins with on which a function raised."""
SHOWN = 300
"""Characters of an exception's text that an `_error` quotes."""


@dataclass(frozen=True)
class ArrowDecoding:
    """How tasks decode record batches.

    `function(records, argument)` is a module-level function. It takes a record batch with the columns of `RAW_SCHEMA`
    and those of `before`, and returns one with as many rows and the columns of `adds`, in that order: `event` and
    `_error`, and what else `Decoder.decode` may add. It decides on every row, without looking at its neighbours, and
    must not raise; a row on which it raises all the same gets an `_error` that names the exception
    (`decode_batch`). `argument` travels to the tasks.

    `before(raw)` adds native Spark columns that the function reads, such as those of `from_avro`. It runs on the
    driver, builds columns and runs no action; the columns do not outlive the decoding. Their names begin with `_`.
    """

    function: Callable[[pa.RecordBatch, Any], pa.RecordBatch]
    argument: Any
    adds: StructType
    before: Callable[[DataFrame], DataFrame] | None = None


def decode_batch(records: pa.RecordBatch, made: ArrowDecoding) -> pa.RecordBatch:
    """Return the columns that a decoding adds to records; a row that it raises on has no event and an `_error`.

    `records` have the columns of `RAW_SCHEMA` and those of `made.before`. Never raises for what a row holds; raises
    PluginError where the function breaks its contract. Runs on executors.
    """
    parts = _parts(records, made)
    if len(parts) == 1 and not isinstance(parts[0], str):
        return parts[0]
    return _joined(parts, made)


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
    if not isinstance(added, type(records)):
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


def _joined(parts: list[Any], made: ArrowDecoding) -> pa.RecordBatch:
    """Join the batches of the function, with a row without an event for each reason."""
    import pyarrow as pa  # noqa: PLC0415 - `import router` is quick without pyarrow

    schema = next((part.schema for part in parts if not isinstance(part, str)), None) or to_arrow_columns(made.adds)

    def column(part: Any, at: int) -> pa.Array:
        if not isinstance(part, str):
            return part.column(at)
        return pa.array([part], schema.types[at]) if schema.names[at] == "_error" else pa.nulls(1, schema.types[at])

    columns = [pa.concat_arrays([column(part, at) for part in parts]) for at in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def keep_archives() -> None:
    """Keep what the worker has read of the archives on its import path. A task calls it first.

    Before each task Spark's worker has Python forget what it knows of the path (`importlib.invalidate_caches`), and
    Python reads the directory of every archive again at once: of pyspark.zip for each of its packages, which is most of
    the CPU time of a small task. An archive that a job brings later has a name of its own, and is read when it comes.
    """
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter):
            setattr(finder, "invalidate_caches", _nothing)  # noqa: B010 - a method, to type checkers


def _nothing() -> None:
    pass
