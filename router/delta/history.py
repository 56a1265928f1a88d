"""The commits of a table as the files of its log have them: who wrote and removed which rows, as far as they reach.

Read as text, one commit at a time: delta-rs opens a table whose newest commit was cut off between two lines, and does
not say which rows a commit brought. Source: Delta protocol, "Actions".
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
    from collections.abc import Iterable, Iterator

    from router.delta.lake import Lake

COMMIT = re.compile(r"[0-9]{20}\.json")
CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)")
"""The names of checkpoints: in one file, as one of some parts, or of version 2."""
SEARCHED = 1_000
"""Files of a log that are searched for the damaged one, the newest."""
REPAIRED = "router.repaired"
"""The note of a commit that made a table anew from bronze: target key -> the last batch that the commit has."""


@dataclass(frozen=True)
class LogFile:
    """A data file that a commit adds or removes. `rows` is None where the log does not say how many it has.

    `changes` says whether rows come or go with it; a compaction only moves them.
    """

    path: str
    rows: int | None
    changes: bool


@dataclass(frozen=True)
class LogCommit:
    """One commit: what it did, by whom, under which transaction ids, with which files."""

    version: int
    operation: str
    author: str
    notes: dict[str, Any]
    transactions: dict[str, int]
    added: tuple[LogFile, ...]
    removed: tuple[LogFile, ...]
    schema_changed: bool = False

    @property
    def rows(self) -> int:
        """Return how many rows its new files bring."""
        return sum(file.rows or 0 for file in self.added if file.changes)

    @property
    def changes(self) -> bool:
        """Say whether rows come or go with it."""
        return any(file.changes for file in (*self.added, *self.removed))


def log_versions(lake: Lake, table: str) -> list[int]:
    """Return the versions whose commits are in the log, oldest first. Raises TableError if one between is missing."""
    selector = fs.FileSelector(log_folder(table), allow_not_found=True)
    names = (entry.base_name for entry in lake.files.get_file_info(selector))
    found = sorted(int(name.removesuffix(".json")) for name in names if COMMIT.fullmatch(name))
    for before, after in pairwise(found):
        if after != before + 1:
            raise TableError(table, f"its log lacks {before + 1:020}.json")
    return found


def log_commits(lake: Lake, table: str, versions: Iterable[int]) -> Iterator[LogCommit]:
    """Yield commits of a table. Raises TableError with the name of a file that cannot be read."""
    for version in versions:
        name = f"{version:020}.json"
        text = lake.read(f"{log_folder(table)}/{name}")
        if not text:
            raise TableError(table, f"{name} of {DAMAGED_LOG} {'not there' if text is None else 'empty'}")
        try:
            yield _commit(version, [json.loads(line) for line in text.splitlines() if line.strip()])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableError(table, f"{name} of {DAMAGED_LOG} damaged") from error


@dataclass(frozen=True)
class LogCheckpoint:
    """A checkpoint of a log: its version, -1 for none, and its files below the lake."""

    version: int
    files: tuple[str, ...]

    def transaction_ids(self, lake: Lake) -> list[str]:
        """Return the transaction ids of the commits up to its version; those of version 2 stand in its first file."""
        ids = list[str]()
        for path in self.files:
            if path.endswith(".json"):
                actions = [json.loads(line) for line in (lake.read(path) or b"").splitlines() if line.strip()]
                ids += [action["txn"]["appId"] for action in actions if "txn" in action]
                continue
            with lake.files.open_input_file(path) as source:
                parquet = pq.ParquetFile(source)
                if "txn" in parquet.schema_arrow.names:
                    column = parquet.read(columns=["txn.appId"]).column("txn").combine_chunks()
                    ids += pc.struct_field(column, "appId").drop_null().to_pylist()
        return ids


def last_checkpoint(lake: Lake, table: str, newest: int) -> LogCheckpoint:
    """Return the last checkpoint up to a version of which all files are there. Lists the log."""
    files: dict[int, list[str]] = defaultdict(list)
    whole = {-1}
    for entry in lake.files.get_file_info(fs.FileSelector(log_folder(table))):
        match = CHECKPOINT.fullmatch(entry.base_name)
        if match is None or int(match[1]) > newest:
            continue
        version = int(match[1])
        files[version].append(f"{log_folder(table)}/{entry.base_name}")
        if match[2] is None or len(files[version]) >= int(match[2]):
            whole.add(version)
    return LogCheckpoint(max(whole), tuple(files[max(whole)]))


def log_damage(lake: Lake, table: str) -> str:
    """Return which of the newest files of a table's log is damaged; nothing where none is, or the storage fails.

    Both Delta libraries say that a log cannot be read, and not which file of it.
    """
    try:
        for _ in log_commits(lake, table, log_versions(lake, table)[-SEARCHED:]):
            pass
    except TableError as found:
        return found.what
    except OSError:
        pass
    return ""


def rows_of(lake: Lake, table: str, versions: Iterable[int], paths: set[str]) -> dict[str, int]:
    """Return the rows of data files, by path, as the commits that added them say."""
    found: dict[str, int] = {}
    for commit in log_commits(lake, table, versions):
        found |= {file.path: file.rows for file in commit.added if file.path in paths and file.rows is not None}
    return found


def log_folder(table: str) -> str:
    """Return the folder of a table's log, below the lake."""
    return f"{table.replace('.', '/')}/_delta_log"


def _commit(version: int, actions: list[dict[str, Any]]) -> LogCommit:
    about: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    ids = (action["txn"] for action in actions if "txn" in action)
    return LogCommit(
        version=version,
        operation=str(about.get("operation", "an unnamed operation")),
        author=_author(about),
        notes=commit_notes(about),
        transactions={one["appId"]: int(one["version"]) for one in ids},
        added=tuple(_file(action["add"]) for action in actions if "add" in action),
        removed=tuple(_file(action["remove"]) for action in actions if "remove" in action),
        schema_changed=any("metaData" in action for action in actions),
    )


def _file(found: dict[str, Any]) -> LogFile:
    stats = json.loads(found.get("stats") or "{}")
    rows = stats.get("numRecords")
    gone = (found.get("deletionVector") or {}).get("cardinality", 0)
    return LogFile(found["path"], None if rows is None else int(rows) - gone, bool(found.get("dataChange", True)))


def _author(about: dict[str, Any]) -> str:
    """Return who wrote a commit: the user, where the log has one, and the engine."""
    engine = about.get("engineInfo") or about.get("clientVersion") or "an unknown engine"
    user = about.get("userName") or about.get("userId")
    return f"{user}, {engine}" if user else str(engine)


def commit_notes(about: dict[str, Any]) -> dict[str, Any]:
    """Return what a commit says of itself: delta-rs keeps notes as fields, Delta on Spark as one text."""
    try:
        found = json.loads(about.get("userMetadata") or "{}")
    except ValueError:
        return about
    return {**about, **found} if isinstance(found, dict) else about
