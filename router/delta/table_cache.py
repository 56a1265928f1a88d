"""The tables of a lake, kept open from one batch to the next.

To open a table delta-rs reads its log from the last checkpoint on, so an open table stays open (`TableCache`, with
`log_tail`). For lakes that only Spark may reach, `SparkTables` reads the same from Spark's snapshots. If a table cannot
be opened, the others still can. Runs on the driver.
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
    from pyspark.sql import DataFrame, SparkSession

    from router.delta.lake import Lake

THREADS = 8
FILES = 200_000
"""Files that all kept handles together may refer to; a handle takes 0.7 KB of memory for each."""
TABLES = 200
"""Handles of delta-rs that are kept. Each takes up to 0.4 MB, nearly all of it for the commits since a checkpoint. The
rest of an open table, which a batch needs, takes 0.01 MB and stays for every table."""


@dataclass
class TableCache:
    """The open tables of a lake.

    `tails`: name -> open table. `held`: name -> number of files, of those tables whose delta-rs handle is kept, the
    least recently used first.
    """

    lake: Lake
    tails: dict[str, LogTail] = field(default_factory=dict)
    held: OrderedDict[str, int] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def open_tables(self, tables: Iterable[str]) -> dict[str, DeltaTable | None]:
        """Return tables at their newest version; None for a table that does not exist. Raises TableError."""
        return require_readable(self.open_readable_tables(tables))

    def open_readable_tables(self, tables: Iterable[str]) -> dict[str, DeltaTable | TableError | None]:
        """Return tables at their newest version; None for one that does not exist, the error for an unreadable one."""
        names = sorted(tables)
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(names, pool.map(self._open_or_error, names), strict=True))

    def file_count(self, name: str) -> int:
        """Return about how many files a table has, 0 if it is not open."""
        tail = self.tails.get(name)
        if tail is None:
            return 0
        return tail.files

    def _open_or_error(self, name: str) -> DeltaTable | TableError | None:
        try:
            return cast("DeltaTable | None", self._open_newest(name))
        except TableError as error:
            return error
        except (DeltaError, OSError, ValueError) as error:  # ValueError: delta-rs cannot parse the log
            return unreadable_table_error(self.lake, name, error)

    def _open_newest(self, name: str) -> LogTail | None:
        tail = self.tails.get(name)
        if tail is None or not self._catch_up(tail):
            tail = self._open_anew(name)
        with self.lock:
            self._keep_tail(name, tail)
        return tail

    def _keep_tail(self, name: str, tail: LogTail | None) -> None:
        """Keep an open table, and drop the least recently used handles that are too many."""
        self.held.pop(name, None)
        if tail is None:
            self.tails.pop(name, None)
            return
        self.tails[name] = tail
        if tail.handle is not None:
            self.held[name] = tail.files
        files = sum(self.held.values())
        while files > FILES or len(self.held) > TABLES:
            oldest, oldest_files = self.held.popitem(last=False)
            files -= oldest_files
            if oldest in self.tails:
                self.tails[oldest].handle = None

    def _catch_up(self, tail: LogTail) -> bool:
        """Bring an open table to its newest version; return False if another table has its name now.

        On a disk this looks at two files: listing a log would take longer with every commit in it.
        """
        try:
            return tail.catch_up()
        except (DeltaError, OSError):
            return False  # if the fault persists, opening the table again raises it with its cause

    def _open_anew(self, name: str) -> LogTail | None:
        table = self.lake.open(name)
        if table is None:
            return None
        return LogTail.from_open_table(self.lake, name, table)


@dataclass(frozen=True)
class SparkMetadata:
    """The part of a table's metadata that the router reads."""

    configuration: dict[str, str]
    name: str | None = None
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparkProtocol:
    """The part of a table's protocol that the router reads."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class SparkTable:
    """One version of a table, by Delta's own snapshot, with those methods of `DeltaTable` that the router calls."""

    snapshot: Any

    def version(self) -> int:
        """Return the version."""
        return int(self.snapshot.version())

    def schema(self) -> Schema:
        """Return the columns."""
        return Schema.from_json(self.snapshot.metadata().schemaString())

    def metadata(self) -> SparkMetadata:
        """Return the table's properties, its name, and how it is divided."""
        metadata = json.loads(self.snapshot.metadata().json())["metaData"]
        return SparkMetadata(
            configuration=metadata.get("configuration", {}),
            name=metadata.get("name"),
            partition_columns=tuple(metadata.get("partitionColumns", ())),
        )

    def protocol(self) -> SparkProtocol:
        """Return the versions and features that readers and writers of the table must support."""
        protocol = json.loads(self.snapshot.protocol().json())["protocol"]
        return SparkProtocol(
            min_reader_version=protocol["minReaderVersion"],
            min_writer_version=protocol["minWriterVersion"],
            reader_features=tuple(protocol.get("readerFeatures", ())),
            writer_features=tuple(protocol.get("writerFeatures", ())),
        )

    def size_in_bytes(self) -> int:
        """Return the bytes of the table's files."""
        return int(self.snapshot.sizeInBytes())

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction id, None if the table does not have the id."""
        version = self.snapshot.transactions().get(app_id)  # a Scala Option
        if not version.isDefined():
            return None
        return int(version.get())


@dataclass(frozen=True)
class SparkTables:
    """The tables of a lake, read through Spark at every call: Delta keeps their logs in memory itself."""

    spark: SparkSession
    lake: Lake

    def open_tables(self, tables: Iterable[str]) -> dict[str, SparkTable | None]:
        """Return tables at their newest version; None for a table that does not exist. Raises TableError."""
        return require_readable(self.open_readable_tables(tables))

    def open_readable_tables(self, tables: Iterable[str]) -> dict[str, SparkTable | TableError | None]:
        """Return tables at their newest version; None for one that does not exist, the error for an unreadable one."""
        return {name: self._open_or_error(name) for name in sorted(tables)}

    def read_rows(self, name: str) -> DataFrame | None:
        """Return the rows of a table; None if it does not exist. Raises TableError."""
        if self.open_tables([name])[name] is None:
            return None
        return self.spark.read.format("delta").load(self.lake.spark_address(name))

    def file_count(self, name: str) -> int:
        """Return 0: Delta on Spark knows the number of files only after reading the whole log."""
        return 0

    def _open_or_error(self, name: str) -> SparkTable | TableError | None:
        try:
            table = spark_table(self.spark, self.lake, name)
            if table is None:
                return None
            check_log(self.lake, name, table.version())
            table.transaction_version("")  # Delta reads the log lazily: ask for anything, to see whether it can
        except TableError as error:
            return error
        except Exception as error:  # Py4J and Spark raise many types; each concerns this table only
            return unreadable_table_error(self.lake, name, error)
        return table


T = TypeVar("T")


def require_readable(tables: Mapping[str, T | TableError]) -> dict[str, T]:
    """Return the tables if all could be read. Raises the TableError of the first that could not."""
    for table in tables.values():
        if isinstance(table, TableError):
            raise table
    return cast("dict[str, T]", dict(tables))


def unreadable_table_error(lake: Lake, name: str, error: Exception) -> TableError:
    """Return the error of a table that could not be opened: the damaged file of its log, or the error's own text."""
    reason = first_line(error)
    if DAMAGED_LOG not in reason:
        reason = log_damage(lake, name) or reason
    table_error = TableError(name, f"it cannot be read: {reason}")
    table_error.__cause__ = error
    return table_error


def check_log(lake: Lake, name: str, version: int, since: int = 0) -> None:
    """Raise TableError if one of the newest files of a table's log is empty: its commit is lost.

    Files before version `since` have been checked before. Object stores write a file completely or not at all.
    """
    if not lake.on_disk(name):
        return
    empty = lake.empty_commits(name, version, since)
    if empty:
        raise TableError(name, f"it cannot be read: {DAMAGED_LOG} damaged: {', '.join(empty)} is empty")


def spark_table(spark: SparkSession, lake: Lake, name: str) -> SparkTable | None:
    """Return the table of that name at its newest version, None if there is none."""
    snapshot = delta_snapshot(spark, lake.spark_address(name))
    if snapshot is None:
        return None
    return SparkTable(snapshot)
