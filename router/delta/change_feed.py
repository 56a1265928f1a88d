"""Keep columns out of tables whose names are taken by Delta's change data feed.

The feed of a table adds three columns to its rows. A table that has one of them already takes rows, and nobody can read
its feed. Source: the Delta protocol, "Reader Requirements for Change Data Feed".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from deltalake import DeltaTable

    from router.api.table_options import NewTable

FEED = "delta.enableChangeDataFeed"
_CHANGE_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def has_feed(table: DeltaTable | None, options: NewTable) -> bool:
    """Return whether a table has a change data feed; one that is not there yet will have it by its options."""
    properties = options.properties if table is None else table.metadata().configuration
    return properties.get(FEED, "false").lower() == "true"


def taken_by_feed(columns: Iterable[pa.Field], *, feed: bool) -> dict[str, str]:
    """Return by name the columns that a table with a feed must not get, with the reason. Names ignore the case."""
    faults: dict[str, str] = {}
    for column in columns:
        if feed and column.name.lower() in _CHANGE_COLUMNS:
            faults[column.name] = (
                f"column {column.name}: the table's change data feed has a column of this name; give it another one "
                f"in `select`, or the table no `{FEED}`"
            )
    return faults
