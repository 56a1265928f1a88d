"""Tables that may not change: what events bring beyond them is left out and counted, or stops the stream."""

from __future__ import annotations

import logging
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import BatchError
from router.config.models import Route
from router.delta.casting import cast_down, type_within
from router.delta.schema_diff import common_type
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables
from tests.engine.query import Query, records
from tests.engine.wider_events import EACH, HUGE, NARROW, OLD, WAYS, WIDE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.engine.conftest import MakeQuery


def query(make_query: MakeQuery, folder: Path, way: str, **sink: Any) -> Query:
    """Return a query on a table of the narrow schema, about to read records of the wide one."""
    sinks = (Tables(table="silver.{event.game}", **sink), Delta(table="gold.all"))
    route = Route(name="all", match=Sql(where="true"), sinks=sinks)
    query = make_query(folder, decode=Json(schema=NARROW), routes=(route,), **WAYS[way])
    query.take(records([OLD]))
    return query.restarted(decode=Json(schema=WIDE))


@pytest.fixture(scope="module")
def frozen(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Query]:
    """Bring new fields of all kinds to a frozen table, and to one that grows; once per way."""

    @cache
    def frozen(way: str) -> Query:
        found = query(make_query, tmp_path_factory.mktemp("frozen"), way, evolution="freeze")
        found.take(records([
            {"game": "old", "id": 2, "bonus": 0.5},
            {"game": "old", "id": 3, "inner": {"x": 3, "z": "new"}},
            {"game": "old", "id": 4, "rounds": [{"n": 4}, None, {"n": 5, "card": "new"}]},
            {"game": "old", "id": 6, "inner": {"x": 6}, "rounds": []},
            {"game": "fresh", "id": 7, "bonus": 1.5, "inner": {"x": 7, "z": "new"}},
            {"game": "old", "id": HUGE, "bonus": 8.5},
        ], first=100))  # fmt: skip
        found.take(records([{"game": "old", "bonus": 2.5}, {"game": "fresh", "id": HUGE}], first=200))
        return found

    return frozen


@pytest.mark.parametrize("way", EACH)
def test_rows_land_in_the_shape_that_the_table_has(frozen: Callable[[str], Query], way: str) -> None:
    """Without it a table that others read grows columns that nobody agreed to, or loses rows."""
    rows = {row["id"]: row for row in frozen(way).rows("silver.old")}

    assert set(rows) == {1, 2, 3, 4, 6, None}
    assert set(rows[1]) == {"game", "id", "inner", "rounds"}
    assert rows[3]["inner"] == {"x": 3}
    assert rows[4]["rounds"] == [{"n": 4}, None, {"n": 5}]
    assert rows[6] == {"game": "old", "id": 6, "inner": {"x": 6}, "rounds": []}


@pytest.mark.parametrize("way", EACH)
def test_what_a_frozen_table_costs_is_told(frozen: Callable[[str], Query], way: str) -> None:
    """Without it nobody sees that producers have moved on, or a number is cut to fit."""
    assert [report.routes["all"]["frozen"] for report in frozen(way).reports] == [0, 3, 1]
    assert frozen(way).letters("stage", "sink", "reason") == {
        (
            "schema",
            "tables",
            "table silver.old: column id is int64 in the event, and this value does not fit the table's int32",
        ): 1
    }


@pytest.mark.parametrize("way", EACH)
def test_a_new_table_and_other_sinks_grow(frozen: Callable[[str], Query], way: str) -> None:
    """Without it freezing one sink freezes all."""
    assert {row["bonus"] for row in frozen(way).rows("silver.fresh")} == {1.5, None}
    assert HUGE in {row["id"] for row in frozen(way).rows("gold.all")}
    assert {row["bonus"] for row in frozen(way).rows("gold.all")} == {None, 0.5, 1.5, 2.5, 8.5}


@pytest.mark.parametrize("way", EACH)
def test_a_change_that_is_to_fail_commits_nothing(make_query: MakeQuery, tmp_path: Path, way: str) -> None:
    """Without it half of a batch is in the lake when somebody is called."""
    found = query(make_query, tmp_path, way, evolution="fail")
    before = found.versions()

    with pytest.raises(BatchError) as caught:
        found.take(records([{"game": "old", "id": 2, "bonus": 0.5}], first=100))

    assert "silver.old" in str(caught.value)
    assert "bonus" in str(caught.value)
    assert found.versions() == before


def test_what_is_left_out_is_said_once(make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without it a frozen table loses fields in silence, or fills the log."""
    found = query(make_query, tmp_path, "auto", evolution="freeze")
    with caplog.at_level(logging.WARNING):
        for first in (100, 200):
            found.take(records([{"game": "old", "id": 2, "bonus": 0.5}], first=first))

    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["games: all/tables/silver.old cannot store all of bonus, id; rows land without it"]


KINDS = pa.schema([
    ("whole", pa.int32()), ("half", pa.float32()),
    ("small", pa.int16()), ("number", pa.int32()), ("ratio", pa.float32()), ("cost", pa.decimal128(6, 2)),
    ("inner", pa.struct([("x", pa.int32())])),
    ("list", pa.list_(pa.field("element", pa.struct([("x", pa.int32())])))),
    ("map", pa.map_(pa.string(), pa.struct([("x", pa.int32())]))),
])  # fmt: skip
WIDER = pa.schema([
    ("whole", pa.float64()), ("half", pa.int32()),
    ("small", pa.int64()), ("number", pa.int64()), ("ratio", pa.float64()), ("cost", pa.decimal128(12, 4)),
    ("inner", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ("list", pa.list_(pa.field("element", pa.struct([("x", pa.int32()), ("y", pa.string())])))),
    ("map", pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("y", pa.int32())]))),
])  # fmt: skip
VALUES: list[tuple[str, Any, str]] = [
    ("whole", 5.0, ""), ("whole", 0.5, "unfit"), ("whole", float("nan"), "unfit"), ("whole", 2.0**31, "unfit"),
    ("whole", float("inf"), "unfit"), ("half", 2**24, ""), ("half", 2**24 + 1, "unfit"), ("half", 2**31 - 1, "unfit"),
    ("small", 2**15, "unfit"), ("small", 2**15 - 1, ""), ("number", -(2**31) - 1, "unfit"), ("number", 7, ""),
    ("ratio", 0.5, ""), ("ratio", 0.1, "unfit"), ("ratio", 1e300, "unfit"), ("ratio", float("nan"), ""),
    ("ratio", float("-inf"), ""), ("cost", Decimal("9999.9900"), ""), ("cost", Decimal("0.0001"), "unfit"),
    ("cost", Decimal("10000.0000"), "unfit"),
    ("inner", {"x": 1, "y": None}, ""), ("inner", {"x": 2**40, "y": None}, "unfit"),
    ("inner", {"x": None, "y": ""}, "lost"), ("inner", {"x": 2**40, "y": "both"}, "unfit lost"),
    ("list", [], ""), ("list", [None, {"x": 2, "y": None}], ""), ("list", [None, {"x": 1, "y": "a"}], "lost"),
    ("map", [("k", {"x": 1, "y": None}), ("n", None)], ""), ("map", [("k", {"x": 1, "y": 0})], "lost"),
    ("map", [("k", {"x": 1, "y": None}), ("l", {"x": 2**31, "y": None})], "unfit"),
]  # fmt: skip


def wide_rows() -> pa.Table:
    rows = [{"row": -1}, *({"row": i, column: value} for i, (column, value, _) in enumerate(VALUES)), {"row": 99}]
    return pa.Table.from_pylist(rows, pa.schema([("row", pa.int32()), *WIDER]))


def test_narrowing_says_which_rows_lose_or_do_not_fit() -> None:
    """Without it values move between rows when a field inside of a list is left out, or a number is cut."""
    batch = wide_rows().combine_chunks().to_batches()[0].slice(1, len(VALUES))
    for name in KINDS.names:
        have, come = KINDS.field(name).type, WIDER.field(name).type
        found = cast_down(batch.column(name), type_within(have, come))
        found.array.validate(full=True)
        assert common_type(have, found.array.type) == have
        for row, (column, value, verdict) in enumerate(VALUES):
            mine = verdict if column == name else ""
            assert (found.lost[row], found.too_wide[row]) == ("lost" in mine, "unfit" in mine), value
            if column == name and not verdict:
                assert found.array[row] == pa.array([value], come).cast(come)[0].cast(have) or str(value) == "nan"
            elif column != name:
                assert not found.array[row].is_valid


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [0, None, 3]),
        (pa.string(), ["", None, "a"]),
        (pa.bool_(), [False, None, True]),
        (pa.list_(pa.field("element", pa.int32())), [[], None, [0]]),
    ],
    ids=str,
)
def test_zero_brings_nothing_where_it_may_stand_for_absence(kind: pa.DataType, values: list[Any]) -> None:
    """Without it every record of an old version counts as one that a frozen table has no place for."""
    have, come = pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int32()), ("y", kind)])
    array = pa.array([{"x": 1, "y": value} for value in values], come)

    assert cast_down(array, have, blank=True).lost.tolist() == [False, False, True]
    assert cast_down(array, have).lost.tolist() == [True, False, True]
