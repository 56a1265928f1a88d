"""The tables that a sink has merged into: one of them that is gone was dropped, and is not simply new."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.delta.lake import Lake


@dataclass
class KnownTables:
    """Remember them, beside the checkpoint, for one sink."""

    place: Lake
    key: str
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.names = frozenset(json.loads(self.place.read(self._path) or b"[]"))

    def note(self, tables: Iterable[str]) -> None:
        """Note tables that were merged into."""
        if new := frozenset(tables) - self.names:
            self.names |= new
            self.place.write(self._path, json.dumps(sorted(self.names)).encode())

    @property
    def _path(self) -> str:
        return f"known/{self.key.replace('/', '__')}.json"
