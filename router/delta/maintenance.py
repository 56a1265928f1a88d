"""Keep a table in shape: few large files, a short way into its log, nothing left behind that nobody needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from router.delta.commit import retry_on_conflict
from router.delta.constraints import unmergeable
from router.delta.row_versions import DELETIONS, deletions_table
from router.errors import TableError

if TYPE_CHECKING:
    from router.delta.lake import Lake

SAFE = timedelta(days=7)
"""Younger files may be needed: by readers of older versions, by a batch that was cut off or is landing now."""
TRIES = 5
WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class MaintenanceOptions:
    """How a table is kept: files of about `file_bytes`, sorted by `zorder`, with `statistics`; what no version refers
    to is deleted after `retention`."""

    file_bytes: int = 128 << 20
    zorder: tuple[str, ...] = ()
    retention: timedelta = SAFE
    statistics: bool = True

    @property
    def hours(self) -> int:
        """Return the retention in hours, rounded up."""
        return -int(-self.retention.total_seconds() // 3600)


@dataclass(frozen=True)
class MaintenanceResult:
    """What was done to a table, or would be: `files` that became `into` others, and what was deleted.

    Files `without_statistics` get them from Delta on Spark.
    """

    table: str
    files: int
    into: int
    deleted: int
    freed: int
    by_spark: str = ""
    without_statistics: int = 0


def maintain(lake: Lake, table: str, options: MaintenanceOptions, *, dry: bool = False) -> MaintenanceResult:
    """Compact, index and clean one table; `dry` only says what would be done. Another writer is waited for.

    What Delta on Spark alone may write is left to it: `by_spark` then says why. Raises TableError.
    """
    handle = lake.open(table)
    if handle is None:
        raise TableError(table, "there is no such table")
    if not dry and not table.endswith(DELETIONS) and deletions_table(lake, table):  # plain, whatever the table is
        maintain(lake, f"{table}.{DELETIONS}", replace(options, zorder=()))
    if features := unmergeable(handle):
        return MaintenanceResult(
            table, 0, 0, 0, 0, ", ".join(sorted(features)), _count_without_statistics(handle, options)
        )
    try:
        files, into = small_files(handle, options) if dry else _compacted(handle, options)
        old = handle.vacuum(options.hours, dry_run=True, enforce_retention_duration=False, full=True)
        freed = size_of(lake, table, old)
        if not dry:
            handle.vacuum(options.hours, dry_run=False, enforce_retention_duration=False, full=True)
            handle.create_checkpoint()
            handle.cleanup_metadata()
    except (DeltaError, OSError) as error:
        raise TableError(table, f"it could not be maintained: {error}") from error
    return MaintenanceResult(
        table, files, into, len(old), freed, without_statistics=_count_without_statistics(handle, options)
    )


def delete_older(lake: Lake, table: str, before: datetime, version: int, more: str = "true") -> int:
    """Delete an outbox's rows of a version whose record is from before a time; return how many.

    Rows that were added later stay, whatever their time. Where a row that just came would have to go, nothing is done.
    `more` is SQL that holds for the rows that may go.
    """
    handle = DeltaTable(lake.address(table), version=version, storage_options=lake.delta_options)
    moment = before.astimezone(timezone.utc).isoformat(timespec="microseconds")
    old = f"_timestamp < arrow_cast('{moment}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    try:
        found = handle.delete(f"{old} AND {more}")
        handle.vacuum(MaintenanceOptions().hours, dry_run=False, enforce_retention_duration=False, full=True)
    except CommitFailedError:
        return 0
    except (DeltaError, OSError) as error:
        raise TableError(table, f"its old rows could not be deleted: {error}") from error
    return int(found["num_deleted_rows"] or 0)


def small_files(handle: DeltaTable, options: MaintenanceOptions) -> tuple[int, int]:
    """Return how many files are worth joining, and into about how many."""
    actions: Any = pa.table(handle.get_add_actions())
    few = [size for size in actions.column("size_bytes").to_pylist() if size < options.file_bytes]
    into = -(-sum(few) // options.file_bytes)
    return (len(few), into) if len(few) > into else (0, 0)


def _count_without_statistics(handle: DeltaTable, options: MaintenanceOptions) -> int:
    actions: Any = pa.table(handle.get_add_actions())
    return int(actions.column("num_records").null_count) if options.statistics else 0


def _compacted(handle: DeltaTable, options: MaintenanceOptions) -> tuple[int, int]:
    def work() -> dict[str, Any]:
        if options.zorder:
            return handle.optimize.z_order(options.zorder, target_size=options.file_bytes)
        return handle.optimize.compact(target_size=options.file_bytes)

    found = retry_on_conflict(work, CommitFailedError, TRIES, WAIT_SECONDS, before=handle.update_incremental)
    return int(found["numFilesRemoved"]), int(found["numFilesAdded"])


def size_of(lake: Lake, table: str, files: list[str]) -> int:
    """Return the bytes of files in a table's folder."""
    folder = table.replace(".", "/")
    found = lake.files.get_file_info([f"{folder}/{file}" for file in files])
    return sum(info.size or 0 for info in found)
