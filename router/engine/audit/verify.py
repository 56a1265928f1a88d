"""Compare tables with what the router has recorded about them: `router verify`.

| checked | against |
|---|---|
| a table's transaction ids | its last batch in the manifests, of a merge, or in the ledger if a sink has one table |
| the rows of each commit in its log | the manifest of that batch; for all tables of a sink together, the ledger |
| bronze | how many records were read, by the ledger |
| a table of a view | how the view left it (against its query: `router.engine.views.recompute`) |
| a table with one row per key | its keys: one row for each, or one current row with a history |
| the files of its current version | the storage: they exist, with the size in the log; on request what is in them |
| commits of others | nothing: it lists who made them, and what they did |

Needs no Spark, and may run while the stream runs: the ledger is read first, and batches after its last one are left
out. Memory is bounded by the manifests that are kept (100), and by 8 bytes for each batch of a sink.
"""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyarrow import fs

from router.api.sinks import MergingSink, TableSink
from router.delta.dataset import dataset_of
from router.delta.history import REPAIRED, LogCommit, log_commits, log_damage, log_versions, rows_of
from router.delta.keyed.key_property import keyed_of, repeated_keys, several_rows
from router.delta.keyed.row_versions import deletions_table
from router.delta.keyed.upsert import EXPIRES
from router.delta.table_cache import THREADS
from router.delta.transaction_id import RELEASES, IdKind, TransactionId, batch_id, parse_transaction_id
from router.delta.unreadable_values import is_text, may_be_unreadable, unreadable_in, unreadable_values
from router.engine.checkpoint_store import KEPT_MANIFESTS, CheckpointStore, Manifest, lake_and_checkpoint
from router.engine.label.layout import outbox_of, quarantine_of
from router.engine.merge.coordinator import MergedTables
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import waiting_tables
from router.engine.start.checks import Checkpoint
from router.engine.views.note import Note, ViewTarget, view_note_path
from router.errors import StartError, TableError, first_line
from router.own_names import DELETIONS, OUTBOX, OWN_LAYERS, TIMESTAMP
from router.table_names import is_name, matches_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalake import DeltaTable

    from router.config.models import Config
    from router.delta.lake import Lake

_READ_TRIES = 2
_SHOWN_ITEMS = 3
"""How many files, batches or commits a sentence names, at most."""
_FILES_AT_ONCE = 1_000
RELEASED = "//released"
"""The end of a sink's key for its released rows. No name has a slash, so no sink has a key with this end."""
COUNTED = {"read": "/bronze", "landed": "", "released": RELEASED}
"""Columns of the ledger that count rows of tables, and what they append to the key of a sink."""


class BatchRows:
    """The rows of a sink by batch: eight bytes for each."""

    def __init__(self) -> None:
        self.rows = np.zeros(64, np.int64)

    def add(self, batch: int, rows: int) -> None:
        """Count more rows of a batch."""
        if batch >= len(self.rows):
            self.rows = np.concatenate([self.rows, np.zeros(max(batch + 1, len(self.rows)), np.int64)])
        self.rows[batch] += rows

    def extend(self, other: BatchRows) -> None:
        """Count the rows of others as well."""
        for batch in np.flatnonzero(other.rows):
            self.add(int(batch), int(other.rows[batch]))

    def find_last(self) -> int:
        """Return the last batch with rows, -1 if there is none."""
        return int(np.flatnonzero(self.rows)[-1]) if self.rows.any() else -1

    def find_differences(self, other: BatchRows, first: int, last: int) -> list[tuple[int, int, int]]:
        """Return the batches, from first to last, whose rows differ: batch, rows here, rows of the other."""
        size = max(len(self.rows), len(other.rows))
        rows = np.pad(self.rows, (0, size - len(self.rows)))
        other_rows = np.pad(other.rows, (0, size - len(other.rows)))
        differing = np.flatnonzero(rows != other_rows)
        return [(int(batch), int(rows[batch]), int(other_rows[batch])) for batch in differing if first <= batch <= last]


@dataclass(frozen=True)
class RecordedCounts:
    """What the router has recorded: rows of the ledger by run and target key, of manifests by table, key and batch.

    `run` is the run of the checkpoint, `committed` its last batch there, `last` its last batch in the ledger (-1 if
    there is none). `runs` are all runs of the ledger, those of detached sinks included. `damaged`: file of the store ->
    what is wrong with it. `views`: table -> the view that has made it, and how that left it. `merged`: table -> target
    key -> the last batch that was merged into it, -1 if that is not known any more; without tables that are made again
    when they are gone.
    """

    run: str
    committed: int
    last: int
    ledger: dict[tuple[str, str], BatchRows]
    manifests: dict[str, dict[str, dict[int, int]]]
    runs: frozenset[str]
    damaged: dict[str, str] = field(default_factory=dict)
    views: dict[str, tuple[str, ViewTarget]] = field(default_factory=dict)
    merged: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Config, lake: Lake, checkpoint: Lake, *, pending: bool = False) -> RecordedCounts:
        """Read ledger and manifests; with `pending` also that of a batch which the ledger does not have yet.

        A ledger that cannot be read counts as empty.
        """
        views, damaged_notes = _read_view_notes(config, CheckpointStore(checkpoint))
        # A batch is in the ledger before it is in the checkpoint: so the checkpoint is read first.
        past = Checkpoint.read(checkpoint)
        run = past.run or ""
        ledger: dict[tuple[str, str], BatchRows] = {}
        first_batches: dict[str, int] = {}
        try:
            table = lake.open(config.ledger)
            last = last_in_ledger(table, config, run)
            if table:
                ledger, first_batches = _read_ledger_rows(table, config.name)
        except (DeltaError, OSError):
            last = past.last
        if config.bronze is None:
            ledger = {place: rows for place, rows in ledger.items() if place[1] != "/bronze"}
        store = CheckpointStore(checkpoint, run)
        manifests, damaged = _read_manifest_rows(store, first_batches.get(run, 0), last + pending)
        merged, damaged_marks = _read_merged_tables(store, config, first_batches.get(run, 0), last)
        return cls(
            run=run,
            committed=past.last,
            last=last,
            ledger=ledger,
            manifests=manifests,
            runs=frozenset({run, *first_batches}),
            damaged=damaged | damaged_notes | damaged_marks,
            views=views,
            merged=merged,
        )

    @property
    def keys(self) -> set[str]:
        """Return the target keys that rows were counted for."""
        keys = {key.removesuffix(RELEASED) for _, key in self.ledger}
        return keys.union(*self.manifests.values())

    def in_ledger(self, run: str, key: str) -> BatchRows:
        """Return the rows of a target in the ledger; none if it counts none."""
        return self.ledger.get((run, key), BatchRows())


def last_in_ledger(ledger: DeltaTable | None, config: Config, run: str) -> int:
    """Return the last batch of a run in the ledger, -1 if there is none."""
    app_id = str(TransactionId("ledger", f"{config.name}:{run}"))
    version = ledger.transaction_version(app_id) if ledger else None
    return -1 if version is None else version


def _read_ledger_rows(table: DeltaTable, query: str) -> tuple[dict[tuple[str, str], BatchRows], dict[str, int]]:
    """Return the rows of a ledger by run and target key, and the first batch that it has of each run."""
    # Ledgers of earlier versions lack some of the columns.
    names = {column.name for column in table.schema().fields}
    counted = [name for name in COUNTED if name in names]
    summed = [*counted, *({"dropped"} & names)]
    group = ["query", "run", "batch_id", "route", "sink"]
    dataset = dataset_of(table)
    counts: dict[tuple[str, str], BatchRows] = defaultdict(BatchRows)
    first_batches: dict[str, int] = {}
    for part in dataset.scanner(columns=[*group, *summed]).to_batches():
        sums = pa.table(part).group_by(group).aggregate([(name, "sum") for name in summed])
        for row in sums.to_pylist():
            run = row["run"]
            batch = row["batch_id"]
            if row["query"] != query or batch is None:
                continue
            first_batches[run] = min(batch, first_batches.get(run, batch))
            key = "" if row["route"] is None else f"{row['route']}/{row['sink']}"
            for name in counted:
                rows = row[f"{name}_sum"] or 0
                # Bronze lacks the records that it drops.
                if name == "read" and row["route"] is None:
                    rows -= row.get("dropped_sum") or 0
                if rows:
                    counts[run, key + COUNTED[name]].add(batch, rows)
    return dict(counts), first_batches


def _read_view_notes(
    config: Config, store: CheckpointStore
) -> tuple[dict[str, tuple[str, ViewTarget]], dict[str, str]]:
    """Return the tables that views have made, and what is wrong with notes that cannot be read, by path."""
    tables: dict[str, tuple[str, ViewTarget]] = {}
    damaged: dict[str, str] = {}
    for view in config.views:
        path = view_note_path(view.name)
        try:
            note = Note.from_json(store.load(path))
        except StartError as error:
            damaged[path] = str(error)
            continue
        for table, target in note.targets.items():
            tables[table] = (view.name, target)
    return tables, damaged


def _read_manifest_rows(
    store: CheckpointStore, first: int, last: int
) -> tuple[dict[str, dict[str, dict[int, int]]], dict[str, str]]:
    """Return the rows that the manifests of some batches decided: table -> target key -> batch -> rows.

    And what is wrong with those that cannot be read, by path.
    """
    decided: dict[str, dict[str, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    damaged: dict[str, str] = {}
    for path in store.json_paths(f"manifests/{store.run}"):
        try:
            content = store.load(path)
        except StartError as error:
            damaged[path] = str(error)
            continue
        # The stream has deleted it meanwhile, as the oldest.
        if not content:
            continue
        manifest = Manifest.of(content)
        if not first <= manifest.batch <= last:
            continue
        for commit in manifest.commits:
            if commit.note_key not in manifest.quarantined:
                decided[commit.table][commit.target][commit.version] = commit.rows
    return decided, damaged


def _read_merged_tables(
    store: CheckpointStore, config: Config, first: int, last: int
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Return the tables that sinks have merged into: table -> target key -> the last batch of some that changed it.

    And what is wrong with marks and notes that cannot be read, by path. Without tables that are made again when they
    are gone.
    """
    tables: dict[str, dict[str, int]] = defaultdict(dict)
    damaged: dict[str, str] = {}
    waiting = set()
    for route, name, sink in config.all_sinks():
        if isinstance(sink, MergingSink) and sink.keyed().dropped == "wait":
            key = f"{route}/{name}"
            waiting.add(key)
            try:
                known = MergedTables(store, key).names
            except StartError as error:
                damaged[f"known/{key}"] = str(error)
                continue
            for table in known:
                tables[table][key] = -1
    if not waiting:
        return tables, damaged

    for batch in range(max(first, last - KEPT_MANIFESTS + 1), last + 1):
        try:
            merged = store.read_merged(batch)
        except StartError as error:
            damaged[f"applied/{batch}"] = str(error)
            continue
        for key in merged.keys() & waiting:
            for table in merged[key]:
                tables[table][key] = batch
    return tables, damaged


@dataclass
class TableAudit:
    """The result for one table: what is `wrong`, what `others` did, and the rows that the router committed by its log.

    `counted`: (run, target key) -> batch -> rows. `since`: target key -> the first batch that is in the log with all
    its rows. With `sums` it is about all tables of a sink, and `table` is the name of the sink.
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


def verify_tables(
    config: Config,
    patterns: tuple[str, ...] = (),
    *,
    contents: bool = False,
    tell: Callable[[int, int], None] | None = None,
) -> list[TableAudit]:
    """Return the audits of the tables that match a pattern, or of all, and of the sinks whose sums are wrong.

    `tell` is called with the number of tables that are done, and of all.

    Rows that are released from the quarantine meanwhile are in their table before they are in the ledger: if a sum is
    wrong, everything is read again.
    """
    audits = Verification.of_config(config, contents=contents).audit_tables(patterns, tell)
    if any(audit.sums for audit in audits):
        return Verification.of_config(config, contents=contents).audit_tables(patterns, tell)
    return audits


@dataclass(frozen=True)
class Verification:
    """The verification of a query's tables. With `contents` every file is read."""

    config: Config
    lake: Lake
    recorded: RecordedCounts
    contents: bool = False

    @classmethod
    def of_config(cls, config: Config, *, contents: bool = False, pending: bool = False) -> Verification:
        """Return the verification of a configuration's tables."""
        lake, checkpoint = lake_and_checkpoint(config)
        return cls(config, lake, RecordedCounts.read(config, lake, checkpoint, pending=pending), contents)

    def audit_tables(
        self, patterns: tuple[str, ...] = (), tell: Callable[[int, int], None] | None = None
    ) -> list[TableAudit]:
        """Return the audits of the tables that match a pattern, or of all; those of sinks follow after those of tables.

        A pattern that is a name is a table, whoever knows it.
        """
        tables = sorted(self.table_names())
        if patterns:
            named = filter(is_name, patterns)
            tables = sorted({*named, *(table for table in tables if matches_any(table, patterns))})
        audits: list[TableAudit] = []
        sums: dict[tuple[str, str], BatchRows] = defaultdict(BatchRows)
        since: dict[str, int] = {}
        with ThreadPoolExecutor(THREADS) as pool:
            for done, audit in enumerate(pool.map(self.audit_table, tables), start=1):
                if tell is not None:
                    tell(done, len(tables))
                if audit is None:
                    continue
                audits.append(audit)
                for place, by_batch in audit.counted.items():
                    for batch, rows in by_batch.items():
                        sums[place].add(batch, rows)
                for key, first in audit.since.items():
                    since[key] = max(first, since.get(key, 0))
                # The sums have them: of thousands of tables they would take too much memory.
                audit.counted = {}
        if patterns:
            return self._with_waiting(audits, patterns)
        broken = {audit.table for audit in audits if audit.wrong}
        for path, damage in self.recorded.damaged.items():
            audits.append(TableAudit("manifest" if path.startswith("manifests/") else "note", [damage]))
        return [*self._with_waiting(audits, patterns), *self._check_sums(sums, since, broken)]

    def _with_waiting(self, audits: list[TableAudit], patterns: tuple[str, ...]) -> list[TableAudit]:
        """Add to the audits that rows wait for tables: what is in those may balance without them, or none may exist."""
        by_table = {audit.table: audit for audit in audits}
        without_audit: list[TableAudit] = []
        for table, cause in waiting_tables(self.config).items():
            if patterns and not matches_any(table, patterns):
                continue
            if table not in by_table:
                by_table[table] = TableAudit(table)
                without_audit.append(by_table[table])
            by_table[table].wrong.append(f"rows wait for it, as it cannot be written: {cause}")
        return [*audits, *without_audit]

    def table_names(self) -> set[str]:
        """Return the names of all tables of the lake, and of those that the router has recorded."""
        fixed_by_views = {view.into for view in self.config.views if "{" not in view.into}
        recorded = self.recorded.manifests.keys() | self.recorded.views.keys() | self.recorded.merged.keys()
        return {*self.lake.every_table(), *self.fixed_targets, *recorded, *fixed_by_views}

    def audit_table(self, table: str) -> TableAudit | None:
        """Return the audit of a table; None if it is not one of the router's."""
        # Meanwhile maintenance may delete an old file of the log, or a repair replace the log.
        for attempt in range(_READ_TRIES):
            audit = TableAudit(table)
            try:
                handle = self.lake.open(table)
                if handle is None:
                    return self._audit_of_lost_table(audit)
                if not self.is_own_table(table, handle):
                    return None
                self._check_table(audit, handle)
                break
            # Arrow raises ValueErrors of its own, and for a year beyond 9999 among the bounds of a file.
            except (TableError, DeltaError, OSError, ValueError) as error:
                if attempt == _READ_TRIES - 1:
                    audit.wrong.append(self.explain_unreadable(table, error))
        return audit

    def _check_table(self, audit: TableAudit, handle: DeltaTable) -> None:
        audit.version = handle.version()
        self._read_log(audit, handle)
        self._check_transactions(audit, handle)
        self._check_batches(audit)
        self._check_files(audit, handle)
        self._check_deletions(audit)
        self._check_keys(audit, handle)
        self._check_view(audit, handle)

    def _check_view(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Compare a table of a view with how the view left it; a newer version may be that of a refresh under way."""
        if audit.table not in self.recorded.views:
            return
        view, target = self.recorded.views[audit.table]
        if str(handle.metadata().id) != target.id:
            audit.wrong.append(f"another table stands in the place of the one that view {view} made")
        elif target.version > audit.version:
            problem = f"it has version {audit.version}, and view {view} left version {target.version}"
            audit.wrong.append(f"{problem}: it was put back from an older copy")
        elif target.version == audit.version and target.rows != audit.rows:
            audit.wrong.append(f"it has {audit.rows:,} rows, and view {view} left {target.rows:,}")

    def _check_keys(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Search for several rows of a key if the properties of the table have its keys. Reads the keys of all rows."""
        keyed = keyed_of(handle)
        if keyed is None:
            return
        repeated = repeated_keys(handle, keyed)
        if repeated:
            audit.wrong.append(several_rows(audit.table, repeated))

    def _audit_of_lost_table(self, audit: TableAudit) -> TableAudit | None:
        """Return the audit of a table that does not exist; None if no row was committed to it so far."""
        recorded = self.recorded
        if audit.table in recorded.views:
            view, target = recorded.views[audit.table]
            audit.wrong.append(f"it is gone: view {view} left {target.rows:,} rows in it, and makes it again when due")
            return audit
        if audit.table in recorded.merged:
            by_sink = recorded.merged[audit.table]
            last = max(by_sink.values())
            in_batch = f", the last in batch {last}" if last >= 0 else ""
            audit.wrong.append(f"it is gone: {' and '.join(sorted(by_sink))} merged rows into it{in_batch}")
            return audit
        rows = 0
        last = -1
        for by_batch in recorded.manifests.get(audit.table, {}).values():
            rows += sum(by_batch.values())
            last = max(last, *by_batch)
        for key in self.fixed_targets.get(audit.table, ()):
            counted = recorded.in_ledger(recorded.run, key)
            rows = max(rows, int(counted.rows.sum()))
            last = max(last, counted.find_last())
        if last < 0:
            return None
        audit.wrong.append(f"it is gone: {rows:,} rows at least were committed to it, the last in batch {last}")
        return audit

    def explain_unreadable(self, table: str, error: Exception) -> str:
        """Return why a table cannot be read: which file of its log is damaged, or else the error."""
        cause = error.what if isinstance(error, TableError) else first_line(error)
        return f"it cannot be read: {log_damage(self.lake, table) or cause}"

    def is_own_table(self, table: str, handle: DeltaTable) -> bool:
        """Return whether the router has rows in a table."""
        recorded = self.recorded
        if (
            table in recorded.manifests
            or table in self.fixed_targets
            or table in recorded.views
            or table in recorded.merged
        ):
            return True
        keys = self.recorded.keys | {f"{route}/{name}" for route, name, _ in self.config.all_sinks()}
        for run in self.recorded.runs:
            query = f"{self.config.name}:{run}"
            app_ids = [str(batch_id(query, key, table)) for key in keys]
            # A sink's own tables, such as receipts, have the id of the sink. Other keys are of no sink.
            for key in keys:
                route, *names = key.split("/")
                if route and len(names) == 1:
                    app_ids.append(str(TransactionId("sink", query, route, names[0])))
            if any(handle.transaction_version(app_id) is not None for app_id in app_ids):
                return True
        return False

    @cached_property
    def fixed_targets(self) -> dict[str, set[str]]:
        """Return the tables that the configuration names, and the keys of the targets whose rows they have."""
        config = self.config
        keys: dict[str, set[str]] = defaultdict(set)
        keys[config.dead_letters].add("/dead_letters")
        keys[config.ledger].add("/ledger")
        bronze = config.bronze_tables()
        if bronze and not bronze.per_topic:
            keys[bronze.template].add("/bronze")
        for route, name, sink in config.all_sinks():
            key = f"{route}/{name}"
            if isinstance(sink, TableSink):
                keys[quarantine_of(config.name, route, name)].add(f"{key}/quarantine")
                if table := fixed_table(sink):
                    keys[table].add(key)
            else:
                keys[outbox_of(config.name, route, name)].add(key)
        return keys

    @cached_property
    def _outbox_keys(self) -> set[str]:
        """Return the keys of sinks whose rows the ledger counts in an outbox, not in the table of a merge."""
        return {f"{route}/{name}" for route, name, sink in self.config.all_sinks() if not isinstance(sink, TableSink)}

    def _read_log(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Add up the rows of the router's commits, and note what others did."""
        versions = [version for version in log_versions(self.lake, audit.table) if version <= audit.version]
        log_is_complete = bool(versions) and versions[0] == 0
        others: list[LogCommit] = []
        for commit in log_commits(self.lake, audit.table, versions):
            if REPAIRED in commit.notes:
                others = []
                self._forget_rebuilt(audit, json.loads(commit.notes[REPAIRED]))
            elif not commit.changes_rows:
                continue
            elif self._is_refresh(audit.table, commit):
                # It has replaced all rows.
                others = []
            elif committed := next(committed_rows(self.config.name, audit.table, commit), None):
                transaction_id, batch = committed
                self._count_commit(audit, transaction_id, batch, commit.rows, log_is_complete=log_is_complete)
            elif not is_own_commit(self.config.name, commit) and not self._is_of_other_query(audit.table, commit):
                others.append(commit)
        if not log_is_complete:
            self._note_missing_commits(audit, handle)
        if not audit.table.startswith(OWN_LAYERS):
            audit.others = _first_texts(describe_commits(self.lake, audit.table, versions, others), "commits of others")

    def _count_commit(
        self, audit: TableAudit, transaction_id: TransactionId, batch: int, rows: int, *, log_is_complete: bool
    ) -> None:
        """Count the rows of one of the router's commits."""
        run = transaction_id.run
        key = counted_as(transaction_id)
        if key not in self._outbox_keys or audit.table.startswith(OUTBOX):
            by_batch = audit.counted.setdefault((run, key), {})
            by_batch[batch] = by_batch.get(batch, 0) + rows
        # The first commit in the log. Bronze may be younger than the ledger, even if its log is complete.
        if run == self.recorded.run and (key == "/bronze" or not log_is_complete):
            audit.since.setdefault(key, batch)

    def _note_missing_commits(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Note sinks whose commits were all deleted from the log: their ids have only the last batch."""
        for key in self.recorded.keys:
            last = handle.transaction_version(self._app_id(key, audit.table))
            if last is not None:
                audit.since.setdefault(key, last + 1)

    def _is_of_other_query(self, table: str, commit: LogCommit) -> bool:
        """Return whether another query of the lake has put rows into a table that queries share."""
        for transaction_id in map(parse_transaction_id, commit.transactions):
            if transaction_id is None:
                continue
            if transaction_id.kind in WITH_ROWS and transaction_id.table == table:
                return True
            if transaction_id.kind in SHARED and table in (self.config.ledger, self.config.dead_letters):
                return True
        return False

    def _is_refresh(self, table: str, commit: LogCommit) -> bool:
        """Return whether a view made a commit to a table of its own."""
        for transaction_id in map(parse_transaction_id, commit.transactions):
            if transaction_id is None or transaction_id.kind != "view":
                continue
            if transaction_id.query_name == self.config.name and transaction_id.table == table:
                return True
        return False

    def _forget_rebuilt(self, audit: TableAudit, ends: dict[str, int]) -> None:
        """Forget the batches that a repair has written again; one that was committed during the repair stays.

        `ends`: target key -> the last batch of the repair.
        """
        audit.since = {key: last + 1 for key, last in ends.items()}
        counted = audit.counted
        audit.counted = {}
        for (run, key), by_batch in counted.items():
            if run == self.recorded.run and key in ends:
                newer = {batch: rows for batch, rows in by_batch.items() if batch > ends[key]}
                audit.counted[run, key] = newer

    def _check_transactions(self, audit: TableAudit, handle: DeltaTable) -> None:
        """Compare the last batch of each sink in a table with what was committed to it."""
        recorded = self.recorded
        last_batches = {key: max(by_batch) for key, by_batch in recorded.manifests.get(audit.table, {}).items()}
        for key in self.fixed_targets.get(audit.table, ()):
            if (recorded.run, key) in recorded.ledger:
                last = min(recorded.in_ledger(recorded.run, key).find_last(), recorded.last)
                last_batches[key] = max(last_batches.get(key, -1), last)
        # A table whose transaction ids expire may have forgotten that of a merge.
        if EXPIRES not in handle.metadata().configuration:
            last_batches |= recorded.merged.get(audit.table, {})
        for key, batch in sorted(last_batches.items()):
            version = handle.transaction_version(self._app_id(key, audit.table))
            if version is None and batch >= 0:
                problem = f"of {target_text(key)} it has nothing, and batch {batch} was committed to it"
                audit.wrong.append(f"{problem}: another table stands in its place")
            elif version is not None and version < batch:
                problem = f"of {target_text(key)} it has batch {version}, and batch {batch} was committed to it"
                audit.wrong.append(f"{problem}: it was put back from an older copy")
            else:
                self._check_ledger_end(audit, key, version)
                continue
            # One line is enough: the rows of its batches are not compared any more.
            audit.since[key] = recorded.last + 1
        if audit.table == self.config.ledger and recorded.committed > recorded.last:
            problem = f"it ends with batch {recorded.last}, and the checkpoint with batch {recorded.committed}"
            audit.wrong.append(problem)

    def _check_ledger_end(self, audit: TableAudit, key: str, version: int | None) -> None:
        """Compare the last batch of a sink in a table with that of the ledger, which may lack the newest batch."""
        if version is None or version <= self.recorded.last + 1:
            return
        # The stream may have continued since the ledger was read.
        last = self.recorded.last
        with suppress(DeltaError, OSError):
            last = last_in_ledger(self.lake.open(self.config.ledger), self.config, self.recorded.run)
        if version > last + 1:
            problem = f"of {target_text(key)} it has batch {version}, and the ledger ends with batch {last}"
            audit.wrong.append(f"{problem}: ledger or checkpoint were put back from an older copy")

    def _app_id(self, key: str, table: str) -> str:
        return str(batch_id(f"{self.config.name}:{self.recorded.run}", key, table))

    def _check_batches(self, audit: TableAudit) -> None:
        """Compare the rows of each batch in the log with its manifest."""
        wrong = []
        for key, by_batch in sorted(self.recorded.manifests.get(audit.table, {}).items()):
            counted = audit.counted.get((self.recorded.run, key), {})
            first = audit.since.get(key, 0)
            for batch, rows in sorted(by_batch.items()):
                rows_in_log = counted.get(batch, 0)
                if batch >= first and rows_in_log != rows:
                    problem = f"batch {batch} of {target_text(key)} has {rows_in_log:,} rows in its log"
                    wrong.append(f"{problem}, {rows:,} in its manifest")
        audit.wrong += _first_texts(wrong, "batches")

    def _check_files(self, audit: TableAudit, handle: DeltaTable) -> None:
        actions: Any = pa.table(handle.get_add_actions(flatten=True))
        audit.files = len(actions)
        audit.rows = sum(filter(None, actions.column("num_records").to_pylist()))
        audit.wrong += self._faults_of_files(audit.table, actions)

    def _check_deletions(self, audit: TableAudit) -> None:
        """Check the remembered deletions of a table with one row per key: without them deleted rows come back."""
        table = f"{audit.table}.{DELETIONS}"
        try:
            handle = deletions_table(self.lake, audit.table)
            if handle is None:
                return
            faults = self._faults_of_files(table, pa.table(handle.get_add_actions(flatten=True)))
        except (DeltaError, OSError) as error:
            faults = [self.explain_unreadable(table, error)]
        audit.wrong += [f"its remembered deletions in {self.lake.address(table)}: {fault}" for fault in faults]

    def _faults_of_files(self, table: str, actions: pa.Table) -> list[str]:
        """Return the faults of a table's files."""
        folder = table.replace(".", "/")
        missing: list[str] = []
        damaged: list[str] = []
        refused: list[str] = []
        doubtful_columns = _doubtful_columns(actions)
        # Files of a shallow clone are in the folder of another table.
        rows = actions.select(["path", "size_bytes", "num_records"]).to_pylist()
        rows = [row for row in rows if "://" not in row["path"] and not row["path"].startswith("/")]
        for begin in range(0, len(rows), _FILES_AT_ONCE):
            part = rows[begin : begin + _FILES_AT_ONCE]
            files = [f"{folder}/{unquote(row['path'])}" for row in part]
            for row, file, entry in zip(part, files, self.lake.files.get_file_info(files), strict=True):
                path = row["path"]
                size = row["size_bytes"]
                if entry.type is not fs.FileType.File:
                    missing.append(path)
                elif entry.size != size:
                    damaged.append(f"{path} has {entry.size:,} bytes, {size:,} in the log")
                elif self.contents or path in doubtful_columns:
                    columns = None if self.contents else doubtful_columns[path]
                    try:
                        reason = self._refused_value(table, file, columns, row["num_records"])
                    except (OSError, pa.ArrowException) as error:
                        damaged.append(f"{path} {first_line(error)}")
                    else:
                        refused += [f"{path}: {reason}"] if reason else []
        faults = []
        if missing:
            faults.append(f"{_files_are(missing)} missing: {_first_names(missing)}")
        if damaged:
            faults.append(f"{_files_are(damaged)} damaged: {_first_names(damaged)}")
        if refused:
            faults.append(f"{_files_are(refused)} refused by readers: {_first_names(refused)}")
        return faults

    def _refused_value(self, table: str, path: str, columns: set[str] | None, rows: int | None) -> str:
        """Return why readers refuse a value of a file, in some or in all columns; an empty text if they refuse none.

        Raises OSError or ArrowException if it cannot be read, or has another number of rows.
        """
        # The time of a record is that of its producer, and lands as it is.
        times = {TIMESTAMP, "timestamp"} if table in self._raw_tables else {TIMESTAMP}
        with self.lake.files.open_input_file(path) as source:
            file = pq.ParquetFile(source)
            if rows not in (None, file.metadata.num_rows):
                raise OSError(f"has {file.metadata.num_rows:,} rows, {rows:,} in the log")
            names = []
            for column in file.schema_arrow:
                if may_be_unreadable(column.type) and (columns is None or column.name in columns):
                    names.append(column.name)
            for part in file.iter_batches(columns=sorted({*names} - times)):
                for unreadable in unreadable_in(part):
                    return unreadable.reason
        return ""

    @cached_property
    def _raw_tables(self) -> frozenset[str]:
        """Return the tables that have records as they came."""
        raw = {table for table, keys in self.fixed_targets.items() if keys & {"/bronze", "/dead_letters"}}
        of_topics = {table for table, by_key in self.recorded.manifests.items() if "/bronze" in by_key}
        return frozenset(raw | of_topics)

    def _check_sums(
        self, sums: dict[tuple[str, str], BatchRows], since: dict[str, int], broken: set[str]
    ) -> Iterator[TableAudit]:
        """Compare the rows of all tables of a sink with the ledger, for the batches that are in every log.

        `broken` are the tables that are known to be wrong.
        """
        recorded = self.recorded
        for run, key in sorted(recorded.ledger):
            first = since.get(key, 0)
            # Released rows count with their sink. Logs that were cleaned do not reach back to an earlier run.
            if key.endswith(RELEASED) or (run != recorded.run and first):
                continue
            last = recorded.last if run == recorded.run else len(recorded.ledger[run, key].rows)
            in_ledger = BatchRows()
            for name in (key, key + RELEASED):
                in_ledger.extend(recorded.in_ledger(run, name))
            in_tables = BatchRows()
            for name in (key, *[f"{release}/{key}" for release in RELEASES]):
                in_tables.extend(sums.get((run, name), BatchRows()))
            differences = in_ledger.find_differences(in_tables, first, last)
            if not differences or broken & self._tables_of(key):
                continue
            texts = [f"batch {batch}: {rows:,} in the ledger, {there:,} there" for batch, rows, there in differences]
            problem = f"the rows of its tables are not those of the ledger: {'; '.join(_first_texts(texts, 'batches'))}"
            yield TableAudit(target_text(key), [problem], sums=True)

    def _tables_of(self, key: str) -> set[str]:
        """Return the tables that have rows of a target, by the configuration and the manifests."""
        fixed = {table for table, keys in self.fixed_targets.items() if key in keys}
        decided = {table for table, by_key in self.recorded.manifests.items() if key in by_key}
        return fixed | decided


SHARED: frozenset[IdKind] = frozenset({
    *("ledger", "ledger_move", "dead_letters", "merge_refusals", "sink_refusals", "replayed", "discard", "refuse"),
})  # fmt: skip
"""Kinds of transaction ids with which any query writes the ledger and dead letters."""


def target_text(key: str) -> str:
    """Return a target key as text."""
    return key.removeprefix("/")


def is_own_commit(query: str, commit: LogCommit) -> bool:
    """Return whether a query made a commit: each of its own has a transaction id of the query."""
    for transaction_id in map(parse_transaction_id, commit.transactions):
        if transaction_id is not None and transaction_id.run and transaction_id.query_name == query:
            return True
    return False


WITH_ROWS: frozenset[IdKind] = frozenset({"rows", "quarantine", "bronze", "dead_letters", *RELEASES})
"""Kinds of transaction ids that name the table whose log they are in."""


def committed_rows(query: str, table: str, commit: LogCommit) -> Iterator[tuple[TransactionId, int]]:
    """Yield the id and number of the rows that a query committed to a table: those of a batch, or of a release."""
    for name, number in commit.transactions.items():
        transaction_id = parse_transaction_id(name)
        if transaction_id is None or transaction_id.kind not in WITH_ROWS:
            continue
        if transaction_id.query_name == query and transaction_id.table == table:
            yield transaction_id, number


def counted_as(transaction_id: TransactionId) -> str:
    """Return the key that rows count under: that of their target; for a release with its kind before it."""
    return transaction_id.target or f"{transaction_id.kind}/{transaction_id.route}/{transaction_id.sink}"


def describe_commits(lake: Lake, table: str, versions: list[int], commits: list[LogCommit]) -> list[str]:
    """Return the changes of rows by commits, and who made them; `versions` are those of the log."""
    removed: set[str] = set()
    for commit in commits:
        removed |= {file.path for file in commit.removed if file.changes}
    # A commit has no numbers of rows of the files that it removes: the commits that added them do.
    rows = rows_of(lake, table, versions, removed) if removed else {}
    return [f"version {commit.version}: {_describe_commit(commit, rows)}" for commit in commits]


def _describe_commit(commit: LogCommit, rows: dict[str, int]) -> str:
    """Return the change of rows by a commit of another writer; `rows`: file that it removed -> its rows."""
    removed = [rows.get(file.path) for file in commit.removed if file.changes]
    added = [file.rows for file in commit.added if file.changes]
    who = f"{commit.operation} by {commit.author}"
    if None in removed or None in added:
        return f"{who} changed rows"
    more = sum(filter(None, added)) - sum(filter(None, removed))
    if more > 0:
        return f"{who} added {more:,} rows"
    if more < 0:
        return f"{who} removed {-more:,} rows"
    return f"{who} changed rows"


def _doubtful_columns(actions: pa.Table) -> dict[str, set[str]]:
    """Return the columns of files whose bounds in the log look like values that readers refuse.

    A text that is not UTF-8 is there with replacement characters, which a text may have of its own.
    """
    doubtful: dict[str, set[str]] = defaultdict(set)
    paths = actions.column("path").to_pylist()
    for name in actions.column_names:
        bound, _, column = name.partition(".")
        if bound not in ("min", "max"):
            continue
        values = actions.column(name).combine_chunks()
        if is_text(values.type):
            rows = pc.fill_null(pc.match_substring(values, "\ufffd"), False).to_numpy(zero_copy_only=False)
        else:
            rows = np.zeros(len(values), bool)
            for unreadable in unreadable_values(column, values):
                rows |= unreadable.rows
        for row in np.flatnonzero(rows):
            doubtful[paths[row]].add(column.split(".")[0])
    return doubtful


def _first_texts(texts: list[str], noun: str) -> list[str]:
    more = len(texts) - _SHOWN_ITEMS
    if more <= 0:
        return texts
    return [*texts[:_SHOWN_ITEMS], f"and {more:,} more {noun}"]


def _first_names(names: list[str]) -> str:
    return ", ".join([*names[:_SHOWN_ITEMS], "..."] if len(names) > _SHOWN_ITEMS else names)


def _files_are(files: list[str]) -> str:
    return "1 file is" if len(files) == 1 else f"{len(files):,} files are"
