"""Find tables that lack batches which manifests committed to them: deleted, or replaced by an older copy.

The transaction ids of a table say which batches it has. If these are fewer than the manifests of the run name, rows are
gone, and the next batch would create the table again or continue after a gap: a person decides first.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from router.api.sinks import MergingSink, TableSink
from router.delta.commit import ACCEPT_LOST, without_lost_batches
from router.delta.keyed.upsert import EXPIRES
from router.delta.table_cache import TABLES
from router.delta.transaction_id import batch_id
from router.engine.checkpoint_store import KEPT_MANIFESTS
from router.errors import StartError, TableError
from router.own_names import OWN_LAYERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.acceptance import Accepted
    from router.api.sinks import Sink
    from router.config.models import Config
    from router.delta.table_cache import TableCache
    from router.engine.checkpoint_store import CheckpointStore

log = logging.getLogger("router")
_SHOWN_TABLES = 10
MAX_MANIFEST_BYTES = 16 << 20
"""Bytes of manifests that a start reads, the newest first: 0.05 s for a hundred batches into 7 tables, half a second
for the last thirty into 200 tables."""


@dataclass(frozen=True)
class LostTable:
    """A table without some batches that were committed to it, from `first` to `last`; `gone`: there is no table."""

    table: str
    first: int
    last: int
    gone: bool

    @property
    def cause(self) -> str:
        """Return the cause of the loss, in a few words."""
        if self.gone:
            return f"it is gone, with all batches up to {self.last}"
        return (
            f"it lacks batches {self.first} to {self.last}, which were committed to it: an older copy was put back, "
            "or another table stands in its place"
        )

    @property
    def blocks(self) -> str:
        """Return why nothing is written to the table, and what a person can do."""
        return f"{self.cause}. Restore it; or {without_lost_batches([self.table])}"

    def __str__(self) -> str:
        return f"{self.table}: {self.cause}"


@dataclass
class CommittedBatches:
    """The last batches that a run has committed to each table: table -> transaction id -> batches, oldest first."""

    batches: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @classmethod
    def from_manifests(cls, store: CheckpointStore, config: Config, last: int) -> CommittedBatches:
        """Return the batches that the manifests of a run have committed to tables that its configuration still writes.

        `last` is the last batch that the run has finished: a later one may have been cut off before its commits. Left
        out is what was accepted as lost, and what went to the quarantine. A manifest names the outbox of a merging
        sink; the tables that have its rows are in the mark of the batch.
        """
        committed = cls()
        accepted = _read_accepted(store)
        writers = _TableWriters.of_config(config)
        for manifest in _read_manifests(store, last):
            batch = manifest["batch"]
            quarantined = manifest.get("quarantined", {})
            for work in manifest["commits"]:
                table = work["table"]
                if f"{work['target']}/{table}" not in quarantined and writers.still_writes(work["target"], table):
                    committed._add_older(table, work["app_id"], work["version"], accepted)
            if not writers.merging:
                continue
            for key, table in _read_merges(store, batch):
                if writers.merging.get(key, "") in (None, table):
                    app_id = str(batch_id(f"{config.name}:{store.run}", key, table))
                    committed._add_older(table, app_id, batch, accepted)
        return committed

    def _add_older(self, table: str, app_id: str, batch: int, accepted: Mapping[str, Mapping[str, int]]) -> None:
        """Note a batch that is older than those noted before, unless it was accepted as lost."""
        if batch > accepted.get(table, {}).get(app_id, -1):
            self.batches.setdefault(table, {}).setdefault(app_id, []).insert(0, batch)

    def add_batch(self, table: str, app_id: str, batch: int) -> None:
        """Note that a batch was committed to a table."""
        batches = self.batches.setdefault(table, {}).setdefault(app_id, [])
        batches.append(batch)
        del batches[:-KEPT_MANIFESTS]

    def forget_table(self, table: str) -> None:
        """Expect no batches of a table any more: a person accepts it as it is."""
        self.batches.pop(table, None)

    def find_lost_tables(self, tables: Mapping[str, Any]) -> dict[str, LostTable]:
        """Return those of some open tables that lack batches. None stands for a table that does not exist."""
        lost = {}
        for name, table in tables.items():
            batches = self._missing_batches(name, table)
            if batches:
                lost[name] = LostTable(name, min(batches), max(batches), gone=table is None)
        return lost

    def _missing_batches(self, name: str, table: Any) -> list[int]:
        missing: list[int] = []
        for app_id, batches in self.batches.get(name, {}).items():
            if table is None:
                missing += batches
                continue
            newest = table.transaction_version(app_id)
            if newest is not None:
                missing += [batch for batch in batches if batch > newest]
            # A table whose transaction ids expire may have forgotten this one.
            elif EXPIRES not in table.metadata().configuration:
                missing += batches
        return missing


def tables_of_newest_batches(store: CheckpointStore, batches: int) -> set[str]:
    """Return the tables that the newest manifests of a run name, and those that their batches have merged into."""
    tables: set[str] = set()
    for manifest in islice(_read_manifests(store, sys.maxsize), batches):
        tables.update(work["table"] for work in manifest["commits"])
        tables.update(table for _, table in _read_merges(store, manifest["batch"]))
    return tables


def refuse_lost_tables(tables: TableCache, store: CheckpointStore, config: Config, last: int, accept: Accepted) -> None:
    """Raise StartError if tables of a configuration lack batches of this run, unless `accept` accepts just that.

    `last` is the last batch that the run has finished. Accepted losses are noted, so that they are accepted once. The
    tables stay in the cache for the first batch.
    """
    committed = CommittedBatches.from_manifests(store, config, last)
    names = sorted(committed.batches)
    lost: dict[str, LostTable] = {}
    for first in range(0, len(names), TABLES):  # as many as the cache has handles for
        opened = tables.open_readable_tables(names[first : first + TABLES])
        # An unreadable table is an error of the first batch that writes it.
        readable = {name: table for name, table in opened.items() if not isinstance(table, TableError)}
        lost |= committed.find_lost_tables(readable)
    if not lost:
        return
    if not accept & {"lost-tables", "lost-lake"}:
        raise StartError(_lost_tables_message(config, lost))
    accept_lost(store, committed, lost)
    log.warning("%s: continuing without what these tables have lost: %s", config.name, _list_lost_tables(lost))


def _lost_tables_message(config: Config, lost: Mapping[str, LostTable]) -> str:
    """Return the sentence that stops a run whose tables lack batches."""
    bronze = config.bronze_tables()
    repairable = []
    for name in sorted(lost):
        if name == config.dead_letters or name.startswith(OWN_LAYERS):
            continue
        if bronze and name in bronze:
            continue
        repairable.append(name)
    way_on = f"{ACCEPT_LOST} continues with them as they are"
    if repairable and config.bronze:
        way_on = without_lost_batches(repairable[:_SHOWN_TABLES])
    listed = _list_lost_tables(lost)
    return f"{config.name}: tables were deleted or put back from an older copy: {listed}. Restore them; or {way_on}"


def accept_lost(store: CheckpointStore, committed: CommittedBatches, lost: Mapping[str, LostTable]) -> None:
    """Note for some tables that what they lack by now is no longer expected of them."""
    accepted = _read_accepted(store)
    for table in lost:
        latest = {app_id: batches[-1] for app_id, batches in committed.batches[table].items() if batches}
        accepted[table] = {**accepted.get(table, {}), **latest}
    store.write(_note_path(store), json.dumps(accepted).encode())


def _list_lost_tables(lost: Mapping[str, LostTable]) -> str:
    more = ""
    if len(lost) > _SHOWN_TABLES:
        more = f" and {len(lost) - _SHOWN_TABLES} more"
    return "; ".join(str(lost[name]) for name in sorted(lost)[:_SHOWN_TABLES]) + more


def _read_manifests(store: CheckpointStore, last: int) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a run up to a batch as JSON, the newest first."""
    size = 0
    for path in reversed(store.json_paths(f"manifests/{store.run}")):
        batch = int(path.rpartition("/")[2].removesuffix(".json"))
        text = store.read(path) if batch <= last else None
        if text is not None:
            size += len(text)
            with suppress(ValueError):  # a damaged one of a finished batch is no obstacle: `router verify` names it
                yield json.loads(text)
        if size > MAX_MANIFEST_BYTES:
            return


def _read_merges(store: CheckpointStore, batch: int) -> list[tuple[str, str]]:
    """Return sink and table of each merge of a batch; none if its mark is damaged."""
    try:
        merged = store.read_merged(batch)
    except StartError:  # if the mark is still needed, applying the batch raises it
        return []
    return [(key, table) for key, tables in merged.items() for table in tables]


def _read_accepted(store: CheckpointStore) -> dict[str, dict[str, int]]:
    accepted: dict[str, dict[str, int]] = store.load(_note_path(store)) or {}
    return accepted


def _note_path(store: CheckpointStore) -> str:
    return f"lost/{store.run}.json"


@dataclass(frozen=True)
class _TableWriters:
    """The tables that each target of a configuration writes; None for a target whose tables are named by data.

    `merging` are the sinks that merge into tables, except those that create dropped tables again.
    """

    tables: dict[str, str | None]
    merging: dict[str, str | None]

    @classmethod
    def of_config(cls, config: Config) -> _TableWriters:
        bronze_table: str | None = ""
        bronze = config.bronze_tables()
        if bronze and bronze.per_topic:
            bronze_table = None
        elif config.bronze:
            bronze_table = config.bronze.table
        tables: dict[str, str | None] = {"/bronze": bronze_table, "/dead_letters": config.dead_letters}
        merging: dict[str, str | None] = {}
        for route, name, sink in config.all_sinks():
            key = f"{route}/{name}"
            tables[key] = _landing_table(sink)
            tables[f"{key}/quarantine"] = None
            if isinstance(sink, MergingSink) and sink.keyed().dropped == "wait":
                table = sink.table()
                merging[key] = table if isinstance(table, str) else None
        return cls(tables, merging)

    def still_writes(self, target: str, table: str) -> bool:
        """Return whether a target still writes a table."""
        return target in self.tables and self.tables[target] in (None, table)


def _landing_table(sink: Sink) -> str | None:
    """Return the table that a sink lands in, None if data names it or the sink has an outbox."""
    table = sink.table() if isinstance(sink, TableSink) else None
    return table if isinstance(table, str) else None
