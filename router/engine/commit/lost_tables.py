"""Tables that lack batches which the manifests say were committed to them: deleted, or an older copy was put back.

A table says by its transaction ids which batches it has. Where it has fewer than the manifests of the run name, rows
are gone, and the next batch would make the table anew or go on behind a gap: a person decides first.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from router.delta.keyed.upsert import EXPIRES
from router.delta.table_cache import TABLES
from router.delta.transaction_id import batch_id
from router.engine.checkpoint_store import KEPT
from router.errors import StartError, TableError
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config
    from router.delta.table_cache import TableCache
    from router.engine.checkpoint_store import CheckpointStore
    from router.sinks import Sink

log = logging.getLogger("router")
SHOWN = 10
AT_MOST = 16 << 20
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
        """Return what is wrong, in a few words."""
        if self.gone:
            return f"it is gone, with all batches up to {self.last}"
        return (
            f"it lacks batches {self.first} to {self.last}, which were committed to it: an older copy was put back, "
            "or another table stands in its place"
        )

    @property
    def blocks(self) -> str:
        """Return why nothing is written to the table, and what a person can do."""
        return (
            f"{self.cause}. Restore it, let `router repair {self.table}` make it whole again from bronze, or go on "
            "with it as it is by `router quarantine release`"
        )

    def __str__(self) -> str:
        return f"{self.table}: {self.cause}"


@dataclass
class CommittedBatches:
    """The last batches that a run has committed to each table: table -> transaction id -> batches, oldest first."""

    batches: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, store: CheckpointStore, config: Config, last: int) -> CommittedBatches:
        """Return what the manifests of a run say of tables that its configuration still writes, up to a batch.

        `last` is the last batch that the run has finished: a later one may have been cut off before its commits. What
        was accepted as lost is left out, and what went to the quarantine. A manifest names the outbox of a merging
        sink; which tables have its rows is in the mark of the batch.
        """
        found, accepted, written = cls(), _accepted(store), _Written.of(config)
        for manifest in _manifests(store, last):
            moved = manifest.get("quarantined", {})
            for work in manifest["commits"]:
                table, app_id, batch = work["table"], work["app_id"], work["version"]
                wanted = batch > accepted.get(table, {}).get(app_id, -1) and f"{work['target']}/{table}" not in moved
                if wanted and written.by(work["target"], table):
                    found.batches.setdefault(table, {}).setdefault(app_id, []).insert(0, batch)
            for key, table in _merged(store, manifest["batch"]) if written.merging else ():
                app_id, batch = str(batch_id(f"{config.name}:{store.run}", key, table)), manifest["batch"]
                wanted = batch > accepted.get(table, {}).get(app_id, -1)
                if wanted and written.merging.get(key, "") in (None, table):
                    found.batches.setdefault(table, {}).setdefault(app_id, []).insert(0, batch)
        return found

    def add(self, table: str, app_id: str, batch: int) -> None:
        """Note that a batch was committed to a table."""
        batches = self.batches.setdefault(table, {}).setdefault(app_id, [])
        batches.append(batch)
        del batches[:-KEPT]

    def forget(self, table: str) -> None:
        """Expect nothing of a table any more: a person goes on with it as it is."""
        self.batches.pop(table, None)

    def lost(self, tables: Mapping[str, Any]) -> dict[str, LostTable]:
        """Return those of some open tables that lack batches. None stands for a table that is not there."""
        found = {name: self._missing(name, table) for name, table in tables.items()}
        return {
            name: LostTable(name, min(batches), max(batches), tables[name] is None)
            for name, batches in found.items()
            if batches
        }

    def _missing(self, name: str, table: Any) -> list[int]:
        missing = []
        for app_id, batches in self.batches.get(name, {}).items():
            have = None if table is None else table.transaction_version(app_id)
            if have is None and table is not None and EXPIRES in table.metadata().configuration:
                continue
            missing += [batch for batch in batches if have is None or batch > have]
        return missing


def tables_of_newest_batches(store: CheckpointStore, batches: int) -> set[str]:
    """Return the tables that the newest manifests of a run name, and those that their batches have merged into."""
    tables: set[str] = set()
    for manifest in islice(_manifests(store, sys.maxsize), batches):
        tables.update(work["table"] for work in manifest["commits"])
        tables.update(table for _, table in _merged(store, manifest["batch"]))
    return tables


def refuse_lost_tables(tables: TableCache, store: CheckpointStore, config: Config, last: int, accept: str) -> None:
    """Raise StartError where tables of a configuration lack batches of this run, unless just that is accepted.

    `last` is the last batch that the run has finished. What is accepted is noted, so that it is asked for once. What
    the first batch needs of the tables stays.
    """
    committed = CommittedBatches.read(store, config, last)
    names, lost = sorted(committed.batches), dict[str, LostTable]()
    for first in range(0, len(names), TABLES):  # as many as the cache has handles for
        opened = tables.readable(names[first : first + TABLES])  # of what cannot be read, the batch will say so
        lost |= committed.lost({name: found for name, found in opened.items() if not isinstance(found, TableError)})
    if not lost:
        return
    if accept not in ("lost-tables", "lost-lake"):
        raise StartError(refusal(config, lost))
    accept_lost(store, committed, lost)
    log.warning("%s: going on without what these tables have lost: %s", config.name, _listed(lost))


def refusal(config: Config, lost: Mapping[str, LostTable]) -> str:
    """Return the sentence that stops a run whose tables lack batches."""
    bronze, own = config.bronze_tables(), (config.dead_letters,)
    raw = {name for name in lost if bronze and name in bronze}
    mended = [
        name for name in sorted(lost) if name not in (*raw, *own) and not name.startswith(("outbox.", "quarantine."))
    ]
    repair = f"let `router repair {' '.join(mended[:SHOWN])}` make whole again from bronze what it can; or "
    return (
        f"{config.name}: tables were deleted or put back from an older copy: {_listed(lost)}. Restore them; or "
        f"{repair if mended and config.bronze else ''}run with --accept lost-tables to go on with them as they are"
    )


def accept_lost(store: CheckpointStore, committed: CommittedBatches, lost: Mapping[str, LostTable]) -> None:
    """Note for some tables that what they lack by now is no longer expected of them."""
    known = _accepted(store)
    for table in lost:
        latest = {app_id: batches[-1] for app_id, batches in committed.batches[table].items() if batches}
        known[table] = {**known.get(table, {}), **latest}
    store.write(_note(store), json.dumps(known).encode())


def _listed(lost: Mapping[str, LostTable]) -> str:
    many = f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else ""
    return "; ".join(str(lost[name]) for name in sorted(lost)[:SHOWN]) + many


def _manifests(store: CheckpointStore, last: int) -> Iterator[dict[str, Any]]:
    """Yield the manifests of a run up to a batch as JSON, the newest first."""
    size = 0
    for path in reversed(store.paths(f"manifests/{store.run}")):
        text = store.read(path) if int(path.rpartition("/")[2].removesuffix(".json")) <= last else None
        if text is not None:
            size += len(text)
            with suppress(ValueError):  # of a batch that is done: `router verify` names the file
                yield json.loads(text)
        if size > AT_MOST:
            return


def _merged(store: CheckpointStore, batch: int) -> list[tuple[str, str]]:
    """Return sink and table of each merge of a batch; nothing of a mark that is damaged."""
    with suppress(StartError):  # of the batch that goes on, who applies it will say so
        return [(key, table) for key, tables in store.merged(batch).items() for table in tables]
    return []


def _accepted(store: CheckpointStore) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = store.load(_note(store)) or {}
    return found


def _note(store: CheckpointStore) -> str:
    return f"lost/{store.run}.json"


@dataclass(frozen=True)
class _Written:
    """The tables that a configuration writes by each target; None for a target whose tables are named by data.

    `merging` are those that it merges into, but for sinks that make anew what is gone.
    """

    tables: dict[str, str | None]
    merging: dict[str, str | None]

    @classmethod
    def of(cls, config: Config) -> _Written:
        bronze = config.bronze_tables()
        one = None if bronze and bronze.per_topic else config.bronze.table if config.bronze else ""
        tables: dict[str, str | None] = {"/bronze": one, "/dead_letters": config.dead_letters}
        named = {f"{route}/{name}": _table(sink) for route, name, sink in config.all_sinks()}
        merging = {
            f"{route}/{name}": table if isinstance(table := sink.table(), str) else None
            for route, name, sink in config.all_sinks()
            if isinstance(sink, MergingSink) and sink.keyed().dropped == "wait"
        }
        return cls({**tables, **named, **dict.fromkeys(f"{key}/quarantine" for key in named)}, merging)

    def by(self, target: str, table: str) -> bool:
        """Say whether a target still writes a table."""
        return target in self.tables and self.tables[target] in (None, table)


def _table(sink: Sink) -> str | None:
    """Return the one table that a sink lands in, None where data names it, or an outbox is between."""
    table = sink.table() if isinstance(sink, TableSink) else None
    return table if isinstance(table, str) else None
