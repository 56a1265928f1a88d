"""Rows of tables: as a reader finds them who opens the lake anew, and as another writer adds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

if TYPE_CHECKING:
    from pathlib import Path

    from router.delta.lake import Lake


def read_rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Read the rows of a table in the order of its files; an absent table has none."""
    handle = lake.open(table)
    return handle.to_pyarrow_table().to_pylist() if handle else []


def append_rows(lake: Path, table: str, rows: list[dict[str, Any]]) -> None:
    """Append rows to a table of a lake in a folder; columns that it lacks are added."""
    folder = lake.joinpath(*table.split("."))
    write_deltalake(str(folder), pa.Table.from_pylist(rows), mode="append", schema_mode="merge")
