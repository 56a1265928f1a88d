"""A thread that looks at something for the status, as long as a block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

REST_PER_READING = 20.0
"""Seconds of rest for each second of reading: whoever reads for the status takes a twentieth of a core at most."""


class BackgroundThread(ABC):
    """A thread that runs until its block ends, or the process does. Use it as a context."""

    closing_seconds = 10.0
    """How long the end of the block waits for the thread."""

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(self.closing_seconds)

    @abstractmethod
    def _run(self) -> None:
        """Look, and look again after a while, until `_ended` is set."""
