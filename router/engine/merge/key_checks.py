"""Compare the keys of a configuration with those by which its tables were merged, before a stream starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.api.sinks import MergingSink
from router.delta.commit import to_arrow
from router.delta.keyed.key_property import refuse_other_keys
from router.delta.keyed.row_checks import refuse_lost_keys
from router.delta.table_cache import TABLES
from router.engine.label.layout import with_order_columns
from router.engine.merge.coordinator import MergedTables
from router.errors import StartError, TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.api.sinks import KeyedTable
    from router.config.models import Config
    from router.delta.table_cache import TableCache
    from router.engine.checkpoint_store import CheckpointStore


def refuse_changed_keys(tables: TableCache, store: CheckpointStore, config: Config) -> None:
    """Raise StartError for a table that was merged by other keys, in another order, or with a history and now without.

    It checks the tables that a sink names, and those that it has merged into. Tables that cannot be read are skipped:
    the first batch that has rows for one reports what is wrong.
    """
    for _, error in changed_keys(tables, store, config):
        raise StartError(f"{config.name}: {error}") from error


def changed_keys(tables: TableCache, store: CheckpointStore, config: Config) -> Iterator[tuple[str, TableError]]:
    """Yield the sink (`route/sink`) of each table that was merged by other keys or in another order, and the error."""
    sinks = _sinks_by_table(store, config)
    names = sorted(sinks)
    for first in range(0, len(names), TABLES):  # as many as the cache has handles for
        opened = tables.open_readable_tables(names[first : first + TABLES])
        for name, table in opened.items():
            if table is None or isinstance(table, TableError):
                continue
            key, keyed = sinks[name]
            try:
                refuse_other_keys(name, table.metadata().configuration, keyed)
                refuse_lost_keys(to_arrow(table), name, keyed)
            except TableError as error:
                yield key, error


def _sinks_by_table(store: CheckpointStore, config: Config) -> dict[str, tuple[str, KeyedTable]]:
    """Return the tables of merging sinks, each with its sink and with how the rows of a key become one."""
    sinks: dict[str, tuple[str, KeyedTable]] = {}
    for route, name, sink in config.all_sinks():
        if not isinstance(sink, MergingSink):
            continue
        key = f"{route}/{name}"
        keyed = with_order_columns(sink)
        fixed = sink.table()
        names = {fixed} if isinstance(fixed, str) else MergedTables(store, key).names
        for table in names:
            sinks[table] = key, keyed
    return sinks
