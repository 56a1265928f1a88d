"""The table that is repaired: what is known of it, the records that it is rebuilt of, and its transaction ids.

`last` is N, the last batch in the ledger: up to it the rows come from the records, after it from the stream's commits.
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pyarrow import fs

from router.api.sinks import MergingSink
from router.delta.constraints import features_against_merges
from router.delta.history import REPAIRED, LogCommit, log_commits, log_folder, log_versions
from router.delta.transaction_id import TransactionId, batch_id, parse_transaction_id
from router.engine.audit.verify import RecordedCounts, committed_rows, describe_commits, is_own_commit
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.committers import Committers
from router.engine.label.layout import with_order_columns
from router.engine.merge.coordinator import MergedTables
from router.engine.preflight.explain import fixed_table
from router.engine.quarantine.table import Quarantined, list_quarantined
from router.engine.reprocess.rebuild import Rebuild, TableSource
from router.engine.reprocess.records import BronzeRecords, Records, TopicRecords
from router.engine.start.run_lock import hold_run_lock
from router.errors import RunningError, TableError
from router.own_names import REPLACED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from router.api.sinks import KeyedTable
    from router.engine.reprocess.context import ReprocessContext

log = logging.getLogger("router")
REPAIR_TRIES = 20
"""Tries of a commit, while other writers are faster."""
NEEDS_SPARK = (
    "it needs Delta on Spark, which cannot replace it while the stream runs; end the stream after a complete batch, "
    "then rebuild it"
)


@dataclass(frozen=True)
class Repaired:
    """What a repair did: the table's new version, rows of records and of later batches, rows without a place.

    `until` is the last batch whose rows come from the records. `moved` is the folder that a damaged log was moved to.
    """

    table: str
    version: int
    rows: int
    later: int
    refused: int
    until: int
    moved: str | None = None


@dataclass
class RepairTarget:
    """A table, and what a repair has found out about it. The decoder must be prepared already.

    `accept` lets a repair undo changes of others: deleted rows are restored and added rows are deleted. With `full` the
    columns of the table become those of the records as well. `topic` takes the records from Kafka, not from bronze.
    """

    context: ReprocessContext
    table: str
    accept: bool = False
    full: bool = False
    topic: bool = False

    def __post_init__(self) -> None:
        self.config = self.context.config
        self.spark = self.context.spark
        self.lake = self.context.lake
        self.checkpoint = self.context.checkpoint
        self.folder = self.table.replace(".", "/")
        self.written = RecordedCounts.read(self.config, self.lake, self.checkpoint)
        self.query = f"{self.config.name}:{self.written.run}"
        self.store = CheckpointStore(self.checkpoint, self.written.run)
        self.committers = Committers.of(self.config, self.spark, self.lake)
        # The table as a repair has found it, None if there is none or its log is damaged; its version then, or -1.
        self.handle: DeltaTable | None = None
        self.seen = -1
        self.damaged_files: list[str] = []

    @property
    def last(self) -> int:
        """Return N: the last batch whose rows come from the records."""
        return self.written.last

    # Sinks and records

    def merging(self) -> tuple[str, KeyedTable] | None:
        """Return the merging sink that writes the table: its key, and how the rows of a key become one."""
        for route, name, sink in self.config.all_sinks():
            if isinstance(sink, MergingSink) and self.merges(f"{route}/{name}", sink):
                return f"{route}/{name}", with_order_columns(sink, only_spark=self.committers.only_spark)
        return None

    def merges(self, key: str, sink: MergingSink) -> bool:
        """Return whether a merging sink writes the table."""
        return fixed_table(sink) == self.table or self.table in MergedTables(self.store, key).names

    def records_until(self, last: int) -> Records:
        """Return the records of all batches up to the last."""
        if self.topic:
            return TopicRecords.until(self.spark, self.lake, self.config, self.written.run, last)
        return BronzeRecords.until(self.lake, self.config, self.query, last)

    def rebuild(self, only: frozenset[str], tables: TableSource, staging: str | None = None) -> Rebuild:
        """Return the staging of rows for some tables."""
        return Rebuild(self.context, self.query, only, tables, staging)

    # Transaction ids and notes

    @property
    def repair_id(self) -> TransactionId:
        """Return the transaction id of repairs of the table."""
        return TransactionId("repair", self.query, table=self.table)

    def app_id(self, key: str) -> str:
        """Return the transaction id of the batches that a sink writes into the table."""
        return str(batch_id(self.query, key, self.table))

    def committed_batch(self, key: str, handle: DeltaTable | None) -> int | None:
        """Return the last batch that a sink has committed to an open table."""
        if handle is None:
            return None
        return handle.transaction_version(self.app_id(key))

    def is_behind(self, key: str, batch: int, handle: DeltaTable | None) -> bool:
        """Return whether a sink has not committed a batch to an open table yet."""
        committed = self.committed_batch(key, handle)
        return committed is None or committed < batch

    def notes(self, ends: dict[str, int]) -> dict[str, str]:
        """Return the notes of a commit; `ends` has the last batch that the new content has, by target key."""
        return {"router.query": self.query, REPAIRED: json.dumps(ends)}

    # Commits of others, and of batches after N

    def refuse_changes_of_others(self) -> None:
        """Raise TableError if the table has changes that would be undone, and that was not accepted.

        These are what others did to it, as far as its log can be read, and rows that a person has released though an
        expectation does not hold for them.
        """
        if self.accept:
            return
        versions, others, released = self._changes()
        if others:
            shown = "; ".join(describe_commits(self.lake, self.table, versions, others)[:5])
            todo = "With --accept foreign-changes deleted rows are restored and added rows are deleted"
            raise TableError(self.table, f"others have changed it: {shown}. {todo}")
        if released:
            rows = sum(commit.rows for commit in released)
            problem = f"`router quarantine release` let {rows:,} rows in though an expectation does not hold for them"
            raise TableError(
                self.table, f"{problem}; a rebuild refuses them. With --accept foreign-changes they are deleted"
            )

    def _changes(self) -> tuple[list[int], list[LogCommit], list[LogCommit]]:
        """Return the versions that can be read; since the last rebuild the commits of others, and of such releases."""
        versions: list[int] = []
        others: list[LogCommit] = []
        released: list[LogCommit] = []
        try:
            for commit in log_commits(self.lake, self.table, log_versions(self.lake, self.table)):
                versions.append(commit.version)
                if REPAIRED in commit.notes:
                    others.clear()
                    released.clear()
                elif commit.changes_rows and not is_own_commit(self.config.name, commit):
                    others.append(commit)
                elif commit.changes_rows and _releases_held_rows(commit):
                    released.append(commit)
        except TableError:
            pass  # what is behind a damaged commit is not known
        return versions, others, released

    def later_commits(self, handle: DeltaTable) -> list[LogCommit]:
        """Return the commits of batches after N, newest first. Raises TableError if rows came in another way."""
        commits = []
        for version in reversed(log_versions(self.lake, self.table)):
            if version > handle.version():
                continue
            (commit,) = log_commits(self.lake, self.table, [version])
            if REPAIRED in commit.notes:
                if max(json.loads(commit.notes[REPAIRED]).values(), default=-1) > self.last:
                    todo = f"try again when batch {self.last + 1} has ended"
                    raise TableError(self.table, f"it was repaired just now; {todo}")
                continue  # a batch may have come while that repair was at work, and has stayed
            batches = [batch for _, batch in self.batches_of(commit)]
            if batches and max(batches) <= self.last:
                break
            if batches and commit.rows:
                commits.append(commit)
            elif commit.rows and version > self.seen and is_own_commit(self.config.name, commit):
                raise TableError(self.table, "rows left the quarantine for it meanwhile; rebuild it again")
        return commits

    def batches_of(self, commit: LogCommit) -> Iterator[tuple[str, int]]:
        """Yield target key and batch of the rows that a commit contains of batches of the current run."""
        for transaction_id, batch in committed_rows(self.config.name, self.table, commit):
            if transaction_id.run == self.written.run and transaction_id.target:
                yield transaction_id.target, batch

    def has_unfinished_batch(self) -> bool:
        """Return whether a manifest of a batch after N has rows for the table."""
        for path in self.store.json_paths(f"manifests/{self.store.run}"):
            number = int(path.rpartition("/")[2].removesuffix(".json"))
            manifest = self.store.read_manifest(number) if number > self.last else None
            if manifest is None:
                continue
            for commit in manifest.commits:
                if commit.table == self.table and commit.note_key not in manifest.quarantined:
                    return True
        return False

    def waiting_rows(self) -> list[Quarantined]:
        """Return the quarantined rows that wait for the table."""
        return [waiting for waiting in list_quarantined(self.config, self.lake) if waiting.place.table == self.table]

    # The stream, Spark and damaged logs

    @contextmanager
    def without_stream(self) -> Iterator[None]:
        """Keep the stream away while Delta on Spark replaces the table: it would take its commits for old.

        Raises TableError if the stream runs. One that starts meanwhile is refused with the name of this repair.
        """
        holder = f"the repair of {self.table} by Delta on Spark"
        with ExitStack() as lock:
            try:
                lock.enter_context(hold_run_lock(self.checkpoint, self.config.name, holder=holder))
            except RunningError as error:
                raise TableError(self.table, f"{NEEDS_SPARK} ({error})") from error
            yield

    def only_spark_replaces(self, handle: DeltaTable | None) -> bool:
        """Return whether only Delta on Spark may replace the content of a table with one row per key."""
        return self.committers.only_spark or (handle is not None and bool(features_against_merges(handle)))

    def find_damaged_files(self) -> None:
        """Note the files in a damaged table's folder that no batch after N has staged."""
        entries = self.lake.files.get_file_info(fs.FileSelector(self.folder, recursive=True, allow_not_found=True))
        paths = [entry.path for entry in entries if entry.type is fs.FileType.File]
        self.damaged_files = sorted(path for path in paths if not self._is_of_later_batch(path))

    def _is_of_later_batch(self, path: str) -> bool:
        name = path.removeprefix(f"{self.folder}/")
        number = name.removeprefix("part-")[:10]
        return name.startswith("part-") and number.isdecimal() and len(number) == 10 and int(number) > self.last

    def move_damaged_files(self) -> str | None:
        """Move a damaged log, then the files that it may name, out of the layer; return where they are."""
        if not self.damaged_files:
            return None
        files = self.lake.files
        place = f"{REPLACED}/{self.table}-{datetime.now(timezone.utc):%Y%m%dT%H%M%S%fZ}"
        # On a disk the log moves at once: a table with half a log is another table.
        if self.lake.is_local and not self.lake.table_location(self.table):
            files.create_dir(place, recursive=True)
            files.move(log_folder(self.table), f"{place}/_delta_log")
        for path in self.damaged_files:
            if files.get_file_info(path).type is fs.FileType.File:
                moved = f"{place}/{path.removeprefix(f'{self.folder}/')}"
                files.create_dir(moved.rpartition("/")[0], recursive=True)
                files.move(path, moved)
        log.warning("%s: its log could not be read; it is in %s/%s now", self.table, self.lake.root, place)
        return f"{self.lake.root}/{place}"


def _releases_held_rows(commit: LogCommit) -> bool:
    """Return whether a commit released rows by a person's word though an expectation does not hold for them."""
    ids = [parse_transaction_id(app_id) for app_id in commit.transactions]
    return any(transaction_id is not None and transaction_id.kind == "held" for transaction_id in ids)
