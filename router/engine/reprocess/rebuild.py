"""Stage the rows that records have for some tables, for a commit that replaces the content of these.

The records come from bronze, or from the topic, in place of the source; everything else is the first half of a batch.
Only the named tables get rows: no sink that applies, no bronze, dead letters or quarantine (a row that was refused, or
waits, is there since its batch). Rows for a merging sink are staged as its outbox has them. The caller commits or
merges the staged rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from router.api.sinks import LakeSink
from router.engine.balance import sum_by_key, sum_counts
from router.engine.decision import BatchDecider
from router.engine.destination import Destination
from router.engine.preflight.explain import fixed_table
from router.engine.steps import Steps
from router.errors import BatchError, TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router.config.models import Config, Route
    from router.delta.commit import TableCommit
    from router.delta.staged_files import StagedFile
    from router.engine.balance import Partition
    from router.engine.label.layout import Layout
    from router.engine.land.job import Landed
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.source.unreadable import RawRecords


@dataclass(frozen=True)
class RebuiltRows:
    """The staged rows of a rebuild: a commit for each sink and table, and how many rows were refused."""

    commits: tuple[TableCommit, ...]
    read: int
    refused: int

    @property
    def rows(self) -> int:
        """Return the rows of all commits."""
        return sum(commit.rows for commit in self.commits)

    @property
    def files(self) -> list[StagedFile]:
        """Return the files of all commits."""
        files: list[StagedFile] = []
        for commit in self.commits:
            files += commit.files
        return files


@dataclass(frozen=True)
class TableSource:
    """The tables that a rebuild sees: a function opens them, in place of a cache."""

    open: Callable[[str], Any]

    def open_readable_tables(self, tables: Iterable[str]) -> dict[str, Any]:
        """Return tables by name; None for one that does not exist."""
        return {name: self.open(name) for name in sorted(tables)}


@dataclass
class RebuildDestination(Destination):
    """The destination of records that are read again for some tables; `records` is how many must be read."""

    limits_names: ClassVar[bool] = False  # a table that existed counts for no limit

    records: int

    def faults_of_counts(self, layout: Layout, landed: Landed, counted: tuple[Partition, ...]) -> list[str]:
        """Return the faults of the counts: records that were not read, rows that are in no file."""
        in_files = sum(file.rows for file in landed.files)
        rows = sum(sum_by_key(counted, "landed").values())
        read = sum_counts(counted, "read")
        if read == self.records and in_files == rows:
            return []
        numbers = f"of {self.records:,} records {read:,} were read, and {in_files:,} of {rows:,} rows are in files"
        return [f"what was landed does not balance: {numbers}"]

    def faults_of_failed_files(self, landed: Landed) -> list[str]:
        """Return why the first of some files could not be written: a rebuild has no quarantine."""
        return [next(iter(landed.failed.values()))]


@dataclass(frozen=True)
class Rebuild:
    """The staging of rows for some tables, `only`; the rows are cast to the types of these as `tables` opens them.

    The decoder must be prepared already. `query` is the query with its run: transaction ids begin with it. Files are
    staged in the folder `staging`; if it is None, in the folders of their tables.
    """

    context: ReprocessContext
    query: str
    only: frozenset[str]
    tables: TableSource
    staging: str | None = None

    def stage(self, records: RawRecords, count: int, batch: int) -> RebuiltRows:
        """Stage the rows of `count` records, up to a batch; those that cannot be read have none.

        Raises TableError if the tables cannot take them.
        """
        config = self._config()
        decider = BatchDecider.of(
            config,
            self.context.spark,
            self.context.lake,
            self.query,
            tables=self.tables,
            only=self.only,
            staging=self.staging,
            executors=self.context.executors,
            memory=self.context.memory,
        )
        destination = RebuildDestination(config, self.query.partition(":")[2], count)
        try:
            plan = decider.plan_batch(records.frame)
            decision = decider.land_readable(records, plan, Steps(batch), destination)
        except BatchError as error:
            name = min(self.only, default="new tables")
            if len(self.only) > 1:
                name += " and others"
            raise TableError(name, error.what) from error
        refused = sum(sum_by_key(decision.partitions, "rejected").values())
        refused += sum(sum_by_key(decision.partitions, "quarantined").values())
        return RebuiltRows(decision.commits, sum_counts(decision.partitions, "read"), refused)

    def _config(self) -> Config:
        """Return the configuration with only those routes that may have rows for the tables."""
        routes = tuple(route for route in self.context.config.routes if self._may_write(route))
        return self.context.config.model_copy(update={"bronze": None, "routes": routes, "unmatched": "drop"})

    def _may_write(self, route: Route) -> bool:
        for sink in route.sinks:
            if isinstance(sink, LakeSink):
                name = fixed_table(sink)
                if name == "" or name in self.only:
                    return True
        return False
