"""Keep tables open from one batch to the next: opening one reads its log from the last checkpoint on."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable

    from router.delta.lake import Lake


THREADS = 8
FILES = 200_000
"""Files that kept tables may refer to together; a handle takes 0.7 KB of memory for each."""


@dataclass(frozen=True)
class Kept:
    """Be a table as it was last seen; `written` is when the commit of its version was written, in ns."""

    table: DeltaTable
    written: int | None
    files: int


@dataclass
class Handles:
    """Open tables of a lake, and keep those used last."""

    lake: Lake
    kept: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def open(self, tables: Iterable[str]) -> dict[str, DeltaTable | None]:
        """Return tables at their newest version; None where there is none."""
        names = sorted(tables)
        with ThreadPoolExecutor(THREADS) as pool:
            found = dict(zip(names, pool.map(self._table, names), strict=True))
        files = sum(kept.files for kept in self.kept.values())
        while files > FILES:
            files -= self.kept.popitem(last=False)[1].files
        return found

    def _table(self, name: str) -> DeltaTable | None:
        with self.lock:
            kept = self.kept.pop(name, None)
        found = (kept and self._renewed(name, kept)) or self._opened(name)
        if found is None:
            return None
        with self.lock:
            self.kept[name] = found
        return found.table

    def _renewed(self, name: str, kept: Kept) -> Kept | None:
        """Return a kept table at its newest version; None where the table of that name is another one by now."""
        if kept.written is None or kept.written != self._written(name, kept.table):
            return None
        before = kept.table.version()
        try:
            kept.table.update_incremental()
        except (DeltaError, OSError):
            return None  # opening it anew says what is wrong, if it still is
        return Kept(kept.table, self._written(name, kept.table), kept.files + kept.table.version() - before)

    def _opened(self, name: str) -> Kept | None:
        table = self.lake.open(name)
        if table is None:
            return None
        return Kept(table, self._written(name, table), table.get_add_actions().num_rows)

    def _written(self, name: str, table: DeltaTable) -> int | None:
        """Return when the commit of a handle's version was written: it tells a table from one made in its place."""
        path = f"{name.replace('.', '/')}/_delta_log/{table.version():020}.json"
        written: int | None = self.lake.files.get_file_info(path).mtime_ns
        return written
