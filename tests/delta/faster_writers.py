"""A lake where somebody else is faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.delta.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable


@dataclass(frozen=True)
class Busy(Lake):
    """That lake: what `others` does happens right after a table was opened."""

    table: str = ""
    others: Callable[[], None] = lambda: None

    def open(self, table: str) -> DeltaTable | None:
        found = super().open(table)
        if table == self.table:
            self.others()
        return found
