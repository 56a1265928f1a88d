"""The demo says what tables gained when they gained it, and counts what it reads back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from router_demo.landed import Growth, letters, schema_ids, tables
from router_schemas.wire_format import pack_value
from tests.lake_rows import append_rows

if TYPE_CHECKING:
    from pathlib import Path


def test_a_column_is_gained_once_and_not_where_a_table_begins_with_it(tmp_path: Path) -> None:
    growth = Growth(tmp_path, ["silver.uno", "silver.poker"])
    assert growth.look() == {}

    append_rows(tmp_path, "silver.uno", [{"game": "uno"}])
    assert growth.look() == {}
    append_rows(tmp_path, "silver.uno", [{"game": "uno", "bet": 1}])
    append_rows(tmp_path, "silver.poker", [{"game": "poker", "bet": 1}])
    assert growth.look() == {"bet": ["silver.uno"]}
    assert growth.look() == {}
    assert growth.gained.keys() == {"bet"}


def test_records_are_counted_by_schema_without_dead_letters(tmp_path: Path) -> None:
    values = [pack_value(1, (0,), b"a"), pack_value(2, (0,), b"a"), pack_value(2, (0,), b"b"), None, b""]
    records = [{"partition": 1, "offset": offset, "value": value} for offset, value in enumerate(values)]
    append_rows(tmp_path, "bronze.game_events", records)
    dead = [{"partition": 1, "offset": offset, "stage": "decode", "reason": "no"} for offset in (2, 3, 4)]
    append_rows(tmp_path, "ops.dead_letters", dead)

    found = tables(tmp_path)

    assert schema_ids(found["bronze.game_events"], found["ops.dead_letters"]) == Counter({1: 1, 2: 1})
    assert letters(found["ops.dead_letters"]) == Counter({("decode", "no"): 3})
