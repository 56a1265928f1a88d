"""Read from a table's protocol and metadata what its rows must satisfy, and which features a writer must support.

Protocols older than feature lists (writer versions 2 to 6) allow invariants, checks and generated columns without
naming them, so that only the metadata tells whether a table has any. Source: Delta protocol, "Writer version
requirements", "Column invariants", "CHECK constraints", "Generated columns"; for CHAR and VARCHAR: Spark's
CharVarcharUtils.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable

_RESPECTED_FEATURES = {"appendOnly", "changeDataFeed", "deletionVectors", "timestampNtz"}
"""Features that an append of staged files by delta-rs respects, whether the table uses them or not."""
ALLOWED = {"invariants", "checkConstraints", "generatedColumns"}
"""Features that a table may list without using them: `_MARKS` and its properties tell whether it does."""
IDENTITY_COLUMNS = 6
"""The writer version that implies identity columns without a list of features; delta-rs refuses to write it."""
NEWEST = 3, 7
"""The newest reader and writer version of the protocol that is known here."""
CHECK = "delta.constraints."
INVARIANT = "delta.invariants"
LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
_MARKS = {
    INVARIANT: "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
    LENGTH: "charVarchar",
}
"""Key of a field's metadata -> the feature that a writer then must support."""
MERGEABLE = {"partitioning", "notNull"}
"""Features that staged files must not be added with, but rows can be merged with."""
NARROWER_MAP = "Cannot cast column"
"""A text in the error of delta-rs if a file has structs inside maps that lack a field of the table. Spark, and Arrow,
read null there; delta-rs does so only for structs that are in no map."""
WHY_NARROWER_MAP = "older files with structs in maps that lack a field"
SIZED = re.compile(r"(?:var)?char\((\d+)\)")


def features_against_appends(table: DeltaTable) -> set[str]:
    """Return the features of a table because of which delta-rs must not append staged files to it."""
    protocol = table.protocol()
    metadata = table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _RESPECTED_FEATURES - ALLOWED
    if protocol.min_reader_version > NEWEST[0] or protocol.min_writer_version > NEWEST[1]:
        features.add(f"protocol {protocol.min_reader_version}, {protocol.min_writer_version}")
    if protocol.min_writer_version == IDENTITY_COLUMNS:
        features.add("identityColumns")
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if any(key.startswith(CHECK) for key in metadata.configuration):
        features.add("checkConstraints")
    if metadata.partition_columns:
        features.add("partitioning")  # a staged file may hold rows of several partitions
    # The schema is searched as text. No text inside it, as a comment, can look like a key: its quotes are escaped.
    schema = table.schema().to_json()
    for key, feature in _MARKS.items():
        if f'"{key}":' in schema:
            features.add(feature)
    if '"nullable":false' in schema:
        features.add("notNull")
    return features


def features_against_merges(table: DeltaTable) -> set[str]:
    """Return the features of a table because of which delta-rs must not merge into it, or rewrite it."""
    features = features_against_appends(table)
    if "deletionVectors" in (table.protocol().reader_features or ()):
        features.add("deletionVectors")
    return features - MERGEABLE


def row_constraints(schema: str, configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the constraints on the rows of a table: a name for it -> a condition in Spark's SQL, violated unless true.

    `schema` is Delta's JSON, `configuration` the table's properties. Fields inside arrays and maps are left out.
    """
    conditions: dict[str, str] = {}
    for key, sql in configuration.items():
        if key.startswith(CHECK):
            conditions[f"the constraint {key.removeprefix(CHECK)} ({sql})"] = sql
    for path, field in _nested_fields(json.loads(schema)):
        name = ".".join(path)
        metadata = field.get("metadata") or {}
        quoted_path = [f"`{part.replace('`', '``')}`" for part in path]
        column = ".".join(quoted_path)
        if not field["nullable"]:
            condition = f"{column} IS NOT NULL"
            if len(path) > 1:  # a field that must not be null may be in a struct that is null
                condition = f"{'.'.join(quoted_path[:-1])} IS NULL OR {condition}"
            conditions[f"NOT NULL of column {name}"] = condition
        length = SIZED.fullmatch(str(metadata.get(LENGTH, "")))
        if length is not None:
            condition = f"{column} IS NULL OR char_length({column}) <= {length[1]}"
            conditions[f"{metadata[LENGTH]} of column {name}"] = condition
        if INVARIANT in metadata:
            sql = json.loads(metadata[INVARIANT])["expression"]["expression"]
            conditions[f"the invariant of column {name} ({sql})"] = sql
    return conditions


def columns_filled_by_delta(schema: str) -> set[str]:
    """Return the columns of a Delta schema (JSON) that Delta fills itself: generated and identity columns."""
    marks = {"delta.generationExpression", "delta.identity.start"}
    columns: set[str] = set()
    for field in json.loads(schema)["fields"]:
        if marks & (field.get("metadata") or {}).keys():
            columns.add(field["name"])
    return columns


def _nested_fields(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every field of a struct type, nested structs included, with its path."""
    for field in kind["fields"]:
        yield (*path, field["name"]), field
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _nested_fields(field["type"], (*path, field["name"]))
