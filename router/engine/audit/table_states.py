"""The state of every table that a configuration writes: `router tables`. Without Spark."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from router.api.sinks import KeyedTable, MergingSink
from router.delta.constraints import features_against_appends
from router.delta.keyed.upsert import merge_engine
from router.delta.table_cache import THREADS
from router.delta.transaction_id import batch_id
from router.engine import ledger
from router.engine.audit.verify import Verification
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import merge_options, outbox_of
from router.engine.merge.coordinator import MergedTables
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import Place, list_quarantined, pending_releases, waiting_places
from router.own_names import OWN_LAYERS

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.config.models import Config
    from router.states import TableState

USUAL = ("delta-rs", "it has no feature that delta-rs lacks")
"""Who commits to nearly every table, and why."""
NAMES = {"arrow": "delta-rs", "spark": "Spark"}


@dataclass(frozen=True)
class ListedTable:
    """A table at a glance.

    `rows` is None if the number is unknown, `lag` is how many rows it will get, `quarantined` how many rows for it are
    in the quarantine.
    """

    table: str
    state: TableState
    rows: int | None
    lag: int
    committer: str
    why: str
    quarantined: int


def table_states(config: Config) -> list[ListedTable]:
    """Return the states of all tables of a configuration, by name."""
    overview = _Overview(config)
    names = sorted(overview.verification.table_names() | overview.merged.keys())
    with ThreadPoolExecutor(THREADS) as pool:
        return [state for state in pool.map(overview.find_state, names) if state]


class _Overview:
    """What is read once for all tables: manifests and ledger, merges and their backlog, quarantined rows."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.lake, checkpoint = lake_and_checkpoint(config)
        self.verification = Verification.of_config(config, pending=True)
        store = CheckpointStore(checkpoint)
        notes = pending_releases(store, "blocked")
        self.blocked = {note.place.table: note.cause for note in notes}
        self.quarantined: Counter[str] = Counter()
        for quarantine in list_quarantined(config, self.lake):
            self.quarantined[quarantine.place.table] += quarantine.rows
        self.merged: dict[str, KeyedTable] = {}
        self.backlog = self._rows_in_outboxes()
        for place, backlog in waiting_places(config, store).items():
            self.backlog[Place.of(place).table] += backlog.rows
        for route, name, sink in config.all_sinks():
            if not isinstance(sink, MergingSink):
                continue
            keyed = merge_options(sink, only_spark=config.commit == "spark")
            tables = {*MergedTables(store, f"{route}/{name}").names, fixed_table(sink)} - {""}
            self.merged |= dict.fromkeys(tables, keyed)

    def find_state(self, table: str) -> ListedTable | None:
        """Return the state of a table; None if it is not one of the router's."""
        try:
            handle = self.lake.open(table)
        except (DeltaError, OSError) as error:
            return self._list_table(table, None, "unreadable", why=self.verification.explain_unreadable(table, error))
        if handle is None:
            recorded = self.verification.recorded
            noted = recorded.manifests.keys() | recorded.views.keys() | recorded.merged.keys()
            has_rows = table in noted or self._rows_in_ledger(table) > 0
            # An outbox or a quarantine is created with its first rows.
            if not has_rows and table.startswith(OWN_LAYERS):
                return None
            return self._list_table(table, None, "gone" if has_rows else "none")
        if table in self.blocked:
            return self._list_table(table, handle, "blocked", why=self.blocked[table])
        if table not in self.merged and not self.verification.is_own_table(table, handle):
            return None
        return self._list_table(table, handle, "behind" if self._missing_rows(table, handle) else "ok")

    def _list_table(self, table: str, handle: DeltaTable | None, state: TableState, why: str = "") -> ListedTable:
        engine, reason = self._find_committer(table, handle)
        views = self.verification.recorded.views
        if table in views:
            view, _ = views[table]
            reason = f"view {view}: {reason}"
        rows = None
        if handle is not None:
            actions: Any = pa.table(handle.get_add_actions())
            counts = actions.column("num_records").to_pylist()
            rows = None if None in counts else sum(counts)
        lag = self.backlog[table] + self._missing_rows(table, handle)
        return ListedTable(table, state, rows, lag, engine, why or reason, self.quarantined[table])

    def _find_committer(self, table: str, handle: DeltaTable | None) -> tuple[str, str]:
        """Return who writes a table, and why."""
        if table in self.merged:
            chosen = merge_engine(handle, self.merged[table])
            return NAMES[chosen.engine], chosen.why
        if self.config.commit == "spark":
            return "Spark", "commit: spark"
        if handle is not None:
            features = features_against_appends(handle)
            # Files for a table with the partitions of the configuration are staged by partition.
            partition_columns = set(handle.metadata().partition_columns)
            if any(partition_columns == set(options.partition_by) for options in self.config.table_options().values()):
                features = features - {"partitioning"}
            if features:
                return "Spark", f"it has {', '.join(sorted(features))}"
        return USUAL

    def _missing_rows(self, table: str, handle: DeltaTable | None) -> int:
        """Return how many rows manifests have decided and the table does not have."""
        recorded = self.verification.recorded
        missing = 0
        for key, by_batch in recorded.manifests.get(table, {}).items():
            app_id = str(batch_id(f"{self.config.name}:{recorded.run}", key, table))
            version = handle.transaction_version(app_id) if handle is not None else None
            missing += sum(rows for batch, rows in by_batch.items() if version is None or batch > version)
        return missing

    def _rows_in_ledger(self, table: str) -> int:
        recorded = self.verification.recorded
        keys = self.verification.fixed_targets.get(table, ())
        return sum(int(recorded.in_ledger(recorded.run, key).rows.sum()) for key in keys)

    def _rows_in_outboxes(self) -> Counter[str]:
        """Return by outbox the rows that its sink has not applied yet, by the ledger."""
        rows: Counter[str] = Counter()
        # Without a ledger that can be read, no backlog is shown.
        with suppress(DeltaError, OSError):
            for (route, sink), counts in ledger.read_totals(self.config).items():
                if route is not None and sink is not None and counts.get("backlog", 0) > 0:
                    rows[outbox_of(self.config.name, route, sink)] = counts["backlog"]
        return rows
