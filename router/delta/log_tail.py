"""Tables in object stores: what was committed since a table was opened is kept, and appends are written to its log.

delta-rs lists a log, and reads every commit since the last checkpoint, several times for one append: cheap on a disk,
14 to 94 requests in an object store. Here a batch asks one question of a table's log (what came after version N?), and
an append is one file, written only if it is not there: the protocol's own way to commit. Everything else goes through
delta-rs, on the same table at its newest version. Runs on the driver.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deltalake import DeltaTable

from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
"""Checkpoints after which expired commits are deleted."""


@dataclass
class LogTail:
    """A table of an object store, open: what delta-rs knew of a version, and what was committed since.

    It answers what the router asks of a `DeltaTable`. Whatever is not among its methods is asked of the table at its
    newest version.
    """

    lake: Lake
    name: str
    opened: DeltaTable
    at: int
    stamp: str | None = None
    transactions: dict[str, int | None] = field(default_factory=dict)
    commits: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, lake: Lake, name: str, table: DeltaTable) -> LogTail:
        """Return a table that was opened just now."""
        found = cls(lake, name, table, table.version())
        found.stamp = lake.stamp(found.path(found.at))
        return found

    def path(self, version: int) -> str:
        """Return the path of a commit below the lake."""
        return f"{self._log}/{version:020}.json"

    @property
    def _log(self) -> str:
        return f"{self.name.replace('.', '/')}/_delta_log"

    def renewed(self) -> bool:
        """Take in what came after the version that is known; say whether the table is still this one, of one schema."""
        found = self.lake.store.stamps(self._log, after=self.path(self.at - 1) if self.at else f"{self._log}/")
        if found.get(self.path(self.at)) != self.stamp:
            return False  # the table was dropped, and made again
        while (stamp := found.get(self.path(self.at + 1))) is not None:
            text = self.lake.read(self.path(self.at + 1))
            if not text or not self._take(text):
                return False
            self.stamp = stamp
        return True

    def _take(self, text: bytes) -> bool:
        """Note the next commit; return False where it changes what the table is."""
        try:
            actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise TableError(self.name, f"{self.at + 1:020}.json of its log is damaged") from error
        if any("metaData" in action or "protocol" in action for action in actions):
            return False
        for action in actions:
            if one := action.get("txn"):
                self.transactions[one["appId"]] = int(one["version"])
        self.at += 1
        self.commits[self.at] = text
        return True

    def newest(self) -> DeltaTable:
        """Return the table of delta-rs at its newest version."""
        if self.opened.version() < self.at:
            self.opened.update_incremental()
        return self.opened

    def version(self) -> int:
        """Return the version."""
        return self.at

    def schema(self) -> Schema:
        """Return the columns."""
        return self.opened.schema()

    def metadata(self) -> Metadata:
        """Return the table's properties, its name, and how it is divided."""
        return self.opened.metadata()

    def protocol(self) -> ProtocolVersions:
        """Return the versions and features that whoever reads or writes the table has to know."""
        return self.opened.protocol()

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction id, None where the table has none of it."""
        if app_id not in self.transactions:
            self.transactions[app_id] = self.opened.transaction_version(app_id)
        return self.transactions[app_id]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "opened":
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
                self.stamp = stamp
                self._checkpoint()
                return True
            if self.lake.read(self.path(self.at + 1)) == text:  # a request was sent again whose answer was lost
                stamp = self.lake.stamp(self.path(self.at + 1))
                self._take(text)
                self.stamp = stamp
                return True
            if not self.renewed():
                raise TableError(self.name, "the commit failed: another writer has changed the table meanwhile")
        raise TableError(self.name, f"other writers were faster {TRIES} times; stop one of them")

    def _checkpoint(self) -> None:
        """Write a checkpoint where one is due, made on a disk from the last one and the commits that are kept."""
        interval = int(self.metadata().configuration.get(INTERVAL) or 100)
        if (self.at + 1) % interval:
            return
        if not self._made_here():
            self.newest().create_checkpoint()
        self.commits.clear()
        if (self.at + 1) % (CLEANED * interval) == 0:
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
