"""Keep a table in shape: few large files, a short way into its log, nothing left behind that nobody needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from router.delta.commit import in_turn
from router.delta.row_versions import DELETIONS, deletions_table
from router.delta.upsert import refused
from router.errors import TableError

if TYPE_CHECKING:
    from router.delta.lake import Lake

SAFE = timedelta(days=7)
"""Younger files may be needed: by readers of older versions, by a batch that was cut off or is landing now."""
TRIES = 5
WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Care:
    """Say what a table is to be like: files of about `file_bytes`, sorted by `zorder`, with `statistics`; what no
    version refers to is deleted after `retention`."""

    file_bytes: int = 128 << 20
    zorder: tuple[str, ...] = ()
    retention: timedelta = SAFE
    statistics: bool = True

    @property
    def hours(self) -> int:
        """Return the retention in hours, rounded up."""
        return -int(-self.retention.total_seconds() // 3600)


@dataclass(frozen=True)
class Maintained:
    """Be what was done to a table, or would be: files that became `into` others, and what was deleted.

    `bare` files have no statistics, and get them from Delta on Spark.
    """

    table: str
    files: int
    into: int
    deleted: int
    freed: int
    by_spark: str = ""
    bare: int = 0


def maintain(lake: Lake, table: str, care: Care, *, dry: bool = False) -> Maintained:
    """Compact, index and clean one table; `dry` only says what would be done. Another writer is waited for.

    What Delta on Spark alone may write is left to it: `by_spark` then says why. Raises TableError.
    """
    handle = lake.open(table)
    if handle is None:
        raise TableError(table, "there is no such table")
    if not dry and not table.endswith(DELETIONS) and deletions_table(lake, table):  # plain, whatever the table is
        maintain(lake, f"{table}.{DELETIONS}", replace(care, zorder=()))
    if features := refused(handle):
        return Maintained(table, 0, 0, 0, 0, ", ".join(sorted(features)), _bare(handle, care))
    try:
        files, into = small(handle, care) if dry else _compacted(handle, care)
        old = handle.vacuum(care.hours, dry_run=True, enforce_retention_duration=False, full=True)
        freed = size_of(lake, table, old)
        if not dry:
            handle.vacuum(care.hours, dry_run=False, enforce_retention_duration=False, full=True)
            handle.create_checkpoint()
            handle.cleanup_metadata()
    except (DeltaError, OSError) as error:
        raise TableError(table, f"it could not be maintained: {error}") from error
    return Maintained(table, files, into, len(old), freed, bare=_bare(handle, care))


def forget(lake: Lake, table: str, before: datetime, version: int) -> int:
    """Delete the rows of a lane whose record is from before a time, of those that it had at a version; return how many.

    Rows that were added later stay, whatever their time. Where a row that just came would have to go, nothing is done.
    """
    handle = DeltaTable(lake.address(table), version=version, storage_options=lake.options or None)
    moment = before.astimezone(timezone.utc).isoformat(timespec="microseconds")
    try:
        found = handle.delete(f"_timestamp < arrow_cast('{moment}', 'Timestamp(Microsecond, Some(\"UTC\"))')")
        handle.vacuum(Care().hours, dry_run=False, enforce_retention_duration=False, full=True)
    except CommitFailedError:
        return 0
    except (DeltaError, OSError) as error:
        raise TableError(table, f"its old rows could not be deleted: {error}") from error
    return int(found["num_deleted_rows"] or 0)


def small(handle: DeltaTable, care: Care) -> tuple[int, int]:
    """Return how many files are worth joining, and into about how many."""
    actions: Any = pa.table(handle.get_add_actions())
    few = [size for size in actions.column("size_bytes").to_pylist() if size < care.file_bytes]
    into = -(-sum(few) // care.file_bytes)
    return (len(few), into) if len(few) > into else (0, 0)


def _bare(handle: DeltaTable, care: Care) -> int:
    actions: Any = pa.table(handle.get_add_actions())
    return int(actions.column("num_records").null_count) if care.statistics else 0


def _compacted(handle: DeltaTable, care: Care) -> tuple[int, int]:
    def work() -> dict[str, Any]:
        if care.zorder:
            return handle.optimize.z_order(care.zorder, target_size=care.file_bytes)
        return handle.optimize.compact(target_size=care.file_bytes)

    found = in_turn(work, CommitFailedError, TRIES, WAIT_SECONDS, before=handle.update_incremental)
    return int(found["numFilesRemoved"]), int(found["numFilesAdded"])


def size_of(lake: Lake, table: str, files: list[str]) -> int:
    """Return the bytes of files in a table's folder."""
    folder = table.replace(".", "/")
    found = lake.files.get_file_info([f"{folder}/{file}" for file in files])
    return sum(info.size or 0 for info in found)
