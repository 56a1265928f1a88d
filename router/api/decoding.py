"""Call a decoder's function on record batches, in tasks, and check what it returns. No other module calls it.

| the function | what happens |
|---|---|
| raises an error on the batch | each row that raises is found by halving, and gets an `_error` |
| panics (Rust below Python: no `Exception`) | the same |
| lacks memory or a module, or is interrupted | the task fails: no row is to blame |
| returns other columns or another number of rows | the task fails with a PluginError that names the function |
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zipimport import zipimporter

from router.api.halving import by_halves
from router.errors import PluginError
from router.spark_internals import to_arrow_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from router.api.halving import Halved

DECODER_RAISES = "the decoder raises "
"""The beginning of the `_error` of a row on which a decoder's function raised."""
_ERROR_CHARACTERS = 300
"""Characters of such an `_error`, at most: it quotes the exception."""


@dataclass(frozen=True)
class ArrowDecoding:
    """The way in which tasks decode record batches.

    `function(records, argument)` is a module-level function. It takes a record batch with the columns of `RAW_SCHEMA`
    and those of `before`, and returns one with as many rows and the columns of `adds`, in that order: `event`,
    `_error` and the further ones that `Decoder.decode` may add. It decodes each row independently of the others, and
    must raise on none; a row on which it still raises gets an `_error` that names the exception (`decode_batch`).
    `argument` is pickled and sent to tasks.

    `before(raw)` adds native Spark columns that the function reads, such as those of `from_avro`. It runs on the
    driver, builds columns and runs no action. The columns are dropped after decoding; their names begin with `_`.
    """

    function: Callable[[pa.RecordBatch, Any], pa.RecordBatch]
    argument: Any
    adds: StructType
    before: Callable[[DataFrame], DataFrame] | None = None


def decode_batch(records: pa.RecordBatch, decoding: ArrowDecoding) -> pa.RecordBatch:
    """Return the columns that a decoding adds to records; a row on which it raises has an `_error` and no event.

    `records` have the columns of `RAW_SCHEMA` and those of `decoding.before`. Raises on no content of a row, and
    PluginError if the function breaks its contract. Runs on executors.
    """

    def decode_rows(start: int, stop: int) -> pa.RecordBatch:
        part = records[start:stop]
        decoded = decoding.function(part, decoding.argument)
        _check_decoded(decoded, part, decoding)
        return decoded

    pieces = by_halves(decode_rows, records.num_rows)
    decoded = pieces[0].made
    if decoded is None or len(pieces) > 1:
        decoded = _join_pieces(pieces, decoding)
    return _with_reasons(decoded)


def _with_reasons(decoded: pa.RecordBatch) -> pa.RecordBatch:
    """Return decoded rows; one that wants something and has neither an event nor an `_error` gets an `_error`.

    If what it wants is never found, it would be a record that nobody decodes, and no dead letter.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - `import router` is quick without pyarrow

    names = decoded.schema.names
    if not {"_wanted", "_error", "event"}.issubset(names):
        return decoded
    wanted = decoded.column("_wanted")
    errors = decoded.column("_error")
    without_reason = pc.and_(pc.is_valid(wanted), pc.and_(pc.is_null(errors), pc.is_null(decoded.column("event"))))
    if not pc.any(without_reason).as_py():
        return decoded
    texts = pc.binary_join_element_wise("nobody has", pc.cast(wanted, errors.type), " ")
    number = names.index("_error")
    return decoded.set_column(number, decoded.schema.field(number), pc.if_else(without_reason, texts, errors))


def _check_decoded(decoded: pa.RecordBatch, records: pa.RecordBatch, decoding: ArrowDecoding) -> None:
    """Raise PluginError if the function did not return the columns of `adds` for every row."""
    names = decoding.adds.fieldNames()
    if not isinstance(decoded, type(records)):
        problem = f"returns a {type(decoded).__name__}, not a pyarrow.RecordBatch"
    elif decoded.schema.names != names:
        problem = f"returns the columns {', '.join(decoded.schema.names)}, and `adds` says {', '.join(names)}"
    elif decoded.num_rows != records.num_rows:
        problem = f"returns {decoded.num_rows} rows for {records.num_rows} records"
    else:
        return
    function = decoding.function
    module = str(getattr(function, "__module__", "?"))
    name = getattr(function, "__qualname__", function)
    raise PluginError(module, f"{name} {problem}")


def _join_pieces(pieces: list[Halved[pa.RecordBatch]], decoding: ArrowDecoding) -> pa.RecordBatch:
    """Concatenate decoded batches; a row on which the function raises has the error as its `_error`, nothing else."""
    import pyarrow as pa  # noqa: PLC0415 - `import router` is quick without pyarrow

    schema = to_arrow_columns(decoding.adds)
    # A function may return other Arrow types than those of `adds`, such as large_string: its own come first.
    schema = next((piece.made.schema for piece in pieces if piece.made is not None), schema)
    columns = []
    for number, field in enumerate(schema):
        arrays = []
        for piece in pieces:
            if piece.made is not None:
                arrays.append(piece.made.column(number))
            elif field.name == "_error":
                arrays.append(pa.array([describe_error(DECODER_RAISES, piece.error)], field.type))
            else:
                arrays.append(pa.nulls(1, field.type))
        columns.append(pa.concat_arrays(arrays))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def describe_error(raised: str, error: BaseException | None) -> str:
    """Return the reason of a row on which a step raises: `raised` says which step, and that it does."""
    return f"{raised}{type(error).__name__}: {error}"[:_ERROR_CHARACTERS]


def keep_archives() -> None:
    """Keep what the Python worker has read of the archives on its import path. A task calls it first.

    Before each task, Spark's worker calls `importlib.invalidate_caches`, and Python then reads the directory of every
    archive on the path again: of pyspark.zip for each of its packages, which is most of the CPU time of a small task.
    An archive that a job adds later has a name of its own, and is read when it arrives.
    """
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter):
            setattr(finder, "invalidate_caches", _do_nothing)  # noqa: B010 - a method, to type checkers


def _do_nothing() -> None:
    pass
