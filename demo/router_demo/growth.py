"""Watch the columns of the games' tables while they are written, as any reader of them could."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deltalake import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Grown = dict[str, list[str]]
"""Column -> the tables that gained it."""


class Growth:
    """Remember when tables gained columns; times are those of the monotonic clock.

    `gained`: column -> table -> when it was seen there, and not before. The columns that a table begins with are not
    gained.
    """

    def __init__(self, lake: Path, tables: Iterable[str]) -> None:
        self._folders = {table: lake.joinpath(*table.split(".")) for table in tables}
        self._handles: dict[str, DeltaTable] = {}
        self._known: dict[str, set[str]] = {}
        self.gained: dict[str, dict[str, float]] = {}

    def look(self) -> Grown:
        """Return what tables gained since the last look."""
        grown: Grown = {}
        for table in self._folders:
            for column in self._new(table):
                grown.setdefault(column, []).append(table)
        now = time.monotonic()
        for column, tables in grown.items():
            self.gained.setdefault(column, {}).update(dict.fromkeys(tables, now))
        return grown

    def _new(self, table: str) -> list[str]:
        if table not in self._handles:
            if not DeltaTable.is_deltatable(str(self._folders[table])):
                return []
            handle = self._handles[table] = DeltaTable(str(self._folders[table]), version=0)
            self._known[table] = {field.name for field in handle.schema().fields}
        handle = self._handles[table]
        handle.update_incremental()
        new = [field.name for field in handle.schema().fields if field.name not in self._known[table]]
        self._known[table].update(new)
        return new
