"""Read the commits in a table's log: who added and removed which files, as far back as the log goes.

The log is read here as JSON text, one commit at a time. delta-rs would open a table whose newest commit was cut off
between two lines, and does not tell which rows a commit added. Source: Delta protocol, "Actions".
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from router.delta.lake import DAMAGED_LOG
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.delta.lake import Lake

COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)")
"""The names of checkpoints: of one file (no group 2), as one of several parts (group 2: of how many), of version 2."""
SEARCHED = 1_000
"""Files of a log, the newest, that are searched for a damaged one."""
REPAIRED = "router.repaired"
"""The note of a commit that rebuilt a table from bronze: target key -> the last batch in the commit."""


@dataclass(frozen=True)
class LogFile:
    """A data file that a commit adds or removes. `rows` is None if the log does not say how many it has.

    `changes` is false in a compaction, which only moves rows from file to file (`dataChange` in the log).
    """

    path: str
    rows: int | None
    changes: bool


@dataclass(frozen=True)
class LogCommit:
    """One commit of a table. `notes` are those of `commit_notes`; `transactions`: transaction id -> its version.

    `written` is when it was made, in milliseconds since 1970; None if it does not say.
    """

    version: int
    operation: str
    author: str
    notes: dict[str, Any]
    transactions: dict[str, int]
    added: tuple[LogFile, ...]
    removed: tuple[LogFile, ...]
    schema_changed: bool = False
    written: int | None = None

    @property
    def rows(self) -> int:
        """Return how many rows its new files contain, those of a compaction apart."""
        return sum(file.rows or 0 for file in self.added if file.changes)

    @property
    def changes_rows(self) -> bool:
        """Return whether it adds or removes rows."""
        return any(file.changes for file in (*self.added, *self.removed))


def log_versions(lake: Lake, table: str) -> list[int]:
    """Return the versions whose commits are in the log, oldest first. Raises TableError if one between is missing."""
    selector = fs.FileSelector(log_folder(table), allow_not_found=True)
    versions: list[int] = []
    for entry in lake.files.get_file_info(selector):
        if COMMIT.fullmatch(entry.base_name):
            versions.append(int(entry.base_name.removesuffix(".json")))
    versions.sort()
    for before, after in pairwise(versions):
        if after != before + 1:
            raise TableError(table, f"its log lacks {before + 1:020}.json")
    return versions


def newest_version(lake: Lake, table: str) -> int | None:
    """Return the newest version of a table; None if its log has none. Looks behind the last checkpoint only."""
    folder = log_folder(table)
    hint = json.loads(lake.read(f"{folder}/_last_checkpoint") or "{}")
    paths = lake.store.list_stamps(folder, f"{folder}/{hint.get('version', 0):020}")
    names = [path.rpartition("/")[2] for path in paths]
    return max((int(name[:20]) for name in names if COMMIT.fullmatch(name)), default=None)


def first_commit_after(lake: Lake, table: str, is_later: Callable[[LogCommit], bool | None]) -> LogCommit | None:
    """Return the first commit that is later than something; None if none is.

    The newest are read first, up to one that is not later (False); None is what a commit without a place there has.
    """
    first = None
    for commit in log_commits(lake, table, reversed(log_versions(lake, table))):
        later = is_later(commit)
        if later is False:
            break
        if later:
            first = commit
    return first


def log_commits(lake: Lake, table: str, versions: Iterable[int]) -> Iterator[LogCommit]:
    """Yield commits of a table. Raises TableError with the name of a file that cannot be read."""
    for version in versions:
        name = f"{version:020}.json"
        text = lake.read(f"{log_folder(table)}/{name}")
        if text is None:
            raise TableError(table, f"{name} of {DAMAGED_LOG} not there")
        if not text:
            raise TableError(table, f"{name} of {DAMAGED_LOG} empty")
        try:
            yield _parse_commit(version, _parse_actions(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # cut off, or not what a log has
            raise TableError(table, f"{name} of {DAMAGED_LOG} damaged") from error


@dataclass(frozen=True)
class LogCheckpoint:
    """A checkpoint of a log: its version, -1 for none, and its files below the lake."""

    version: int
    files: tuple[str, ...]

    def transaction_ids(self, lake: Lake) -> list[str]:
        """Return the transaction ids of the commits up to its version."""
        ids: list[str] = []
        for path in self.files:
            # A checkpoint of version 2 may be JSON. Its first file has the ids, further ones list data files only.
            if path.endswith(".json"):
                actions = _parse_actions(lake.read(path) or b"")
                ids += [action["txn"]["appId"] for action in actions if "txn" in action]
                continue
            with lake.files.open_input_file(path) as source:
                parquet = pq.ParquetFile(source)
                if "txn" in parquet.schema_arrow.names:
                    column = parquet.read(columns=["txn.appId"]).column("txn").combine_chunks()
                    ids += pc.struct_field(column, "appId").drop_null().to_pylist()
        return ids


def last_checkpoint(lake: Lake, table: str, newest: int) -> LogCheckpoint:
    """Return the last complete checkpoint of a version up to `newest`. Lists the log."""
    files: dict[int, list[str]] = defaultdict(list)
    complete = {-1}
    for entry in lake.files.get_file_info(fs.FileSelector(log_folder(table))):
        match = _CHECKPOINT.fullmatch(entry.base_name)
        if match is None or int(match[1]) > newest:
            continue
        version = int(match[1])
        files[version].append(f"{log_folder(table)}/{entry.base_name}")
        # In several parts: it can be read only once all of them are written.
        if match[2] is None or len(files[version]) >= int(match[2]):
            complete.add(version)
    version = max(complete)
    return LogCheckpoint(version, tuple(files[version]))


def log_damage(lake: Lake, table: str) -> str:
    """Return which of the newest files of a table's log is damaged; an empty text if none is, or the storage fails.

    Both Delta libraries report that a log cannot be read, but not which file of it.
    """
    try:
        for _ in log_commits(lake, table, log_versions(lake, table)[-SEARCHED:]):
            pass
    except TableError as error:
        return error.what
    except OSError:
        pass
    return ""


def rows_of(lake: Lake, table: str, versions: Iterable[int], paths: set[str]) -> dict[str, int]:
    """Return path -> number of rows of data files, from the commits that added them."""
    rows: dict[str, int] = {}
    for commit in log_commits(lake, table, versions):
        for file in commit.added:
            if file.path in paths and file.rows is not None:
                rows[file.path] = file.rows
    return rows


def log_folder(table: str) -> str:
    """Return the folder of a table's log, below the lake."""
    return f"{table.replace('.', '/')}/_delta_log"


def _parse_actions(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _parse_commit(version: int, actions: list[dict[str, Any]]) -> LogCommit:
    info: dict[str, Any] = {}
    transactions: dict[str, int] = {}
    added: list[LogFile] = []
    removed: list[LogFile] = []
    schema_changed = False
    for action in actions:
        if "commitInfo" in action:
            info = info or action["commitInfo"]
        if "txn" in action:
            transactions[action["txn"]["appId"]] = int(action["txn"]["version"])
        if "add" in action:
            added.append(_parse_file(action["add"]))
        if "remove" in action:
            removed.append(_parse_file(action["remove"]))
        if "metaData" in action:
            schema_changed = True
    return LogCommit(
        version=version,
        operation=str(info.get("operation", "an unnamed operation")),
        author=_commit_author(info),
        notes=commit_notes(info),
        transactions=transactions,
        added=tuple(added),
        removed=tuple(removed),
        schema_changed=schema_changed,
        written=info.get("inCommitTimestamp") or info.get("timestamp"),
    )


def _parse_file(action: dict[str, Any]) -> LogFile:
    rows = json.loads(action.get("stats") or "{}").get("numRecords")
    if rows is not None:
        # The statistics count the rows in the file, those included that a deletion vector marks as deleted.
        rows = int(rows) - (action.get("deletionVector") or {}).get("cardinality", 0)
    return LogFile(path=action["path"], rows=rows, changes=bool(action.get("dataChange", True)))


def _commit_author(info: dict[str, Any]) -> str:
    """Return who wrote a commit: the user, if the log names one, and the engine."""
    engine = info.get("engineInfo") or info.get("clientVersion") or "an unknown engine"
    user = info.get("userName") or info.get("userId")
    if not user:
        return str(engine)
    return f"{user}, {engine}"


def commit_notes(about: dict[str, Any]) -> dict[str, Any]:
    """Return a `commitInfo` with the notes in it: delta-rs writes them as fields, Delta on Spark as one JSON text."""
    try:
        notes = json.loads(about.get("userMetadata") or "{}")
    except ValueError:
        return about
    if not isinstance(notes, dict):
        return about
    return {**about, **notes}
