"""Commit staged files to a table with delta-rs, once per transaction id.

The receipts that a sink writes about a batch (`router.Parts`) are staged and committed here as well: `StagedParts`.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from pyarrow import fs

from router.delta.dataset import dataset_of
from router.delta.log_tail import LogTail, delta_rs_table
from router.delta.replace import add_action, add_columns, append_files, create_with_files
from router.delta.staged_files import StagedFile, staged_file
from router.errors import TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from router.api.sinks import Widening
    from router.delta.lake import Lake

ACCEPT_LOST = "`router run FILE --once --accept lost-tables`"
"""The command after which a table may lack batches. It also carries out what was decided about quarantined rows."""
_CHANGED_MEANWHILE = "the commit failed: another writer has changed the table meanwhile"


@dataclass(frozen=True)
class TableCommit:
    """The rows and columns that one batch adds to one table, with the transaction id of the commit.

    `columns` is the Delta schema (JSON) of all columns with values. When the batch's manifest was written, the table
    lacked the columns `added` (JSON), had narrower types for `widened` (JSON), and had the version `decided`: -1 if
    there was no table, None if its schema was not compared. With `widening: feature`, Delta's type widening is switched
    on for a table that must not be rewritten.
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
    def transaction(self) -> Transaction:
        """Return the transaction id with its version."""
        return Transaction(self.app_id, self.version)

    @property
    def note_key(self) -> str:
        """Return target and table as one text, a key for what is noted about a commit."""
        return f"{self.target}/{self.table}"


def without_lost_batches(tables: Sequence[str]) -> str:
    """Return the commands that continue without batches that tables have lost, and then rebuild the tables."""
    as_they_are = "them as they are" if len(tables) > 1 else "it as it is"
    rebuild = f"`router rebuild FILE {' '.join(tables)}`"
    return f"{ACCEPT_LOST} continues with {as_they_are}, then {rebuild} rebuilds from bronze"


def to_delta(schema: pa.Schema) -> str:
    """Return a schema as Delta's JSON."""
    return Schema.from_arrow(schema).to_json()


def to_arrow_schema(columns: str) -> pa.Schema:
    """Return Delta's JSON of a schema in Arrow types."""
    return pa.schema(Schema.from_json(columns).to_arrow())


def to_arrow(table: DeltaTable) -> pa.Schema:
    """Return a table's schema in Arrow types."""
    return pa.schema(table.schema().to_arrow())


def commit_files(lake: Lake, work: TableCommit, notes: dict[str, str], table: DeltaTable | None = None) -> bool:
    """Add the files to the table in one Delta commit; return False if the table has the transaction id already.

    `table` may be one that was opened in this batch. Raises TableError.
    """
    handle: Any = table or lake.open(work.table)
    ids = {work.app_id: work.version}
    try:
        if handle is None:
            handle = _create_or_open(lake, work, notes)
            if handle is None:
                return True
        if isinstance(handle, LogTail) and handle.can_append and not work.added:
            return handle.append_files([add_action(file) for file in work.files], (work.app_id, work.version), notes)
        opened_version = handle.version()
        handle = delta_rs_table(handle)
        # delta-rs accepts an id that the table has. So read the id first, on the same handle that commits: if another
        # writer commits the same id in between, the two commits conflict.
        if is_committed(handle, work):
            return False
        if handle.version() != opened_version:  # the rows were staged for another schema, perhaps
            raise TableError(work.table, _CHANGED_MEANWHILE)
        if work.added:
            add_columns(handle, work.added)
        append_files(handle, work.files, ids=ids, notes=notes)
    except (DeltaError, OSError) as error:
        raise TableError(work.table, f"the commit failed: {first_line(error)}") from error
    return True


def _create_or_open(lake: Lake, work: TableCommit, notes: Mapping[str, str]) -> DeltaTable | None:
    """Create a table with the files; return the open table instead if another writer has created it meanwhile.

    Several sinks have their receipts in one table, and all of them may have found none. Raises TableError if that table
    lacks columns of the files, and DeltaError.
    """
    try:
        create_with_files(lake, work.table, work.columns, work.files, ids={work.app_id: work.version}, notes=notes)
    except DeltaError:
        made = lake.open(work.table)
        if made is None:
            raise
        if not set(schema_column_names(work.columns)) <= set(to_arrow(made).names):
            raise TableError(work.table, _CHANGED_MEANWHILE) from None
        return made
    return None


def is_committed(table: DeltaTable, work: TableCommit) -> bool:
    """Return whether this batch is in the table already."""
    return has_transaction(table, work.transaction)


def has_transaction(table: DeltaTable, once: Transaction) -> bool:
    """Return whether a table has a transaction id with this number or a larger one."""
    version = table.transaction_version(once.app_id)
    return version is not None and version >= once.version


def row_count(table: DeltaTable) -> int:
    """Return the number of rows of a table's version, from its file statistics."""
    actions: Any = pa.table(table.get_add_actions())
    return sum(actions.column("num_records").to_pylist())


def stored_bytes(table: DeltaTable) -> int:
    """Return the bytes of a table's files."""
    actions: Any = pa.table(table.get_add_actions())
    return sum(actions.column("size_bytes").to_pylist())


def paths_of(handle: DeltaTable) -> set[str]:
    """Return the paths of a version's files, below the table's folder."""
    actions: Any = pa.table(handle.get_add_actions())
    return {unquote(path) for path in actions.column("path").to_pylist()}


def size_of(lake: Lake, table: str, files: list[str]) -> int:
    """Return the bytes of files in a table's folder; a file that is gone has none."""
    folder = table.replace(".", "/")
    entries = lake.files.get_file_info([f"{folder}/{file}" for file in files])
    return sum(entry.size or 0 for entry in entries)


def schema_column_names(schema: str) -> list[str]:
    """Return the column names of a Delta schema JSON, in order."""
    return [column["name"] for column in json.loads(schema)["fields"]]


T = TypeVar("T")


def retry_on_conflict(
    work: Callable[[], T],
    faster: type[Exception] | tuple[type[Exception], ...],
    tries: int,
    seconds: float,
    before: Callable[[], object] | None = None,
) -> T:
    """Call `work` until it does not raise `faster`, and return its result; after `tries` calls the error is raised.

    Before each further call it waits a random time, of up to `seconds` at first and twice as much each time, and then
    calls `before`.
    """
    for attempt in range(tries - 1):
        try:
            return work()
        except faster:
            time.sleep(random.uniform(0, seconds * 2**attempt))
            if before is not None:
                before()
    return work()


def conflict_error(table: str, tries: int, error: Exception) -> TableError:
    """Return the error to raise if other writers were faster at every try; `error` is that of the last try."""
    why = str(error).split("\n")[0]
    return TableError(table, f"other writers were faster {tries} times, the last time: {why}; stop one of them")


_NOTES = b"router.notes"
"""The key of a part's notes in the metadata of its Parquet file."""


@dataclass(frozen=True)
class StagedParts:
    """The staged parts of one batch of one sink: see `router.Parts`.

    `owner` is the transaction id of the sink's own tables; the parts are in a folder of that name below the table's.
    """

    lake: Lake
    table: str
    owner: str
    batch: int
    notes: dict[str, str] = field(default_factory=dict)

    def write(self, rows: pa.Table, notes: Mapping[str, str] | None = None) -> None:
        """Write a part, with notes about it."""
        metadata = {**(rows.schema.metadata or {}), _NOTES: json.dumps(dict(notes or {})).encode()}
        buffer = pa.BufferOutputStream()
        pq.write_table(rows.replace_schema_metadata(metadata), buffer)
        # The time in front lets the parts be read in the order in which they were written.
        self.lake.write(f"{self._batch_folder}/{time.time_ns()}-{uuid.uuid4()}.parquet", buffer.getvalue())

    def read(self, columns: Sequence[str] | None = None) -> Iterator[tuple[dict[str, str], pa.Table]]:
        """Yield the notes and rows of each part, without columns that a part of an older version lacks."""
        for path in self._part_paths():
            with self.lake.files.open_input_file(path) as source, pq.ParquetFile(source) as file:
                if columns is None:
                    rows = file.read()
                else:
                    in_file = set(file.schema_arrow.names)
                    rows = file.read([name for name in columns if name in in_file])
            notes = json.loads((rows.schema.metadata or {}).get(_NOTES, b"{}"))
            yield notes, rows

    def commit(self, schema: pa.Schema) -> None:
        """Add all parts to the table, unless they are in it; a table of an older version gets the columns it lacks."""
        files = tuple(staged_file(self.lake, self.owner, self.table, path) for path in self._part_paths())
        if not files:
            return
        handle = self.lake.open(self.table)
        added = None
        if handle is not None:
            in_table = set(to_arrow(handle).names)
            new_columns = [column for column in schema if column.name not in in_table]
            if new_columns:
                added = to_delta(pa.schema(new_columns))
        work = TableCommit(
            target=self.owner,
            table=self.table,
            app_id=self.owner,
            version=self.batch,
            files=files,
            columns=to_delta(schema),
            added=added,
        )
        commit_files(self.lake, work, self.notes, handle)

    def recent(self, columns: Sequence[str], at: str, since: datetime) -> pa.Table | None:
        """Return the table's rows, of all batches, whose time in the column `at` is not before `since`.

        None if there is no table. Columns that a table of an older version lacks are left out.
        """
        table = self.lake.open(self.table)
        if table is None:
            return None
        rows = dataset_of(table, at)
        in_table = [name for name in columns if name in rows.schema.names]
        return rows.to_table(columns=in_table, filter=pc.field(at) >= pa.scalar(since))

    def committed(self) -> bool:
        """Return whether the parts of this batch are in the table."""
        table = self.lake.open(self.table)
        return table is not None and has_transaction(table, Transaction(self.owner, self.batch))

    def _part_paths(self) -> list[str]:
        entries = self.lake.files.get_file_info(fs.FileSelector(self._batch_folder, allow_not_found=True))
        return sorted(f"{self._batch_folder}/{entry.base_name}" for entry in entries if entry.extension == "parquet")

    @property
    def _batch_folder(self) -> str:
        return f"{self.table.replace('.', '/')}/{_folder_name(self.owner)}/{self.batch:010d}"


def has_parts(lake: Lake, owner: str, batch: int) -> bool:
    """Return whether a sink has staged parts about a batch for any table."""
    folders: list[str] = []
    for layer in lake.layer_names():
        for table in lake.files.get_file_info(fs.FileSelector(layer)):
            folders.append(f"{table.path}/{_folder_name(owner)}/{batch:010d}")
    entries = lake.files.get_file_info(folders)
    return any(entry.type is fs.FileType.Directory for entry in entries)


def _folder_name(owner: str) -> str:
    return owner.replace("/", "__").replace(":", "__")
