"""Keep what a resolver has learnt in a local folder, as the router keeps it beside a checkpoint."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class FolderMemory:
    """A memory in a local folder, which is made when something is written."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None when there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file so that a crash leaves the old one or the new one."""
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self.path / f".{name}.{os.getpid()}.{threading.get_ident()}"
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path / name)
