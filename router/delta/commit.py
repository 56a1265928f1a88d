"""Commit staged files to a table with delta-rs, once per transaction id; begin anew when another writer was faster.

What a sink writes about a batch is staged here as well, part by part in the folder of a table of its own.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import DeltaError
from pyarrow import fs

from router.delta.file_statistics import statistics
from router.delta.lake import native_files
from router.delta.log_tail import LogTail, newest
from router.delta.replace import add_action, add_columns, append_files, create_with_files
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from router.delta.lake import Lake
    from router.sinks import Widening


@dataclass(frozen=True)
class StagedFile:
    """A Parquet file written into a table's folder, to which no commit refers yet.

    `target` is `route/sink`, or `/bronze` and `/dead_letters`; `path` is relative to the lake; `statistics` is the
    add action's JSON. `partition` has the columns that are not in the file, as all its rows have one value of each.
    """

    target: str
    table: str
    path: str
    bytes: int
    rows: int
    columns: tuple[str, ...]
    statistics: str
    partition: dict[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, found: dict[str, Any]) -> StagedFile:
        """Return a file from what `asdict` made of one, by way of JSON."""
        return cls(**{**found, "columns": tuple(found["columns"])})


def staged_file(lake: Lake, target: str, table: str, path: str) -> StagedFile:
    """Return a Parquet file that is there already as one that a commit can add."""
    with lake.files.open_input_file(path) as source:
        footer = pq.ParquetFile(source).metadata
        size = source.size()
    columns = tuple(footer.schema.to_arrow_schema().names)
    return StagedFile(target, table, path, size, footer.num_rows, columns, statistics(footer))


@dataclass(frozen=True)
class TableCommit:
    """What one batch adds to one table: staged files, new columns, and the transaction id.

    `columns` is the Delta schema (JSON) of all columns with values; `added` of those that the table lacked when the
    batch was decided, `widened` of those that had narrower types; `decided` is its version then, -1 without a
    table, None where nothing was compared with it. `widening`: with `feature` a table that must not be rewritten gets
    Delta's type widening.
    """

    target: str
    table: str
    app_id: str
    version: int
    files: tuple[StagedFile, ...]
    columns: str
    added: str | None = None
    widened: str | None = None
    decided: int | None = None
    widening: Widening = "feature"

    @property
    def rows(self) -> int:
        """Return the number of rows in the files."""
        return sum(file.rows for file in self.files)

    @property
    def once(self) -> Transaction:
        """Return the transaction id with its version."""
        return Transaction(self.app_id, self.version)

    @property
    def place(self) -> str:
        """Return target and table as one text: a key of demands."""
        return f"{self.target}/{self.table}"


def to_delta(schema: pa.Schema) -> str:
    """Return a schema as Delta's JSON."""
    return Schema.from_arrow(schema).to_json()


def to_arrow_schema(columns: str) -> pa.Schema:
    """Return Delta's JSON of a schema in Arrow types."""
    return pa.schema(Schema.from_json(columns).to_arrow())


def to_arrow(table: DeltaTable) -> pa.Schema:
    """Return a table's schema in Arrow types."""
    return pa.schema(table.schema().to_arrow())


def commit(lake: Lake, work: TableCommit, notes: dict[str, str], table: DeltaTable | None = None) -> bool:
    """Add the files to the table in one Delta commit; return False where the transaction id was there already.

    `table` may be one opened in this batch. delta-rs accepts a replayed id and validates nothing, so the id is
    read first, on the same handle the commit goes through: two writers with one id then conflict.
    """
    handle: Any = table or lake.open(work.table)
    ids = {work.app_id: work.version}
    try:
        if handle is None:
            create_with_files(lake, work.table, work.columns, work.files, ids=ids, notes=notes)
            return True
        if isinstance(handle, LogTail) and handle.appends and not work.added:
            return handle.append([add_action(file) for file in work.files], (work.app_id, work.version), notes)
        known, handle = handle.version(), newest(handle)
        if is_committed(handle, work):
            return False
        if handle.version() != known:  # the rows were staged for what the table was
            raise TableError(work.table, "the commit failed: another writer has changed the table meanwhile")
        if work.added:
            add_columns(handle, work.added)
        append_files(handle, work.files, ids=ids, notes=notes)
    except (DeltaError, OSError) as error:
        raise TableError(work.table, f"the commit failed: {first_line(error)}") from error
    return True


def is_committed(table: DeltaTable, work: TableCommit) -> bool:
    """Say whether this batch is in the table already."""
    return has_transaction(table, work.once)


def has_transaction(table: DeltaTable, once: Transaction) -> bool:
    """Say whether a transaction id is in a table already."""
    version = table.transaction_version(once.app_id)
    return version is not None and version >= once.version


def fields(schema: str) -> list[Field]:
    """Return the columns of a Delta schema JSON."""
    return list(Schema.from_json(schema).fields)


def row_count(table: DeltaTable) -> int:
    """Return the number of rows a table's current version states in its file statistics."""
    actions: Any = pa.table(table.get_add_actions())
    return sum(actions.column("num_records").to_pylist())


def stored_bytes(table: DeltaTable) -> int:
    """Return the bytes of the files that a table has."""
    actions: Any = pa.table(table.get_add_actions())
    return sum(actions.column("size_bytes").to_pylist())


def names(schema: str) -> list[str]:
    """Return the column names of a Delta schema JSON, in order."""
    return [column["name"] for column in json.loads(schema)["fields"]]


T = TypeVar("T")


def retry_on_conflict(
    work: Callable[[], T],
    faster: type[Exception],
    tries: int,
    seconds: float,
    before: Callable[[], object] = lambda: None,
) -> T:
    """Return the outcome of work that is begun anew when it raises `faster`; the last of the tries may raise it.

    Waits a random time before it does: up to so many `seconds` at first, then twice as many each time. `before` is what
    has to be done before it begins anew.
    """
    for attempt in range(tries - 1):
        try:
            return work()
        except faster:
            time.sleep(random.uniform(0, seconds * 2**attempt))
            before()
    return work()


def conflict_error(table: str, tries: int, error: Exception) -> TableError:
    """Return what is raised where no try was fast enough; `error` is the last one's."""
    why = str(error).split("\n")[0]
    return TableError(table, f"other writers were faster {tries} times, the last time: {why}; stop one of them")


NOTES = b"router.notes"


@dataclass(frozen=True)
class StagedParts:
    """The staged parts of one batch of one sink: see `router.Parts`.

    `owner` is the transaction id of the sink's own tables; its files lie below a folder of that name.
    """

    lake: Lake
    table: str
    owner: str
    batch: int
    notes: dict[str, str] = field(default_factory=dict)

    def write(self, rows: pa.Table, notes: Mapping[str, str] | None = None) -> None:
        """Write a part, with what is to be known about it."""
        about = {**(rows.schema.metadata or {}), NOTES: json.dumps(dict(notes or {})).encode()}
        buffer = pa.BufferOutputStream()
        pq.write_table(rows.replace_schema_metadata(about), buffer)
        self.lake.write(f"{self._folder}/{time.time_ns()}-{uuid.uuid4()}.parquet", buffer.getvalue())

    def read(self, columns: Sequence[str] | None = None) -> Iterator[tuple[dict[str, str], pa.Table]]:
        """Yield the notes and rows of each part, without columns that one of an older version does not have."""
        for path in self._paths():
            with self.lake.files.open_input_file(path) as source, pq.ParquetFile(source) as file:
                there = set(file.schema_arrow.names)
                rows = file.read(None if columns is None else [name for name in columns if name in there])
            yield json.loads((rows.schema.metadata or {}).get(NOTES, b"{}")), rows

    def commit(self, schema: pa.Schema) -> None:
        """Add all parts to the table, unless they are in it; a table of an older version gains its columns."""
        files = tuple(staged_file(self.lake, self.owner, self.table, path) for path in self._paths())
        if not files:
            return
        handle = self.lake.open(self.table)
        new = [column for column in schema if handle and column.name not in to_arrow(handle).names]
        work = TableCommit(files[0].target, self.table, self.owner, self.batch, files, to_delta(schema))
        commit(self.lake, replace(work, added=to_delta(pa.schema(new)) if new else None), self.notes, handle)

    def recent(self, columns: Sequence[str], at: str, since: datetime) -> pa.Table | None:
        """Return rows of the table, of all batches, whose time `at` is not before `since`; None: there is no table.

        Columns that a table of an older version does not have are left out.
        """
        table = self.lake.open(self.table)
        if table is None:
            return None
        rows = table.to_pyarrow_dataset(filesystem=native_files(table))
        there = [name for name in columns if name in rows.schema.names]
        return rows.to_table(columns=there, filter=pc.field(at) >= pa.scalar(since))

    def committed(self) -> bool:
        """Say whether the table has the parts of this batch."""
        table = self.lake.open(self.table)
        return table is not None and has_transaction(table, Transaction(self.owner, self.batch))

    def _paths(self) -> list[str]:
        found = self.lake.files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return sorted(f"{self._folder}/{entry.base_name}" for entry in found if entry.extension == "parquet")

    @property
    def _folder(self) -> str:
        return f"{self.table.replace('.', '/')}/{_parts_of(self.owner)}/{self.batch:010d}"


def has_parts(lake: Lake, owner: str, batch: int) -> bool:
    """Say whether a sink has staged parts about a batch for any table."""
    layers = (fs.FileSelector(layer) for layer in lake.layers())
    tables = (entry.path for layer in layers for entry in lake.files.get_file_info(layer))
    found = lake.files.get_file_info([f"{table}/{_parts_of(owner)}/{batch:010d}" for table in tables])
    return any(entry.type is fs.FileType.Directory for entry in found)


def _parts_of(owner: str) -> str:
    return owner.replace("/", "__").replace(":", "__")
