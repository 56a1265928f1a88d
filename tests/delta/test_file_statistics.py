"""File statistics: a bound that does not bound makes readers skip files that hold what they look for."""

from __future__ import annotations

import json
import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.delta.file_statistics import INDEXED_COLUMNS, LONGEST
from router.delta.lake import Lake
from router.delta.parquet_writer import Staging
from tests.light import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = "\U0010ffff"

MICROSECONDS = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**15), 10**15)
DAYS = st.integers(-(2**31), 2**31 - 1) | st.integers(-800_000, 3_000_000)
TEXTS = st.text(max_size=3) | st.text(
    st.sampled_from(["a", "z", "\0", "é", "\ue000", "\uffff", "\U00010000", LAST]), max_size=70
)
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7976931348623157e308])
WIDE = st.decimals(allow_nan=False, allow_infinity=False, places=4).filter(lambda value: abs(value) < Decimal(10) ** 34)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[tuple[dict[str, Any], pa.Table]]]:
    """Write batches of rows, each as a row group; return the statistics of each file and what is in it."""
    lake = Lake.at(str(tmp_path_factory.mktemp("lake")))

    def files(*batches: pa.RecordBatch) -> list[tuple[dict[str, Any], pa.Table]]:
        writer = Staging(lake, file_bytes=1 << 30, buffer_bytes=0).open_writer(0, "0-0")
        for batch in batches:
            writer.hold_rows("route/sink", "silver.x", batch)
            writer.flush()  # with no buffer every batch is a row group of its own
        return [
            (json.loads(file.statistics, parse_float=Decimal), pq.ParquetFile(f"{lake.root}/{file.path}").read())
            for file in writer.close()
        ]

    return files


@pytest.fixture(scope="module")
def landed(
    files: Callable[..., list[tuple[dict[str, Any], pa.Table]]],
) -> Callable[..., tuple[dict[str, Any], pa.Table]]:
    """Write batches of rows into one file; return its statistics and what is in it."""

    def landed(*batches: pa.RecordBatch) -> tuple[dict[str, Any], pa.Table]:
        (file,) = files(*batches)
        return file

    return landed


def column(kind: pa.DataType, values: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.array(values, kind)})


def in_groups(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    """Return lists of row groups, some with nulls only."""
    return st.lists(st.lists(values | st.none(), min_size=1, max_size=6), min_size=1, max_size=3)


def check_counts(found: dict[str, Any], stored: pa.Table) -> None:
    assert found["numRecords"] == len(stored)
    assert found["nullCount"]["a"] == stored.column("a").null_count


def within(found: dict[str, Any], values: list[Any], key: Callable[[Any], Any] = lambda value: value) -> None:
    """Check that no value is outside the bounds; a bound that is not there bounds nothing."""
    for value in values:
        if "a" in found["minValues"]:
            assert key(found["minValues"]["a"]) <= value
        if "a" in found["maxValues"]:
            assert value <= key(found["maxValues"]["a"])


@given(in_groups(TEXTS))
@example([["x" * LONGEST + LAST + "b"]])
@example([["x" * (LONGEST - 1) + LAST]])
@example([["x" * LONGEST + LAST]])
@example([["y" * 5000], ["x"]])
def test_bounds_of_texts_bound(landed: Any, groups: list[list[str | None]]) -> None:
    """Without it `WHERE name = ...` misses rows with long names or characters beyond the basic plane."""
    found, stored = landed(*[column(pa.string(), values) for values in groups])

    check_counts(found, stored)
    texts = [value.encode() for value in stored.column("a").to_pylist() if value is not None]
    within(found, texts, str.encode)  # Spark compares bytes
    assert all(len(bounds.get("a", "")) < 80 for bounds in (found["minValues"], found["maxValues"]))


@given(in_groups(MICROSECONDS))
def test_bounds_of_timestamps_bound(landed: Any, groups: list[list[int | None]]) -> None:
    """Without it a time range misses rows, or one wild time (milliseconds read as seconds) stops a batch."""
    found, stored = landed(*[column(pa.timestamp("us", "UTC"), values) for values in groups])

    check_counts(found, stored)
    instants = [value for value in stored.column("a").cast(pa.int64()).to_pylist() if value is not None]
    within(
        found,
        instants,
        lambda text: (datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH) // timedelta(microseconds=1),
    )
    for bounds in (found["minValues"], found["maxValues"]):
        assert len(bounds.get("a", "2026-01-01T00:00:00.000Z")) == len("2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Chatham"])
def test_a_timestamp_without_zone_is_taken_as_it_is(landed: Any, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the clock of the worker that wrote a file decides which rows are found."""
    monkeypatch.setenv("TZ", zone)
    import time

    time.tzset()
    try:
        found, _ = landed(column(pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 6789)]))  # noqa: DTZ001 - a Parquet timestamp without a zone
    finally:
        monkeypatch.undo()
        time.tzset()

    assert found["minValues"]["a"] == "2026-01-02T03:04:05.006"
    assert found["maxValues"]["a"] == "2026-01-02T03:04:05.007"


@given(in_groups(DAYS))
def test_bounds_of_dates_bound(landed: Any, groups: list[list[int | None]]) -> None:
    """Without it a date range misses rows, or a date beyond the year 9999 stops a batch."""
    arrays = [pa.array(values, pa.int32()).cast(pa.date32()) for values in groups]
    found, stored = landed(*[pa.record_batch({"a": days}) for days in arrays])

    check_counts(found, stored)
    days = [value for value in stored.column("a").cast(pa.int32()).to_pylist() if value is not None]
    within(found, days, lambda text: (date.fromisoformat(text) - date(1970, 1, 1)).days)


@given(in_groups(WIDE))
@example([[Decimal("12345678901234567890.1299")]])
@example([[Decimal("-0.0001"), Decimal(0)]])
def test_bounds_of_decimals_bound(landed: Any, groups: list[list[Decimal | None]]) -> None:
    """Without it amounts beyond the 16 digits of a float are not found."""
    found, stored = landed(*[column(pa.decimal128(38, 4), values) for values in groups])

    check_counts(found, stored)
    amounts = [value for value in stored.column("a").to_pylist() if value is not None]
    within(found, amounts)
    assert ("a" in found["minValues"]) is bool(amounts)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
@given(groups=in_groups(FLOATS))
@settings(max_examples=drawn(60))
def test_bounds_of_floats_bound(files: Any, kind: pa.DataType, groups: list[list[float | None]]) -> None:
    """Without it `price > 5` misses NaN, which Spark sorts above every number and Parquet leaves out of its bounds."""
    if kind == pa.float32():
        groups = [[_single(value) for value in values] for values in groups]
    written = files(*[column(kind, values) for values in groups])

    assert sum(len(stored) for _, stored in written) == sum(map(len, groups))
    for found, stored in written:
        numbers = [value for value in stored.column("a").to_pylist() if value is not None]
        assert found["numRecords"] == len(stored)
        if any(math.isnan(value) for value in numbers):
            assert found["minValues"] == found["maxValues"] == found["nullCount"] == {}
        elif found["nullCount"]:
            check_counts(found, stored)
            within(found, numbers, float)


def test_a_column_with_nan_has_no_statistics_from_its_first_nan_on(files: Any) -> None:
    """Without it Spark, which looks at the statistics of row groups too, skips rows with NaN; or no column has any."""
    values = [1.0, math.nan, 2.0]
    rows = [pa.record_batch({"a": [value], "s": [{"f": value}], "id": [i]}) for i, value in enumerate(values)]
    (before, _), (after, stored) = files(*rows)

    assert before["maxValues"] == {"a": Decimal("1.0"), "s": {"f": Decimal("1.0")}, "id": 0}
    assert after["maxValues"] == {"id": 2}
    assert len(stored) == 2


def _single(value: float | None) -> float | None:
    if value is None or math.isnan(value) or math.isinf(value):
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


@given(in_groups(st.integers(-(2**63), 2**63 - 1)))
def test_bounds_of_integers_are_exact(landed: Any, groups: list[list[int | None]]) -> None:
    """Without it an id beyond 2^53 is not found."""
    found, stored = landed(*[column(pa.int64(), values) for values in groups])

    check_counts(found, stored)
    numbers = [value for value in stored.column("a").to_pylist() if value is not None]
    assert found["minValues"].get("a") == min(numbers, default=None)
    assert found["maxValues"].get("a") == max(numbers, default=None)


@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.bool_(), [True, False]), (pa.binary(), [b"\0", b"\xff"]), (pa.int32(), [None, None])],
    ids=["boolean", "binary", "nulls only"],
)
def test_what_has_no_bounds_is_counted(landed: Any, kind: pa.DataType, values: list[Any]) -> None:
    """Without it `IS NULL` reads files that hold no null."""
    found, stored = landed(column(kind, values))

    check_counts(found, stored)
    assert found["minValues"] == found["maxValues"] == {}


def test_text_that_is_not_utf8_has_no_bounds(landed: Any) -> None:
    """Without it one broken string stops the batch: Spark's strings may hold any bytes."""
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    found, _ = landed(pa.record_batch({"a": broken}))

    assert found["nullCount"]["a"] == 0
    assert found["minValues"] == found["maxValues"] == {}


def test_statistics_are_nested_like_the_schema(landed: Any) -> None:
    """Without it a filter on a nested field reads every file, or takes the bounds of another column."""
    inner = pa.struct([("x", pa.int32()), ("deep", pa.struct([("f", pa.float64())]))])
    rows = pa.record_batch({
        "s": pa.array([{"x": 1, "deep": {"f": math.nan}}, {"x": 3, "deep": {"f": 2.0}}, None], inner),
        "s.x": pa.array([7, 8, None], pa.int32()),
        "list": pa.array([["b"], [], None], pa.list_(pa.string())),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "after": pa.array(["a", "b", "c"]),
    })  # fmt: skip
    found, _ = landed(rows)

    assert found["minValues"] == {"s": {"x": 1}, "s.x": 7, "after": "a"}
    assert found["maxValues"] == {"s": {"x": 3}, "s.x": 8, "after": "c"}
    assert found["nullCount"] == {"s": {"x": 1}, "s.x": 1, "after": 0}


def test_only_the_first_columns_have_statistics(landed: Any) -> None:
    """Without it a table of a thousand columns has a log larger than its data."""
    found, _ = landed(pa.record_batch({f"c{i}": pa.array([i]) for i in range(INDEXED_COLUMNS + 5)}))

    assert list(found["minValues"]) == [f"c{i}" for i in range(INDEXED_COLUMNS)]


def test_columns_that_have_no_bounds_do_not_count(landed: Any) -> None:
    """Without it the time of a ledger row has none: the maps before it have two leaves each."""
    maps = {f"m{i}": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())) for i in range(INDEXED_COLUMNS)}
    found, _ = landed(pa.record_batch({**maps, "after": pa.array([7])}))

    assert list(found["minValues"]) == ["after"]
