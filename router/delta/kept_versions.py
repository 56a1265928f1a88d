"""Keep old versions of a table readable after its log was cut: each has a log of its own, of the same files.

The log of a kept version lies at LAKE/_kept/LAYER/TABLE/MOMENT/_delta_log. It has one checkpoint, in which files have
addresses in place of their names: every reader of Delta can read that folder. Maintenance deletes no file that a kept
version refers to.
"""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyarrow import fs

from router.delta.commit import paths_of, size_of
from router.delta.history import log_commits, log_folder, log_versions
from router.errors import TableError
from router.own_names import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.delta.history import LogCommit
    from router.delta.lake import Lake


@dataclass(frozen=True)
class KeptVersion:
    """The version that a table had when the first batch of a deploy began, `since` (milliseconds since 1970)."""

    version: int
    since: int

    def name_in(self, table: str) -> str:
        """Return the name by which a lake opens the version that is kept of a table."""
        return f"{KEPT}.{table}.{self.since}"


def kept_versions(lake: Lake, table: str) -> Iterator[tuple[KeptVersion, LogCommit]]:
    """Yield the versions that are kept of a table, each with the last commit up to it that changed the table.

    Those whose log is damaged are left out: nothing waits for them.
    """
    for moment in _kept_moments(lake, table):
        name = f"{KEPT}.{table}.{moment}"
        with suppress(TableError):
            for commit in log_commits(lake, name, log_versions(lake, name)):
                yield KeptVersion(commit.version, moment), commit


def files_of(lake: Lake, table: str, kept: KeptVersion) -> set[str]:
    """Return the paths of the files of a kept version, below the table's folder."""
    address = unquote(_address_for_all(lake, table))
    return {path.removeprefix(address) for path in paths_of(lake.open_version(kept.name_in(table), kept.version))}


def kept_files(lake: Lake, table: str) -> set[str]:
    """Return the paths of the files of all kept versions of a table."""
    paths: set[str] = set()
    for kept, _ in kept_versions(lake, table):
        with suppress(DeltaError):
            paths |= files_of(lake, table, kept)
    return paths


def keep_versions(lake: Lake, table: str, wanted: Iterable[KeptVersion], kept_since: int) -> set[str]:
    """Keep some versions, as far as the table's log has them, and no longer those of before `kept_since`.

    Returns the files of the latter, which other versions may refer to.
    """
    kept = {version.since: version for version, _ in kept_versions(lake, table)}
    for version in wanted:
        if version.since not in kept:
            with suppress(TableError, DeltaError):  # a log that was damaged, cut or made again
                _write_log(lake, table, version)
    expired: set[str] = set()
    for moment in _kept_moments(lake, table):
        if moment < kept_since:
            with suppress(DeltaError, KeyError):
                expired |= files_of(lake, table, kept[moment])
            lake.files.delete_dir(f"{_folder(table)}/{moment}")
    return expired


def kept_bytes(lake: Lake) -> int:
    """Return the bytes of the files that only kept versions refer to, of all tables."""
    logs = lake.files.get_file_info(fs.FileSelector(KEPT, allow_not_found=True, recursive=True))
    total = 0
    for table in {".".join(log.path.split("/")[1:3]) for log in logs if log.is_file}:
        newest = lake.open(table)
        paths = kept_files(lake, table) - (paths_of(newest) if newest else set())
        total += size_of(lake, table, sorted(paths))
    return total


def _kept_moments(lake: Lake, table: str) -> list[int]:
    entries = lake.files.get_file_info(fs.FileSelector(_folder(table), allow_not_found=True))
    return sorted(int(entry.base_name) for entry in entries if entry.base_name.isdecimal())


def _folder(table: str) -> str:
    return f"{KEPT}/{table.replace('.', '/')}"


def _write_log(lake: Lake, table: str, version: KeptVersion) -> None:
    """Write the log of a version. Its commit comes last: without it the version is not kept yet."""
    earlier = [number for number in reversed(log_versions(lake, table)) if number <= version.version]
    if version.version not in earlier:
        return
    for commit in log_commits(lake, table, earlier):
        if commit.changes_rows or commit.schema_changed:
            break
    # A table that was dropped and made again has other commits with the same numbers.
    if commit.written is None or commit.written > version.since:
        return
    # Which batch made it, and when: of the last commit that was no compaction.
    lines = (lake.read(f"{log_folder(table)}/{commit.version:020}.json") or b"").splitlines()
    commit_lines = [line for line in lines if {"commitInfo", "txn"} & json.loads(line).keys()]
    number = f"{version.version:020}"
    lake.open_version(table, version.version).create_checkpoint()
    with lake.files.open_input_file(f"{log_folder(table)}/{number}.checkpoint.parquet") as source:
        actions = pq.read_table(source).filter(pc.field("remove").is_null())
    # All that a file has, but for its name: partition values, statistics, tags.
    files = actions.column("add").combine_chunks()
    addresses = pc.binary_join_element_wise(_address_for_all(lake, table), files.field("path"), "")
    columns = [addresses if field.name == "path" else files.field(field.name) for field in files.type]
    with_addresses = pa.StructArray.from_arrays(columns, fields=list(files.type), mask=files.is_null())
    actions = actions.set_column(actions.schema.get_field_index("add"), "add", with_addresses)
    content = io.BytesIO()
    pq.write_table(actions, content)
    folder = log_folder(version.name_in(table))
    lake.write(f"{folder}/{number}.checkpoint.parquet", content.getvalue())
    lake.write(f"{folder}/{number}.json", b"\n".join(commit_lines))


def _address_for_all(lake: Lake, table: str) -> str:
    """Return the address of a table's folder as logs have it, for Spark as for delta-rs."""
    scheme, _, path = lake.spark_address(table).rpartition("://")
    return f"{scheme or 'file'}://{quote(path)}/"
