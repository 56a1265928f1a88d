"""How deep the columns of a Delta table may be nested.

A table's schema is JSON in its log. delta-rs reads JSON of at most 127 levels (the recursion limit of serde_json), so
it neither creates nor opens a table whose schema has more. It even commits a column that is added to a table, and then
the table can never be opened again. A struct takes three levels (its object, the array of its fields, a field), an
array or a map one. Spark reads a thousand levels (Jackson's limit), but the router opens every table with delta-rs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

LEVELS = 127
"""Levels of a table's schema as JSON."""
STRUCTS = 41
"""The number of nested structs that a column may have, if nothing else in it is nested."""
COLUMN = 3
"""The levels at which a column stands: the schema, the array of its fields, the field."""
TYPE_CHANGES = 2
"""The levels that a field's metadata gets in addition to its own when its type is widened (`delta.typeChanges`)."""


def depth_fault(column: pa.Field, *, widened: bool = False) -> str | None:
    """Return that a column is nested too deep for a table, and what to do; None if it is not.

    With `widened` its type changes, and the table may have to note that.
    """
    levels = _deepest_level(column.type, COLUMN)
    if widened:
        levels += TYPE_CHANGES
    if levels <= LEVELS:
        return None
    return (
        f"column {column.name} is nested too deep for a Delta table: at most {STRUCTS} structs in each other; "
        f"name its inner fields in `select`, or keep it as text there: to_json({column.name}) AS {column.name}"
    )


def too_deep(columns: Iterable[pa.Field], *, widened: bool = False) -> dict[str, str]:
    """Return by name the columns that no table can have, with the reasons of `depth_fault`."""
    faults: dict[str, str] = {}
    for column in columns:
        fault = depth_fault(column, widened=widened)
        if fault is not None:
            faults[column.name] = fault
    return faults


def _deepest_level(kind: pa.DataType, level: int) -> int:
    """Return the deepest level of JSON that a field has whose own object stands at a level."""
    metadata = level + 1
    return max(metadata, _deepest_of_type(kind, level))


def _deepest_of_type(kind: pa.DataType, level: int) -> int:
    """Return the deepest level of a type; the object that has the type stands at `level`."""
    if pa.types.is_struct(kind):
        return max((_deepest_level(child.type, level + COLUMN) for child in kind), default=level + 2)
    if pa.types.is_map(kind):
        return max(_deepest_of_type(kind.key_type, level + 1), _deepest_of_type(kind.item_type, level + 1))
    if pa.types.is_nested(kind):
        return _deepest_of_type(kind.value_type, level + 1)
    return level
