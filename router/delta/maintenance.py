"""Keep a table in shape: few large files, a short way into its log, nothing left behind that nobody needs."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from router.delta.commit import retry_on_conflict
from router.delta.constraints import unmergeable
from router.delta.file_statistics import without_bounds_of_floats
from router.delta.keyed.row_versions import DELETIONS, deletions_table
from router.delta.widening import made_here
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
    to is deleted after `retention`.

    Its log keeps the newest `log_commits`, and all younger than `log_retention` (None: `log_age`). `gradual`: files
    grow in steps, so that a row is written anew about four times, and not with every compaction. `unasked`: nobody has
    named the table, so one that others made keeps its files.
    """

    file_bytes: int = 128 << 20
    zorder: tuple[str, ...] = ()
    retention: timedelta = SAFE
    statistics: bool = True
    log_commits: int = 1000
    log_retention: timedelta | None = None
    gradual: bool = False
    unasked: bool = False

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
        maintain(lake, f"{table}.{DELETIONS}", replace(options, zorder=(), unasked=False))
    try:
        if options.unasked and not made_here(handle, table):
            shorten_log(lake, table, handle, options)
            return MaintenanceResult(table, 0, 0, 0, 0)
        if features := unmergeable(handle):
            left = _count_without_statistics(handle, options)
            return MaintenanceResult(table, 0, 0, 0, 0, ", ".join(sorted(features)), left)
        files, into = small_files(handle, options) if dry else _compacted(handle, options)
        old = handle.vacuum(options.hours, dry_run=True, enforce_retention_duration=False, full=True)
        freed = size_of(lake, table, old)
        if not dry:
            if old:
                handle.vacuum(options.hours, dry_run=False, enforce_retention_duration=False, full=True)
            handle.create_checkpoint()
            shorten_log(lake, table, handle, options)
    except (DeltaError, OSError) as error:
        raise TableError(table, f"it could not be maintained: {error}") from error
    return MaintenanceResult(
        table, files, into, len(old), freed, without_statistics=_count_without_statistics(handle, options)
    )


LOG_RETENTION = "delta.logRetentionDuration"
CLEANUP = "delta.enableExpiredLogCleanup"
LOG_FILE = re.compile(r"\.?(\d{20})\.(json|crc|json\.crc|checkpoint.*)")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
LOG_AGE, LOG_AGE_OF_OBJECTS = timedelta(hours=1), SAFE


def log_age(lake: Lake, table: str) -> timedelta:
    """Return how long a log keeps every commit: at each, a folder is listed whole, an object store from a name on."""
    return LOG_AGE if lake.on_disk(table) else LOG_AGE_OF_OBJECTS


def shorten_log(
    lake: Lake, table: str, handle: DeltaTable, options: MaintenanceOptions, before: int | None = None
) -> int:
    """Delete what a table's log no longer has to keep, and return how many files.

    The properties of a table win, and those of a table that others made. Else the newest checkpoint that is old enough
    becomes the beginning of the log. `before`: no later version than this one becomes it.
    """
    properties = handle.metadata().configuration
    if properties.get(CLEANUP) == "false":
        return 0
    features = {*(handle.protocol().reader_features or ())}
    if not made_here(handle, table) or LOG_RETENTION in properties or "v2Checkpoint" in features:
        if before is None:
            handle.cleanup_metadata()
        return 0
    kept = log_age(lake, table) if options.log_retention is None else options.log_retention
    young = (datetime.now(timezone.utc) - kept).timestamp()
    newest = min(handle.version() - options.log_commits, handle.version() if before is None else before)
    found = lake.files.get_file_info(fs.FileSelector(f"{table.replace('.', '/')}/_delta_log"))
    files = [(int(name[1]), info) for info in found if (name := LOG_FILE.fullmatch(info.base_name))]
    checkpoints = [(version, info) for version, info in files if CHECKPOINT.fullmatch(info.base_name)]
    begins = max(
        (v for v, info in checkpoints if v <= newest and info.mtime and info.mtime.timestamp() < young), default=0
    )
    old = sorted(info.path for version, info in files if version < begins)
    for path in old:  # oldest first: a process that is killed leaves no gap
        with suppress(FileNotFoundError):
            lake.files.delete_file(path)
    return len(old)


def delete_older(lake: Lake, table: str, before: datetime, version: int, more: str = "true") -> int:
    """Delete an outbox's rows of a version whose record is from before a time; return how many.

    Rows that were added later stay, whatever their time. Where a row that just came would have to go, nothing is done.
    `more` is SQL that holds for the rows that may go. What the version has is compacted, and the log begins at the
    version at the latest: a query may have read it as far as that.
    """
    handle = DeltaTable(lake.address(table), version=version, storage_options=lake.delta_options(table))
    moment = before.astimezone(timezone.utc).isoformat(timespec="microseconds")
    old = f"_timestamp < arrow_cast('{moment}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    try:
        found = handle.delete(f"{old} AND {more}")
        if not found["num_deleted_rows"]:  # else they are other files by now
            _compacted(handle, MaintenanceOptions(gradual=True))
        handle.vacuum(MaintenanceOptions().hours, dry_run=False, enforce_retention_duration=False, full=True)
        shorten_log(lake, table, handle, MaintenanceOptions(), before=version)
    except CommitFailedError:
        return 0
    except (DeltaError, OSError) as error:
        raise TableError(table, f"its old rows could not be deleted: {error}") from error
    return int(found["num_deleted_rows"] or 0)


def small_files(handle: DeltaTable, options: MaintenanceOptions) -> tuple[int, int]:
    """Return how many files are worth joining, and into about how many."""
    actions: Any = pa.table(handle.get_add_actions())
    sizes = actions.column("size_bytes").to_pylist()
    target = _target(sizes, options)
    few = [size for size in sizes if size < target]
    into = -(-sum(few) // target) if target else 0
    return (len(few), into) if len(few) > into else (0, 0)


STEPS = 9, 6, 3, 0
"""The sizes that files grow to before they have `file_bytes`: each is eight times the one before."""
ENOUGH = 8
"""Files of a size that are worth joining."""


def _target(sizes: list[int], options: MaintenanceOptions) -> int:
    """Return the bytes of the files that small ones become, 0 where none are worth joining."""
    if not options.gradual:
        return options.file_bytes
    chosen, least = 0, 0
    for step in STEPS:
        target = max(options.file_bytes >> step, 1)
        if sum(least <= size < target for size in sizes) >= ENOUGH:
            chosen = target
        least = target // 2
    return chosen


def _count_without_statistics(handle: DeltaTable, options: MaintenanceOptions) -> int:
    actions: Any = pa.table(handle.get_add_actions())
    return int(actions.column("num_records").null_count) if options.statistics else 0


def _compacted(handle: DeltaTable, options: MaintenanceOptions) -> tuple[int, int]:
    def work() -> dict[str, Any]:
        written = without_bounds_of_floats(pa.schema(handle.schema().to_arrow()), compression="ZSTD")
        if options.zorder:
            return handle.optimize.z_order(options.zorder, target_size=target, writer_properties=written)
        return handle.optimize.compact(target_size=target, max_concurrent_tasks=1, writer_properties=written)

    actions: Any = pa.table(handle.get_add_actions())
    target = options.file_bytes if options.zorder else _target(actions.column("size_bytes").to_pylist(), options)
    if not target:
        return 0, 0
    found = retry_on_conflict(work, CommitFailedError, TRIES, WAIT_SECONDS, before=handle.update_incremental)
    return int(found["numFilesRemoved"]), int(found["numFilesAdded"])


def size_of(lake: Lake, table: str, files: list[str]) -> int:
    """Return the bytes of files in a table's folder."""
    folder = table.replace(".", "/")
    found = lake.files.get_file_info([f"{folder}/{file}" for file in files])
    return sum(info.size or 0 for info in found)
