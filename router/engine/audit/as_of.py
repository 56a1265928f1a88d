"""Find the version that each table of a lake had when a batch had ended, or at a time. Without Spark.

A table's own log tells: its transaction ids which batches a version has, and its commits when they were made. So a
version has all rows of the query's batches up to the one that is asked for, and none of later ones, whatever clocks
say; and what others, views, releases, replays and rebuilds had committed by then. If the log, or a file, does not reach
back so far, a version may have been kept when a deploy began. Otherwise that is said: never is it a newer version.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from router.delta.commit import paths_of
from router.delta.dataset import dataset_of
from router.delta.history import REPAIRED, log_commits, log_versions
from router.delta.kept_versions import files_of, kept_versions
from router.delta.transaction_id import IdKind, parse_transaction_id
from router.errors import StartError, TableError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from router.delta.history import LogCommit
    from router.delta.lake import Lake

OF_BATCHES: frozenset[IdKind] = frozenset({
    *("rows", "deletions", "merge_refusals", "moved_rows", "quarantine", "sink", "sink_refusals"),
    *("bronze", "dead_letters", "ledger"),
})  # fmt: skip
"""The kinds of transaction ids whose number is that of a batch."""

CLOCKS_DIFFER = 600_000
"""Milliseconds by which the clocks of machines that commit to one table may differ."""


@dataclass(frozen=True)
class BatchEnd:
    """The end of a batch of a query's run, of which `runs` has the earlier ones (False) and the later ones (True)."""

    query: str
    run: str
    batch: int
    runs: Mapping[str, bool] = field(hash=False)

    def is_before(self, commit: LogCommit) -> bool | None:
        """Return whether a commit is of a later batch; None if it is of no batch of this query's stream."""
        if REPAIRED in commit.notes:  # it has the ids of all batches that it made again
            return None
        for app_id, number in commit.transactions.items():
            known = parse_transaction_id(app_id)
            if known is None or known.kind not in OF_BATCHES or known.query_name != self.query:
                continue
            if known.run == self.run:
                return number > self.batch
            if known.run in self.runs:
                return self.runs[known.run]
        return None


@dataclass(frozen=True)
class LakeMoment:
    """A moment of a lake, in milliseconds since 1970, with the batches that had ended then."""

    at: int
    batches: tuple[BatchEnd, ...] = ()

    @classmethod
    def of_batches(cls, lake: Lake, ledger: str, wanted: Mapping[str, int]) -> LakeMoment:
        """Return when a batch of each query, by name, had ended: that of the newest run that has its number.

        Raises StartError if the ledger does not have it.
        """
        at = 0
        ends = []
        for query, batch in wanted.items():
            finished = _ends_of_batches(lake, ledger, query)
            of_number = []
            if batch < 1 << 63:
                of_number = finished.filter(pc.field("batch_id") == batch).sort_by("finished").to_pylist()
            if not of_number:
                raise StartError(f"{ledger} has no batch {batch} of {query}; `router ledger FILE` shows the last ones")
            end = of_number[-1]
            begins = finished.group_by("run").aggregate([("finished", "min")]).to_pylist()
            runs = {row["run"]: row["finished_min"] > end["finished"] for row in begins}
            ends.append(BatchEnd(query, end["run"], batch, runs))
            at = max(at, int(end["finished"].timestamp() * 1000) + 1)
        return cls(at, tuple(ends))

    def find_version(self, lake: Lake, table: str) -> int | None:
        """Return the version that a table had; None if it did not exist.

        Raises TableError if its log or its files do not reach back so far, or if no version has the batches of all.
        """
        versions = log_versions(lake, table)
        if not versions:
            return None
        version = versions[-1]
        # The newest version that has a batch which is wanted, and the queries of which none was found yet.
        needed = -1
        left = set(self.batches)
        for commit in log_commits(lake, table, reversed(versions)):
            is_later = {end: end.is_before(commit) for end in self.batches}
            within = {end for end in left if is_later[end] is False}
            left -= within
            if within:
                needed = max(needed, commit.version)
            elif needed < 0 and True not in is_later.values() and self._is_within(table, commit):
                # Clocks of machines differ: a commit of a later batch may say that it is somewhat older.
                if not self.batches or (commit.written or 0) < self.at - CLOCKS_DIFFER:
                    break
            elif True in is_later.values() or needed < 0:
                version = commit.version - 1
            if version < needed:
                queries = " and ".join(f"{end.query} up to batch {end.batch}" for end in self.batches)
                raise TableError(table, f"no version has {queries} alone")
            if self.batches and not left:
                break
        if version < 0 and REPAIRED in commit.notes:
            raise TableError(table, "it was rebuilt with a new log")
        if version < 0:
            return None
        if version < versions[0]:
            raise TableError(table, f"its log begins with version {versions[0]}, which is younger")
        _refuse_missing_files(lake, table, version, paths_of(lake.open_version(table, version)))
        return version

    def find_kept_version(self, lake: Lake, table: str) -> TableVersion | None:
        """Return the kept version that a table had; None if no version is kept, or known to be of the moment."""
        with suppress(TableError, DeltaError, OSError):
            for kept, commit in kept_versions(lake, table):
                # Of several queries each has its own last batch then.
                is_of_batch = [end.is_before(commit) for end in self.batches] == [False]
                is_of_time = len(self.batches) < 2 and (commit.written or 0) <= self.at
                if self.at <= kept.since and (is_of_batch or is_of_time):
                    _refuse_missing_files(lake, table, kept.version, files_of(lake, table, kept))
                    return TableVersion(kept.name_in(table), kept.version)
        return None

    def _is_within(self, table: str, commit: LogCommit) -> bool:
        if commit.written is None:
            raise TableError(table, f"its log does not say when version {commit.version} was made")
        return commit.written <= self.at


class TableVersion(NamedTuple):
    """A version of a table, and the name by which a lake opens it: its own, or that of a kept version."""

    name: str
    version: int


def versions_at(
    lake: Lake, moment: LakeMoment, tables: Iterable[str]
) -> tuple[dict[str, TableVersion], dict[str, str]]:
    """Return the version at a moment of each table that existed, and why others have none that is known, by table."""
    versions = {}
    faults = {}
    for table in tables:
        try:
            version = moment.find_version(lake, table)
            if version is not None:
                versions[table] = TableVersion(table, version)
        except (TableError, DeltaError, OSError) as error:
            kept = moment.find_kept_version(lake, table)
            if kept is None:
                faults[table] = first_line(error)
            else:
                versions[table] = kept
    return versions, faults


def _ends_of_batches(lake: Lake, ledger: str, query: str) -> pa.Table:
    table = lake.open(ledger)
    columns = ["run", "batch_id", "finished"]
    if table is None:
        raise StartError(f"{lake.root} has no {ledger}")
    of_stream = (pc.field("query") == query) & pc.field("route").is_null() & pc.field("batch_id").is_valid()
    return dataset_of(table).to_table(columns=columns, filter=of_stream)


def rows_in(lake: Lake, of: TableVersion) -> int | None:
    """Return how many rows a version has, None if its log does not say."""
    actions: Any = pa.table(lake.open_version(*of).get_add_actions())
    counts = actions.column("num_records").to_pylist()
    return None if None in counts else sum(counts)


def _refuse_missing_files(lake: Lake, table: str, version: int, paths: set[str]) -> None:
    """Raise TableError if a file of a version is gone; those of the newest one are there."""
    newest = lake.open(table)
    paths -= paths_of(newest) if newest else set()
    folder = table.replace(".", "/")
    entries = lake.files.get_file_info([f"{folder}/{path}" for path in sorted(paths) if "://" not in path])
    gone = sum(not entry.is_file for entry in entries)
    if gone:
        raise TableError(table, f"{gone} files of version {version} are gone")
