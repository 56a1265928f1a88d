"""Make columns of a table wider, as int becomes bigint: which way a table may take, and the one that rewrites it once.

Delta's table feature typeWidening changes types without a rewrite, but delta-rs, and what builds on it, cannot read
such a table any more, and every later commit is one of Spark's. So a table that the router made is rewritten, in one
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
from router.delta.commit import conflict_error, names, retry_on_conflict, stored_bytes, to_arrow_schema
from router.delta.constraints import unmergeable
from router.delta.parquet_writer import FILE_BYTES, HELD_BYTES, Staging, Writer
from router.delta.replace import MADE, made_as, replace_content
from router.delta.schema_diff import common_type, delta_schema
from router.delta.transaction_id import widening
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from router.delta.commit import StagedFile
    from router.delta.lake import Lake
    from router.sinks import Widening

LARGEST = 1 << 30
"""Bytes of a table that is rewritten unasked."""
FEATURE = "delta.enableTypeWidening"
FORBIDDING = ("delta.appendOnly", "delta.enableChangeDataFeed")
"""Properties with which a table's files must not be replaced, or whose readers would see every row come again."""
KEEPS = "; the router did not make the table, or it is too large to be rewritten: see `widening` of the sink"
"""What the reason of a dead letter says besides, where a table keeps its types."""
WIDENED = "router.widened"
"""What a rewrite's commit says of itself: the columns that became wider."""
ROWS = 1 << 16
"""Rows that are read at once of a file that is rewritten."""
TRIES = 8
WAIT_SECONDS = 0.4


def made_here(handle: Any, table: str) -> bool:
    """Say whether the router made a table: one that was replaced or copied by somebody else is not its own."""
    about = handle.metadata()
    own = table.startswith(("outbox.", "quarantine."))
    return own or about.name == made_as(table) or about.configuration.get(MADE) == table


def way(handle: Any, table: str, asked: Widening) -> Literal["rewrite", "feature"] | None:
    """Return how columns of an open table may become wider; None where they keep their types."""
    if _on(handle, FEATURE):
        return "feature"
    if made_here(handle, table) and not _hindrances(handle) and handle_bytes(handle) <= LARGEST:
        return "rewrite"
    return "feature" if asked == "feature" else None


def handle_bytes(handle: Any) -> int:
    """Return the bytes of the files of a table, which delta-rs or Spark has opened."""
    return handle.bytes() if hasattr(handle, "bytes") else stored_bytes(handle)


def _hindrances(handle: Any) -> set[str]:
    return unmergeable(handle) | {name for name in FORBIDDING if _on(handle, name)}


def _on(handle: Any, name: str) -> bool:
    return str(handle.metadata().configuration.get(name)).lower() == "true"


def narrower(handle: Any, table: str, widened: str) -> bool:
    """Say whether columns of a table still have to become wider. Raises TableError where they cannot any more."""
    have = {column.name: column.type for column in delta_schema(pa.schema(handle.schema().to_arrow()))}
    for column in delta_schema(to_arrow_schema(widened)):
        both = common_type(have[column.name], column.type) if column.name in have else None
        if both is None:
            raise TableError(table, f"column {column.name} is another one than the rows were staged for")
        if both != have[column.name]:
            return True
    return False


def wider_schema(columns: str, widened: str, *, new_fields: bool = True) -> str:
    """Return a table's schema with wider types, both as Delta's JSON. What else fields say of themselves stays.

    `new_fields`: structs gain the fields that they lack, too.
    """
    found, wider = json.loads(columns), json.loads(widened)
    return json.dumps(_wider(found, {**wider, "fields": _known(found, wider)}, new_fields=new_fields))


def _known(have: dict[str, Any], want: dict[str, Any]) -> list[dict[str, Any]]:
    names = {field["name"] for field in have["fields"]}
    return [field for field in want["fields"] if field["name"] in names]


def _wider(have: Any, want: Any, *, new_fields: bool) -> Any:
    """Return a type of Delta's JSON with the leaves of another one."""
    if not isinstance(have, dict) or not isinstance(want, dict):
        return want
    if have["type"] == "struct":
        kinds = {field["name"]: field for field in want["fields"]}
        fields = [
            {**field, "type": _wider(field["type"], kinds[field["name"]]["type"], new_fields=new_fields)}
            if field["name"] in kinds
            else field
            for field in have["fields"]
        ]
        new = [field for field in want["fields"] if field not in _known(have, want)] if new_fields else []
        return {**have, "fields": [*fields, *new]}
    inner = [key for key in ("elementType", "keyType", "valueType") if key in have]
    return {**have, **{key: _wider(have[key], want[key], new_fields=new_fields) for key in inner}}


def rewrite(lake: Lake, table: str, handle: DeltaTable, widened: str, app_id: str) -> None:
    """Give columns of a table their wider types; begin anew when another writer was faster. Runs anywhere.

    `widened` is Delta's JSON of the columns; `app_id` the transaction id of the commit that needs them. Where they are
    as wide already, nothing is done. On disk it needs as much room again as the table has. Raises TableError.
    """

    def work() -> None:
        if narrower(handle, table, widened):
            _rewrite(lake, table, handle, widened, app_id)

    try:
        retry_on_conflict(work, CommitFailedError, TRIES, WAIT_SECONDS, before=handle.update_incremental)
    except CommitFailedError as error:
        raise conflict_error(table, TRIES, error) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise TableError(table, f"it could not be rewritten with wider types: {error}") from error


def _rewrite(lake: Lake, table: str, handle: DeltaTable, widened: str, app_id: str) -> None:
    schema, divided = wider_schema(handle.schema().to_json(), widened), handle.metadata().partition_columns
    kinds = [column for column in delta_schema(to_arrow_schema(schema)) if column.name not in divided]
    files = copied_rows(lake, (table, handle), table, pa.schema(kinds))
    # From here on nothing is deleted: a commit that is said to have failed may be there. VACUUM takes what is not.
    once = widening(app_id)
    replace_content(
        handle,
        [in_partition(file) for file in files],
        ids={once.app_id: once.version},
        notes={WIDENED: ", ".join(names(widened))},
        schema=schema,
        alone=True,  # else rows that came meanwhile would keep their old types
    )
    handle.update_incremental()


def copied_rows(lake: Lake, of: tuple[str, DeltaTable], table: str, schema: pa.Schema) -> list[StagedFile]:
    """Stage the rows of an open table, with a schema, for that table or another, one partition apart from the other.

    `of` is the name of the former and the table itself; `target` of a file is its partition as JSON.
    """
    writer = Writer(Staging(lake, FILE_BYTES, HELD_BYTES), "wider")
    try:
        for partition, rows in _rows(lake, *of):
            writer.hold(partition, table, _batch(cast_to(rows, schema)), seen=True)
            writer.flush()
        return writer.close()
    except BaseException:
        writer.abandon()
        raise


def _rows(lake: Lake, table: str, handle: DeltaTable) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of a table's files, part by part, with their partition as JSON."""
    found: Any = pa.table(handle.get_add_actions())
    for action in found.to_pylist():
        partition = json.dumps({name: _text(value) for name, value in (action.get("partition") or {}).items()})
        with lake.files.open_input_file(f"{table.replace('.', '/')}/{unquote(action['path'])}") as source:
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            for batch in parquet.iter_batches(ROWS):
                yield partition, pa.Table.from_batches([batch])


def _batch(rows: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)


def _text(value: Any) -> str | None:
    """Return a partition's value as the log has it. Source: Delta protocol, "Partition Value Serialization"."""
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f") if value.tzinfo else str(value)
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def in_partition(file: StagedFile) -> StagedFile:
    """Return a file of copied rows with the partition that it is of."""
    return replace(file, partition=json.loads(file.target))
