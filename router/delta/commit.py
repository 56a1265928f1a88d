"""Commit staged files to a table with delta-rs, once per transaction id; begin anew when another writer was faster."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from router.delta.lake import Lake


PROPERTIES: Mapping[str, str | None] = {"delta.checkpointInterval": "20"}
"""Of the tables made here. delta-rs reads every commit since the last checkpoint before each of its own; with its
default of 100 an append to a table of small commits takes twice the time."""


@dataclass(frozen=True)
class StagedFile:
    """A Parquet file written into a table's folder, to which no commit refers yet.

    `target` is `route/sink`, or `/bronze` and `/dead_letters`; `path` is relative to the lake; `statistics` is the
    add action's JSON.
    """

    target: str
    table: str
    path: str
    bytes: int
    rows: int
    columns: tuple[str, ...]
    statistics: str

    @classmethod
    def of(cls, found: dict[str, Any]) -> StagedFile:
        """Return a file from what `asdict` made of one, by way of JSON."""
        return cls(**{**found, "columns": tuple(found["columns"])})


@dataclass(frozen=True)
class TableCommit:
    """What one batch adds to one table: staged files, new columns, and the transaction id.

    `columns` is the Delta schema (JSON) of all columns with values; `added` of those that the table lacked when the
    batch was decided.
    """

    target: str
    table: str
    app_id: str
    version: int
    files: tuple[StagedFile, ...]
    columns: str
    added: str | None = None
    widened: str | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows in the files."""
        return sum(file.rows for file in self.files)


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

    `table` may be a handle opened in this batch. delta-rs accepts a replayed id and validates nothing, so the id is
    read first, on the same handle the commit goes through: two writers with one id then conflict.
    """
    handle = table or lake.open(work.table)
    properties = CommitProperties(custom_metadata=notes, app_transactions=[Transaction(work.app_id, work.version)])
    actions = [_add(file) for file in work.files]
    try:
        if handle is None:
            return _create(lake, work, actions, properties)
        if is_committed(handle, work):
            return False
        if work.added:
            add_columns(handle, work.added)
        handle.create_write_transaction(
            [*actions], mode="append", schema=handle.schema(), partition_by=[], commit_properties=properties
        )
    except (DeltaError, OSError) as error:
        raise TableError(work.table, f"the commit failed: {error}; it is tried again from the manifest") from error
    return True


def is_committed(table: DeltaTable, work: TableCommit) -> bool:
    """Say whether this batch is in the table already."""
    return has_transaction(table, Transaction(work.app_id, work.version))


def has_transaction(table: DeltaTable, once: Transaction) -> bool:
    """Say whether a transaction id is in a table already."""
    version = table.transaction_version(once.app_id)
    return version is not None and version >= once.version


def _create(lake: Lake, work: TableCommit, actions: list[AddAction], properties: CommitProperties) -> bool:
    create_table_with_add_actions(
        lake.address(work.table),
        Schema.from_json(work.columns),
        actions,
        mode="append",
        partition_by=[],
        configuration=PROPERTIES,
        commit_properties=properties,
        storage_options=lake.options or None,
    )
    return True


def add_columns(table: DeltaTable, added: str) -> None:
    """Add columns and nested fields in one commit of their own; those already there change nothing."""
    empty = to_arrow_schema(added).empty_table()
    hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    write_deltalake(table, empty, mode="append", schema_mode="merge", post_commithook_properties=hooks)
    table.update_incremental()


def _add(file: StagedFile) -> AddAction:
    return AddAction(
        path=file.path.split("/", 2)[2],  # below the table's folder
        size=file.bytes,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=file.statistics,
    )


def fields(schema: str) -> list[Field]:
    """Return the columns of a Delta schema JSON."""
    return list(Schema.from_json(schema).fields)


def row_count(table: DeltaTable) -> int:
    """Return the number of rows a table's current version states in its file statistics."""
    actions: Any = pa.table(table.get_add_actions())
    return sum(actions.column("num_records").to_pylist())


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
