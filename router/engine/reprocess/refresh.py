"""Rebuild tables as the configuration says today, while the stream runs: `router rebuild`.

Each table is a `Repair`, with its rules. All of them are looked at before anything changes. Then the records are read
and landed once for all tables that a sink appends to, and one commit per table replaces the content. A table that keeps
one row per key is merged by itself. Tables of today's configuration that do not exist yet are made; a table that no
sink writes any more is left alone.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.api.sinks import LakeSink, MergingSink, TableSink
from router.engine.checkpoint_store import CheckpointStore
from router.engine.merge.coordinator import MergedTables
from router.engine.preflight.explain import fixed_table, tables_by_sink
from router.engine.reprocess.context import Reprocessing
from router.engine.reprocess.rebuild import RebuiltRows, TableSource
from router.engine.reprocess.repair import Repair
from router.errors import RouterError, RunningError, StartError, TableError
from router.own_names import OWN_LAYERS
from router.table_names import is_name, matches_any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.delta.commit import TableCommit
    from router.engine.reprocess.repair_target import Repaired

log = logging.getLogger("router")


class TableNames(frozenset[str]):
    """Names of tables, and with them every name that matches a pattern and is not the router's own."""

    patterns: tuple[str, ...]
    own: frozenset[str]

    @classmethod
    def matching(cls, names: Iterable[str], patterns: tuple[str, ...], own: Iterable[str]) -> TableNames:
        """Return names, and with them all that match one of the patterns."""
        table_names = cls(names)
        table_names.patterns = patterns
        table_names.own = frozenset(own)
        return table_names

    def __contains__(self, name: object) -> bool:
        """Return whether a name is one of them; also runs in the tasks that land."""
        if super().__contains__(name):
            return True
        if not isinstance(name, str) or name in self.own or name.startswith(OWN_LAYERS):
            return False
        return matches_any(name, self.patterns)


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did: the rebuilt tables, those that it could not rebuild, and rows that no table has.

    A table of `failed` is as it was.
    """

    done: tuple[Repaired, ...]
    failed: dict[str, RouterError]
    refused: int


@dataclass
class Refresh(Reprocessing):
    """The rebuild of all tables whose names match a pattern. The decoder must be prepared already.

    `topic` takes the records from Kafka in place of bronze, `full` and `accept` are those of `Repair`.
    """

    patterns: tuple[str, ...]
    full: bool = False
    topic: bool = False
    accept: bool = False

    def run(self) -> Refreshed:
        """Rebuild the tables. Raises StartError or TableError if one cannot be rebuilt, before anything changes."""
        self.written = self._repair("").written
        sinks_by_table = self._sinks_by_table()
        self._refuse_protected(sinks_by_table)
        done: list[Repaired] = []
        failed: dict[str, RouterError] = {}
        with ExitStack() as locks:
            merging: dict[str, Repair] = {}
            appending: dict[str, Repair] = {}
            refusals: list[RouterError] = []
            # Every table is locked and looked at before the first one changes.
            for table in sorted(sinks_by_table):
                repair = self._repair(table)
                try:
                    locks.enter_context(repair.lock())
                    repair.look()
                except (RunningError, StartError, TableError) as error:
                    refusals.append(error)
                    continue
                if repair.merging() is not None:
                    merging[table] = repair
                else:
                    appending[table] = repair
            for refusal in refusals[1:]:
                log.error("%s", refusal)
            if refusals:
                raise refusals[0]
            rebuilt, refused = self._land(appending, set(merging))
            for table in sorted({*rebuilt, *merging}):
                try:
                    if table in merging:
                        done.append(merging[table].merge())
                    elif table in appending:
                        done.append(appending[table].replace(rebuilt[table]))
                    else:  # data names the table, and no row of it was written yet
                        done.append(self._make(table, rebuilt[table]))
                except (RunningError, StartError, TableError) as error:
                    failed[table] = error
        if not done and not failed:
            raise StartError(f"no table of {self.config.name} fits {' '.join(self.patterns)}")
        return Refreshed(tuple(done), failed, refused)

    def _make(self, table: str, rebuilt: RebuiltRows) -> Repaired:
        """Make a table of the first rows that it gets: before these were landed nothing named it."""
        repair = self._repair(table)
        repair.written = self.written
        with repair.lock():
            repair.look()
            return repair.replace(rebuilt)

    def _repair(self, table: str) -> Repair:
        return Repair(self.context, table, self.accept, full=self.full, topic=self.topic)

    def _bronze(self) -> set[str]:
        """Return the tables of bronze that exist."""
        bronze = self.config.bronze_tables() or ()
        return {table for table in self.lake.every_table() if table in bronze}

    def _own_tables(self) -> set[str]:
        return {self.config.ledger, self.config.dead_letters, *self._bronze()}

    def _sinks_by_table(self) -> dict[str, set[str]]:
        """Return the sinks of each table of the configuration that matches: those that exist, are gone, or are new."""
        sinks = {f"{route}/{name}": sink for route, name, sink in self.config.all_sinks()}
        store = CheckpointStore(self.context.checkpoint, self.written.run)
        sinks_by_table: dict[str, set[str]] = {}
        for key, tables in tables_by_sink(self.config).items():
            for table, _ in tables:
                sinks_by_table.setdefault(table, set()).add(key)
        # A table that is gone is named by manifests only.
        for table, rows_by_sink in self.written.manifests.items():
            sinks_by_table.setdefault(table, set()).update(sinks.keys() & rows_by_sink.keys())
        for key, sink in sinks.items():
            names: list[str] = []
            if isinstance(sink, LakeSink):
                names.append(fixed_table(sink))
            if isinstance(sink, MergingSink):
                names += MergedTables(store, key).names
            for table in filter(None, names):
                sinks_by_table.setdefault(table, set()).add(key)

        own = self._own_tables()
        # A name alone is looked at whatever it is: the look says why it cannot be rebuilt.
        chosen = {name: sinks_by_table.get(name, set()) for name in self._names()}
        for table, keys in sinks_by_table.items():
            is_own = table in own or table.startswith(OWN_LAYERS)
            if keys and not is_own and matches_any(table, self.patterns):
                chosen[table] = keys
        return chosen

    def _names(self) -> set[str]:
        """Return the patterns that are the name of one table."""
        return {pattern for pattern in self.patterns if is_name(pattern)}

    def _refuse_protected(self, sinks_by_table: dict[str, set[str]]) -> None:
        """Raise StartError if a pattern chooses a table, also one of bronze, that has `reset: never`."""
        protected: list[str] = []
        bronze = self.config.bronze
        if bronze is not None and bronze.reset == "never":
            protected += [table for table in self._bronze() if matches_any(table, self.patterns)]
        protected_sinks = set()
        for route, name, sink in self.config.all_sinks():
            if isinstance(sink, LakeSink) and sink.reset == "never":
                protected_sinks.add(f"{route}/{name}")
        protected += [table for table, keys in sinks_by_table.items() if keys & protected_sinks]
        if protected := sorted({*protected} - self._names()):
            problem = f"`reset: never` protects {', '.join(protected[:5])}"
            raise StartError(f"{problem}: only its whole name rebuilds such a table; nothing was changed")

    def _land(self, repairs: dict[str, Repair], merging: set[str]) -> tuple[dict[str, RebuiltRows], int]:
        """Land the records once for all tables that sinks append to, also for new ones; return the rows of each.

        Also returns how many rows no table has.
        """
        # Records may have rows for tables that a pattern names and nobody has written yet.
        is_open = len(self._names()) < len(set(self.patterns))
        if not any(isinstance(sink, TableSink) for _, _, sink in self.config.all_sinks()) or not (repairs or is_open):
            return {}, 0
        # All tables are rebuilt up to the same batch: the newest that one of the looks has seen.
        lead = max(repairs.values(), key=lambda repair: repair.last, default=self._repair(""))
        self.written = lead.written
        handles = {}
        for table, repair in repairs.items():
            repair.written = lead.written
            handles[table] = None if self.full else repair.handle
        records = lead.records()
        names = TableNames.matching(repairs, self.patterns, self._own_tables() | merging)
        rebuild = lead.rebuild(names, TableSource(handles.get))
        rebuilt = rebuild.stage(records.raw_records(self.spark, self.lake), records.rows, lead.last)

        commits: dict[str, list[TableCommit]] = {}
        for table, repair in repairs.items():
            # It loses its rows if the records have none for it.
            if repair.handle is not None or table in self._names():
                commits[table] = []
        for commit in rebuilt.commits:
            commits.setdefault(commit.table, []).append(commit)
        by_table = {table: RebuiltRows(tuple(of_table), rebuilt.read, 0) for table, of_table in commits.items()}
        return by_table, rebuilt.refused
