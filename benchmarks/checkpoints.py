"""Read Spark's own checkpoint: the clock of a command line that reports nothing, and the count of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def batches_done(folder: Path) -> int:
    """Return how many batches the checkpoint below a folder has finished; old entries may be gone, numbers stay."""
    return max((int(commit.name) + 1 for commit in _commits(folder)), default=0)


def processing_seconds(folder: Path) -> float | None:
    """Return the time from the start of the query to the end of its last batch; None when no batch was finished."""
    commits = _commits(folder)
    if not commits:
        return None
    started = (commits[0].parent.parent / "metadata").stat().st_mtime  # the first file that a query writes
    return max(commit.stat().st_mtime for commit in commits) - started


def _commits(folder: Path) -> list[Path]:
    return [commit for commit in folder.glob("**/commits/*") if commit.name.isdigit()]
