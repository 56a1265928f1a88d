"""Wait for what another thread, process or server does at some time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_SECONDS = 300
"""How long a condition may take to come true: far more than it ever takes, for machines that do other things too."""


def wait_until(condition: Callable[[], object], description: str, *, seconds: float = PATIENCE_SECONDS) -> None:
    """Return as soon as a condition holds; fail with its description if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {description}"
        time.sleep(0.05)
