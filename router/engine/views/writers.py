"""Which sinks and views have written a table, by the transaction ids in its log. Without Spark.

A table's name does not tell who writes it: two routes may have one template, and a table that a sink no longer writes
still has a name that another sink could make. A Delta log keeps transaction ids for good: a checkpoint contains those
of the commits before it, which maintenance deletes. Runs on the driver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.delta.history import REPAIRED, LogCheckpoint, last_checkpoint, log_commits
from router.delta.table_cache import SparkTable
from router.delta.transaction_id import RELEASES, parse_transaction_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from router.delta.lake import Lake

REPAIR = "/repair"
"""The writer of a commit of `router rebuild`. No route has a name with a slash."""


@dataclass(frozen=True)
class LogWriters:
    """The writers of a table up to a version: those that its log names, as far as it was read.

    `id` is that of the table. One that was dropped and created again has another id, and unknown writers.
    """

    id: str
    version: int
    writers: frozenset[str]

    def has_writer(self, wanted: frozenset[str]) -> bool:
        """Return whether one of some writers has written the table.

        A table that Spark made in a repair, and that no sink has written since, has no writer but the repair once its
        first commits are deleted. It is theirs then: a repair writes no table whose name fits no sink.
        """
        return not wanted.isdisjoint(self.writers) or self.writers == {REPAIR}


def sink_writer(route: str, sink: str) -> str:
    """Return the writer that a sink is: its target key in manifests."""
    return f"{route}/{sink}"


def view_writer(view: str) -> str:
    """Return the writer that a view is."""
    return f"/views/{view}"


def _writers_of(query: str, table: str, ids: Iterable[str], notes: Mapping[str, Any]) -> set[str]:
    """Return the writers of a query that the transaction ids and the notes of a commit name.

    An id with another table's name came with a copy of that table's folder.
    """
    writers: set[str] = set()
    for app_id in ids:
        transaction_id = parse_transaction_id(app_id)
        if transaction_id is None or transaction_id.query_name != query:
            continue
        if transaction_id.kind == "spark_repair":
            writers.add(REPAIR)
        if transaction_id.table != table:
            continue
        if transaction_id.kind == "rows" or transaction_id.kind in RELEASES:
            writers.add(sink_writer(transaction_id.route, transaction_id.sink))
        elif transaction_id.kind == "view":
            writers.add(view_writer(transaction_id.view))
        elif transaction_id.kind == "repair":
            writers.add(REPAIR)
    if REPAIRED in notes and str(notes.get("router.query")).partition(":")[0] == query:
        writers.add(REPAIR)
        writers.update(json.loads(notes[REPAIRED]))
    return writers


def read_writers(lake: Lake, query: str, name: str, table: Any, wanted: frozenset[str] = frozenset()) -> LogWriters:
    """Return the writers of an open table. Reading ends as soon as it has found one that is wanted.

    Raises TableError if a file of the log cannot be read.
    """
    writers: set[str] = set()
    for commit_writers in _newest_first(lake, query, name, table):
        writers |= commit_writers
        if not wanted.isdisjoint(writers):
            break
    return LogWriters(str(_table_id(table)), table.version(), frozenset(writers))


def read_on(lake: Lake, query: str, name: str, earlier: LogWriters, version: int) -> LogWriters:
    """Return earlier writers of a table with those of the commits since. Raises TableError."""
    writers = set(earlier.writers)
    for commit in log_commits(lake, name, range(earlier.version + 1, version + 1)):
        writers |= _writers_of(query, name, commit.transactions, commit.notes)
    return LogWriters(earlier.id, version, frozenset(writers))


def _table_id(table: Any) -> Any:
    if isinstance(table, SparkTable):
        return table.snapshot.metadata().id()
    return table.metadata().id


def _newest_first(lake: Lake, query: str, name: str, table: Any) -> Iterator[set[str]]:
    """Yield the writers of each commit, from the newest back to the last checkpoint, then those in the checkpoint."""
    if isinstance(table, SparkTable):
        yield _writers_of(query, name, _spark_ids(table), {})
        return
    checkpoint = LogCheckpoint(-1, ())
    newest = table.version()
    for version in range(newest, -1, -1):
        # For most tables the newest commit is enough; only for the others the log is listed, which takes long.
        if version == newest - 1:
            checkpoint = last_checkpoint(lake, name, newest)
        if version <= checkpoint.version:
            break
        for commit in log_commits(lake, name, [version]):
            yield _writers_of(query, name, commit.transactions, commit.notes)
    yield _writers_of(query, name, checkpoint.transaction_ids(lake), {})


def _spark_ids(table: SparkTable) -> list[str]:
    ids: list[str] = []
    names = table.snapshot.transactions().keysIterator()
    while names.hasNext():
        ids.append(str(names.next()))
    return ids
