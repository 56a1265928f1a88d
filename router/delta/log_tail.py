"""Open tables: what a batch asks of a table is kept, what others commit is read on, and appends are written to its log.

delta-rs lists a log, and reads every commit since the last checkpoint, several times for one append: 14 to 94 requests
in an object store. Its handle has the list of the table's files, 0.02 MB for each commit since the last checkpoint:
5 000 of them do not fit into a driver. Here a batch asks one question of a table's log (what came after version N?),
and an append is one file, written only if it is not there: the protocol's own way to commit. Everything else goes
through delta-rs, on the same table at its newest version. Runs on the driver.
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

from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import Metadata, Schema
    from deltalake.table import ProtocolVersions
    from deltalake.transaction import AddAction

    from router.delta.lake import Lake

APPENDED = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"}
APPENDED |= {"deletionVectors", "typeWidening", "typeWidening-preview"}
"""Features of tables for which an append says nothing more than which files are new."""
INTERVAL = "delta.checkpointInterval"
TRIES = 20
"""Versions that other writers may be faster to make before an append gives up."""
CLEANED = 10
"""Checkpoints in an object store after which expired commits are deleted; on a disk table maintenance does that."""
FILE_ACTIONS = b'{"add"', b'{"remove"'
"""How the actions begin that say nothing about what the table is: a compaction writes thousands of them."""


@dataclass
class LogTail:
    """An open table: what its newest version is, and what was committed since it was opened.

    It answers what the router asks of a `DeltaTable`. Whatever is not among its methods is asked of the table at its
    newest version. `handle` is delta-rs's own of some version since, as long as it is kept; `files` is about how many
    files the table has.
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
    def of(cls, lake: Lake, name: str, table: DeltaTable) -> LogTail:
        """Return a table that was opened just now."""
        files = table.get_add_actions().num_rows
        found = cls(lake, name, table, table.version(), None, _about(table), files)
        found.stamp = lake.stamp(found.path(found.at))
        return found

    def path(self, version: int) -> str:
        """Return the path of a commit below the lake."""
        return f"{self._log}/{version:020}.json"

    @property
    def _log(self) -> str:
        return f"{self.name.replace('.', '/')}/_delta_log"

    def renewed(self) -> bool:
        """Take in what came after the version that is known; say whether the table is still this one."""
        return self._read_on() != "another"

    def _read_on(self) -> Literal["same", "changed", "another"]:
        """Take in what came since; say whether metadata or protocol have changed, or the table is another one."""
        written = self._written()
        if written(self.at) != self.stamp:
            return "another"  # the table was dropped, and made again
        while (stamp := written(self.at + 1)) is not None:
            text = self.lake.read(self.path(self.at + 1))
            if not text:
                return "another"  # opening it anew says what is wrong
            try:
                known = self._take(text)
            except ValueError:  # cut off or overwritten
                return "another"
            if not known:
                return self._changed()
            self.stamp = stamp
        return "same"

    def _written(self) -> Callable[[int], str | None]:
        """Return what knows when a version was committed. Object stores are asked once, disks for single files."""
        if self.lake.on_disk(self.name):
            return lambda version: self.lake.stamp(self.path(version))
        found = self.lake.store.stamps(self._log, after=self.path(self.at - 1) if self.at else f"{self._log}/")
        return lambda version: found.get(self.path(version))

    def _changed(self) -> Literal["changed", "another"]:
        """Learn anew what the table is."""
        table = self.lake.open(self.name)
        if table is None:
            return "another"
        known = {app_id: table.transaction_version(app_id) for app_id in self.transactions}
        self.handle, self.at, self.about, self.transactions = table, table.version(), _about(table), known
        self.stamp = self.lake.stamp(self.path(self.at))
        self.commits.clear()
        return "changed"

    def _take(self, text: bytes) -> bool:
        """Note the next commit; return False where it changes what the table is. Raises ValueError."""
        *lines, last = text.strip().splitlines()
        told = (line for line in lines if line.strip() and not line.startswith(FILE_ACTIONS))
        actions = [json.loads(line) for line in (*told, last)]  # a commit that was cut off ends in half an action
        if any("metaData" in action or "protocol" in action for action in actions):
            return False
        for action in actions:
            if one := action.get("txn"):
                self.transactions[one["appId"]] = int(one["version"])
        self.at += 1
        self.files += 1
        if not self.lake.on_disk(self.name):
            self.commits[self.at] = text
        return True

    def newest(self) -> DeltaTable:
        """Return the table of delta-rs at its newest version. Raises DeltaError, TableError."""
        table = self.handle
        if table is not None and table.version() < self.at:
            try:
                table.update_incremental()
            except DeltaError:  # its log begins later by now
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
        """Return the versions and features that whoever reads or writes the table has to know."""
        return self.about[2]

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction id, None where the table has none of it."""
        if app_id not in self.transactions:  # no commit since the handle's version has it
            self.transactions[app_id] = (self.handle or self.newest()).transaction_version(app_id)
        return self.transactions[app_id]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in LogTail.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self.newest(), name)

    @property
    def appends(self) -> bool:
        """Say whether an append needs nothing but its files in the log."""
        return {*(self.protocol().writer_features or ())} <= APPENDED

    def append(self, files: Sequence[AddAction], transaction: tuple[str, int], notes: Mapping[str, str]) -> bool:
        """Add files in one commit; return False where the transaction id is there already. Raises TableError."""
        text = _commit(files, transaction, notes)
        for _ in range(TRIES):
            known = self.transaction_version(transaction[0])
            if known is not None and known >= transaction[1]:
                return False
            stamp = self.lake.store.create(self.path(self.at + 1), text)
            if stamp is not None:
                self._take(text)
                self.stamp, self.handle = stamp, None  # the next append needs none: it would only grow
                self._checkpoint()
                return True
            if self.lake.read(self.path(self.at + 1)) == text:  # a request was sent again whose answer was lost
                stamp = self.lake.stamp(self.path(self.at + 1))
                self._take(text)
                self.stamp = stamp
                return True
            if self._read_on() != "same":
                raise TableError(self.name, "the commit failed: another writer has changed the table meanwhile")
        raise TableError(self.name, f"other writers were faster {TRIES} times; stop one of them")

    def _checkpoint(self) -> None:
        """Write a checkpoint where one is due.

        That of an object store is made on a disk from the last one and the commits that are kept.
        """
        interval = int(self.metadata().configuration.get(INTERVAL) or 100)
        # tables that were made by one batch would all have theirs in one batch: at 5 000 tables a minute of work
        shifted = crc32(self.name.encode()) if self.lake.on_disk(self.name) else 0
        if (self.at + 1 + shifted) % interval:
            return
        if self.lake.on_disk(self.name) or not self._made_here():
            self.newest().create_checkpoint()
        self.commits.clear()
        if not self.lake.on_disk(self.name) and (self.at + 1) % (CLEANED * interval) == 0:
            self.newest().cleanup_metadata()

    def _made_here(self) -> bool:
        about = json.loads(self.lake.read(f"{self._log}/_last_checkpoint") or b"{}")
        last = int(about.get("version", -1))
        if "parts" in about or "v2Checkpoint" in about or last >= self.at:
            return last >= self.at
        with TemporaryDirectory() as place:
            folder = Path(place, "_delta_log")
            folder.mkdir()
            if last >= 0:
                content = self.lake.read(f"{self._log}/{last:020}.checkpoint.parquet")
                if content is None:
                    return False
                Path(folder, f"{last:020}.checkpoint.parquet").write_bytes(content)
                Path(folder, "_last_checkpoint").write_text(json.dumps(about))
            for version in range(last + 1, self.at + 1):
                text = self.commits.get(version) or self.lake.read(self.path(version))
                if text is None:
                    return False
                Path(folder, f"{version:020}.json").write_bytes(text)
            DeltaTable(place).create_checkpoint()
            for name in (f"{self.at:020}.checkpoint.parquet", "_last_checkpoint"):
                self.lake.write(f"{self._log}/{name}", Path(folder, name).read_bytes())
        return True


def newest(table: Any) -> Any:
    """Return the table of delta-rs behind a tail, for what takes no other; other tables are as they are."""
    return table.newest() if isinstance(table, LogTail) else table


def _about(table: DeltaTable) -> tuple[Schema, Metadata, ProtocolVersions]:
    return table.schema(), table.metadata(), table.protocol()


def _commit(files: Sequence[AddAction], transaction: tuple[str, int], notes: Mapping[str, str]) -> bytes:
    """Return the actions of an append, as the protocol writes them ("Actions")."""
    now = int(time.time() * 1000)
    about = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "engineInfo": "spark-event-router",
        "isBlindAppend": True,
        **notes,
    }
    actions: list[dict[str, Any]] = [{"commitInfo": about}]
    actions.append({"txn": {"appId": transaction[0], "version": transaction[1], "lastUpdated": now}})
    for file in files:
        actions.append({
            "add": {
                "path": quote(file.path, safe="/=-_.~"),
                "partitionValues": dict(file.partition_values),
                "size": file.size,
                "modificationTime": file.modification_time,
                "dataChange": file.data_change,
                "stats": file.stats,
            }
        })  # fmt: skip
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()
