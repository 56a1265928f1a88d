"""The state of every table that a configuration writes: `router tables`. Without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from router.delta.constraints import unsupported
from router.delta.keyed.upsert import merge_engine
from router.delta.table_cache import THREADS
from router.delta.transaction_id import batch_id
from router.engine import ledger
from router.engine.audit.verify import OWN_LAYERS, Verification
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import merge_options, outbox_of
from router.engine.merge.coordinator import BacklogStore, MergedTables
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import pending_releases, quarantined
from router.sinks import KeyedTable, MergingSink

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.config.models import Config

NAMES = {"arrow": "delta-rs", "spark": "Spark"}


@dataclass(frozen=True)
class TableState:
    """What is to be known of a table at a glance.

    `state` is ok, behind (it lacks rows that are decided), blocked (it cannot be written), unreadable, gone, or none
    where its first row has yet to come. `rows` are None where nobody knows, `lag` are rows that it will get,
    `quarantined` those that wait elsewhere.
    """

    table: str
    state: str
    rows: int | None
    lag: int
    committer: str
    why: str
    quarantined: int


def table_states(config: Config) -> list[TableState]:
    """Return the states of all tables of a configuration, by name."""
    overview = _Overview(config)
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(overview.state, sorted(overview.verification.tables() | set(overview.merged)))
        return [state for state in found if state]


class _Overview:
    """What is read once for all tables: manifests and ledger, merges and their backlog, quarantined rows."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.lake, checkpoint = lake_and_checkpoint(config)
        self.verification = Verification.of(config, pending=True)
        notes = pending_releases(CheckpointStore(checkpoint), "blocked")
        self.blocked = {note.place.table: note.cause for note in notes}
        self.waiting: dict[str, int] = {}
        for found in quarantined(config, self.lake):
            self.waiting[found.place.table] = self.waiting.get(found.place.table, 0) + found.rows
        self.merged: dict[str, KeyedTable] = {}
        self.backlog = self._unsent()
        for route, name, sink in config.all_sinks():
            if isinstance(sink, MergingSink):
                store, key = CheckpointStore(checkpoint), f"{route}/{name}"
                fixed = {fixed_table(sink)} - {""}
                self.merged |= dict.fromkeys(MergedTables(store, key).names | fixed, self._keyed(sink))
                for table, backlog in BacklogStore(store, key).now().items():
                    self.backlog[table] = self.backlog.get(table, 0) + backlog.rows

    def _keyed(self, sink: MergingSink) -> KeyedTable:
        return merge_options(sink.keyed(), self.config.commit == "spark")

    def state(self, table: str) -> TableState | None:
        """Return the state of a table; None where it is not one of the router's."""
        try:
            handle = self.lake.open(table)
        except (DeltaError, OSError) as error:
            return self._told(table, None, "unreadable", why=self.verification.unreadable(table, error))
        if handle is None:
            written = self.verification.written
            committed = table in written.manifests or table in written.views or bool(self._booked(table))
            if not committed and table.startswith(OWN_LAYERS):
                return None  # nothing had to wait yet
            return self._told(table, None, "gone" if committed else "none")
        if table in self.blocked:
            return self._told(table, handle, "blocked", why=self.blocked[table])
        if table not in self.merged and not self.verification.ours(table, handle):
            return None
        return self._told(table, handle, "behind" if self._decided(table, handle) else "ok")

    def _told(self, table: str, handle: DeltaTable | None, state: str, why: str = "") -> TableState:
        engine, reason = self._committer(table, handle)
        if table in self.verification.written.views:
            reason = f"view {self.verification.written.views[table][0]}: {reason}"
        rows = None
        if handle is not None:
            actions: Any = pa.table(handle.get_add_actions())
            counts = actions.column("num_records").to_pylist()
            rows = None if None in counts else sum(counts)
        lag = self.backlog.get(table, 0) + self._decided(table, handle)
        return TableState(table, state, rows, lag, engine, why or reason, self.waiting.get(table, 0))

    def _committer(self, table: str, handle: DeltaTable | None) -> tuple[str, str]:
        """Return who writes a table, and why."""
        if table in self.merged:
            chosen = merge_engine(handle, self.merged[table])
            return NAMES[chosen.engine], chosen.why
        if self.config.commit == "spark":
            return "Spark", "commit: spark"
        if handle is not None and (features := unsupported(handle) - self._divided_as_asked(handle)):
            return "Spark", f"it has {', '.join(sorted(features))}"
        return "delta-rs", "it has no feature that delta-rs lacks"

    def _divided_as_asked(self, handle: DeltaTable) -> set[str]:
        """Return what keeps delta-rs from other tables with partitions: files for this one are staged by them."""
        asked = [{*options.partition_by} for options in self.config.table_options().values()]
        return {"partitioning"} if {*handle.metadata().partition_columns} in asked else set()

    def _decided(self, table: str, handle: DeltaTable | None) -> int:
        """Return the rows that manifests have decided and the table does not have."""
        written, rows = self.verification.written, 0
        for key, by_batch in written.manifests.get(table, {}).items():
            name = str(batch_id(f"{self.config.name}:{written.run}", key, table))
            version = handle.transaction_version(name) if handle is not None else None
            rows += sum(count for batch, count in by_batch.items() if version is None or batch > version)
        return rows

    def _booked(self, table: str) -> int:
        written = self.verification.written
        ledgers = (written.ledger.get((written.run, key)) for key in self.verification.fixed.get(table, ()))
        return sum(int(booked.rows.sum()) for booked in ledgers if booked)

    def _unsent(self) -> dict[str, int]:
        """Return the rows of outboxes that their sinks have yet to deal with, by the ledger."""
        try:
            sums = ledger.totals(self.config)
        except (DeltaError, OSError):
            return {}
        return {
            outbox_of(self.config.name, route, sink): counts["backlog"]
            for (route, sink), counts in sums.items()
            if route is not None and sink is not None and counts.get("backlog", 0) > 0
        }
