"""Rows are read with filters also from files that have no bounds of a column, as the protocol allows."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from router.delta.dataset import dataset_of
from tests.delta.changed_logs import forget_bounds

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
VALUES = [
    (pa.timestamp("us", "UTC"), NOON),
    (pa.timestamp("us"), NOON.replace(tzinfo=None)),
    (pa.date32(), date(2026, 1, 1)),
    (pa.decimal128(10, 2), Decimal("1.50")),
    (pa.string(), "uno"),
    (pa.int64(), 7),
    (pa.float64(), 1.5),
    (pa.bool_(), True),
]


@pytest.mark.parametrize(
    ("kind", "value"), VALUES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_a_file_without_bounds_of_a_column_is_read(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    """Without it delta-rs lets Arrow leave out the file, and the rows are missing without an error."""
    write_deltalake(tmp_path, pa.table({"n": [1, 2], "x": pa.array([value, None], kind)}))
    forget_bounds(tmp_path, "x")
    wanted = pc.field("x") == pa.scalar(value, kind)

    assert DeltaTable(tmp_path).to_pyarrow_dataset().count_rows(filter=wanted) == 0, "delta-rs is mended: so can we be"
    assert dataset_of(DeltaTable(tmp_path)).count_rows(filter=wanted) == 1
    assert dataset_of(DeltaTable(tmp_path)).to_table(columns=["n"]).to_pydict() == {"n": [1, 2]}


def test_such_a_file_keeps_its_values_of_partition_columns(tmp_path: Path) -> None:
    """Those are in no Parquet file: without them the columns are null."""
    rows = pa.table({"game": ["uno", "= null[", None], "day": pa.array([date(2026, 1, 1)] * 3), "n": [1, 2, 3]})
    write_deltalake(tmp_path, rows, partition_by=["game", "day"])
    forget_bounds(tmp_path, "n")
    dataset = dataset_of(DeltaTable(tmp_path))

    assert dataset.to_table().select(rows.column_names).sort_by("n").to_pydict() == rows.to_pydict()
    assert dataset.count_rows(filter=(pc.field("game") == "uno") & (pc.field("n") < 2)) == 1
    assert dataset.count_rows(filter=pc.field("game").is_null()) == 1
    assert len(list(dataset.get_fragments(filter=pc.field("game") == "uno"))) == 1, "others are not looked into"


def test_files_with_bounds_are_still_left_out(tmp_path: Path) -> None:
    """Without it each look for a range reads the whole table."""
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"n": [number]}), mode="append")
    (first, *_) = DeltaTable(tmp_path).file_uris()
    forget_bounds(tmp_path, "n", of=Path(first).name)
    dataset = dataset_of(DeltaTable(tmp_path))

    assert len(list(dataset.get_fragments(filter=pc.field("n") == 99))) == 1, "the file without bounds"
    assert dataset.count_rows() == 3


def test_columns_that_nobody_filters_may_lack_bounds(tmp_path: Path) -> None:
    """No binary column has bounds: without it each look for offsets reads all of bronze."""
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"n": [number], "value": [b"x"]}), mode="append")
    dataset = dataset_of(DeltaTable(tmp_path), "n")

    assert len(list(dataset.get_fragments(filter=pc.field("n") == 1))) == 1
    assert dataset.count_rows(filter=pc.field("n") == 1) == 1
    assert dataset_of(DeltaTable(tmp_path), "n", "value").count_rows(filter=pc.field("value") == b"x") == 3
