"""How deep columns may be nested: what delta-rs refuses is found before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from router.delta.nesting import depth_fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def struct(kind: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("short", pa.int32()), pa.field("inner", kind)])


def array(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def map_of(kind: pa.DataType) -> pa.DataType:
    return pa.map_(pa.string(), kind)


def column(wraps: list[Callable[[pa.DataType], pa.DataType]]) -> pa.Field:
    kind = pa.int32()
    for wrap in wraps:
        kind = wrap(kind)
    return pa.field("deep", kind)


DEEPEST = {
    "structs": [struct] * 41,
    "arrays": [array] * 124,
    "maps": [map_of] * 124,
    "arrays of structs": [struct, array] * 30 + [struct, struct],
    "structs of arrays": [array, struct] * 31,
    "structs of maps": [map_of, map_of, map_of, struct] * 20 + [map_of] * 4,
}


@pytest.mark.parametrize("name", [*DEEPEST])
def test_the_deepest_column_is_the_one_that_delta_rs_takes(tmp_path: Path, name: str) -> None:
    """Without it a column is refused that lands, or one is taken that stops the stream for good."""
    outcomes = []
    for extra in range(-2, 4):
        wraps = DEEPEST[name][:extra] if extra < 0 else [array] * extra + DEEPEST[name]
        deep = column(wraps)
        place = str(tmp_path / str(extra))
        try:
            DeltaTable.create(place, Schema.from_arrow(pa.schema([deep])))
            DeltaTable(place).schema()
            takes = True
        except DeltaError:
            takes = False
        assert (depth_fault(deep) is None) == takes, extra
        outcomes.append(takes)
    assert set(outcomes) == {True, False}


def test_a_column_that_is_widened_needs_room_for_what_the_table_notes(tmp_path: Path) -> None:
    """Without it widening the innermost field makes a table that nobody can open again."""
    for structs, fits in ((40, True), (41, False)):
        deep = column([struct] * structs)
        assert depth_fault(deep) is None
        assert (depth_fault(deep, widened=True) is None) == fits
