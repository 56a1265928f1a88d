"""Maintain a table: join small files, delete unreferenced ones, and shorten its log."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import fs

from router.delta.commit import paths_of, retry_on_conflict
from router.delta.constraints import NARROWER_MAP, WHY_NARROWER_MAP, features_against_merges
from router.delta.file_statistics import without_bounds_of_floats
from router.delta.history import log_commits, log_folder, log_versions
from router.delta.kept_versions import KeptVersion, keep_versions, kept_files
from router.delta.keyed.key_property import KEYED_BY
from router.delta.keyed.row_versions import deletions_table
from router.delta.partition_folders import has_long_folder
from router.delta.widening import made_here
from router.errors import TableError, first_line
from router.own_names import DELETIONS, OWN_LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable

    from router.delta.lake import Lake

SAFE = timedelta(days=7)
"""Younger files may be needed: by readers of older versions, or by a batch that was interrupted or is landing now."""
MAINTENANCE_TRIES = 5
MAINTENANCE_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class MaintenanceOptions:
    """How a table is maintained.

    - `file_bytes`: about the size of the files that small ones become. `zorder`: columns to sort the rows by.
    - `retention`: how long a file stays that no version refers to: what failed attempts have left.
    - `statistics`: count the files that have none.
    - `log_commits`, `log_retention`: the log keeps the newest so many commits, and all that are younger than that.
      Versions before it cannot be read, so the files that only they refer to are deleted. None:
      `LOG_COMMITS` and `log_age`, or no number and `LOG_AGE` for a table that merges or views rewrite.
    - `rewritten`: views rewrite the table. That merges do, it says itself.
    - `followed`: readers come back after this time, and read what has changed since.
    - `gradual`: let files grow in steps, so that a row is rewritten about four times, not with every compaction.
    - `unasked`: no person named the table, so the files of one that others made are left alone.
    - `kept`: versions that can be read even when the log is cut after them; those kept before stay if they are of
      `kept_since` (milliseconds since 1970) or later. Only of tables that were made here and delta-rs may maintain.
    """

    file_bytes: int = 128 << 20
    zorder: tuple[str, ...] = ()
    retention: timedelta = SAFE
    statistics: bool = True
    log_commits: int | None = None
    log_retention: timedelta | None = None
    rewritten: bool = False
    followed: timedelta = timedelta(0)
    gradual: bool = False
    unasked: bool = False
    kept: tuple[KeptVersion, ...] = ()
    kept_since: int = 0

    @property
    def retention_hours(self) -> int:
        """Return the retention in hours, rounded up."""
        return -int(-self.retention.total_seconds() // 3600)


@dataclass(frozen=True)
class MaintenanceResult:
    """What was done to a table, or would be done in a dry run.

    `files` became `into` larger ones; `deleted` files had `freed` bytes. `by_spark`: why only Delta on Spark may
    maintain the table: its features, the name of a folder, files that delta-rs cannot join. `without_statistics`: files
    that get statistics from it. `refused`: why no engine can join its files; all else is done. `rewritten`: merges or
    views rewrite the table, so that each of its commits may leave a copy of it.
    """

    table: str
    files: int
    into: int
    deleted: int
    freed: int
    by_spark: str = ""
    without_statistics: int = 0
    refused: str = ""
    rewritten: bool = False


def maintain_table(lake: Lake, table: str, options: MaintenanceOptions, *, dry: bool = False) -> MaintenanceResult:
    """Compact and clean one table; with `dry` only return what would be done. Tries again after another writer.

    A table that only Delta on Spark may write is left as it is: see `MaintenanceResult.by_spark`. Raises TableError.
    """
    handle = lake.open(table)
    if handle is None:
        raise TableError(table, "there is no such table")
    # The remembered deletions of a table are a plain table made here, even if the table itself is not.
    if not dry and not table.endswith(DELETIONS) and deletions_table(lake, table):
        maintain_table(lake, f"{table}.{DELETIONS}", replace(options, zorder=(), unasked=False))
    try:
        if options.unasked and not made_here(handle, table):
            shorten_log(lake, table, handle, options, dry=dry)
            return MaintenanceResult(table, files=0, into=0, deleted=0, freed=0)
        features = features_against_merges(handle)
        too_long = has_long_folder(handle)
        if too_long:
            features.add(too_long)
        files = 0
        into = 0
        if not features:
            try:
                files, into = small_files(handle, options) if dry else _compact_files(handle, options)
            except CommitFailedError:
                raise
            except (DeltaError, OSError) as error:
                # Spark reads some files that delta-rs does not; what neither can join stays, and holds up nothing else.
                narrower = NARROWER_MAP in str(error)
                features.add(WHY_NARROWER_MAP if narrower else f"files that delta-rs cannot join: {first_line(error)}")
        if features:
            return MaintenanceResult(
                table,
                files=0,
                into=0,
                deleted=0,
                freed=0,
                by_spark=", ".join(sorted(features)),
                without_statistics=_count_without_statistics(handle, options),
            )
        # Only to find them: it would delete files of kept versions, too.
        unreferenced = handle.vacuum(options.retention_hours, dry_run=True, enforce_retention_duration=False, full=True)
        old = set(unreferenced)
        if not dry and made_here(handle, table):
            expired = keep_versions(lake, table, options.kept, options.kept_since)
            if expired:
                old |= expired - paths_of(handle) - _removed_by(lake, table, log_versions(lake, table))
        old -= kept_files(lake, table)
        freed = sum(size for _, size in _delete_files(lake, table, old, dry=dry))
        if not dry:
            # The log can be shortened up to a checkpoint only.
            handle.create_checkpoint()
        unreadable = dict(shorten_log(lake, table, handle, options, dry=dry))
        # In a dry run a file of a failed merge may be in both.
        for path in unreadable.keys() - old:
            freed += unreadable[path]
            old.add(path)
    except (DeltaError, OSError) as error:
        raise TableError(table, f"it could not be maintained: {error}") from error
    return MaintenanceResult(
        table,
        files=files,
        into=into,
        deleted=len(old),
        freed=freed,
        without_statistics=_count_without_statistics(handle, options),
        rewritten=_is_rewritten(handle, table, options),
    )


LOG_RETENTION = "delta.logRetentionDuration"
CLEANUP = "delta.enableExpiredLogCleanup"
CHANGE_FEED = "delta.enableChangeDataFeed"
LOG_FILE = re.compile(r"\.?(\d{20})\.(json|crc|json\.crc|checkpoint.*)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
LOG_COMMITS = 1000
LOG_AGE = timedelta(hours=1)
LOG_AGE_OF_OBJECTS = SAFE
REPLACED_TIMES = 2
"""What merges and views replaced may have so many times the bytes of a table's newest version for `LOG_AGE`: if it has
more, it goes after `LEAST_AGE`."""
LARGE_LOG = 4 << 20
"""A log of more bytes than this, and than the table's newest version, is cut as soon: with a commit each second an hour
has 20 MB, of which most are checkpoints that name the removed files of an hour."""
LEAST_AGE = timedelta(minutes=5)
"""The longest query of such a table, or a batch, that needs no longer `log_retention`."""
LEAST_AGE_OF_APPENDED = timedelta(minutes=10)
"""The same for a table that is appended to, where a reader that follows it may pause for so long."""
CHECKPOINT_AGE = timedelta(minutes=2)
"""Younger checkpoints may be read by someone who has listed the log."""
SPANS = 5
"""Of the shortest time that a log keeps, a checkpoint stays in each of so many spans: it may be cut there."""


def log_age(lake: Lake, table: str) -> timedelta:
    """Return how long the log of a table that is appended to keeps every commit.

    On a disk every commit lists the whole folder of the log, so that is short; an object store lists from a name on.
    """
    return LOG_AGE if lake.on_disk(table) else LOG_AGE_OF_OBJECTS


@dataclass(frozen=True)
class _Kept:
    """What a log keeps: the newest `commits`, all younger than `age`, or `least_age` if that is too much."""

    commits: int
    age: timedelta
    least_age: timedelta


def _is_rewritten(handle: DeltaTable, table: str, options: MaintenanceOptions) -> bool:
    """Return whether merges or views rewrite a table. A change feed is for readers that follow it, and may pause."""
    properties = handle.metadata().configuration
    if properties.get(CHANGE_FEED) == "true":
        return False
    return options.rewritten or table.endswith(DELETIONS) or KEYED_BY in properties


def _kept_of_log(lake: Lake, table: str, handle: DeltaTable, options: MaintenanceOptions) -> _Kept:
    # Each commit of a merge or of a view rewrites files, often the whole table: a number of commits would keep as many
    # copies of it.
    is_rewritten = _is_rewritten(handle, table, options)
    commits = options.log_commits
    if commits is None:
        commits = 0 if is_rewritten else LOG_COMMITS
    if options.log_retention is not None:
        return _Kept(commits, options.log_retention, options.log_retention)
    if is_rewritten:
        return _Kept(commits, max(LOG_AGE, options.followed), max(LEAST_AGE, options.followed))
    age = max(log_age(lake, table), options.followed)
    # Compaction replaces each row about four times, first in files of a few rows.
    least_age = max(LEAST_AGE_OF_APPENDED, options.followed) if lake.on_disk(table) else age
    return _Kept(commits, age, least_age)


def shorten_log(
    lake: Lake,
    table: str,
    handle: DeltaTable,
    options: MaintenanceOptions,
    *,
    before: int | None = None,
    dry: bool = False,
    with_files: bool | None = None,
) -> list[tuple[str, int]]:
    """Delete the files of a table's log that are no longer needed, and the data files that only they refer to.

    Returns the data files, each with its bytes; with `dry` nothing is deleted. `with_files`: whether data files are;
    by default those of outboxes and quarantines are not, as a batch that was cut off may read them. Of those tables the
    log may have been cut before, so that the checkpoint says which files were removed.

    The newest checkpoint that is old enough becomes the beginning of the log; with `before`, of a version up to that
    one. If the table has properties for it, or others made it, delta-rs shortens the log by its properties instead.
    """
    properties = handle.metadata().configuration
    if properties.get(CLEANUP) == "false":
        return []
    features = handle.protocol().reader_features or ()
    if not made_here(handle, table) or LOG_RETENTION in properties or "v2Checkpoint" in features:
        if before is None and not dry:
            handle.cleanup_metadata()
        return []
    kept = _kept_of_log(lake, table, handle, options)
    newest = handle.version() - kept.commits
    if before is not None:
        newest = min(newest, before)

    files: list[tuple[int, str]] = []
    log_bytes = 0
    checkpoints: dict[int, datetime | None] = {}
    for entry in lake.files.get_file_info(fs.FileSelector(log_folder(table))):
        name = LOG_FILE.fullmatch(entry.base_name)
        if name is None:
            continue
        version = int(name[1])
        files.append((version, entry.path))
        log_bytes += entry.size
        if _CHECKPOINT.fullmatch(entry.base_name):
            checkpoints[version] = entry.mtime
    begin = _newest_before(kept.age, checkpoints, newest)
    if kept.least_age < kept.age and checkpoints:
        newest_bytes = sum(_file_sizes(handle))
        replaced = _replaced_bytes(lake, table, max(checkpoints), kept.age)
        if replaced > REPLACED_TIMES * newest_bytes or log_bytes > max(LARGE_LOG, newest_bytes):
            begin = _newest_before(kept.least_age, checkpoints, newest)
    old = sorted(path for version, path in files if version < begin)
    # The data files first: a process that is killed finds them again in the commits that are left.
    unreadable: list[tuple[str, int]] = []
    is_own = table.startswith(OWN_LAYERS)
    if with_files is None:
        with_files = not is_own
    if begin and with_files and (old or is_own):
        versions = [version for version, path in files if version <= begin and path.endswith(f"{version:020}.json")]
        removed = _removed_before(lake, table, begin) if is_own else _removed_by(lake, table, versions)
        oldest = lake.open_version(table, begin)
        # RESTORE refers to removed files again, and a commit that marks rows as deleted to the file that it removes.
        needed = paths_of(handle) | paths_of(oldest) | kept_files(lake, table)
        unreadable = _delete_files(lake, table, removed - needed, dry=dry)
    if dry:
        return unreadable
    for path in old:  # oldest first: a process that is killed leaves no gap
        with suppress(FileNotFoundError):
            lake.files.delete_file(path)
    for version in _spare_checkpoints(begin, checkpoints, max(kept.least_age, LEAST_AGE) / SPANS):
        with suppress(FileNotFoundError):
            lake.files.delete_file(f"{log_folder(table)}/{version:020d}.checkpoint.parquet")
    return unreadable


def _newest_before(age: timedelta, checkpoints: dict[int, datetime | None], newest: int) -> int:
    """Return the newest checkpoint that is older than an age, up to a version; 0 if none is."""
    written_before = datetime.now(timezone.utc) - age
    begin = 0
    for version, written in checkpoints.items():
        if version <= newest and written is not None and written < written_before:
            begin = max(begin, version)
    return begin


def _spare_checkpoints(begin: int, checkpoints: dict[int, datetime | None], span: timedelta) -> list[int]:
    """Return the checkpoints that no reader needs and that will not be the beginning of the log.

    Each lists all files of its version, and those removed in an hour: a table with a commit each second would have 160
    of them in an hour. The first in each `span` stays, and the newest two, of which readers may have been told.
    """
    written_before = datetime.now(timezone.utc) - CHECKPOINT_AGE
    spare = []
    spans: set[float] = set()
    kept = sorted(version for version in checkpoints if version >= begin)
    for version in kept[:-2]:
        written = checkpoints[version]
        if written is None:
            continue
        number = written.timestamp() // span.total_seconds()
        if number in spans and written < written_before:
            spare.append(version)
        spans.add(number)
    return spare


def _replaced_bytes(lake: Lake, table: str, checkpoint: int, age: timedelta) -> int:
    """Return the bytes of the files that were removed within an age before a checkpoint."""
    removals = _read_removals(lake, table, checkpoint)
    since = (datetime.now(timezone.utc) - age).timestamp() * 1000
    is_young = pc.greater(pc.struct_field(removals, "deletionTimestamp"), since)
    return pc.sum(pc.struct_field(removals, "size").filter(is_young)).as_py() or 0


def _read_removals(lake: Lake, table: str, checkpoint: int) -> pa.StructArray:
    """Return `path`, `size` and `deletionTimestamp` of the files that a checkpoint calls removed, or null."""
    with lake.files.open_input_file(f"{log_folder(table)}/{checkpoint:020d}.checkpoint.parquet") as stream:
        columns = ["remove.path", "remove.size", "remove.deletionTimestamp"]
        return pq.ParquetFile(stream).read(columns=columns).column("remove").combine_chunks()


def _removed_by(lake: Lake, table: str, versions: list[int]) -> set[str]:
    """Return the data files that some commits have removed."""
    removed: set[str] = set()
    for commit in log_commits(lake, table, versions):
        # A clone refers to files of another table, by their address.
        removed |= {unquote(file.path) for file in commit.removed if "://" not in file.path and file.path[0] != "/"}
    return removed


def _removed_before(lake: Lake, table: str, checkpoint: int) -> set[str]:
    """Return the data files that are there still and were removed within an hour before a checkpoint."""
    folder = table.replace(".", "/")
    entries = lake.files.get_file_info(fs.FileSelector(folder))
    paths = pc.struct_field(_read_removals(lake, table, checkpoint), "path")
    return {entry.base_name for entry in entries} & {unquote(path) for path in paths.drop_null().to_pylist()}


def _delete_files(lake: Lake, table: str, removed: Iterable[str], *, dry: bool) -> list[tuple[str, int]]:
    """Delete data files of a table; return them with their bytes. With `dry` they are only returned.

    A vacuum of delta-rs takes whole hours, lists all of the table's folder, and makes two commits.
    """
    paths = sorted(removed)
    folder = table.replace(".", "/")
    deleted = []
    entries = lake.files.get_file_info([f"{folder}/{path}" for path in paths])
    for path, entry in zip(paths, entries, strict=True):
        if entry.type is not fs.FileType.File:
            continue
        if not dry:
            with suppress(FileNotFoundError):
                lake.files.delete_file(entry.path)
        deleted.append((path, entry.size or 0))
    return deleted


def delete_older(
    lake: Lake, table: str, before: datetime, version: int, more: str = "true", *, is_read: bool = False
) -> int:
    """Delete the rows in a version of an outbox whose record is older than a time; return how many.

    `more` is SQL, a further condition for the rows. Rows that were added after the version stay, whatever their time.
    If a commit after it added a row that matches, nothing is deleted. The files of the version are compacted, and the
    log keeps the version and all later ones, as a query may have read it up to there. `is_read`: rows up to it are
    still read, and so may files be that compaction has replaced. Raises TableError.
    """
    handle = lake.open_version(table, version)
    moment = before.astimezone(timezone.utc).isoformat(timespec="microseconds")
    old = f"_timestamp < arrow_cast('{moment}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    try:
        metrics = handle.delete(f"{old} AND {more}")
        # Only if nothing was deleted: a deletion has replaced files of the version already.
        if not metrics["num_deleted_rows"]:
            _compact_files(handle, MaintenanceOptions(gradual=True))
        handle.vacuum(MaintenanceOptions().retention_hours, dry_run=False, enforce_retention_duration=False, full=True)
        shorten_log(lake, table, handle, MaintenanceOptions(), before=version, with_files=not is_read)
    except CommitFailedError:
        return 0
    except (DeltaError, OSError) as error:
        raise TableError(table, f"its old rows could not be deleted: {error}") from error
    return int(metrics["num_deleted_rows"] or 0)


def small_files(handle: DeltaTable, options: MaintenanceOptions) -> tuple[int, int]:
    """Return how many files are worth joining, and into about how many."""
    sizes = _file_sizes(handle)
    target = _target_size(sizes, options)
    small = [size for size in sizes if size < target]
    if not small:
        return 0, 0
    into = -(-sum(small) // target)  # rounded up
    if len(small) <= into:
        return 0, 0
    return len(small), into


_STEPS = 9, 6, 3, 0
"""The sizes that files grow to before they have `file_bytes`, as binary shifts: each is eight times the one before."""
ENOUGH = 8
"""The number of files of one size from which they are worth joining."""


def _file_sizes(handle: DeltaTable) -> list[int]:
    actions: Any = pa.table(handle.get_add_actions())
    sizes: list[int] = actions.column("size_bytes").to_pylist()
    return sizes


def _target_size(sizes: list[int], options: MaintenanceOptions) -> int:
    """Return the bytes of the files that small ones become, 0 if none are worth joining."""
    if not options.gradual:
        return options.file_bytes
    # Of the steps with enough files that have not reached it, the largest. Files below half of the step before do not
    # count for a step: they belong to an earlier one.
    chosen = 0
    smallest = 0
    for step in _STEPS:
        target = max(options.file_bytes >> step, 1)
        if sum(smallest <= size < target for size in sizes) >= ENOUGH:
            chosen = target
        smallest = target // 2
    return chosen


def _count_without_statistics(handle: DeltaTable, options: MaintenanceOptions) -> int:
    if not options.statistics:
        return 0
    actions: Any = pa.table(handle.get_add_actions())
    return int(actions.column("num_records").null_count)


def _compact_files(handle: DeltaTable, options: MaintenanceOptions) -> tuple[int, int]:
    """Join small files, or sort all of them by `zorder`; return how many files were removed and added."""
    target = options.file_bytes if options.zorder else _target_size(_file_sizes(handle), options)
    if target == 0:
        return 0, 0

    def optimize_files() -> dict[str, Any]:
        properties = without_bounds_of_floats(pa.schema(handle.schema().to_arrow()), compression="ZSTD")
        if options.zorder:
            return handle.optimize.z_order(options.zorder, target_size=target, writer_properties=properties)
        return handle.optimize.compact(target_size=target, max_concurrent_tasks=1, writer_properties=properties)

    metrics = retry_on_conflict(
        optimize_files, CommitFailedError, MAINTENANCE_TRIES, MAINTENANCE_WAIT_SECONDS, before=handle.update_incremental
    )
    return int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"])
