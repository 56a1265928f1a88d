"""Merge batches into one keyed table: what wins, what is refused, what survives other writers."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake

from router.api.sinks import KeyedTable
from router.api.table_options import NewTable
from router.delta.keyed import row_versions
from router.delta.keyed.scd import OP, UPDATE
from router.delta.keyed.upsert import NeedsSpark, TableUpsert, _quote_name, merge_condition, upsert_rows
from router.delta.parquet_writer import Staging
from router.engine.merge.delta_rs import MergeJob, merge_table
from router.errors import TableError
from tests.delta.changed_logs import forget_bounds
from tests.delta.faster_writers import Busy
from tests.delta.keyed_table import COLUMNS, KEYED, TABLE, MergedTable, record
from tests.delta.model import Record, lane

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.delta.lake import Lake

LATEST = [{"k": "a", "v": 1, "_offset": 1}, {"k": "b", "v": 2, "_offset": 2}]


@pytest.fixture
def table(lake: Lake) -> MergedTable:
    """Return a table with two keys."""
    made = MergedTable(lake)
    made.take(record("a", 0, 0), record("a", 1, 1), record("b", 2, 2))
    return made


@pytest.fixture
def make(lake: Lake) -> Callable[..., MergedTable]:
    """Make an empty table of another kind."""
    return lambda **options: MergedTable(lake, **options)


def test_the_latest_record_of_a_key_is_its_row(table: MergedTable) -> None:
    """Without it a profile shows what a gamer was, or is there twice."""
    assert table.rows() == LATEST

    merged = table.take(record("a", 3, 3), record("c", 4, 4), record("a", 5, 5))

    assert table.rows() == [
        {"k": "a", "v": 5, "_offset": 5},
        {"k": "b", "v": 2, "_offset": 2},
        {"k": "c", "v": 4, "_offset": 4},
    ]
    assert (merged.applied, merged.inserted, merged.updated, merged.late) == (3, 1, 1, 0)


@pytest.mark.parametrize("deleted", [False, True], ids=["kept", "deleted"])
def test_a_late_record_never_wins(table: MergedTable, deleted: bool) -> None:
    """Without it a record that was held up undoes what came after it, or brings a deleted gamer back."""
    table.take(record("a", 9, 9, deletes=deleted))
    version, before = table.handle.version(), table.rows()

    merged = table.take(record("a", 8, 8))

    assert (merged.applied, merged.late) == (1, 1)
    assert (table.handle.version(), table.rows()) == (version, before)


def test_a_file_with_nan_gets_no_bounds_from_it(make: Callable[..., MergedTable]) -> None:
    """Without it a query for large numbers passes over NaN, which Spark takes for the largest."""
    table = make(columns={"k": pa.string(), "v": pa.float64()})
    table.take(record("a", 1, 1.0), record("b", 2, math.nan))
    table.take(record("b", 3, 2.0), record("c", 4, math.nan))

    found = pa.table(table.handle.get_add_actions()).to_pylist()
    assert sum(file["num_records"] for file in found) == 3
    assert all(file["max"]["k"] for file in found)
    assert {file[bound].get("v") for file in found for bound in ("min", "max")} == {None}
    for file in found:
        groups = pq.read_metadata(Path(table.lake.address(TABLE), file["path"])).row_group(0)
        assert groups.column(0).compression == "SNAPPY"
        values = [groups.column(n) for n in range(groups.num_columns) if groups.column(n).path_in_schema == "v"]
        assert [one.statistics for one in values] == [None], "Spark looks at the bounds of row groups, too"


def test_nothing_is_merged_into_an_older_copy_of_a_table(table: MergedTable) -> None:
    """Without it the stream goes on behind a gap, and rows that are older than what was there win."""
    assert table.take(record("a", 5, 5), merged=1).committed
    assert not table.take(record("a", 4, 4), merged=2).committed, "it is late, and leaves no transaction id"
    log = Path(table.lake.address(TABLE), "_delta_log")
    newest = max(log.glob("*.json"))
    put_back, content = newest.with_suffix(".kept"), newest.read_bytes()
    newest.rename(put_back)

    with pytest.raises(TableError, match="lacks batch 2") as refused:
        table.take(record("b", 9, 9), merged=2)
    assert f"router rebuild FILE {TABLE}" in str(refused.value)
    assert "--accept lost-tables" in str(refused.value)
    assert table.rows() == LATEST

    newest.write_bytes(content)
    assert table.take(record("b", 9, 9), merged=2).committed


def test_a_newer_record_brings_a_deleted_key_back(table: MergedTable) -> None:
    """Without it a gamer who returns stays deleted."""
    table.take(record("a", 8, deletes=True))
    table.take(record("a", 9, 9))

    assert table.rows()[0] == {"k": "a", "v": 9, "_offset": 9}


@pytest.mark.parametrize("reverse", [False, True], ids=["in order", "in reverse"])
@pytest.mark.parametrize("at_once", [False, True], ids=["in two batches", "at once"])
def test_ties_go_to_partition_and_offset(make: Callable[..., MergedTable], at_once: bool, reverse: bool) -> None:
    """Without it the order of files decides which of two equally new records stays."""
    records = [Record(("a",), n, p, 7, values=(("v", n),)) for n, p in [(5, 0), (1, 1), (2, 1), (9, 0)]]
    table = make(keyed=replace(KEYED, newest=1))
    for batch in [records] if at_once else [[one] for one in (records[::-1] if reverse else records)]:
        table.take(*batch)

    assert table.rows("v") == [{"v": 2}]


@pytest.mark.parametrize(
    "values",
    [[None, -1.5, 0.0, 2.0], [None, "", "Z", "é"], [None, date(1, 1, 1)], [None, Decimal("1.10"), Decimal("1.2")]],
    ids=["numbers", "texts", "dates", "decimals"],
)
def test_a_null_is_older_than_any_value(make: Callable[..., MergedTable], values: list[Any]) -> None:
    """Without it a record without a version overwrites one that has it."""
    table = make(keyed=replace(KEYED, newest=1))
    rows = lane([record("a", n, n) for n in range(len(values))], table.keyed, COLUMNS)
    rows = rows.set_column(rows.column_names.index("_newest_1"), "_newest_1", pa.array(values))

    for at in reversed(range(len(values))):
        table.merge(rows.slice(at, 1))
    table.merge(rows)

    assert table.rows("v") == [{"v": len(values) - 1}]


def test_what_is_no_number_is_no_version(make: Callable[..., MergedTable]) -> None:
    """Without it one NaN is newer than everything for ever, and -0.0 older than 0.0 in some engines."""
    table = make(keyed=replace(KEYED, newest=1))
    rows = lane([record("a", n, n) for n in range(4)], table.keyed, COLUMNS)
    rows = rows.set_column(rows.column_names.index("_newest_1"), "_newest_1", pa.array([0.0, float("nan"), -0.0, -5.0]))
    table.merge(rows)

    assert table.rows("v", "_newest_1") == [{"v": 2, "_newest_1": 0.0}]


def test_a_row_without_its_key_is_refused(table: MergedTable) -> None:
    """Without it rows that nobody can find again pile up, or one of them stops the batch."""
    merged = table.take(record(None, 3, 3), record("b", 4, 4))

    assert (merged.applied, merged.inserted, merged.updated) == (1, 0, 1)
    assert [(row["_offset"], row["reason"]) for row in merged.refused.to_pylist()] == [(3, "key k is null")]


def test_a_batch_that_is_there_changes_nothing_and_says_the_same(table: MergedTable) -> None:
    """Without it a restart counts otherwise than the first time, and the batch does not balance."""
    first = table.take(record(None, 3, 3), record("a", 4, deletes=True), record("b", 5, 5), batch=7)
    before = table.rows(), table.handle.version()

    again = table.take(record(None, 3, 3), record("a", 4, deletes=True), record("b", 5, 5), batch=7)

    assert (table.rows(), table.handle.version()) == before
    assert (again.applied, again.refused) == (first.applied, first.refused)
    assert (first.again, again.again) == (False, True)


def test_a_deletion_that_was_not_remembered_is_remembered_by_the_next_try(
    table: MergedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a crash at the wrong moment lets a late record bring a deleted gamer back."""

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(row_versions, "remember_deletions", killed)
        with pytest.raises(KeyboardInterrupt):
            table.take(record("a", 9, deletes=True), batch=7)
    table.take(record("a", 9, deletes=True), batch=7)
    table.take(record("a", 8, 8))

    assert table.rows() == LATEST[1:]


def test_deletions_are_forgotten_after_their_time(table: MergedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the memory of deletions grows for ever."""
    monkeypatch.setattr(row_versions, "SWEPT", 1)
    table.keyed = replace(KEYED, deletions_kept=timedelta(microseconds=1))
    for offset in (10, 11, 12):
        table.take(record("a", offset, deletes=True), record("b", offset, offset))

    remembered = DeltaTable(f"{table.lake.address(TABLE)}/_deletions").to_pyarrow_table()

    assert remembered["_offset"].to_pylist() == [12]
    assert table.rows() == [{"k": "b", "v": 12, "_offset": 12}]


def test_the_memory_of_deletions_is_no_table(table: MergedTable) -> None:
    """Without it readers of the layer, or a VACUUM of the table, stumble over it."""
    table.take(record("a", 9, deletes=True))
    table.handle.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.take(record("a", 8, 8))

    assert table.lake.table_names("silver") == [TABLE]
    assert table.rows() == LATEST[1:]


def test_some_columns_change_and_the_others_stay(make: Callable[..., MergedTable]) -> None:
    """Without it an event that knows a part of a profile empties the rest."""
    table = make(keyed=replace(KEYED, columns=("v",)), columns={**COLUMNS, "since": pa.string()})
    table.take(Record(("a",), 0, values=(("v", 0), ("since", "2025"))))
    table.take(Record(("a",), 1, values=(("v", 1), ("since", "2026"))))

    assert table.rows("v", "since") == [{"v": 1, "since": "2025"}]


def test_a_flag_in_place_of_a_deletion(make: Callable[..., MergedTable]) -> None:
    """Without it whoever needs the last state of a deleted gamer has lost it."""
    table = make(keyed=replace(KEYED, soft_delete="gone"))
    table.take(record("a", 0, 0), record("b", 1, 1))
    table.take(record("a", 2, deletes=True))
    table.take(record("a", 1, 5))

    assert table.rows("k", "v", "gone") == [{"k": "a", "v": 0, "gone": True}, {"k": "b", "v": 1, "gone": False}]


def test_a_history_has_every_state_and_when_it_was_valid(make: Callable[..., MergedTable]) -> None:
    """Without it nobody can say what a profile was in May."""
    table = make(keyed=replace(KEYED, history=True))
    at = [datetime(2026, 1, 1, 0, 0, second, tzinfo=timezone.utc) for second in range(10)]
    table.take(record("a", 0, 0, second=0), record("a", 1, 1, second=1), record("b", 2, 2, second=2))
    version = table.handle.version()
    table.take(record("a", 3, 3, second=3), record("b", 4, second=4, deletes=True), record("a", 1, 9, second=1))

    assert table.handle.version() == version + 1
    assert table.rows("k", "v", "valid_from", "valid_to", "is_current") == [
        {"k": "a", "v": 0, "valid_from": at[0], "valid_to": at[1], "is_current": False},
        {"k": "a", "v": 1, "valid_from": at[1], "valid_to": at[3], "is_current": False},
        {"k": "a", "v": 3, "valid_from": at[3], "valid_to": None, "is_current": True},
        {"k": "b", "v": 2, "valid_from": at[2], "valid_to": at[4], "is_current": False},
    ]


def test_a_late_row_takes_its_place_in_a_history(make: Callable[..., MergedTable]) -> None:
    """Without it a history depends on how its records were cut into batches, or lacks what was replayed."""
    columns = ("v", "valid_from", "valid_to", "is_current")
    records = [
        record("a", 0, 0, second=0),
        record("a", 1, 1, second=2),
        record("a", 2, second=4, deletes=True),
        record("a", 3, 3, second=6),
        record("a", 4, 4, second=5),  # its producer's clock is behind: it counts from when the one before it did
        record("a", 5, 5, second=9),
    ]
    at_once = make(keyed=replace(KEYED, history=True))
    at_once.take(*records)
    expected = at_once.rows(*columns)
    assert [row["v"] for row in expected] == [0, 1, 3, 4, 5]
    for number, order in enumerate(permutations(range(6))):
        if number % 97:
            continue
        one_by_one = make(keyed=replace(KEYED, history=True), name=f"silver.order_{number}")
        for place in order:
            one_by_one.take(records[place])
        assert one_by_one.rows(*columns) == expected, order


KEYS: dict[str, pa.Array] = {
    "text": pa.array(["it's", 'q"q', "a\\b", "x%_", "\x00z", "é😀", "", " ", "--", "NULL", "\n", "1"]),
    "bytes": pa.array([b"\x00", b"\xff", b"'", b""]),
    "decimal": pa.array([Decimal("1.10"), Decimal("-9.99")]),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
    "time": pa.array([datetime(1, 1, 1, tzinfo=timezone.utc), datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=timezone.utc)]),
    "local time": pa.array([datetime(2026, 1, 1, 1, 2, 3, 4)], pa.timestamp("us")),  # noqa: DTZ001
    "truth": pa.array([True, False]),
    "small": pa.array([-128, 127], pa.int8()),
    "large": pa.array([-(2**63), 2**63 - 1]),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_of_any_type_are_found_again(make: Callable[..., MergedTable], keys: pa.Array) -> None:
    """Without it a key that looks like SQL, or lies at the end of its type, gets a second row."""
    table = make(columns={"k": keys.type, "v": pa.int64()})
    for offset in (0, 100):
        table.take(*[record(key, offset + n, offset + n) for n, key in enumerate(keys.to_pylist())])
    for n, key in enumerate(keys.to_pylist()[:3]):
        table.take(record(key, 200 + n, 200 + n))

    found = {row["k"]: row["v"] for row in table.rows("k", "v")}
    assert found == {key: (200 if n < 3 else 100) + n for n, key in enumerate(keys.to_pylist())}


def test_a_file_without_bounds_of_the_key_is_looked_into(table: MergedTable, lake: Lake) -> None:
    """Spark and others leave bounds out, as they may: without it their rows are not found, and a key has two rows."""
    forget_bounds(Path(lake.address(TABLE)), "k")

    merged = table.take(record("a", 3, 3), record("b", 1, 1))

    assert table.rows() == [{"k": "a", "v": 3, "_offset": 3}, {"k": "b", "v": 2, "_offset": 2}]
    assert (merged.inserted, merged.updated, merged.late) == (0, 1, 1)


def test_names_and_values_of_any_kind_survive(make: Callable[..., MergedTable]) -> None:
    """Without it a column called `Key A`, or a list in a struct, breaks the table that has it."""
    inner = pa.struct([("x", pa.int32()), ("deep", pa.list_(pa.struct([("y", pa.string())])))])
    kinds = {
        "Key A": pa.string(), "v.x`y": inner, "scores": pa.map_(pa.string(), pa.int32()), "cost": pa.decimal128(20, 6),
        "at": pa.timestamp("us", "UTC"), "day": pa.date32(), "blob": pa.binary(), "ratio": pa.float32(),
        "ok": pa.bool_(),
    }  # fmt: skip
    first = {
        "v.x`y": {"x": 1, "deep": [{"y": "é"}, None]}, "scores": [("a", 1)], "cost": Decimal("1.000001"), "at": None,
        "day": date(2026, 1, 1), "blob": b"\xff", "ratio": 0.5, "ok": True,
    }  # fmt: skip
    other = {**dict.fromkeys(first), "at": datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=timezone.utc), "scores": []}
    table = make(keyed=KeyedTable(("Key A",)), columns=kinds)
    table.take(*[Record((key,), n, values=tuple(first.items())) for n, key in enumerate("abc")])
    table.take(Record(("a",), 5, values=tuple(other.items())), Record(("d",), 6, values=tuple(first.items())))

    rows = {row.pop("Key A"): row for row in table.rows(*kinds)}
    assert rows == {**dict.fromkeys("bcd", first), "a": other}


GROWN = {"k": pa.string(), "v": pa.int64(), "bonus": pa.float64()}
WITH_BONUS = Record(("a",), 9, values=(("v", 9), ("bonus", 1.5)))
WITHOUT = Record(("b",), 10, values=(("v", 10), ("bonus", None)))


def test_a_new_column_is_added(table: MergedTable) -> None:
    """Without it a new field of the events is missing, or stops the stream."""
    table.columns = GROWN
    table.take(WITH_BONUS, WITHOUT)

    assert table.rows("k", "v", "bonus") == [{"k": "a", "v": 9, "bonus": 1.5}, {"k": "b", "v": 10, "bonus": None}]


def test_a_frozen_table_refuses_what_it_has_no_column_for(table: MergedTable) -> None:
    """Without it a table that others rely on changes under them, or loses values in silence."""
    table.columns, table.keyed = GROWN, replace(KEYED, evolution="freeze")
    merged = table.take(WITH_BONUS, WITHOUT)

    assert [(row["_offset"], row["reason"]) for row in merged.refused.to_pylist()] == [
        (9, "column bonus is not in the table")
    ]
    assert table.rows() == [LATEST[0], {"k": "b", "v": 10, "_offset": 10}]


def test_a_frozen_table_without_a_history_has_no_columns_of_one(table: MergedTable) -> None:
    """Without it an event's own `is_current` gets into a table that must not change."""
    table.columns, table.keyed = {**COLUMNS, "is_current": pa.bool_()}, replace(KEYED, evolution="freeze")
    merged = table.take(Record(("a",), 9, values=(("v", 9), ("is_current", True))))

    assert merged.refused["reason"].to_pylist() == ["column is_current is not in the table"]
    assert "is_current" not in table.handle.to_pyarrow_table().column_names


def test_a_frozen_table_takes_what_fits_its_types(make: Callable[..., MergedTable]) -> None:
    """Without it one large number freezes a table's small ones out, or is cut."""
    table = make(columns={"k": pa.string(), "v": pa.int32()}, keyed=replace(KEYED, evolution="freeze"))
    table.take(record("a", 0, 0))
    table.columns = {"k": pa.string(), "v": pa.int64()}
    merged = table.take(record("a", 1, 2**31), record("b", 2, 2**31 - 1))

    assert [row["_offset"] for row in merged.refused.to_pylist()] == [1]
    assert table.rows("k", "v") == [{"k": "a", "v": 0}, {"k": "b", "v": 2**31 - 1}]


def test_a_table_that_must_not_change_stops_the_stream(table: MergedTable) -> None:
    """Without it nobody hears of a change that somebody wanted to hear of."""
    table.columns, table.keyed = GROWN, replace(KEYED, evolution="fail")
    table.take(WITHOUT)
    with pytest.raises(TableError) as caught:
        table.take(WITH_BONUS)

    assert caught.value.table == TABLE
    assert "bonus" in caught.value.what


def test_a_value_of_another_type_is_refused(table: MergedTable) -> None:
    """Without it one record of the wrong type stops all others, or becomes null."""
    table.columns = {"k": pa.string(), "v": pa.string()}
    merged = table.take(record("a", 9, "nine"), record("b", 10, None))

    assert [(row["_offset"], "v" in row["reason"]) for row in merged.refused.to_pylist()] == [(9, True)]
    assert table.rows() == [LATEST[0], {"k": "b", "v": 2, "_offset": 10}]


def test_a_column_of_the_table_that_the_events_lack_stays(table: MergedTable) -> None:
    """Without it what others have added to a table is emptied by the next event."""
    table.handle.alter.add_columns([Field("note", "string")])
    table.handle.update(new_values={"note": "by hand"})
    table.take(record("a", 9, 9), record("c", 10, 10))

    assert table.rows("k", "note") == [
        {"k": "a", "note": "by hand"},
        {"k": "b", "note": "by hand"},
        {"k": "c", "note": None},
    ]


def test_a_table_that_somebody_else_filled_is_taken_over(make: Callable[..., MergedTable]) -> None:
    """Without it a table cannot be moved to the router without writing it anew."""
    table = make()
    write_deltalake(table.lake.address(TABLE), pa.table({"k": ["a", "b"], "v": [0, 0]}))
    table.take(record("a", 9, 9))

    assert table.rows() == [{"k": "a", "v": 9, "_offset": 9}, {"k": "b", "v": 0, "_offset": None}]


def test_a_value_that_must_be_there_is_missed(make: Callable[..., MergedTable]) -> None:
    """Without it one incomplete record stops the batch."""
    table = make()
    fields = [Field("k", "string", nullable=False), Field("v", "long", nullable=False)]
    DeltaTable.create(table.lake.address(TABLE), schema=Schema(fields))
    merged = table.take(record("a", 0, 0), record("b", 1, None), record("a", 2, deletes=True))

    assert [(row["_offset"], row["reason"]) for row in merged.refused.to_pylist()] == [
        (1, "column v is NOT NULL in the table")
    ]
    assert (merged.applied, table.rows("k")) == (2, [])


def test_what_only_spark_can_write_is_left_to_it(table: MergedTable) -> None:
    """Without it a table with a CHECK is written without it, or a wider type is cut."""
    table.columns = {"k": pa.string(), "n": pa.int32()}
    table.take(Record(("a",), 5, values=(("n", 1),)))
    table.columns = {"k": pa.string(), "n": pa.int64()}
    with pytest.raises(NeedsSpark, match="wider types"):
        table.take(Record(("a",), 6, values=(("n", 2**40),)))
    table.handle.alter.add_constraint({"small": "v < 100"})
    with pytest.raises(NeedsSpark, match="checkConstraints"):
        table.take(record("a", 9, 9), batch=9)


def test_a_new_table_is_made_as_it_was_asked_for(make: Callable[..., MergedTable]) -> None:
    """Without it a table has to be made by hand before its first record comes."""
    new = NewTable(partition_by=("v",), properties={"delta.logRetentionDuration": "interval 7 days"})
    table = make(keyed=replace(KEYED, new_table=new))
    table.take(record("a", 0, 0), record("b", 1, None))
    table.take(record("a", 2, 5))

    assert table.handle.metadata().partition_columns == ["v"]
    assert new.properties.items() <= table.handle.metadata().configuration.items()
    assert table.rows() == [{"k": "a", "v": 5, "_offset": 2}, {"k": "b", "v": None, "_offset": 1}]


def test_a_table_and_its_columns_say_what_they_are(make: Callable[..., MergedTable]) -> None:
    """Without it whoever finds the table has to ask whoever wrote the configuration."""
    keyed = replace(KEYED, new_table=NewTable(comment="the last of each", comments={"k": "who", "bonus": "in euros"}))
    table = make(keyed=keyed)
    table.take(record("a", 0, 0))
    table.columns = GROWN
    table.take(WITH_BONUS)

    comments = {field.name: field.metadata.get("comment") for field in table.handle.schema().fields}
    assert table.handle.metadata().description == "the last of each"
    assert (comments["k"], comments["bonus"], comments["v"]) == ("who", "in euros", None)


def test_a_property_that_only_spark_knows_is_left_to_it(make: Callable[..., MergedTable]) -> None:
    """Without it a table is made without what was asked for, or never."""
    table = make(keyed=replace(KEYED, new_table=NewTable(properties={"delta.enableTypeWidening": "true"})))
    with pytest.raises(NeedsSpark, match="enableTypeWidening"):
        table.take(record("a", 0, 0))


def test_a_first_batch_that_is_cut_off_leaves_a_table(
    make: Callable[..., MergedTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a crash in a table's first batch leaves files that keep the table from ever being made."""
    table = make()

    def killed(*_: Any, **__: Any) -> None:
        Path(table.lake.address(TABLE), "part-0.parquet").write_bytes(b"PAR1")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("router.delta.keyed.upsert.write_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            table.take(record("a", 0, 0), batch=0)
    table.take(record("a", 0, 0), batch=0)

    assert table.rows() == [{"k": "a", "v": 0, "_offset": 0}]


def test_files_without_a_key_of_the_batch_are_left_alone(make: Callable[..., MergedTable]) -> None:
    """Without it a change of one gamer rewrites all gamers."""
    table = make(columns={"k": pa.int64(), "v": pa.int64()})
    for start in range(0, 400, 100):
        table.take(*[record(start + n, start + n, 0) for n in range(100)])
    before = set(table.handle.file_uris())
    table.take(record(150, 1000, 1), record(160, 1001, deletes=True), record(100_000, 1002, 2))

    assert len(before - set(table.handle.file_uris())) == 1
    assert table.handle.history(1)[0]["operationMetrics"]["num_target_files_scanned"] == 1
    assert len(table.rows()) == 400


def test_a_writer_that_is_faster_is_waited_for(table: MergedTable) -> None:
    """Without it compacting a table stops the stream that fills it."""
    calls: list[int] = []

    def others() -> None:
        calls.append(1)
        if len(calls) < 3:
            table.handle.update(updates={"v": "v + 100"}, predicate="k = 'b'")

    busy = MergedTable(Busy(table.lake.root, table=TABLE, others=others), batches=5)
    busy.take(record("a", 9, 9), record("x", 10, 10))

    assert len(calls) == 3
    assert [(row["k"], row["v"]) for row in table.rows()] == [("a", 9), ("b", 202), ("x", 10)]


def test_two_that_bring_the_same_new_key_make_one_row(table: MergedTable) -> None:
    """Without it a key that two routers see for the first time has two rows for ever."""
    calls: list[int] = []

    def others() -> None:
        calls.append(1)
        if len(calls) == 1:
            rows = lane([record("new", 7, 7)], KEYED, COLUMNS)
            upsert_rows(table.lake, TableUpsert(TABLE, "another/route/upsert", 0, KEYED, {}), rows)

    busy = MergedTable(Busy(table.lake.root, table=TABLE, others=others), batches=5)
    busy.take(record("new", 9, 9))

    assert len(calls) == 2
    assert table.rows() == [*LATEST, {"k": "new", "v": 9, "_offset": 9}]


def test_a_table_that_others_never_leave_alone_is_named(table: MergedTable) -> None:
    """Without it the log says that something conflicts, and not which of 200 tables."""

    def others() -> None:
        table.handle.alter.set_table_properties({"delta.logRetentionDuration": "interval 8 days"})

    with pytest.raises(TableError) as caught:
        MergedTable(Busy(table.lake.root, table=TABLE, others=others), batches=5).take(record("a", 9, 9), tries=2)

    assert caught.value.table == TABLE
    assert table.rows() == LATEST


def test_a_folder_that_is_no_table_is_named(make: Callable[..., MergedTable]) -> None:
    """Without it a table is made among somebody's files, and a VACUUM takes them."""
    table = make()
    folder = Path(table.lake.address(TABLE))
    folder.mkdir(parents=True)
    Path(folder, "notes.csv").write_text("mine")

    with pytest.raises(TableError) as caught:
        table.take(record("a", 0, 0))

    assert caught.value.table == TABLE
    assert str(folder) in caught.value.what


def test_a_dropped_table_is_waited_for(table: MergedTable) -> None:
    """Without it a table has some of its keys, and nobody can tell it from a whole one."""
    shutil.rmtree(table.lake.address(TABLE))
    table.batches = 2
    with pytest.raises(TableError, match="was dropped"):
        table.take(record("c", 9, 9))
    table.keyed = replace(KEYED, dropped="remake")
    table.take(record("c", 9, 9))

    assert table.rows("k") == [{"k": "c"}]


@pytest.mark.parametrize(
    "changed", [pa.table({"v": [0]}), pa.table({"k": [[1]], "v": [0]})], ids=["no such column", "another type"]
)
def test_a_table_without_its_key_is_waited_for(table: MergedTable, changed: pa.Table) -> None:
    """Without it what somebody does to a table by hand makes dead letters of all that comes, or keys that are null."""
    before = table.handle.version()
    write_deltalake(table.lake.address(TABLE), changed, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TableError, match="give it back"):
        table.take(record("c", 9, 9), batch=9)
    table.handle.restore(before)
    table.take(record("c", 9, 9), batch=9)

    assert table.rows("k") == [{"k": "a"}, {"k": "b"}, {"k": "c"}]


def test_a_batch_beyond_the_memory_of_a_merge_is_left_to_spark(make: Callable[..., MergedTable]) -> None:
    """Without it a limit that keeps a worker alive keeps the rows from their table."""
    table = make(keyed=replace(KEYED, memory=1 << 16), columns={"k": pa.string(), "v": pa.string()})
    many = [Record((f"k{n}",), n, values=(("v", "x" * 100),)) for n in range(5000)]
    table.take(*many)
    with pytest.raises(NeedsSpark, match="memory"):
        table.take(*[replace(one, offset=one.offset + 5000) for one in many])

    assert len(table.rows()) == 5000


def test_keys_with_signs_bound_the_files_that_are_read(make: Callable[..., MergedTable]) -> None:
    """Without it every merge by UUIDs, the most usual keys, reads every file."""
    table = make()
    for first in (0, 100):
        table.take(*[record(f"5f0c-{first + n:04}/a", first + n, 0) for n in range(100)])
    before = set(table.handle.file_uris())
    found = merge_condition(pa.table({"k": ["5f0c-0001/a", "5f0c-0003/a"], OP: [UPDATE, UPDATE]}), KEYED, _quote_name)
    table.take(record("5f0c-0001/a", 500, 1))

    assert found.endswith("""t."k" >= '5f0c-0001/a' AND t."k" <= '5f0c-0003/a'""")
    assert len(before - set(table.handle.file_uris())) == 1


def test_a_table_of_others_keeps_its_types(make: Callable[..., MergedTable]) -> None:
    """Without it one large number changes somebody's table for good, or stops all rows of the table."""
    table = make(columns={"k": pa.string(), "n": pa.int64(), "many": pa.list_(pa.int64())})
    schema = pa.schema([("k", pa.string()), ("n", pa.int32()), ("many", pa.list_(pa.int32()))])
    DeltaTable.create(table.lake.address(TABLE), schema=Schema.from_arrow(schema))
    merged = table.take(
        Record(("a",), 1, values=(("n", 7), ("many", [1, 2]))),
        Record(("b",), 2, values=(("n", 2**40),)),
        Record(("c",), 3, values=(("many", [1, 2**40]),)),
        Record(("d",), 4, values=(("n", 8),)),
        Record(("a",), 5, values=(("n", 2**40),), deletes=True),
    )

    assert {row["_offset"]: row["reason"].partition(" in the event")[0] for row in merged.refused.to_pylist()} == {
        2: "column n is int64",
        3: "column many is list<item: int64>",
    }
    assert all("see `widening`" in row["reason"] for row in merged.refused.to_pylist())
    assert (merged.applied, table.rows("k", "n", "many")) == (3, [{"k": "d", "n": 8, "many": None}])
    assert pa.schema(table.handle.schema().to_arrow()).field("n").type == pa.int32()

    table.keyed = replace(KEYED, widening="feature")
    with pytest.raises(NeedsSpark, match="wider types"):
        table.take(Record(("b",), 6, values=(("n", 2**40),)))


def cut_the_log(folder: Path) -> Path:
    newest = max((folder / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    return newest


def empty_the_log(folder: Path) -> Path:
    newest = max((folder / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    return newest


def cut_a_file(folder: Path) -> Path:
    file = Path(DeltaTable(folder).file_uris()[0])
    file.write_bytes(file.read_bytes()[:50])
    return file


def lose_a_file(folder: Path) -> Path:
    file = Path(DeltaTable(folder).file_uris()[0])
    file.unlink()
    return file


@pytest.mark.parametrize("harm", [cut_the_log, empty_the_log, cut_a_file, lose_a_file])
def test_a_merge_that_cannot_read_its_table_names_the_file(table: MergedTable, harm: Callable[[Path], Path]) -> None:
    """Without it rows wait for a table, and nobody can say what has to be mended."""
    staging = Staging(table.lake, 1 << 20, 1 << 20)
    job = MergeJob(staging, KEYED, "query/route/upsert", 9, "route", "upsert", "ops.dead", {}, frozenset({TABLE}))
    folder = Path(table.lake.address(TABLE))
    file = harm(folder)
    _, report, _ = merge_table(job, TABLE, lane([record("a", 8, 8)], KEYED, COLUMNS))
    assert file.name in report["failed"]
    assert "\n" not in report["failed"]
