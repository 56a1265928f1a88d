"""Give columns of a table wider types, as int becomes bigint: choose the way, and rewrite the table if that is it.

Delta's table feature typeWidening changes types without a rewrite. But delta-rs, and readers that are built on it,
cannot read such a table any more, and only Spark can commit to it. So a table that the router made is rewritten, in one
commit that removes its files, adds others with the same rows and changes the schema: see docs/decisions.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError

from router.delta.casting import cast_to
from router.delta.commit import conflict_error, retry_on_conflict, schema_column_names, stored_bytes, to_arrow_schema
from router.delta.constraints import features_against_merges
from router.delta.parquet_writer import FILE_BYTES, HELD_BYTES, Staging, Writer
from router.delta.replace import MADE, made_as, replace_content
from router.delta.schema_diff import common_type, delta_schema
from router.delta.transaction_id import widening_transaction
from router.errors import TableError
from router.own_names import OWN_LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from router.api.sinks import Widening
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile

_LARGEST = 1 << 30
"""Bytes of the largest table that is rewritten."""
FEATURE = "delta.enableTypeWidening"
FORBIDDING = ("delta.appendOnly", "delta.enableChangeDataFeed")
"""Properties of tables that are not rewritten: files must not be removed, or readers of changes would get every row."""
KEEPS = "; the router did not make the table, or it is too large to be rewritten: see `widening` of the sink"
"""The end of a dead letter's reason, if a value does not fit because its table keeps its types."""
WIDENED = "router.widened"
"""The note of a rewrite's commit: the columns that became wider."""
_REWRITTEN_ROWS_AT_ONCE = 1 << 16
"""Rows that are read at once from a file that is rewritten."""
_WIDENING_TRIES = 8
_WAIT_SECONDS = 0.4


def made_here(handle: Any, table: str) -> bool:
    """Return whether the router made a table; one that another writer replaced, or copied here, is not its own."""
    if table.startswith(OWN_LAYERS):
        return True
    metadata = handle.metadata()
    return bool(metadata.name == made_as(table) or metadata.configuration.get(MADE) == table)


def choose_widening_way(handle: Any, table: str, asked: Widening) -> Literal["rewrite", "feature"] | None:
    """Return how columns of an open table may become wider, `asked` being the sink's option; None if they may not."""
    if _is_true(handle, FEATURE):
        return "feature"
    if _may_be_rewritten(handle, table):
        return "rewrite"
    if asked == "feature":
        return "feature"
    return None


def _may_be_rewritten(handle: Any, table: str) -> bool:
    if not made_here(handle, table) or features_against_merges(handle):
        return False
    if any(_is_true(handle, name) for name in FORBIDDING):
        return False
    return handle_bytes(handle) <= _LARGEST


def handle_bytes(handle: Any) -> int:
    """Return the bytes of the files of a table that delta-rs or Spark has opened."""
    if hasattr(handle, "size_in_bytes"):  # a SparkTable
        return int(handle.size_in_bytes())
    return stored_bytes(handle)


def _is_true(handle: Any, name: str) -> bool:
    """Return whether a property of a table is set to true."""
    return str(handle.metadata().configuration.get(name)).lower() == "true"


def is_still_narrower(handle: Any, table: str, widened: str) -> bool:
    """Return whether columns of a table still have to become wider. Raises TableError if they no longer can."""
    have = {column.name: column.type for column in delta_schema(pa.schema(handle.schema().to_arrow()))}
    for column in delta_schema(to_arrow_schema(widened)):
        common = common_type(have[column.name], column.type) if column.name in have else None
        if common is None:
            raise TableError(table, f"column {column.name} is another one than the rows were staged for")
        if common != have[column.name]:
            return True
    return False


def wider_schema(columns: str, widened: str, *, new_fields: bool = True) -> str:
    """Return a table's schema with wider types, both as Delta's JSON. The fields keep their metadata.

    With `new_fields`, structs also gain the fields that they lack; the table itself gains no column.
    """
    table = json.loads(columns)
    wider = json.loads(widened)
    names = _field_names(table)
    wider["fields"] = [field for field in wider["fields"] if field["name"] in names]
    return json.dumps(_widen_type(table, wider, new_fields=new_fields))


def _field_names(struct: dict[str, Any]) -> set[str]:
    return {field["name"] for field in struct["fields"]}


def _widen_type(have: Any, want: Any, *, new_fields: bool) -> Any:
    """Return the type `have` with the leaves of `want`; both are of Delta's JSON: a name, or an object if nested."""
    if not isinstance(have, dict) or not isinstance(want, dict):
        return want
    if have["type"] == "struct":
        wanted = {field["name"]: field["type"] for field in want["fields"]}
        fields = []
        for field in have["fields"]:
            if field["name"] in wanted:
                wider = _widen_type(field["type"], wanted[field["name"]], new_fields=new_fields)
                fields.append({**field, "type": wider})
            else:
                fields.append(field)
        if new_fields:
            names = _field_names(have)
            fields += [field for field in want["fields"] if field["name"] not in names]
        return {**have, "fields": fields}
    # An array has an elementType, a map a keyType and a valueType.
    widened = dict(have)
    for key in ("elementType", "keyType", "valueType"):
        if key in have:
            widened[key] = _widen_type(have[key], want[key], new_fields=new_fields)
    return widened


def rewrite_table(lake: Lake, table: str, handle: DeltaTable, widened: str, app_id: str) -> None:
    """Give columns of a table their wider types; try again if another writer is faster. Runs anywhere.

    `widened` is Delta's JSON of the columns, `app_id` the transaction id of the commit that needs them. If they are
    as wide already, nothing is done. On a disk it needs as much free space as the table takes. Raises TableError.
    """

    def rewrite_if_narrower() -> None:
        if is_still_narrower(handle, table, widened):
            _rewrite_files(lake, table, handle, widened, app_id)

    try:
        retry_on_conflict(
            rewrite_if_narrower, CommitFailedError, _WIDENING_TRIES, _WAIT_SECONDS, before=handle.update_incremental
        )
    except CommitFailedError as error:
        raise conflict_error(table, _WIDENING_TRIES, error) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise TableError(table, f"it could not be rewritten with wider types: {error}") from error


def _rewrite_files(lake: Lake, table: str, handle: DeltaTable, widened: str, app_id: str) -> None:
    schema = wider_schema(handle.schema().to_json(), widened)
    partition_columns = handle.metadata().partition_columns
    in_files = [column for column in delta_schema(to_arrow_schema(schema)) if column.name not in partition_columns]
    files = copied_rows(lake, (table, handle), table, pa.schema(in_files))
    # From here on no file is deleted: a commit that seems to have failed may be in the log, and refer to the files. If
    # it is not, VACUUM deletes them.
    once = widening_transaction(app_id)
    replace_content(
        handle,
        [in_partition(file) for file in files],
        ids={once.app_id: once.version},
        notes={WIDENED: ", ".join(schema_column_names(widened))},
        schema=schema,
        alone=True,  # rows that another commit appends meanwhile would keep their old types
    )
    handle.update_incremental()


def copied_rows(lake: Lake, of: tuple[str, DeltaTable], table: str, schema: pa.Schema) -> list[StagedFile]:
    """Stage the rows of an open table, cast to a schema, for that table or another one.

    `of` is the name of the table that is read, and the open table; `table` the name of the one that the files are for.
    A file holds rows of one partition, which is its `target`, as JSON: see `in_partition`.
    """
    name, handle = of
    writer = Writer(Staging(lake, FILE_BYTES, HELD_BYTES), "wider")
    try:
        for partition, rows in _read_rows(lake, name, handle):
            writer.hold_rows(partition, table, _as_batch(cast_to(rows, schema)), seen=True)
            writer.flush()
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _read_rows(lake: Lake, table: str, handle: DeltaTable) -> Iterator[tuple[str, pa.Table]]:
    """Yield the partition (as JSON) and rows of a table's files, up to `_REWRITTEN_ROWS_AT_ONCE` rows at a time."""
    actions: Any = pa.table(handle.get_add_actions())
    for action in actions.to_pylist():
        values = action.get("partition") or {}
        partition = json.dumps({name: _partition_text(value) for name, value in values.items()})
        with lake.files.open_input_file(f"{table.replace('.', '/')}/{unquote(action['path'])}") as source:
            # INT96 has nanoseconds, and years beyond 2262 would overflow.
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            for batch in parquet.iter_batches(_REWRITTEN_ROWS_AT_ONCE):
                yield partition, pa.Table.from_batches([batch])


def _as_batch(rows: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)


def _partition_text(value: Any) -> str | None:
    """Return a partition's value as the log has it. Source: Delta protocol, "Partition Value Serialization"."""
    if value is None:
        return None
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def in_partition(file: StagedFile) -> StagedFile:
    """Return a file of `copied_rows` with its partition, which that put into `target`."""
    return replace(file, partition=json.loads(file.target))
