"""Rows of tables, as a reader finds them who opens the lake anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router.delta.lake import Lake


def read_rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Read the rows of a table in the order of its files; an absent table has none."""
    handle = lake.open(table)
    return handle.to_pyarrow_table().to_pylist() if handle else []
