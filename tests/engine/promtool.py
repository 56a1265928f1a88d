"""Prometheus's own checker, if this machine has it: `apt-get install prometheus`."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

THERE = shutil.which("promtool") is not None
NEEDS_PROMTOOL = pytest.mark.skipif(
    not THERE and not os.environ.get("CI"), reason="promtool is not installed here (Debian: prometheus)"
)
"""Leaves a test out where nobody installed promtool, and says so at the end; a check before a merge has to have it."""


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """Run promtool; return what it prints. Fails if promtool finds something."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
