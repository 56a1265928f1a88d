"""What a task does with a decoder's function: only the row on which it raises is without an event."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from router import ArrowDecoding, PluginError
from router.api.decoding import decode_batch
from tests.schemas.raw import raw

ADDS = T.StructType(
    [
        T.StructField("event", T.StructType([T.StructField("n", T.LongType()), T.StructField("of", T.StringType())])),
        T.StructField("_error", T.StringType()),
        T.StructField("_wanted", T.StringType()),
    ]
)
EVENT = pa.struct([("n", pa.int64()), ("of", pa.string())])


class PanicException(BaseException):
    """A stand-in for pyo3's exception, which is no Exception."""


def numbers(records: pa.RecordBatch, raised: type[BaseException]) -> pa.RecordBatch:
    """Read each value as a number; a value `bad` raises, `stop` ends the process in a gentle way."""
    values = [value.decode() for value in records.column("value").to_pylist()]
    if "stop" in values:
        raise KeyboardInterrupt
    if "bad" in values:
        raise raised("this is bad: " + "x" * 1000)
    events = pa.array([{"n": int(value), "of": "all"} for value in values], EVENT)
    nothing = pa.nulls(len(values), pa.string())
    return pa.RecordBatch.from_arrays([events, nothing, nothing], names=ADDS.names)


def decoded(values: list[str], raised: type[BaseException] = ValueError) -> list[dict[str, Any]]:
    found = decode_batch(raw([value.encode() for value in values]), ArrowDecoding(numbers, raised, ADDS))
    assert found.schema.names == ADDS.names
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.parametrize("raised", [ValueError, OSError, RecursionError, PanicException])
@pytest.mark.parametrize("bad", [[], [0], [5], [3, 4], [0, 9], [*range(10)]], ids=str)
def test_only_the_row_on_which_a_decoder_raises_is_without_an_event(
    raised: type[BaseException], bad: list[int]
) -> None:
    """One hostile record must not take its neighbours along, or stop the stream."""
    rows = decoded(["bad" if n in bad else str(n) for n in range(10)], raised)

    for n, row in enumerate(rows):
        if n in bad:
            assert row["event"] is None
            assert row["_error"].startswith(f"the decoder raises {raised.__name__}: this is bad: x")
            assert len(row["_error"]) <= 300
        else:
            assert row == {"event": {"n": n, "of": "all"}, "_error": None, "_wanted": None}


@pytest.mark.parametrize("raised", [MemoryError, ImportError, SystemExit])
def test_what_is_no_fault_of_a_row_fails_the_task(raised: type[BaseException]) -> None:
    """Good records must not be dead letters because a module is missing on a node."""
    with pytest.raises(raised):
        decoded(["1", "bad"], raised)
    with pytest.raises(KeyboardInterrupt):
        decoded(["1", "stop"])


def test_a_batch_without_rows_is_decoded() -> None:
    """Spark makes empty batches, too."""
    assert decoded([]) == []


def fewer_rows(records: pa.RecordBatch, _: Any) -> pa.RecordBatch:
    return numbers(records, ValueError)[1:]


def other_columns(records: pa.RecordBatch, _: Any) -> pa.RecordBatch:
    return numbers(records, ValueError).select(["event", "_error"])


def no_batch(_records: pa.RecordBatch, _: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("function", "word"),
    [(fewer_rows, "2 rows for 3 records"), (other_columns, "the columns event, _error"), (no_batch, "NoneType")],
)
def test_a_decoder_that_breaks_its_contract_is_named(function: Any, word: str) -> None:
    """It is a fault of the plugin; its rows must not be dead letters, nor lost."""
    with pytest.raises(PluginError, match=word) as caught:
        decode_batch(raw([b"1", b"2", b"3"]), ArrowDecoding(function, None, ADDS))

    assert caught.value.provider == __name__
    assert function.__name__ in caught.value.what


def wanting(records: pa.RecordBatch, argument: Any) -> pa.RecordBatch:
    """Want a schema for each value that begins with `?`, without a reason for those that end with `!`."""
    values = [value.decode() for value in records.column("value").to_pylist()]
    events = [None if value.startswith("?") else {"n": 1, "of": value} for value in values]
    errors = ["no schema" if value.startswith("?") and not value.endswith("!") else None for value in values]
    wanted = [value.strip("?!") if value.startswith("?") else None for value in values]
    columns = [pa.array(events, EVENT), pa.array(errors, pa.string()), pa.array(wanted, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=ADDS.names)


def test_a_row_that_wants_something_and_gives_no_reason_is_no_silent_one() -> None:
    """Without it a record whose schema is never found is in bronze only, and no dead letter says why."""
    records = raw([b"good", b"?one", b"?two!"])
    decoded = decode_batch(records, ArrowDecoding(wanting, None, ADDS))
    assert decoded.column("_error").to_pylist() == [None, "no schema", "nobody has two"]
    assert decoded.column("_wanted").to_pylist() == [None, "one", "two"]
