"""Make many tables anew as the configuration says today, beside a running stream: `router refresh`.

Each table is a `Repair`, with its rules. All of them are looked at before anything changes; then the records are read
once, and landed once, for all tables that a sink appends to, and one commit per table replaces the content. A table
that keeps one row per key is merged by itself. Tables that today's configuration brings and nobody has written yet are
made; one that no sink writes any more is left alone.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from router.engine.checkpoint_store import CheckpointStore
from router.engine.merge.coordinator import MergedTables
from router.engine.preflight.explain import fixed_table, tables_by_sink
from router.engine.reprocess.rebuild import GivenTables, RebuiltRows
from router.engine.reprocess.repair import Repair, Repaired
from router.errors import RunningError, StartError, TableError
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.engine.reprocess.context import ReprocessContext

OWN_LAYERS = ("outbox.", "quarantine.")


class TableNames(frozenset[str]):
    """Names of tables, and with them every name that fits a pattern and is not the router's own."""

    patterns: tuple[str, ...]
    own: frozenset[str]

    @classmethod
    def fitting(cls, names: Iterable[str], patterns: tuple[str, ...], own: Iterable[str]) -> TableNames:
        """Return names, and with them what fits one of the patterns."""
        found = cls(names)
        found.patterns, found.own = patterns, frozenset(own)
        return found

    def __contains__(self, name: object) -> bool:
        """Say whether a name is one of them; runs in the landing task, too."""
        return super().__contains__(name) or (isinstance(name, str) and name not in self.own and self._fits(name))

    def _fits(self, name: str) -> bool:
        return not name.startswith(OWN_LAYERS) and any(fnmatchcase(name, pattern) for pattern in self.patterns)


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did: the tables that it made anew, those that it could not, and rows that have no place in them.

    A table of `failed` is as it was.
    """

    done: tuple[Repaired, ...]
    failed: dict[str, str]
    refused: int


@dataclass
class Refresh:
    """The refresh of all tables whose names fit a pattern. The decoder must be prepared already.

    `topic` takes the records from Kafka in place of bronze, `full` and `accept` are those of `Repair`.
    """

    context: ReprocessContext
    patterns: tuple[str, ...]
    full: bool = False
    topic: bool = False
    accept: bool = False

    def __post_init__(self) -> None:
        self.config = self.context.config
        self.spark = self.context.spark
        self.lake = self.context.lake

    def run(self) -> Refreshed:
        """Make the tables anew. Raises StartError or TableError where one cannot be, before anything changes."""
        self.sinks = self._sinks_of()
        self._refuse_protected()
        with ExitStack() as locks:
            repairs = {table: self._repair(table) for table in sorted(self.sinks)}
            for repair in repairs.values():
                locks.enter_context(repair.lock())
                repair.look()
            merging = {table for table, repair in repairs.items() if repair.merging() is not None}
            landed, refused = self._landed({table: one for table, one in repairs.items() if table not in merging})
            done, failed = [], dict[str, str]()
            for table in sorted({*landed} | merging):
                try:
                    one = repairs[table].merged() if table in merging else self._put(table, repairs, landed[table])
                    done.append(one)
                except (RunningError, StartError, TableError) as error:
                    failed[table] = str(error)
        if not done and not failed:
            raise StartError(f"no table of {self.config.name} fits {' '.join(self.patterns)}")
        return Refreshed(tuple(done), failed, refused)

    def _put(self, table: str, repairs: dict[str, Repair], landed: RebuiltRows) -> Repaired:
        """Replace the content of a table, or make one of the first rows that it gets."""
        if table in repairs:
            return repairs[table].replaced(landed)
        first = self._repair(table)
        first.written = self.written
        with first.lock():
            first.look()
            return first.replaced(landed)

    def _repair(self, table: str) -> Repair:
        return Repair(self.context, table, self.accept, full=self.full, topic=self.topic)

    def _own(self) -> set[str]:
        bronze = self.config.bronze_tables() or ()
        return {
            self.config.ledger,
            self.config.dead_letters,
            *(t for t in self.lake.every_table() if t in bronze),
        }

    def _fits(self, table: str) -> bool:
        return any(fnmatchcase(table, pattern) for pattern in self.patterns)

    def _sinks_of(self) -> dict[str, set[str]]:
        """Return the sinks that write each table of the configuration that fits: those there, gone, and to come."""
        found: dict[str, set[str]] = {}
        for key, tables in tables_by_sink(self.config).items():
            for table, _ in tables:
                found.setdefault(table, set()).add(key)
        written = self.written = self._repair("").written
        sinks = {f"{route}/{name}": sink for route, name, sink in self.config.all_sinks()}
        for table, by in written.manifests.items():
            found.setdefault(table, set()).update(key for key in by if key in sinks)
        store = CheckpointStore(self.context.checkpoint, written.run)
        for key, sink in sinks.items():
            names = [fixed_table(sink)] if isinstance(sink, (TableSink, MergingSink)) else []
            if isinstance(sink, MergingSink):
                names += MergedTables(store, key).names
            for table in filter(None, names):
                found.setdefault(table, set()).add(key)
        own = self._own()
        return {
            table: keys
            for table, keys in found.items()
            if keys and self._fits(table) and table not in own and not table.startswith(OWN_LAYERS)
        }

    def _refuse_protected(self) -> None:
        """Raise StartError where a table that is chosen, bronze too, says `reset: never`."""
        bronze, options = self.config.bronze, dict[str, TableSink | MergingSink]()
        never = [table for table in self._own() if table in (self.config.bronze_tables() or ()) and self._fits(table)]
        never = never if bronze is not None and bronze.reset == "never" else []
        for route, name, sink in self.config.all_sinks():
            if isinstance(sink, (TableSink, MergingSink)):
                options[f"{route}/{name}"] = sink
        for table, keys in self.sinks.items():
            if any(options[key].reset == "never" for key in keys if key in options):
                never.append(table)
        if never:
            what = f"`reset: never` protects {', '.join(sorted(never)[:5])}"
            raise StartError(f"{what}: choose other tables with --tables; nothing was changed")

    def _landed(self, repairs: dict[str, Repair]) -> tuple[dict[str, RebuiltRows], int]:
        """Land the records once for all these tables and those that are new; return the rows of each.

        Also returns how many rows have no place in any of them.
        """
        if not any(isinstance(sink, TableSink) for _, _, sink in self.config.all_sinks()):
            return {}, 0
        lead = max(repairs.values(), key=lambda one: one.last, default=self._repair(""))
        self.written = lead.written
        for repair in repairs.values():
            repair.written = lead.written
        records, others = lead.records(), {*self.sinks} - {*repairs}
        names = TableNames.fitting(repairs, self.patterns, self._own() | others)
        handles = {} if self.full else {table: repair.handle for table, repair in repairs.items()}
        landed = lead.rebuild(names, GivenTables(handles.get)).stage(
            records.frame(self.spark, self.lake), records.rows, lead.last
        )
        tables = {work.table for work in landed.commits} | {table for table, one in repairs.items() if one.handle}
        works = {table: tuple(work for work in landed.commits if work.table == table) for table in tables}
        return {table: RebuiltRows(work, landed.read, 0) for table, work in works.items()}, landed.refused
