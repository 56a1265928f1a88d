"""Open tables that follow their logs: keep what a batch reads of a table, read new commits, and append by one file.

delta-rs lists a log, and reads every commit since the last checkpoint, several times for one append: 14 to 94 requests
in an object store. Its handle has the list of the table's files, 0.02 MB for each commit since the last checkpoint:
5 000 handles do not fit into a driver. `LogTail` asks a log one question per batch (what came after version N?), and
appends by writing one file unless it exists, which is how the Delta protocol commits. Everything else goes through
delta-rs, on the same table at its newest version. Runs on the driver.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote
from zlib import crc32

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from router.delta.lake import INTERVALS_ON_DISK
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import Metadata, Schema
    from deltalake.table import ProtocolVersions
    from deltalake.transaction import AddAction

    from router.delta.lake import Lake

APPENDED = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"}
APPENDED |= {"deletionVectors", "typeWidening", "typeWidening-preview"}
"""Features of tables to which a commit of new files, and nothing else, can be appended."""
INTERVAL = "delta.checkpointInterval"
_COMMIT_TRIES = 20
"""How often an append tries the next version, if other writers take the one before."""
CLEANED = 10
"""Checkpoints in an object store after which expired commits are deleted; on a disk table maintenance does that."""
FILE_ACTIONS = b'{"add"', b'{"remove"'
"""The beginnings of actions that only concern files: they are not parsed, as a compaction writes thousands of them."""


@dataclass
class LogTail:
    """An open table: its newest version, and what has changed since it was opened.

    It has those methods of `DeltaTable` that the router calls often; any other goes to `newest_table`. Fields:

    - `handle`: delta-rs's own table, of some earlier version; None if it was dropped to save memory.
    - `at`: the newest version that was read. `stamp`: the stamp of its commit's file.
    - `about`: schema, metadata and protocol.
    - `files`: about how many files the table has.
    - `transactions`: transaction id -> its version, None if the table does not have the id, for those asked or read.
    - `commits`: version -> text of the commit, since the last checkpoint; in object stores only.
    """

    lake: Lake
    name: str
    handle: DeltaTable | None
    at: int
    stamp: str | None
    about: tuple[Schema, Metadata, ProtocolVersions]
    files: int = 0
    transactions: dict[str, int | None] = field(default_factory=dict)
    commits: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def from_open_table(cls, lake: Lake, name: str, table: DeltaTable) -> LogTail:
        """Return the tail of a table that was just opened."""
        tail = cls(
            lake=lake,
            name=name,
            handle=table,
            at=table.version(),
            stamp=None,
            about=_schema_metadata_protocol(table),
            files=table.get_add_actions().num_rows,
        )
        tail.stamp = lake.stamp(tail.commit_path(tail.at))
        return tail

    def commit_path(self, version: int) -> str:
        """Return the path of a commit below the lake."""
        return f"{self._log_folder}/{version:020}.json"

    @property
    def _log_folder(self) -> str:
        return f"{self.name.replace('.', '/')}/_delta_log"

    def catch_up(self) -> bool:
        """Read the commits since `at`; return False if the table was replaced by another one of its name."""
        return self._read_new_commits() != "another"

    def _read_new_commits(self) -> Literal["same", "changed", "another"]:
        """Read the commits since `at`.

        Returns `same` if they concern rows only, `changed` if metadata or protocol have changed, and `another` if the
        log is not the one that was read before, or cannot be read: the table then has to be opened again.
        """
        stamp_of = self._stamp_lookup()
        if stamp_of(self.at) != self.stamp:
            return "another"  # the table was dropped, and created again
        while True:
            stamp = stamp_of(self.at + 1)
            if stamp is None:
                return "same"
            text = self.lake.read(self.commit_path(self.at + 1))
            if not text:
                return "another"  # opening the table again raises the error
            try:
                is_taken = self._note_commit(text)
            except ValueError:  # cut off or overwritten
                return "another"
            if not is_taken:
                return self._reopen_table()
            self.stamp = stamp

    def _stamp_lookup(self) -> Callable[[int], str | None]:
        """Return a function: version -> stamp of its commit, None if there is none.

        An object store lists all new commits with one request. On a disk a look at each file is cheaper than a list.
        """
        if self.lake.on_disk(self.name):
            return lambda version: self.lake.stamp(self.commit_path(version))
        after = self.commit_path(self.at - 1) if self.at else f"{self._log_folder}/"
        stamps = self.lake.store.list_stamps(self._log_folder, after=after)
        return lambda version: stamps.get(self.commit_path(version))

    def _reopen_table(self) -> Literal["changed", "another"]:
        """Open the table again, as its metadata or protocol have changed."""
        table = self.lake.open(self.name)
        if table is None:
            return "another"
        # Read everything before the first assignment: an error then leaves the tail as it was.
        transactions = {app_id: table.transaction_version(app_id) for app_id in self.transactions}
        about = _schema_metadata_protocol(table)
        self.handle = table
        self.at = table.version()
        self.about = about
        self.transactions = transactions
        self.stamp = self.lake.stamp(self.commit_path(self.at))
        self.commits.clear()
        return "changed"

    def _note_commit(self, text: bytes) -> bool:
        """Note the next commit; return False, and note nothing, if it changes metadata or protocol.

        Raises ValueError if its text is cut off: the last line is parsed whatever it is, and would be half an action.
        """
        *lines, last = text.strip().splitlines()
        actions = [json.loads(line) for line in lines if line.strip() and not line.startswith(FILE_ACTIONS)]
        actions.append(json.loads(last))
        if any("metaData" in action or "protocol" in action for action in actions):
            return False
        for action in actions:
            transaction = action.get("txn")
            if transaction:
                self.transactions[transaction["appId"]] = int(transaction["version"])
        self.at += 1
        self.files += 1
        if not self.lake.on_disk(self.name):
            self.commits[self.at] = text
        return True

    def newest_table(self) -> DeltaTable:
        """Return the table of delta-rs at its newest version. Raises DeltaError, TableError."""
        table = self.handle
        if table is not None and table.version() < self.at:
            try:
                table.update_incremental()
            except DeltaError:  # commits that the handle lacks were deleted from the log by now
                table = None
        table = table or self.lake.open(self.name)
        if table is None:
            raise TableError(self.name, "there is no such table any more")
        return table

    def version(self) -> int:
        """Return the version."""
        return self.at

    def schema(self) -> Schema:
        """Return the columns."""
        return self.about[0]

    def metadata(self) -> Metadata:
        """Return the table's properties, its name, and how it is divided."""
        return self.about[1]

    def protocol(self) -> ProtocolVersions:
        """Return the versions and features that readers and writers of the table must support."""
        return self.about[2]

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction id, None if the table does not have the id."""
        if app_id not in self.transactions:
            # No commit after the handle's version has the id, or `_note_commit` had noted it: an old handle can answer.
            table = self.handle or self.newest_table()
            self.transactions[app_id] = table.transaction_version(app_id)
        return self.transactions[app_id]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in LogTail.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self.newest_table(), name)

    @property
    def can_append(self) -> bool:
        """Return whether `append_files` can write to the table: all its features are in `APPENDED`."""
        return set(self.protocol().writer_features or ()) <= APPENDED

    def append_files(self, files: Sequence[AddAction], transaction: tuple[str, int], notes: Mapping[str, str]) -> bool:
        """Add files in one commit; return False if the table has the transaction id already. Raises TableError."""
        app_id, number = transaction
        text = _append_commit(files, transaction, notes)
        for _ in range(_COMMIT_TRIES):
            committed = self.transaction_version(app_id)
            if committed is not None and committed >= number:
                return False
            next_commit = self.commit_path(self.at + 1)
            stamp = self.lake.store.create_if_absent(next_commit, text)
            if stamp is not None:
                self._note_commit(text)
                self.stamp = stamp
                self.handle = None  # the next append needs no handle, and it would only grow
                self._write_due_checkpoint()
                return True
            # The storage client may have retried a request whose answer was lost: then the file is our own.
            if self.lake.read(next_commit) == text:
                stamp = self.lake.stamp(next_commit)
                self._note_commit(text)
                self.stamp = stamp
                return True
            # Another writer took the version. If it only added rows, try the next version.
            if self._read_new_commits() != "same":
                raise TableError(self.name, "the commit failed: another writer has changed the table meanwhile")
        raise TableError(self.name, f"other writers were faster {_COMMIT_TRIES} times; stop one of them")

    def _write_due_checkpoint(self) -> None:
        """Write a checkpoint if one is due."""
        on_disk = self.lake.on_disk(self.name)
        interval = int(self.metadata().configuration.get(INTERVAL) or 100) * (INTERVALS_ON_DISK if on_disk else 1)
        # Shift the turn of each table: tables that one batch made would all have their checkpoint in one batch, at
        # 5 000 tables a minute of work.
        shift = crc32(self.name.encode()) if on_disk else 0
        if (self.at + 1 + shift) % interval != 0:
            return
        if on_disk or not self._build_checkpoint():
            self.newest_table().create_checkpoint()
        self.commits.clear()
        if not on_disk and (self.at + 1) % (CLEANED * interval) == 0:
            self.newest_table().cleanup_metadata()

    def _build_checkpoint(self) -> bool:
        """Build the checkpoint of a table in an object store from the last one and the kept commits.

        delta-rs does it in a temporary folder, which saves it reading every commit from the store. Returns False if
        that is not possible, as the last checkpoint has several parts or is of version 2.
        """
        about = json.loads(self.lake.read(f"{self._log_folder}/_last_checkpoint") or b"{}")
        last = int(about.get("version", -1))
        if last >= self.at:
            return True  # another writer was faster
        if "parts" in about or "v2Checkpoint" in about:
            return False
        with TemporaryDirectory() as place:
            folder = Path(place, "_delta_log")
            folder.mkdir()
            if last >= 0:
                content = self.lake.read(f"{self._log_folder}/{last:020}.checkpoint.parquet")
                if content is None:
                    return False
                Path(folder, f"{last:020}.checkpoint.parquet").write_bytes(content)
                Path(folder, "_last_checkpoint").write_text(json.dumps(about))
            for version in range(last + 1, self.at + 1):
                text = self.commits.get(version) or self.lake.read(self.commit_path(version))
                if text is None:
                    return False
                Path(folder, f"{version:020}.json").write_bytes(text)
            DeltaTable(place).create_checkpoint()
            # `_last_checkpoint` comes second: it must not name a checkpoint that is not there yet.
            for name in (f"{self.at:020}.checkpoint.parquet", "_last_checkpoint"):
                self.lake.write(f"{self._log_folder}/{name}", Path(folder, name).read_bytes())
        return True


def delta_rs_table(table: Any) -> Any:
    """Return the table of delta-rs behind a LogTail, for calls that accept no other; any other table is returned."""
    if isinstance(table, LogTail):
        return table.newest_table()
    return table


def _schema_metadata_protocol(table: DeltaTable) -> tuple[Schema, Metadata, ProtocolVersions]:
    return table.schema(), table.metadata(), table.protocol()


def _append_commit(files: Sequence[AddAction], transaction: tuple[str, int], notes: Mapping[str, str]) -> bytes:
    """Return the text of a commit that appends files. Source: Delta protocol, "Actions"."""
    app_id, number = transaction
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": "spark-event-router",
        "isBlindAppend": True,
        **notes,
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": info},
        {"txn": {"appId": app_id, "version": number, "lastUpdated": now}},
    ]
    for file in files:
        add = {
            "path": quote(file.path, safe="/=-_.~"),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": file.modification_time,
            "dataChange": file.data_change,
            "stats": file.stats,
        }
        actions.append({"add": add})
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()
