"""Keep what a decoder has learnt: in a folder beside the checkpoint, or while a check runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.delta.lake import Lake


@dataclass(frozen=True)
class Kept:
    """Be a folder of a checkpoint."""

    place: Lake
    folder: str

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name, or None."""
        return self.place.read(f"{self.folder}/{name}")

    def write(self, name: str, content: bytes) -> None:
        """Write whole or not at all; replaces what was there."""
        self.place.write(f"{self.folder}/{name}", content)


@dataclass(frozen=True)
class Forgotten:
    """Be the memory of a check, which leaves nothing behind."""

    known: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name, or None."""
        return self.known.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Keep until the process ends."""
        self.known[name] = content
