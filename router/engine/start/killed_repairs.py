"""What a repair that was killed leaves in the lake: the table that it was rebuilding, below the staging folder.

The name of the folder contains the query and the table, and the repair locks that table's file in the checkpoint.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from pyarrow import fs

from router.engine.start.run_lock import hold_file_lock
from router.errors import RunningError
from router.own_names import STAGING

if TYPE_CHECKING:
    from router.delta.lake import Lake

log = logging.getLogger("router")


def staged_as(query: str, table: str) -> str:
    """Return the name under which a query rebuilds a table, so that a killed repair's table has a known owner."""
    return f"{STAGING}.{query}.repairs.{table}"


def lock_of(table: str) -> str:
    """Return the file in a checkpoint that the repair of a table locks."""
    return f"repairs/{table}.lock"


def clear_killed_repairs(lake: Lake, checkpoint: Lake, query: str) -> None:
    """Delete the tables that killed repairs of a query have left in the lake, but not those of a running repair."""
    root = staged_as(query, "").replace(".", "/").rstrip("/")
    for layer in _list_folders(lake, root):
        for folder in _list_folders(lake, layer):
            table = folder.removeprefix(f"{root}/").replace("/", ".")
            # A repair that runs holds the lock, which raises RunningError here.
            with suppress(RunningError), hold_file_lock(checkpoint, lock_of(table), f"{table} is repaired"):
                lake.files.delete_dir(folder)
                log.info("%s: deleted the staged table of a killed repair of %s", query, table)


def _list_folders(lake: Lake, root: str) -> list[str]:
    entries = lake.files.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return [entry.path for entry in entries if entry.type is fs.FileType.Directory]
