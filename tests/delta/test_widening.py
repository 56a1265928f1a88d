"""Tables whose columns become wider: rewritten once where the router made them, and readable by everybody."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from pyarrow import fs

from router import TableError
from router.delta import widening
from router.delta.commit import TableCommit, to_delta
from router.delta.lake import Lake
from router.delta.replace import made_as
from router.delta.schema_diff import compare_schemas, delta_schema
from router.delta.widening import choose_widening_way, rewrite_table
from router.engine.commit.committers import Committers

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = "silver.t"
NARROW = pa.table({"id": [1, 2], "n": pa.array([7, None], pa.int32()), "x": [math.nan, 1.5], "s": ["a", None]})
WIDE = pa.table({"id": [3], "n": [2**40], "x": [0.5], "s": ["b"]})
APP = "games:run/all/tables/silver.t"
GROWN = to_delta(pa.schema([("n", pa.int64())]))


@pytest.fixture
def lake(tmp_path: Any) -> Lake:
    return Lake.at(str(tmp_path))


@pytest.fixture
def committers(lake: Lake) -> Committers:
    """Return committers without Spark: what needs it fails."""
    return Committers(lake, None)  # type: ignore[arg-type]


def opened(lake: Lake, table: str = TABLE) -> DeltaTable:
    handle = lake.open(table)
    assert handle is not None
    return handle


def sorted_rows(lake: Lake, table: str = TABLE) -> list[dict[str, Any]]:
    """Return what a plain reader sees."""
    found = DeltaTable(lake.address(table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def test_a_table_that_widens_stays_readable(
    lake: Lake, committers: Committers, land: Callable[..., TableCommit]
) -> None:
    """Without it one large number locks polars and all delta-rs readers out, and each later batch needs Spark."""
    committers.commit_all((land(lake, TABLE, NARROW, 0),), {}, {})
    before = opened(lake).metadata()
    assert committers.commit_all((work := land(lake, TABLE, WIDE, 1),), {}, {"router.batch": "1"}) == 1
    assert work.widened

    handle = opened(lake)
    assert [(row["id"], row["n"], row["s"]) for row in sorted_rows(lake)] == [
        (1, 7, "a"),
        (2, None, None),
        (3, 2**40, "b"),
    ]
    assert math.isnan(sorted_rows(lake)[0]["x"])
    assert pa.schema(handle.schema().to_arrow()).field("n").type == pa.int64()
    assert handle.transaction_version(work.app_id) == 1
    assert handle.transaction_version("query/wider")
    assert handle.history()[1]["router.widened"] == "n"
    assert handle.metadata().configuration == before.configuration
    assert handle.metadata().id == before.id
    assert not handle.protocol().reader_features
    assert handle.version() == 2
    assert committers.commit_all((work, land(lake, TABLE, WIDE, 2)), {}, {}) == 1
    assert opened(lake).version() == 3


def test_a_crash_between_the_two_commits_is_harmless(
    lake: Lake, committers: Committers, land: Callable[..., TableCommit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a kill at the wrong moment costs the rows of a batch, or has them twice."""
    committers.commit_all((land(lake, TABLE, NARROW, 0),), {}, {})
    work = land(lake, TABLE, WIDE, 1)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("router.engine.commit.committers.commit_files", killed)
        with pytest.raises(KeyboardInterrupt):
            committers.commit_all((work,), {}, {})
    assert [row["id"] for row in sorted_rows(lake)] == [1, 2]
    assert opened(lake).version() == 1

    assert committers.commit_all((work,), {}, {}) == 1
    assert [row["id"] for row in sorted_rows(lake)] == [1, 2, 3]
    assert opened(lake).version() == 2


def test_another_writer_that_is_faster_is_waited_for(
    lake: Lake, committers: Committers, land: Callable[..., TableCommit]
) -> None:
    """Without it rows that came while the table was rewritten have the old type, and cannot be read."""
    committers.commit_all((land(lake, TABLE, NARROW, 0),), {}, {})
    stale = opened(lake)
    write_deltalake(lake.address(TABLE), NARROW.slice(0, 1), mode="append")

    rewrite_table(lake, TABLE, stale, GROWN, APP)

    assert [row["id"] for row in sorted_rows(lake)] == [1, 1, 2]
    files = opened(lake).file_uris()
    assert all(pq.read_schema(file).field("n").type == pa.int64() for file in files)


def test_a_table_of_others_is_never_rewritten(
    lake: Lake, committers: Committers, land: Callable[..., TableCommit], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a table that others made, or copied, or one of any size, is written anew unasked."""
    write_deltalake(lake.address("silver.foreign"), NARROW)
    write_deltalake(lake.address("silver.copied"), NARROW, name=made_as(TABLE))
    committers.commit_all((land(lake, TABLE, NARROW),), {}, {})

    for table in ("silver.foreign", "silver.copied"):
        assert choose_widening_way(opened(lake, table), table, "rewrite") is None
        assert choose_widening_way(opened(lake, table), table, "feature") == "feature"
        with pytest.raises(TableError, match="narrower"):
            committers.commit_all((replace(land(lake, table, WIDE, 1), widening="rewrite"),), {}, {})
        assert opened(lake, table).version() == 0
    assert choose_widening_way(opened(lake), TABLE, "feature") == "rewrite"
    monkeypatch.setattr(widening, "_LARGEST", 100)
    assert choose_widening_way(opened(lake), TABLE, "rewrite") is None


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_whose_readers_would_notice_is_not_rewritten(
    lake: Lake, committers: Committers, land: Callable[..., TableCommit], name: str
) -> None:
    """Without it the readers of a change feed get every row again."""
    committers.commit_all((land(lake, TABLE, NARROW),), {}, {})
    opened(lake).alter.set_table_properties({name: "true"})

    assert choose_widening_way(opened(lake), TABLE, "rewrite") is None


def test_a_divided_table_keeps_its_division(lake: Lake) -> None:
    """Without it rows land under another key, or a NULL becomes a text."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
    table = pa.table({
        "id": pa.array([1, 2, 3], pa.int32()),
        "game": ["a b/ü%", "x=1", None],
        "day": [date(2026, 1, 2)] * 3,
        "at": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        "level": pa.array([1, None, 3], pa.int16()),
        "on": [True, None, False],
        "share": [1.5, 0.25, None],
    })  # fmt: skip
    divided = ["game", "day", "at", "level", "on", "share"]
    write_deltalake(lake.address(TABLE), table, partition_by=divided, name=made_as(TABLE))
    partitions = opened(lake).partitions()
    before = sorted_rows(lake)

    rewrite_table(lake, TABLE, opened(lake), to_delta(pa.schema([("id", pa.int64())])), APP)

    assert sorted_rows(lake) == before
    assert opened(lake).metadata().partition_columns == divided
    after = opened(lake).partitions()
    assert {frozenset(found.items()) for found in after} == {frozenset(found.items()) for found in partitions}


def test_what_columns_say_of_themselves_stays(lake: Lake) -> None:
    """Without it comments and NOT NULL are lost with the old types."""
    inner = pa.struct([pa.field("a", pa.int32(), metadata={"comment": "inside"}), pa.field("b", pa.string())])
    have = pa.schema([
        pa.field("id", pa.int64(), nullable=False, metadata={"comment": "who"}),
        pa.field("inner", inner, metadata={"comment": "whole"}),
        pa.field("many", pa.map_(pa.string(), pa.list_(pa.int16()))),
    ])  # fmt: skip
    rows = pa.Table.from_pylist([{"id": 1, "inner": {"a": 1, "b": "x"}, "many": [("k", [1, 2])]}], have)
    write_deltalake(lake.address(TABLE), rows, name=made_as(TABLE))
    come = pa.schema([
        ("inner", pa.struct([("c", pa.string()), ("a", pa.int64())])),
        ("many", pa.map_(pa.string(), pa.list_(pa.int32()))),
    ])  # fmt: skip
    found = compare_schemas(delta_schema(have), come)

    rewrite_table(lake, TABLE, opened(lake), to_delta(pa.schema(found.widened)), APP)

    fields = {field.name: field for field in opened(lake).schema().fields}
    assert not fields["id"].nullable
    assert (fields["id"].metadata, fields["inner"].metadata) == ({"comment": "who"}, {"comment": "whole"})
    assert [(f.name, f.metadata) for f in fields["inner"].type.fields] == [
        *[("a", {"comment": "inside"}), ("b", {}), ("c", {})],
    ]
    assert DeltaTable(lake.address(TABLE)).to_pyarrow_table().to_pylist() == [
        {"id": 1, "inner": {"a": 1, "b": "x", "c": None}, "many": [("k", [1, 2])]}
    ]


def test_a_rewrite_that_fails_leaves_nothing_behind(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every try of a rewrite that cannot end fills the disk more."""
    for _ in range(2):
        write_deltalake(lake.address(TABLE), NARROW, name=made_as(TABLE), mode="append")
    lost = opened(lake).file_uris()[-1].rpartition("/")[2]
    lake.files.delete_file(f"silver/t/{lost}")
    left = {info.path for info in lake.files.get_file_info(fs.FileSelector("silver/t", recursive=True))}
    for size in ("FILE_BYTES", "HELD_BYTES"):
        monkeypatch.setattr(widening, size, 1)

    with pytest.raises(TableError, match=lost):
        rewrite_table(lake, TABLE, opened(lake), GROWN, APP)

    after = lake.files.get_file_info(fs.FileSelector("silver/t", recursive=True))
    assert {info.path for info in after} == left


def test_a_rewrite_keeps_ids_and_joins_files(lake: Lake) -> None:
    """Without it a rewrite forgets which batches a table has, or leaves as many small files as there were."""
    for version in range(5):
        once = CommitProperties(app_transactions=[Transaction("query/x", version)])
        write_deltalake(lake.address(TABLE), NARROW, mode="append", name=made_as(TABLE), commit_properties=once)

    rewrite_table(lake, TABLE, opened(lake), GROWN, APP)
    opened(lake).create_checkpoint()

    handle = opened(lake)
    assert handle.transaction_version("query/x") == 4
    assert (len(handle.file_uris()), handle.to_pyarrow_table().num_rows) == (1, 10)
    rewrite_table(lake, TABLE, handle, GROWN, APP)
    assert opened(lake).version() == handle.version()


def test_an_empty_table_widens(lake: Lake) -> None:
    """Without it a table whose rows were deleted takes no more."""
    DeltaTable.create(lake.address(TABLE), Schema.from_arrow(NARROW.schema), name=made_as(TABLE))

    rewrite_table(lake, TABLE, opened(lake), GROWN, APP)

    assert pa.schema(opened(lake).schema().to_arrow()).field("n").type == pa.int64()
