"""Stage the rows that records bring into some tables, for a commit that replaces what these hold.

The records come from bronze, or from the topic, in place of the source; everything else is the first half of a batch.
Nothing but the named tables gets rows: no sink that applies, no bronze, dead letters or quarantine (a row that was
refused, or waits, is there since its batch). Rows for a merging sink are staged as its outbox has them. The caller
commits what is staged, or merges it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from router.engine.balance import keyed, total
from router.engine.decision import BatchDecider
from router.engine.destination import Destination
from router.engine.label.layout import RAW_COLUMNS
from router.engine.preflight.explain import fixed_table
from router.engine.steps import Steps
from router.errors import BatchError, TableError
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    from router.config.models import Config, Route
    from router.delta.commit import StagedFile, TableCommit
    from router.engine.balance import Partition
    from router.engine.label.layout import Layout
    from router.engine.land.job import Landed
    from router.engine.reprocess.context import ReprocessContext


@dataclass(frozen=True)
class RebuiltRows:
    """The rows of a rebuild, staged: a commit for each sink and table, and how many rows had no place there."""

    commits: tuple[TableCommit, ...]
    read: int
    refused: int

    @property
    def rows(self) -> int:
        """Return the rows of all commits."""
        return sum(work.rows for work in self.commits)

    @property
    def files(self) -> list[StagedFile]:
        """Return the files of all commits."""
        return [file for work in self.commits for file in work.files]


@dataclass(frozen=True)
class GivenTables:
    """Tables that are opened by a function, in place of a cache."""

    find: Callable[[str], Any]

    def readable(self, tables: Iterable[str]) -> dict[str, Any]:
        """Return tables by name; None for one that is not there."""
        return {name: self.find(name) for name in sorted(tables)}


@dataclass
class RebuildDestination(Destination):
    """The destination of records that are read again for some tables: all `records` of them have to be there."""

    limits_names: ClassVar[bool] = False  # a table that was there needs no place

    records: int

    def faults(self, layout: Layout, landed: Landed, counted: tuple[Partition, ...]) -> list[str]:
        """Return what does not balance: records that were not read, rows that are in no file."""
        in_files = sum(file.rows for file in landed.files)
        rows = sum(keyed(counted, "landed").values())
        read = total(counted, "read")
        if read == self.records and in_files == rows:
            return []
        what = f"of {self.records:,} records {read:,} were read, and {in_files:,} of {rows:,} rows are in files"
        return [f"what was landed does not balance: {what}"]

    def faults_of_failed_files(self, landed: Landed) -> list[str]:
        """Return why staged files of a table could not be written: it has no quarantine to wait in."""
        return [next(iter(landed.failed.values()))]


@dataclass(frozen=True)
class Rebuild:
    """The staging of rows for some tables, `only`; `tables` opens these as the records are to find them.

    The decoder must be prepared already. `query` is the query with its run: transaction ids begin with it.
    Files are staged in the folder `staging`, without one where the tables' committer can reach them.
    """

    context: ReprocessContext
    query: str
    only: frozenset[str]
    tables: GivenTables
    staging: str | None = None

    def stage(self, records: DataFrame, count: int, batch: int) -> RebuiltRows:
        """Stage the rows that so many records bring into the tables. Raises TableError if these cannot take them."""
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
        )
        destination = RebuildDestination(config, self.query.partition(":")[2], count)
        try:
            plan = decider.plan(records.select(*RAW_COLUMNS))
            decision = decider.land_and_decide(plan, Steps(batch), destination)
        except BatchError as error:
            names = min(self.only, default="new tables")
            raise TableError(names if len(self.only) < 2 else f"{names} and others", error.what) from error
        refused = sum(keyed(decision.partitions, "rejected").values())
        refused += sum(keyed(decision.partitions, "quarantined").values())
        return RebuiltRows(decision.commits, total(decision.partitions, "read"), refused)

    def _config(self) -> Config:
        """Return the configuration with those routes only that may have rows for the tables."""
        routes = tuple(route for route in self.context.config.routes if self._may_write(route))
        return self.context.config.model_copy(update={"bronze": None, "routes": routes, "unmatched": "drop"})

    def _may_write(self, route: Route) -> bool:
        sinks = (sink for sink in route.sinks if isinstance(sink, (TableSink, MergingSink)))
        return any((name := fixed_table(sink)) == "" or name in self.only for sink in sinks)
