"""Write tables with delta-rs: create one, append to it, replace its content, each in one commit with transaction ids.

| to | call | for tables that only Delta on Spark may write |
|---|---|---|
| make a table of staged files | `create_with_files` | `create_by_spark`, then `append_by_spark` |
| make a table without rows | `create_table` | `create_by_spark` |
| append staged files | `append_files` | `append_by_spark` with `staged_rows` |
| replace the content, and the schema with it | `replace_content` | `replace_by_spark` |
| give a table columns, properties | `add_columns`, `set_properties` | `widen_columns`, `set_property_by_spark` |

The functions on the right are in `replace_by_spark`. Besides this module only merges (`keyed`), `log_tail` and
maintenance commit without Spark. `ids`: transaction id -> its version. `notes` are written into the commit, for readers
of the log. delta-rs does not validate the files, and commits an id again that the table has: callers check first. All
raise DeltaError or OSError.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    TableFeatures,
    WriterProperties,
    write_deltalake,
)
from deltalake.transaction import AddAction, create_table_with_add_actions

from router.api.table_options import PLAIN_TABLE, PROPERTIES_OF_DELTA_RS
from router.delta.constraints import CHECK
from router.delta.log_tail import delta_rs_table
from router.delta.transaction_id import to_transactions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.api.table_options import NewTable
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile

PROPERTIES: Mapping[str, str | None] = {
    "delta.checkpointInterval": "20",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
"""The properties of tables made here. Before each commit delta-rs reads all commits since the last checkpoint; with its
default interval of 100 an append to a table of small commits takes twice the time. A checkpoint has all files that were
removed within the second time: by default a week, which for a commit each second is half a million. What is older than
the log cannot be read anyway, and the log keeps an hour."""
HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""What delta-rs does after each commit. By default it also searches the whole log for expired files every time: 0.36 s
instead of 0.03 s if the log has 10 000 files. Maintenance does that, less often."""
MADE = "router.table"
"""A property of tables that Delta on Spark makes for the router: the table's name. delta-rs cannot create a table with
such a property and its first rows in one commit; it writes the `name` of the metadata instead (`made_as`)."""


def made_as(table: str) -> str:
    """Return the `name` in the metadata of a table that the router makes with delta-rs."""
    return f"router:{table}"


def made_by_spark(options: NewTable) -> str:
    """Return why Delta on Spark has to create a table; an empty text if delta-rs can."""
    if options.cluster_by:
        return "it is to be clustered"
    unsupported = sorted(options.properties.keys() - PROPERTIES_OF_DELTA_RS.keys())
    if not unsupported:
        return ""
    return f"it is to have {', '.join(unsupported)}"


def _properties_of_delta_rs(options: NewTable) -> dict[str, str | None]:
    """Return the properties that delta-rs can create a table with; `finish_new_table` sets the others by Spark."""
    supported = {name: value for name, value in options.properties.items() if name in PROPERTIES_OF_DELTA_RS}
    return {**PROPERTIES, **supported}


def create_table(
    lake: Lake,
    table: str,
    schema: pa.Schema,
    *,
    options: NewTable = PLAIN_TABLE,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    exclusive: bool = False,
) -> DeltaTable:
    """Create a table without rows and return it; return the existing table if another writer was faster.

    With `exclusive` that raises DeltaError instead. `properties` are those that the router itself gives it, besides
    those of `options`. `name` is the one in the metadata: by default that of the router's own tables, with an empty
    text none.
    """
    if name is None:
        name = made_as(table)
    lake.note_location(table)
    hidden = [column for column in schema if _hides_local_times(column.type)]
    handle = DeltaTable.create(
        lake.address(table),
        Schema.from_arrow(pa.schema([column for column in schema if column not in hidden])),
        mode="error" if exclusive else "ignore",
        name=name or None,
        description=options.comment,
        partition_by=[*options.partition_by] or None,
        configuration={**_properties_of_delta_rs(options), **(properties or {})},
        storage_options=lake.delta_options(table),
        raise_if_key_not_exists=False,  # the configuration's reader has checked the names of properties
    )
    if hidden:
        add_columns(handle, Schema.from_arrow(pa.schema(hidden)).to_json())
    return handle


def create_with_files(
    lake: Lake,
    table: str,
    schema: str,
    files: Iterable[StagedFile],
    *,
    ids: Mapping[str, int],
    notes: Mapping[str, str],
    options: NewTable = PLAIN_TABLE,
    exclusive: bool = False,
) -> None:
    """Create a table with staged files, in its first commit; `schema` is Delta's JSON.

    Properties that only Delta on Spark can set are left to `finish_new_table`. If another writer creates the table
    meanwhile, DeltaError is raised, or the files are appended to it; with `exclusive` they are not appended to a table
    that is there when the call begins.
    """
    columns = pa.schema(Schema.from_json(schema).to_arrow())
    if any(_hides_local_times(column.type) for column in columns):
        handle = create_table(lake, table, columns, options=options, exclusive=exclusive)
        append_files(handle, files, ids=ids, notes=notes)
        return
    lake.note_location(table)
    create_table_with_add_actions(
        lake.address(table),
        Schema.from_json(schema),
        [add_action(file) for file in files],
        mode="error" if exclusive else "append",
        partition_by=list(options.partition_by),
        name=made_as(table),
        description=options.comment,
        configuration=_properties_of_delta_rs(options),
        commit_properties=_commit_properties(ids, notes),
        storage_options=lake.delta_options(table),
    )


def append_files(
    handle: DeltaTable, files: Iterable[StagedFile], *, ids: Mapping[str, int], notes: Mapping[str, str]
) -> None:
    """Append staged files to an open table. Appends of other writers do not conflict."""
    _commit_files(handle, files, "append", handle.schema(), _commit_properties(ids, notes))


def replace_content(
    handle: DeltaTable,
    files: Iterable[StagedFile],
    *,
    ids: Mapping[str, int],
    notes: Mapping[str, str],
    schema: str | None = None,
    partition_by: Iterable[str] | None = None,
    alone: bool = False,
) -> None:
    """Replace the files that an open table had when it was opened by staged files.

    `schema` (Delta's JSON) and `partition_by`, if given, replace the table's. Rows that another commit has appended
    meanwhile stay. With `alone` such a commit makes this one fail, which wider types need.
    """
    columns = handle.schema()
    if schema is not None:
        columns = Schema.from_json(schema)
        _allow_local_times(handle, pa.schema(columns.to_arrow()))
    properties = _commit_properties(ids, notes)
    if alone:
        properties.max_commit_retries = 0
    _commit_files(handle, files, "overwrite", columns, properties, partition_by)


def _commit_files(
    handle: DeltaTable,
    files: Iterable[StagedFile],
    mode: Any,
    schema: Schema,
    properties: CommitProperties,
    partition_by: Iterable[str] | None = None,
) -> None:
    handle.create_write_transaction(
        [add_action(file) for file in files],
        mode=mode,
        schema=schema,
        partition_by=handle.metadata().partition_columns if partition_by is None else [*partition_by],
        commit_properties=properties,
        post_commithook_properties=HOOKS,
    )


def write_rows(
    table: DeltaTable | str,
    rows: Any,
    *,
    ids: Mapping[str, int] | None = None,
    notes: Mapping[str, str] | None = None,
    overwrite: bool = False,
    new_columns: bool = False,
    storage_options: dict[str, str] | None = None,
    writer_properties: WriterProperties | None = None,
) -> None:
    """Write rows (anything with an Arrow stream) into an open table, or into a new one at an address.

    With `overwrite` they replace content and schema. Otherwise they are appended, and with `new_columns` the table gets
    the columns that it lacks.
    """
    mode: Any = "append"
    schema_mode: Any = None
    if overwrite:
        mode = "overwrite"
        schema_mode = "overwrite"
    elif new_columns:
        schema_mode = "merge"
    write_deltalake(
        table,
        rows,
        mode=mode,
        schema_mode=schema_mode,
        storage_options=storage_options,
        writer_properties=writer_properties or WriterProperties(),
        commit_properties=_commit_properties(ids or {}, notes or {}),
        post_commithook_properties=HOOKS,
    )


def add_columns(table: DeltaTable, added: str) -> None:
    """Add columns and nested fields (Delta's JSON) in one commit; those that the table has change nothing."""
    table = delta_rs_table(table)
    columns = pa.schema(Schema.from_json(added).to_arrow())
    _allow_local_times(table, columns)
    # An append of no rows, which merges the schemas: it adds nested fields as well.
    write_rows(table, columns.empty_table(), new_columns=True)
    table.update_incremental()


def _allow_local_times(handle: DeltaTable, columns: pa.Schema) -> None:
    """Give a table the feature that columns with hidden local times need, unless it has it."""
    is_hidden = any(_hides_local_times(column.type) for column in columns)
    if is_hidden and "timestampNtz" not in (handle.protocol().writer_features or ()):
        feature = TableFeatures.TimestampWithoutTimezone
        handle.alter.add_feature(feature, allow_protocol_versions_increase=True, post_commithook_properties=HOOKS)
        handle.update_incremental()


def _hides_local_times(kind: pa.DataType) -> bool:
    """Return whether a type may have local times inside of a map.

    delta-rs does not see them there: it makes a table without the feature `timestampNtz`, which nobody can open.
    """
    return "map<" in str(kind) and "timestamp[us]" in str(kind)


def set_properties(handle: DeltaTable, properties: Mapping[str, str]) -> None:
    """Set properties of an open table, Delta's or others."""
    handle.alter.set_table_properties(dict(properties), raise_if_not_exists=False, post_commithook_properties=HOOKS)


def copy_constraints(table: DeltaTable, copy: DeltaTable) -> None:
    """Add the CHECK constraints of a table to another open one. Raises DeltaError if a row there violates one."""
    for key, sql in table.metadata().configuration.items():
        if key.startswith(CHECK):
            copy.alter.add_constraint({key.removeprefix(CHECK): sql}, post_commithook_properties=HOOKS)


def add_action(file: StagedFile) -> AddAction:
    """Return the action that makes a staged file part of its table."""
    return AddAction(
        path=file.path.split("/", 2)[2],  # below the table's folder
        size=file.bytes,
        partition_values=file.partition,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=file.statistics,
    )


def _commit_properties(ids: Mapping[str, int], notes: Mapping[str, str]) -> CommitProperties:
    return CommitProperties(custom_metadata=dict(notes), app_transactions=to_transactions(ids))
