"""Hold the keys of a configuration against those by which its tables were merged, before a stream starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.delta.commit import to_arrow
from router.delta.keyed.key_property import refuse_other_keys
from router.delta.keyed.row_checks import refuse_lost_keys
from router.delta.table_cache import TABLES
from router.engine.label.layout import counted
from router.engine.merge.coordinator import MergedTables
from router.errors import StartError, TableError
from router.sinks import MergingSink

if TYPE_CHECKING:
    from router.config.models import Config
    from router.delta.table_cache import TableCache
    from router.engine.checkpoint_store import CheckpointStore
    from router.sinks import KeyedTable


def refuse_changed_keys(tables: TableCache, store: CheckpointStore, config: Config) -> None:
    """Raise StartError for a table that was merged by other keys, in another order, or with a history and now without.

    Looked at are the tables that a sink names, and those that it has merged into. What cannot be read is passed over:
    the first batch that has rows for it says what is wrong.
    """
    keyed_tables = _keyed_tables(store, config)
    names = sorted(keyed_tables)
    for first in range(0, len(names), TABLES):  # as many as the cache has handles for
        opened = tables.readable(names[first : first + TABLES])
        for name, table in opened.items():
            if table is None or isinstance(table, TableError):
                continue
            keyed = keyed_tables[name]
            try:
                refuse_other_keys(name, table.metadata().configuration, keyed)
                refuse_lost_keys(to_arrow(table), name, keyed)
            except TableError as error:
                raise StartError(f"{config.name}: {error}") from error


def _keyed_tables(store: CheckpointStore, config: Config) -> dict[str, KeyedTable]:
    """Return the tables of merging sinks, with how the rows of a key become one."""
    keyed_tables: dict[str, KeyedTable] = {}
    for route, name, sink in config.all_sinks():
        if not isinstance(sink, MergingSink):
            continue
        keyed = counted(sink)
        fixed = sink.table()
        names = {fixed} if isinstance(fixed, str) else MergedTables(store, f"{route}/{name}").names
        for table in names:
            keyed_tables[table] = keyed
    return keyed_tables
