"""The tables of a lake, open from one batch to the next: by the tails of their logs, or as Delta on Spark sees them.

delta-rs reads a table's log from the last checkpoint on to open it, so what is open stays open (`log_tail`). For lakes
that only Spark may reach there are tables that answer the same questions, from Spark's snapshots. A table that cannot
be opened keeps no other from it. Runs on the driver.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from deltalake import Schema
from deltalake.exceptions import DeltaError

from router.delta.history import log_damage
from router.delta.lake import DAMAGED_LOG
from router.delta.log_tail import LogTail
from router.errors import TableError, first_line
from router.spark_internals import delta_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake

THREADS = 8
FILES = 200_000
"""Files that the handles which are kept may refer to together; a handle takes 0.7 KB of memory for each."""
TABLES = 200
"""Handles of delta-rs that are kept. Each takes up to 0.4 MB, nearly all of it for the commits since a checkpoint. What
a batch needs of a table takes 0.01 MB and stays for every table."""


@dataclass
class TableCache:
    """The open tables of a lake. Of those used last delta-rs's own handles stay as well: `held`, with their files."""

    lake: Lake
    tails: dict[str, LogTail] = field(default_factory=dict)
    held: OrderedDict[str, int] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def open(self, tables: Iterable[str]) -> dict[str, DeltaTable | None]:
        """Return tables at their newest version; None where there is none. Raises TableError."""
        return whole(self.readable(tables))

    def readable(self, tables: Iterable[str]) -> dict[str, DeltaTable | TableError | None]:
        """Return tables at their newest version; None where there is none, the error where one cannot be read."""
        names = sorted(tables)
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(names, pool.map(self._tried, names), strict=True))

    def files(self, name: str) -> int:
        """Return about how many files a table has, 0 where it is not open."""
        tail = self.tails.get(name)
        return tail.files if tail else 0

    def _tried(self, name: str) -> DeltaTable | TableError | None:
        try:
            return cast("DeltaTable | None", self._table(name))
        except TableError as error:
            return error
        except (DeltaError, OSError, ValueError) as error:  # ValueError: a log that delta-rs takes for nonsense
            return unreadable(self.lake, name, error)

    def _table(self, name: str) -> LogTail | None:
        tail = self.tails.get(name)
        if tail is None or not self._renewed(tail):
            tail = self._opened(name)
        with self.lock:
            self._keep(name, tail)
        return tail

    def _keep(self, name: str, tail: LogTail | None) -> None:
        """Keep an open table, and as many handles as may be."""
        self.held.pop(name, None)
        if tail is None:
            self.tails.pop(name, None)
            return
        self.tails[name] = tail
        if tail.handle is not None:
            self.held[name] = tail.files
        files = sum(self.held.values())
        while files > FILES or len(self.held) > TABLES:
            oldest, count = self.held.popitem(last=False)
            files -= count
            if oldest in self.tails:
                self.tails[oldest].handle = None

    def _renewed(self, tail: LogTail) -> bool:
        """Bring an open table to its newest version; False where the table of that name is another one by now.

        A look at two files says it: listing a log takes longer with each commit that is in it.
        """
        try:
            return tail.renewed()
        except (DeltaError, OSError):
            return False  # opening it anew says what is wrong, if it still is

    def _opened(self, name: str) -> LogTail | None:
        table = self.lake.open(name)
        return None if table is None else LogTail.of(self.lake, name, table)


@dataclass(frozen=True)
class SparkMetadata:
    """What the router reads of a table's metadata."""

    configuration: dict[str, str]
    name: str | None = None
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparkProtocol:
    """What the router reads of a table's protocol."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparkTable:
    """A version of a table, by Delta's own snapshot: it answers what the router asks of a `DeltaTable`."""

    snapshot: Any

    def version(self) -> int:
        """Return the version."""
        return int(self.snapshot.version())

    def schema(self) -> Schema:
        """Return the columns."""
        return Schema.from_json(self.snapshot.metadata().schemaString())

    def metadata(self) -> SparkMetadata:
        """Return the table's properties, its name, and how it is divided."""
        about = json.loads(self.snapshot.metadata().json())["metaData"]
        divided = tuple(about.get("partitionColumns", ()))
        return SparkMetadata(about.get("configuration", {}), about.get("name"), divided)

    def protocol(self) -> SparkProtocol:
        """Return the versions and features that whoever reads or writes the table has to know."""
        about = json.loads(self.snapshot.protocol().json())["protocol"]
        features = (tuple(about.get(name, ())) for name in ("readerFeatures", "writerFeatures"))
        return SparkProtocol(about["minReaderVersion"], about["minWriterVersion"], *features)

    def bytes(self) -> int:
        """Return the bytes of the files that the table has."""
        return int(self.snapshot.sizeInBytes())

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction id, None where the table has none of it."""
        found = self.snapshot.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None


@dataclass(frozen=True)
class SparkTables:
    """The tables of a lake, read through Spark at every call: Delta keeps their logs in memory itself."""

    spark: SparkSession
    lake: Lake

    def open(self, tables: Iterable[str]) -> dict[str, SparkTable | None]:
        """Return tables at their newest version; None where there is none. Raises TableError."""
        return whole(self.readable(tables))

    def readable(self, tables: Iterable[str]) -> dict[str, SparkTable | TableError | None]:
        """Return tables at their newest version; None where there is none, the error where one cannot be read."""
        return {name: self._tried(name) for name in sorted(tables)}

    def files(self, name: str) -> int:
        """Return 0: Delta on Spark does not say how many files a table has without looking."""
        return 0

    def _tried(self, name: str) -> SparkTable | TableError | None:
        try:
            if (table := spark_table(self.spark, self.lake, name)) is not None:
                check_log(self.lake, name, table.version())
                table.transaction_version("")  # Delta reads the log when it is asked something, not before
        except TableError as error:
            return error
        except Exception as error:  # whatever Spark raises concerns this table
            return unreadable(self.lake, name, error)
        return table


T = TypeVar("T")


def whole(found: Mapping[str, T | TableError]) -> dict[str, T]:
    """Return tables of which each could be read. Raises the TableError of the first that could not."""
    for table in found.values():
        if isinstance(table, TableError):
            raise table
    return cast("dict[str, T]", dict(found))


def unreadable(lake: Lake, name: str, error: Exception) -> TableError:
    """Return the error of a table that could not be opened: which file of its log is damaged, or what was raised."""
    said = first_line(error)
    found = TableError(name, f"it cannot be read: {said if DAMAGED_LOG in said else log_damage(lake, name) or said}")
    found.__cause__ = error
    return found


def check_log(lake: Lake, name: str, version: int, since: int = 0) -> None:
    """Raise TableError where one of the newest files of a table's log is empty: what it committed is lost.

    Those before version `since` were looked at before. In an object store a file is there whole or not at all.
    """
    if lake.on_disk(name) and (empty := lake.empty_commits(name, version, since)):
        raise TableError(name, f"it cannot be read: {DAMAGED_LOG} damaged: {', '.join(empty)} is empty")


def spark_table(spark: SparkSession, lake: Lake, name: str) -> SparkTable | None:
    """Return the table of that name at its newest version, or None where there is none."""
    snapshot = delta_snapshot(spark, lake.spark_address(name))
    return None if snapshot is None else SparkTable(snapshot)
