"""What a table demands of its rows and of whoever writes it, from its protocol and its metadata.

Protocols older than feature lists (writer versions 2 to 6) allow invariants, checks and generated columns without
naming them, so that only the metadata says whether a table has any. Source: Delta protocol, "Writer version
requirements", "Column invariants", "CHECK constraints", "Generated columns"; how Spark notes CHAR and VARCHAR: Spark's
CharVarcharUtils.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable

KEPT = {"appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz"}
"""Features that an append of staged files by delta-rs keeps, in use or not."""
ALLOWED = {"invariants", "checkConstraints", "generatedColumns"}
"""Features that a table may have without using them: `MARKS` and its properties say whether it does."""
IDENTITY_COLUMNS = 6
"""The writer version that means identity columns without a list of features; delta-rs refuses to write it."""
NEWEST = 3, 7
"""The newest reader and writer version of the protocol: what a later one demands is not known."""
CHECK = "delta.constraints."
INVARIANT = "delta.invariants"
LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
MARKS = {
    INVARIANT: "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
    LENGTH: "charVarchar",
}
"""Keys of a field's metadata, and what they demand of who writes it."""
MERGEABLE = {"partitioning", "notNull"}
"""What keeps files from being adopted, but not rows from being merged."""
SIZED = re.compile(r"(?:var)?char\((\d+)\)")


def unsupported(table: DeltaTable) -> set[str]:
    """Return what keeps delta-rs from appending staged files to a table as the table demands."""
    protocol, metadata = table.protocol(), table.metadata()
    found = {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - KEPT - ALLOWED
    if protocol.min_reader_version > NEWEST[0] or protocol.min_writer_version > NEWEST[1]:
        found.add(f"protocol {protocol.min_reader_version}, {protocol.min_writer_version}")
    if protocol.min_writer_version == IDENTITY_COLUMNS:
        found.add("identityColumns")
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        found.add("columnMapping")
    if any(key.startswith(CHECK) for key in metadata.configuration):
        found.add("checkConstraints")
    if metadata.partition_columns:
        found.add("partitioning")  # a staged file may hold rows of several partitions
    schema = table.schema().to_json()
    found |= {name for key, name in MARKS.items() if f'"{key}":' in schema}  # inside a text its quotes are escaped
    return found | ({"notNull"} if '"nullable":false' in schema else set())


def unmergeable(table: DeltaTable) -> set[str]:
    """Return what keeps delta-rs from merging into a table, or from rewriting it."""
    read = {"deletionVectors"} & set(table.protocol().reader_features or ())
    return (unsupported(table) | read) - MERGEABLE


def constraints(schema: str, configuration: Mapping[str, str]) -> dict[str, str]:
    """Return what every row of a table must satisfy: what to call it -> a condition in Spark's SQL, true or violated.

    `schema` is Delta's JSON, `configuration` the table's properties. Inside arrays and maps nothing is looked at.
    """
    found = {
        f"the constraint {key.removeprefix(CHECK)} ({sql})": sql
        for key, sql in configuration.items()
        if key.startswith(CHECK)
    }
    for path, field in _fields(json.loads(schema)):
        name, metadata = ".".join(path), field.get("metadata") or {}
        column = ".".join(f"`{part.replace('`', '``')}`" for part in path)
        if not field["nullable"]:
            inside = f"{column.rpartition('.`')[0]} IS NULL OR " if len(path) > 1 else ""
            found[f"NOT NULL of column {name}"] = f"{inside}{column} IS NOT NULL"
        if size := SIZED.fullmatch(str(metadata.get(LENGTH, ""))):
            found[f"{metadata[LENGTH]} of column {name}"] = f"{column} IS NULL OR char_length({column}) <= {size[1]}"
        if INVARIANT in metadata:
            sql = json.loads(metadata[INVARIANT])["expression"]["expression"]
            found[f"the invariant of column {name} ({sql})"] = sql
    return found


def computed(schema: str) -> set[str]:
    """Return the columns of a Delta schema (JSON) that Delta fills itself: generated and identity columns."""
    marks = "delta.generationExpression", "delta.identity.start"
    return {field["name"] for field in json.loads(schema)["fields"] if {*marks} & (field.get("metadata") or {}).keys()}


def _fields(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every field of a struct type, nested structs included, with its path."""
    for field in kind["fields"]:
        yield (*path, field["name"]), field
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _fields(field["type"], (*path, field["name"]))
