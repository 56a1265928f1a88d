"""What a repair that was killed leaves in the lake: the table that it was merging anew, below the staging folder.

The folder says whose repair it is and of which table, and the repair locks that table's file in the checkpoint.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from pyarrow import fs

from router.engine.start.run_lock import locked
from router.errors import RunningError

if TYPE_CHECKING:
    from router.delta.lake import Lake

log = logging.getLogger("router")


def staged_as(query: str, table: str) -> str:
    """Return the name under which a query merges a table anew; it tells whose repair has left it there."""
    return f"_staged.{query}.repairs.{table}"


def lock_of(table: str) -> str:
    """Return the file in a checkpoint that the repair of a table locks."""
    return f"repairs/{table}.lock"


def clear_killed_repairs(lake: Lake, checkpoint: Lake, query: str) -> None:
    """Delete what killed repairs of a query have left in the lake; one that is at work is left alone."""
    root = staged_as(query, "").replace(".", "/").rstrip("/")
    tables = [one for layer in _folders(lake, root) for one in _folders(lake, layer)]
    for folder in tables:
        table = folder.removeprefix(f"{root}/").replace("/", ".")
        with suppress(RunningError), locked(checkpoint, lock_of(table), f"{table} is repaired"):
            lake.files.delete_dir(folder)
            log.info("%s: deleted what a repair of %s has left, which was killed", query, table)


def _folders(lake: Lake, root: str) -> list[str]:
    found = lake.files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return [entry.path for entry in found if entry.type is fs.FileType.Directory]
