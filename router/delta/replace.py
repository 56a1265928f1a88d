"""Write tables with delta-rs: make one, append to it, replace what it holds, each once under its transaction ids.

| to | call | tables that delta-rs may not write |
|---|---|---|
| make a table of staged files | `create_with_files` | `create_by_spark`, then `append_by_spark` |
| make a table without rows | `create_table` | `create_by_spark` |
| append staged files | `append_files` | `append_by_spark` with `staged_rows` |
| replace the content, and the schema with it | `replace_content` | `replace_by_spark` |
| give a table columns, properties | `add_columns`, `set_properties` | `widen`, `set_property_by_spark` |

The functions on the right are in `replace_by_spark`. Nothing else in the router commits with delta-rs, merges (`keyed`)
and maintenance apart. `ids` are transaction ids with their versions, `notes` what the commit says to readers. delta-rs
validates nothing that it is handed, and accepts an id that it has seen: whoever calls has looked first. What fails
raises DeltaError or OSError.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, WriterProperties, write_deltalake
from deltalake.transaction import AddAction, create_table_with_add_actions

from router.delta.log_tail import newest
from router.delta.transaction_id import transactions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from router.delta.commit import StagedFile
    from router.delta.lake import Lake
    from router.sinks import KeyedTable
    from router.table_options import TableOptions

PROPERTIES: Mapping[str, str | None] = {"delta.checkpointInterval": "20"}
"""Of the tables made here. delta-rs reads every commit since the last checkpoint before each of its own; with its
default of 100 an append to a table of small commits takes twice the time."""
HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""What delta-rs does after each commit. Left alone it also looks through the whole log for expired files, every time:
0.36 s instead of 0.03 s where the log has 10 000 files. Maintenance does that, at its own pace."""
MADE = "router.table"
"""A property of the tables that Delta on Spark makes for the router: the table's name. delta-rs cannot make a table
with such a property together with its first rows: there the metadata's `name` says it."""
SUPPORTED_PROPERTIES = (
    *("delta.checkpoint.", "delta.checkpointInterval", "delta.dataSkipping", "delta.autoOptimize."),
    *("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.enableExpiredLogCleanup"),
    *("delta.enableChangeDataFeed", "delta.randomizeFilePrefixes"),
)
"""What the properties begin with that delta-rs makes a table with and keeps. Of some others it notes the name only."""


def made_as(table: str) -> str:
    """Return the `name` in the metadata of a table that the router makes with delta-rs."""
    return f"router:{table}"


def made_by_spark(options: KeyedTable | TableOptions) -> str:
    """Return why only Delta on Spark makes a table; nothing where delta-rs does."""
    if options.cluster_by:
        return "it is to be clustered"
    beyond = sorted(name for name in options.properties if not name.startswith(SUPPORTED_PROPERTIES))
    return f"it is to have {', '.join(beyond)}" if beyond else ""


def supported(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that delta-rs makes a table with; Delta on Spark gives it the others (`finish`)."""
    return {name: value for name, value in properties.items() if name.startswith(SUPPORTED_PROPERTIES)}


def create_table(
    lake: Lake,
    table: str,
    schema: pa.Schema,
    *,
    partition_by: Iterable[str] = (),
    comment: str | None = None,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    exclusive: bool = False,
) -> DeltaTable:
    """Make a table without rows, or return the one that somebody has made meanwhile; `exclusive` refuses that.

    `name` is the one in its metadata: that of the router's own tables where it is not given.
    """
    lake.note_location(table)
    return DeltaTable.create(
        lake.address(table),
        Schema.from_arrow(schema),
        mode="error" if exclusive else "ignore",
        name=made_as(table) if name is None else name or None,
        description=comment,
        partition_by=[*partition_by] or None,
        configuration={**PROPERTIES, **(properties or {})},
        storage_options=lake.delta_options(table),
        raise_if_key_not_exists=False,  # what is not Delta's is checked where the configuration is read
    )


def create_with_files(
    lake: Lake,
    table: str,
    schema: str,
    files: Iterable[StagedFile],
    *,
    ids: Mapping[str, int],
    notes: Mapping[str, str],
    options: KeyedTable | TableOptions | None = None,
    properties: Mapping[str, str] | None = None,
    comment: str | None = None,
    exclusive: bool = False,
) -> None:
    """Make a table of staged files in its first commit; `schema` is Delta's JSON.

    `options` say how it is divided, and more; what only Delta on Spark gives a table is left to `finish`. If somebody
    has made the table meanwhile the files are appended to it, or, if `exclusive`, DeltaError is raised.
    """
    given = {**(options.properties if options else {}), **(properties or {})}
    lake.note_location(table)
    create_table_with_add_actions(
        lake.address(table),
        Schema.from_json(schema),
        [add_action(file) for file in files],
        mode="error" if exclusive else "append",
        partition_by=[*options.partition_by] if options else [],
        name=made_as(table),
        description=options.comment if options else comment,
        configuration={**PROPERTIES, **supported(given)},
        commit_properties=_commit_properties(ids, notes),
        storage_options=lake.delta_options(table),
    )


def append_files(
    handle: DeltaTable, files: Iterable[StagedFile], *, ids: Mapping[str, int], notes: Mapping[str, str]
) -> None:
    """Append staged files to an open table. Other writers' appends may come between."""
    _write(handle, files, "append", handle.schema(), _commit_properties(ids, notes))


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
    """Put staged files in place of those that an open table had when it was opened.

    `schema` (Delta's JSON) and `partition_by` take the place of the table's, which stay where they are not given. A
    commit that only adds files may come between, and its rows stay, unless `alone`: then it makes this one fail, as
    wider types need it.
    """
    columns = handle.schema() if schema is None else Schema.from_json(schema)
    properties = _commit_properties(ids, notes)
    if alone:
        properties.max_commit_retries = 0
    _write(handle, files, "overwrite", columns, properties, partition_by)


def _write(
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
    """Write rows (anything with an Arrow stream) into an open table, or make one at an address.

    With `overwrite` they take the place of the content and the schema; else, with `new_columns`, the table gets the
    columns that it lacks.
    """
    schema_mode: Any = "merge" if new_columns else None
    if overwrite:
        schema_mode = "overwrite"
    mode: Any = "overwrite" if overwrite else "append"
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
    """Add columns and nested fields (Delta's JSON) in one commit; those already there change nothing."""
    table = newest(table)
    write_rows(table, Schema.from_json(added).to_arrow().empty_table(), new_columns=True)
    table.update_incremental()


def set_properties(handle: DeltaTable, properties: Mapping[str, str]) -> None:
    """Give an open table properties, Delta's or other ones."""
    handle.alter.set_table_properties(dict(properties), raise_if_not_exists=False, post_commithook_properties=HOOKS)


def add_constraint(handle: DeltaTable, name: str, sql: str) -> None:
    """Give an open table a CHECK constraint; Delta looks whether its rows hold it."""
    handle.alter.add_constraint({name: sql}, post_commithook_properties=HOOKS)


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
    return CommitProperties(custom_metadata=dict(notes), app_transactions=transactions(ids))
