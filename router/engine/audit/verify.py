"""Hold tables against what the router wrote down about them: `router verify`.

| held | against |
|---|---|
| a table's transaction ids | its last batch in the manifests, and in the ledger where a sink has one table |
| the rows that each commit of its log brought | the manifest of that batch; the ledger, for all tables of a sink |
| bronze | what the ledger says was read |
| a table of a view | how the view left it; against its query: `router.engine.views.recompute` |
| a table with one row per key | its keys: there is one row for each, or one current row with a history |
| the files of its current version | the disk: there, and of the size that the log says; on request their footers |
| commits that are not the router's | nothing: who made them, and what they did, is said |

Needs no Spark, and may run beside the stream: the ledger is read first, and batches after its last one are left out.
What is held in memory is bounded by the manifests that are kept (100), and by 8 bytes for each batch of a sink.
"""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyarrow import fs

from router.delta.history import REPAIRED, LogCommit, log_commits, log_damage, log_versions, rows_of
from router.delta.keyed.key_property import keyed_of, repeated_keys, several_rows
from router.delta.keyed.row_versions import DELETIONS, deletions_table
from router.delta.lake import native_files
from router.delta.table_cache import THREADS
from router.delta.transaction_id import RELEASES, Kind, TransactionId, batch_id, parse
from router.engine.checkpoint_store import CheckpointStore, Manifest, lake_and_checkpoint
from router.engine.label.layout import outbox_of, quarantine_of
from router.engine.preflight.explain import fixed_table
from router.engine.start.checks import Checkpoint
from router.engine.views.note import Note, ViewTarget, note_path
from router.errors import StartError, TableError
from router.sinks import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deltalake import DeltaTable

    from router.config.models import Config
    from router.delta.lake import Lake

TRIES = 2
SHOWN = 3
"""How many files, batches or commits a sentence names, at most."""
OWN_LAYERS = ("outbox.", "quarantine.")
"""Layers in which the router, and who discards rows, delete as they like."""
RELEASED = "//released"
"""What follows the key of a sink for its released rows. No name has a slash, so no sink has a key that ends so."""
COUNTED = {"read": "/bronze", "landed": "", "released": RELEASED}
"""Columns of the ledger that count rows of tables, and what they add to the key of a sink; bronze lacks `dropped`."""


class BatchRows:
    """The rows of a sink by batch: eight bytes for each."""

    def __init__(self) -> None:
        self.rows = np.zeros(64, np.int64)

    def add(self, batch: int, rows: int) -> None:
        """Count more rows of a batch."""
        if batch >= len(self.rows):
            self.rows = np.concatenate([self.rows, np.zeros(max(batch + 1, len(self.rows)), np.int64)])
        self.rows[batch] += rows

    def extend(self, other: BatchRows | None) -> None:
        """Count the rows of others, too."""
        for batch in np.flatnonzero(other.rows) if other else ():
            self.add(int(batch), int(other.rows[batch]))  # type: ignore[union-attr] # there is no batch of None

    def last(self) -> int:
        """Return the last batch with rows, -1 for none."""
        return int(np.flatnonzero(self.rows)[-1]) if self.rows.any() else -1

    def differing(self, other: BatchRows, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the batches, from first to last, that have other rows there: batch, rows here, rows there."""
        end = min(last + 1, max(len(self.rows), len(other.rows)))
        mine, others = (np.resize(np.append(one.rows, np.zeros(end, np.int64)), max(end, 0)) for one in (self, other))
        found = np.flatnonzero(mine != others)
        return [(int(batch), int(mine[batch]), int(others[batch])) for batch in found if batch >= first]


@dataclass(frozen=True)
class WrittenDown:
    """What the router wrote down: the ledger's rows by run and target key, those of manifests by table, key and batch.

    `run` is the run of the checkpoint, `committed` its last batch there, `last` its last batch in the ledger (-1 for
    none); `runs` are all that the ledger knows, those of detached sinks, too; `damaged` are files of the store, and
    what is wrong with each; `views` are the tables that views have made, with the view and how it left each.
    """

    run: str
    committed: int
    last: int
    ledger: dict[tuple[str, str], BatchRows]
    manifests: dict[str, dict[str, dict[int, int]]]
    runs: frozenset[str]
    damaged: dict[str, str] = field(default_factory=dict)
    views: dict[str, tuple[str, ViewTarget]] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Config, lake: Lake, checkpoint: Lake, *, pending: bool = False) -> WrittenDown:
        """Read ledger and manifests, also of a batch that is `pending`; a ledger that cannot be read says nothing."""
        views, damaged_notes = _views(config, CheckpointStore(checkpoint))
        past = Checkpoint.read(checkpoint)  # before the ledger, which has a batch first
        run = past.run or ""
        try:
            table = lake.open(config.ledger)
            last = booked(table, config, run)
            ledger, begun = _ledger(table, config.name) if table else ({}, {})
        except (DeltaError, OSError):
            last, ledger, begun = past.last, {}, {}
        if config.bronze is None:
            ledger = {place: rows for place, rows in ledger.items() if place[1] != "/bronze"}
        manifests, damaged = _manifests(CheckpointStore(checkpoint, run), begun.get(run, 0), last + pending)
        return cls(run, past.last, last, ledger, manifests, frozenset({run, *begun}), damaged | damaged_notes, views)

    @property
    def keys(self) -> set[str]:
        """Return the target keys that rows were counted for."""
        booked = {key.removesuffix(RELEASED) for _, key in self.ledger}
        return booked | {key for by in self.manifests.values() for key in by}


def booked(ledger: DeltaTable | None, config: Config, run: str) -> int:
    """Return the last batch of a run in the ledger, -1 for none."""
    app_id = str(TransactionId("ledger", f"{config.name}:{run}"))
    version = ledger.transaction_version(app_id) if ledger else None
    return -1 if version is None else version


def _ledger(table: DeltaTable, query: str) -> tuple[dict[tuple[str, str], BatchRows], dict[str, int]]:
    """Return the rows of a ledger by run and target key, and the first batch that it has of each run."""
    there = {column.name for column in table.schema().fields}
    counted = [name for name in COUNTED if name in there]
    more = [*counted, *({"dropped"} & there)]
    columns = ["query", "run", "batch_id", "route", "sink", *more]
    found: dict[tuple[str, str], BatchRows] = defaultdict(BatchRows)
    begun: dict[str, int] = {}
    for part in table.to_pyarrow_dataset(filesystem=native_files(table)).scanner(columns=columns).to_batches():
        sums = pa.table(part).group_by(columns[:5]).aggregate([(name, "sum") for name in more])
        for row in sums.to_pylist():
            if row["query"] != query or row["batch_id"] is None:
                continue
            begun[row["run"]] = min(row["batch_id"], begun.get(row["run"], row["batch_id"]))
            for name in counted:
                gone = row.get("dropped_sum") if name == "read" and row["route"] is None else 0
                if rows := (row[f"{name}_sum"] or 0) - (gone or 0):
                    place = "" if row["route"] is None else f"{row['route']}/{row['sink']}"
                    found[row["run"], place + COUNTED[name]].add(row["batch_id"], rows)
    return dict(found), begun


def _views(config: Config, store: CheckpointStore) -> tuple[dict[str, tuple[str, ViewTarget]], dict[str, str]]:
    """Return the tables that views have made, and what is wrong with notes that cannot be read, by path."""
    made: dict[str, tuple[str, ViewTarget]] = {}
    damaged: dict[str, str] = {}
    for view in config.views:
        path = note_path(view.name)
        try:
            note = Note.of(store.load(path))
        except StartError as error:
            damaged[path] = str(error)
            continue
        for table, target in note.targets.items():
            made[table] = (view.name, target)
    return made, damaged


def _manifests(
    store: CheckpointStore, first: int, last: int
) -> tuple[dict[str, dict[str, dict[int, int]]], dict[str, str]]:
    """Return the rows that the manifests of some batches decided: table -> target key -> batch -> rows.

    And what is wrong with those that cannot be read, by path.
    """
    found: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    damaged: dict[str, str] = {}
    for path in store.paths(f"manifests/{store.run}"):
        try:
            said = store.load(path)
        except StartError as error:
            damaged[path] = str(error)
            continue
        manifest = Manifest.of(said) if said else None  # the stream deletes the oldest
        if manifest is None or not first <= manifest.batch <= last:
            continue
        for work in (one for one in manifest.commits if one.place not in manifest.quarantined):
            found[work.table][work.target][work.version] = work.rows
    return found, damaged


@dataclass
class TableAudit:
    """What was found out about one table: what is wrong, and the rows that its log says the router brought.

    `counted`: (run, target key) -> batch -> rows; `since`: target key -> the first batch whose rows the log has whole.
    With `sums` it is about all tables of a sink, and `table` names that.
    """

    table: str
    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    files: int = 0
    version: int = -1
    counted: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    sums: bool = False

    @property
    def problems(self) -> list[str]:
        """Return all that is wrong, and what others did."""
        return [*self.wrong, *self.others]


def verified(config: Config, chosen: Iterable[str] = (), *, footers: bool = False) -> list[TableAudit]:
    """Return what is found out about the chosen tables, or about all, and about the sinks whose sums are wrong.

    Rows that are released from the quarantine while tables are read count in their table before the ledger has them:
    where a sum is wrong all is read once more.
    """
    found = Verification.of(config, footers=footers).audits(chosen)
    if any(audit.sums for audit in found):
        return Verification.of(config, footers=footers).audits(chosen)
    return found


@dataclass(frozen=True)
class Verification:
    """The verification of a query's tables. With `footers` every file is opened, and its rows are counted."""

    config: Config
    lake: Lake
    written: WrittenDown
    footers: bool = False

    @classmethod
    def of(cls, config: Config, *, footers: bool = False, pending: bool = False) -> Verification:
        """Return the verification of a configuration's tables."""
        lake, checkpoint = lake_and_checkpoint(config)
        return cls(config, lake, WrittenDown.read(config, lake, checkpoint, pending=pending), footers)

    def audits(self, chosen: Iterable[str] = ()) -> list[TableAudit]:
        """Return what is found out about the chosen tables, or about all; sums of sinks stand after the tables."""
        names = sorted(set(chosen) or self.tables())
        sums: dict[tuple[str, str], BatchRows] = defaultdict(BatchRows)
        since: dict[str, int] = {}
        found: list[TableAudit] = []
        with ThreadPoolExecutor(THREADS) as pool:
            for audit in pool.map(self.audit, names):
                if audit is None:
                    continue
                found.append(audit)
                for (run, key), by_batch in audit.counted.items():
                    for batch, rows in by_batch.items():
                        sums[run, key].add(batch, rows)
                for key, first in audit.since.items():
                    since[key] = max(first, since.get(key, 0))
                audit.counted = {}
        broken = {audit.table for audit in found if audit.wrong}
        if set(chosen):
            return found
        damaged = [
            TableAudit("note" if path.startswith("views/") else "manifest", [what])
            for path, what in self.written.damaged.items()
        ]
        return [*found, *damaged, *self._sums(sums, since, broken)]

    def tables(self) -> set[str]:
        """Return the names of all tables of the lake, and those that the router wrote down."""
        there = {*self.lake.every_table()}
        fixed_by_views = {view.into for view in self.config.views if "{" not in view.into}
        return there | set(self.written.manifests) | set(self.fixed) | set(self.written.views) | fixed_by_views

    def audit(self, table: str) -> TableAudit | None:
        """Return what is found out about a table; None where it is not one of the router's."""
        for attempt in range(TRIES):  # maintenance may delete an old file of the log, or a repair replace it, meanwhile
            audit = TableAudit(table)
            try:
                handle = self.lake.open(table)
                if handle is None:
                    return self._gone(audit)
                if not self.ours(table, handle):
                    return None
                self._look_at(audit, handle)
                break
            except (TableError, DeltaError, OSError) as error:
                if attempt == TRIES - 1:
                    audit.wrong.append(self.unreadable(table, error))
        return audit

    def _look_at(self, audit: TableAudit, handle: DeltaTable) -> None:
        audit.version = handle.version()
        self._read_log(audit, handle)
        self._hold_transactions(audit, handle)
        self._hold_batches(audit)
        self._hold_files(audit, handle)
        self._hold_deletions(audit)
        self._hold_keys(audit, handle)
        self._hold_view(audit, handle)

    def _hold_view(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Hold a table of a view against how the view left it; a newer version may be that of a refresh under way."""
        if audit.table not in self.written.views:
            return
        view, target = self.written.views[audit.table]
        if str(handle.metadata().id) != target.id:
            audit.wrong.append(f"another table stands in the place of the one that view {view} made")
        elif target.version > audit.version:
            what = f"it has version {audit.version}, and view {view} left version {target.version}"
            audit.wrong.append(f"{what}: it was put back from an older copy")
        elif target.version == audit.version and target.rows != audit.rows:
            audit.wrong.append(f"it has {audit.rows:,} rows, and view {view} left {target.rows:,}")

    def _hold_keys(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Look for several rows of a key in a table that says its keys. Reads the keys of all rows."""
        keyed = keyed_of(handle)
        if keyed is None:
            return
        repeated = repeated_keys(handle, keyed)
        if repeated:
            audit.wrong.append(several_rows(repeated))

    def _gone(self, audit: TableAudit) -> TableAudit | None:
        if audit.table in self.written.views:
            view, target = self.written.views[audit.table]
            audit.wrong.append(f"it is gone: view {view} left {target.rows:,} rows in it, and makes it again when due")
            return audit
        rows = sum(sum(by.values()) for by in self.written.manifests.get(audit.table, {}).values())
        last = max((max(by) for by in self.written.manifests.get(audit.table, {}).values()), default=-1)
        for key in self.fixed.get(audit.table, ()):
            counted = self.written.ledger.get((self.written.run, key), BatchRows())
            rows, last = max(rows, int(counted.rows.sum())), max(last, counted.last())
        if last < 0:
            return None  # its first row has yet to come
        audit.wrong.append(f"it is gone: {rows:,} rows at least were committed to it, the last in batch {last}")
        return audit

    def unreadable(self, table: str, error: Exception) -> str:
        """Return why a table cannot be read; the name of the file where one of its log is damaged."""
        what = error.what if isinstance(error, TableError) else str(error).split("\n", maxsplit=1)[0]
        return f"it cannot be read: {log_damage(self.lake, table) or what}"

    def ours(self, table: str, handle: DeltaTable) -> bool:
        """Say whether the router has rows in a table."""
        if table in self.written.manifests or table in self.fixed or table in self.written.views:
            return True
        keys = self.written.keys | {f"{route}/{name}" for route, name, _ in self.config.all_sinks()}
        for run in self.written.runs:
            query = f"{self.config.name}:{run}"
            names = [str(batch_id(query, key, table)) for key in keys]
            # A sink's own tables, as receipts, have the id of the sink; its quarantine is no sink.
            sinks = [key.split("/") for key in keys if key.count("/") == 1 and not key.startswith("/")]
            names += [str(TransactionId("sink", query, route, sink)) for route, sink in sinks]
            if any(handle.transaction_version(name) is not None for name in names):
                return True
        return False

    @cached_property
    def fixed(self) -> dict[str, set[str]]:
        """Return the tables that the configuration names, and the keys of the targets that they have rows of."""
        config = self.config
        found: dict[str, set[str]] = defaultdict(set)
        found[config.dead_letters].add("/dead_letters")
        found[config.ledger].add("/ledger")
        if (bronze := config.bronze_tables()) and not bronze.per_topic:
            found[bronze.template].add("/bronze")
        for route, name, sink in config.all_sinks():
            key = f"{route}/{name}"
            if isinstance(sink, TableSink):
                found[quarantine_of(config.name, route, name)].add(f"{key}/quarantine")
                if table := fixed_table(sink):
                    found[table].add(key)
            else:
                found[outbox_of(config.name, route, name)].add(key)
        return found

    @cached_property
    def _outboxes(self) -> set[str]:
        """Return the keys of sinks whose rows the ledger counts in an outbox, not where they are merged into."""
        return {f"{route}/{name}" for route, name, sink in self.config.all_sinks() if not isinstance(sink, TableSink)}

    def _read_log(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Add up the rows that the router's commits brought, and note what others did."""
        versions = [version for version in log_versions(self.lake, audit.table) if version <= audit.version]
        others: list[LogCommit] = []
        for commit in log_commits(self.lake, audit.table, versions):
            if REPAIRED in commit.notes:
                others = []
                self._begin_anew(audit, json.loads(commit.notes[REPAIRED]))
            elif not commit.changes:
                continue
            elif self._is_refresh(audit.table, commit):
                others = []  # it has replaced all rows
            elif brought := next(ids_of(self.config.name, audit.table, commit), None):
                transaction_id, batch = brought
                run, key = transaction_id.run, counted_as(transaction_id)
                if key not in self._outboxes or audit.table.startswith("outbox."):
                    by_batch = audit.counted.setdefault((run, key), {})
                    by_batch[batch] = by_batch.get(batch, 0) + commit.rows
                if (versions[0] > 0 or key == "/bronze") and run == self.written.run:
                    audit.since.setdefault(key, batch)  # where the log begins; bronze may be younger than its ledger
            elif not own(self.config.name, commit) and not self._shared(audit.table, commit):
                others.append(commit)
        if not versions or versions[0] > 0:
            self._note_cleaned(audit, handle)
        if not audit.table.startswith(OWN_LAYERS):
            audit.others = _some(done_by(self.lake, audit.table, versions, others), "commits of others")

    def _note_cleaned(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Note the sinks none of whose commits are in a log that was cleaned: their last batch is known by its id."""
        for key in self.written.keys:
            last = handle.transaction_version(self._app_id(key, audit.table))
            if last is not None:
                audit.since.setdefault(key, last + 1)

    def _shared(self, table: str, commit: LogCommit) -> bool:
        """Say whether another query of the lake made a commit to a table that queries share."""
        shared = table in (self.config.ledger, self.config.dead_letters)
        ids = map(parse, commit.transactions) if shared else ()
        return any(transaction_id is not None and transaction_id.kind in SHARED for transaction_id in ids)

    def _is_refresh(self, table: str, commit: LogCommit) -> bool:
        """Say whether a view made a commit to a table of its own."""
        for transaction_id in map(parse, commit.transactions):
            if transaction_id is None or transaction_id.kind != "view":
                continue
            if transaction_id.query_name == self.config.name and transaction_id.table == table:
                return True
        return False

    def _begin_anew(self, audit: TableAudit, ends: dict[str, int]) -> None:
        """Forget the batches that a repair has made anew; one that came while it was at work has stayed."""
        audit.since = {key: last + 1 for key, last in ends.items()}
        audit.counted = {
            (run, key): {batch: rows for batch, rows in by_batch.items() if batch > ends[key]}
            for (run, key), by_batch in audit.counted.items()
            if run == self.written.run and key in ends
        }

    def _hold_transactions(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Hold the last batch of each sink in a table against what was committed to it."""
        written = self.written
        wanted = {key: max(by) for key, by in written.manifests.get(audit.table, {}).items()}
        for key in self.fixed.get(audit.table, ()):
            if rows := written.ledger.get((written.run, key)):
                wanted[key] = max(wanted.get(key, -1), min(rows.last(), written.last))
        for key, batch in sorted(wanted.items()):
            version = handle.transaction_version(self._app_id(key, audit.table))
            have = -1 if version is None else version
            if have < batch:
                what = "nothing" if have < 0 else f"batch {have}"
                old = "another table stands in its place" if have < 0 else "it was put back from an older copy"
                audit.wrong.append(f"of {named(key)} it has {what}, and batch {batch} was committed to it: {old}")
                audit.since[key] = written.last + 1  # said already
            elif have > written.last + 1 and have > (last := self._booked_now()) + 1:
                what = f"of {named(key)} it has batch {have}, and the ledger ends with batch {last}"
                audit.wrong.append(f"{what}: ledger or checkpoint were put back from an older copy")
        if audit.table == self.config.ledger and written.committed > written.last:
            audit.wrong.append(f"it ends with batch {written.last}, and the checkpoint with batch {written.committed}")

    def _booked_now(self) -> int:
        """Return the last batch in the ledger by now: the stream may have gone on."""
        try:
            return booked(self.lake.open(self.config.ledger), self.config, self.written.run)
        except (DeltaError, OSError):
            return self.written.last

    def _app_id(self, key: str, table: str) -> str:
        return str(batch_id(f"{self.config.name}:{self.written.run}", key, table))

    def _hold_batches(self, audit: TableAudit) -> None:
        """Hold the rows that came with each batch against its manifest."""
        wrong, written = [], self.written
        for key, by_batch in sorted(written.manifests.get(audit.table, {}).items()):
            came = audit.counted.get((written.run, key), {})
            first = audit.since.get(key, 0)
            for batch, rows in sorted(by_batch.items()):
                if batch >= first and came.get(batch, 0) != rows:
                    what = f"batch {batch} of {named(key)} has {came.get(batch, 0):,} rows in its log"
                    wrong.append(f"{what}, {rows:,} in its manifest")
        audit.wrong += _some(wrong, "batches")

    def _hold_files(self, audit: TableAudit, handle: DeltaTable) -> None:
        actions: Any = pa.table(handle.get_add_actions())
        audit.files, audit.rows = len(actions), sum(filter(None, actions.column("num_records").to_pylist()))
        audit.wrong += self._damaged(audit.table, actions)

    def _hold_deletions(self, audit: TableAudit) -> None:
        """Look at what a table with one row per key remembers of its deletions: without it they come undone."""
        table = f"{audit.table}.{DELETIONS}"
        try:
            if (handle := deletions_table(self.lake, audit.table)) is None:
                return
            found = self._damaged(table, pa.table(handle.get_add_actions()))
        except (DeltaError, OSError) as error:
            found = [self.unreadable(table, error)]
        audit.wrong += [f"its remembered deletions in {self.lake.address(table)}: {what}" for what in found]

    def _damaged(self, table: str, actions: pa.Table) -> list[str]:
        """Return what is wrong with the files of a table."""
        paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        counts = actions.column("num_records").to_pylist()
        folder, missing, changed = table.replace(".", "/"), [], []
        mine = [i for i, path in enumerate(paths) if "://" not in path and not path.startswith("/")]
        for begin in range(0, len(mine), 1000):
            part = mine[begin : begin + 1000]
            found = self.lake.files.get_file_info([f"{folder}/{unquote(paths[i])}" for i in part])
            for i, info in zip(part, found, strict=True):
                if info.type is not fs.FileType.File:
                    missing.append(paths[i])
                elif info.size != sizes[i]:
                    changed.append(f"{paths[i]} has {info.size:,} bytes, {sizes[i]:,} in the log")
                elif self.footers and (what := self._footer(f"{folder}/{unquote(paths[i])}", counts[i])):
                    changed.append(f"{paths[i]} {what}")
        found = [f"{_number(missing, 'file')} missing: {_first(missing)}"] if missing else []
        return found + ([f"{_number(changed, 'file')} damaged: {_first(changed)}"] if changed else [])

    def _footer(self, path: str, rows: int | None) -> str:
        """Return what the footer of a file says against the log; nothing where they agree."""
        try:
            with self.lake.files.open_input_file(path) as source:
                counted = pq.ParquetFile(source).metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            return f"cannot be read ({str(error).splitlines()[0]})"
        return "" if rows in (None, counted) else f"has {counted:,} rows, {rows:,} in the log"

    def _sums(
        self, sums: dict[tuple[str, str], BatchRows], since: dict[str, int], broken: set[str]
    ) -> Iterator[TableAudit]:
        """Hold the rows of all tables of a sink against the ledger, batch by batch as far as every log reaches."""
        written = self.written
        for run, key in sorted(written.ledger):
            first = since.get(key, 0)
            if key.endswith(RELEASED) or (run != written.run and first):
                continue  # they count with their sink; the logs do not reach back to that run
            last = written.last if run == written.run else len(written.ledger[run, key].rows)
            want, came = BatchRows(), BatchRows()
            for name in (key, key + RELEASED):
                want.extend(written.ledger.get((run, name)))
            for name in (key, *(f"{release}/{key}" for release in RELEASES)):
                came.extend(sums.get((run, name)))
            differing = want.differing(came, first, last)
            if not differing or self._explained(key, broken):
                continue
            listed = [f"batch {batch}: {here:,} in the ledger, {there:,} there" for batch, here, there in differing]
            what = f"the rows of its tables are not those of the ledger: {'; '.join(_some(listed, 'batches'))}"
            yield TableAudit(named(key), [what], sums=True)

    def _explained(self, key: str, broken: set[str]) -> bool:
        """Say whether a table is known to be wrong that rows of this sink are in."""
        fixed = {table for table, keys in self.fixed.items() if key in keys}
        known = {table for table, by in self.written.manifests.items() if key in by}
        return bool((fixed | known) & broken)


SHARED: frozenset[Kind] = frozenset({
    *("ledger", "ledger_move", "dead_letters", "merge_refusals", "sink_refusals", "replayed", "discard", "refuse"),
})  # fmt: skip
"""Kinds of transaction ids with which any query writes the ledger and dead letters."""


def named(key: str) -> str:
    """Return a target key as text."""
    return key.removeprefix("/")


def own(query: str, commit: LogCommit) -> bool:
    """Say whether a query made a commit: each of its own has a transaction id of the query."""
    ids = map(parse, commit.transactions)
    return any(written is not None and written.run and written.query_name == query for written in ids)


BROUGHT: frozenset[Kind] = frozenset({"rows", "quarantine", "bronze", "dead_letters", *RELEASES})
"""Kinds of transaction ids that name the table whose log they are in."""


def ids_of(query: str, table: str, commit: LogCommit) -> Iterator[tuple[TransactionId, int]]:
    """Yield the id and number of what a commit of a query brought into a table: rows of a batch, or of a release."""
    for name, number in commit.transactions.items():
        transaction_id = parse(name)
        if transaction_id is None or transaction_id.kind not in BROUGHT:
            continue
        if transaction_id.query_name == query and transaction_id.table == table:
            yield transaction_id, number


def counted_as(brought: TransactionId) -> str:
    """Return the key that rows count under: that of their target, which the kind of a release stands before."""
    return brought.target or f"{brought.kind}/{brought.route}/{brought.sink}"


def done_by(lake: Lake, table: str, versions: list[int], commits: list[LogCommit]) -> list[str]:
    """Return what commits did to rows, and who made them; `versions` are those of the log."""
    gone = {file.path for commit in commits for file in commit.removed if file.changes}
    rows = rows_of(lake, table, versions, gone) if gone else {}
    return [f"version {commit.version}: {_deed(commit, rows)}" for commit in commits]


def _deed(commit: LogCommit, rows: dict[str, int]) -> str:
    """Return what a commit of somebody else did to rows, and who it was."""
    gone = [rows.get(file.path) for file in commit.removed if file.changes]
    came = [file.rows for file in commit.added if file.changes]
    who = f"{commit.operation} by {commit.author}"
    if None in gone or None in came:
        return f"{who} changed rows"
    more = sum(filter(None, came)) - sum(filter(None, gone))
    if not more:
        return f"{who} changed rows"
    return f"{who} added {more:,} rows" if more > 0 else f"{who} removed {-more:,} rows"


def _some(texts: list[str], what: str) -> list[str]:
    more = len(texts) - SHOWN
    return texts if more <= 0 else [*texts[:SHOWN], f"and {more:,} more {what}"]


def _first(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _number(found: list[str], what: str) -> str:
    return f"{len(found):,} {what} is" if len(found) == 1 else f"{len(found):,} {what}s are"
