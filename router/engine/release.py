"""Land what waited, once its table was let grow: with Delta on Spark, for both engines."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from router.delta.casting import within
from router.delta.commit import to_arrow, to_delta
from router.delta.schema_diff import compare, cut, merge, plain_schema
from router.delta.table_cache import Handles
from router.engine import ledger
from router.engine.commit import widen
from router.engine.label.safe_columns import any_of
from router.engine.label.route import lane_of
from router.engine.ruled import lost, narrowed, unfit
from router.engine.start import Checkpoint
from router.engine.waiting import OWN, Approval, allowed, approvals, released, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import Config
    from router.delta.lake import Lake

log = logging.getLogger("router")


@dataclass(frozen=True)
class Release:
    """Carry out the approvals of a query. Only between its batches: a batch that was cut off must end first.

    Each is safe to repeat from any point. What is released, and how many rows, is written into the approval before the
    rows are appended under a transaction id; the ledger has an id of its own; the approval goes last. Rows that come
    into a lane before an approval is carried out are released along, as long as nothing unapproved is among them.
    """

    config: Config
    spark: SparkSession
    lake: Lake
    checkpoint: Lake

    def idle(self) -> set[str]:
        """Carry out approvals before or between batches, unless one was cut off; return the tables that changed."""
        if not (found := approvals(self.checkpoint)):
            return set()
        run = Checkpoint.read(self.checkpoint).run
        table = self.lake.open(self.config.ledger)
        booked = table.transaction_version(f"{self.config.name}:{run}/ledger") if table else None
        cut_off = f"manifests/{run}/{-1 if booked is None else booked + 1:010d}.json"
        return set() if self.checkpoint.read(cut_off) else self.carry_out(found)

    def carry_out(self, found: list[Approval]) -> set[str]:
        """Carry out approvals while no batch is under way; return the tables that changed."""
        for approval in found:
            try:
                for query in approval.upto:
                    self._release(approval, query)
            except Exception as error:  # what goes on flowing must not wait for what waits
                told = "what waits for %s cannot be released now, it is tried again after the next batch: %s"
                log.warning(f"%s: {told}", self.config.name, approval.place.table, error)
            else:
                self._done(approval)
        return {approval.place.table for approval in found}

    def _done(self, approval: Approval) -> None:
        self.checkpoint.files.delete_file(approval.path)

    def _release(self, approval: Approval, query: str) -> None:
        waited = _Waited.read(self, approval, query)
        if query not in approval.decided:
            if not (decided := waited.decide(approval.upto[query])):
                return
            approval.decided[query] = decided
            write(self.checkpoint, approval)
        last, rows = approval.decided[query]
        waited.append(last)
        place, (name, _, run) = approval.place, query.rpartition(":")
        row = {"query": name, "run": run, "batch_id": last, "route": place.route, "sink": place.sink, "released": rows}
        app_id = f"{query}/ledger/release/{place.route}/{place.sink}/{place.table}"
        ledger.append(Handles(self.lake), self.config.ledger, app_id, last, [row])
        log.info("%s: %d rows that waited are in %s now", self.config.name, rows, place.table)


@dataclass(frozen=True)
class _Waited:
    """Be the rows of one query that wait for one table, and how they go in.

    `after` is the batch up to which the table has them; `kinds` has the type in which each column of the lane goes into
    the table, None for what does not; `table` the types of the table as it may be.
    """

    of: Release
    approval: Approval
    query: str
    frame: DataFrame
    have: pa.Schema | None
    came: pa.Schema
    after: int
    table: dict[str, pa.DataType]

    @classmethod
    def read(cls, of: Release, approval: Approval, query: str) -> _Waited:
        place = approval.place
        lane = lane_of(of.config.name, place.route, place.sink)
        handle, lane_handle = of.lake.open(place.table), of.lake.open(lane)
        assert lane_handle is not None  # rows of it were approved
        after, have = released(handle, place, query), plain_schema(to_arrow(handle)) if handle else None
        mine = (F.col("_table") == place.table) & (F.col("_query") == query) & (F.col("_batch_id") > after)
        frame = of.spark.read.format("delta").load(of.lake.address(lane)).filter(mine)
        came = plain_schema(to_arrow(lane_handle))
        came = pa.schema([column for column in came if column.name not in OWN])
        return cls(of, approval, query, frame, have, came, after, allowed(have, approval))

    def decide(self, upto: int) -> tuple[int, int] | None:
        """Return the last batch of which rows are released, and their number; None where none is."""
        batch = F.col("_batch_id")
        first_bad, last = self.frame.agg(F.min(F.when(self._unfit(), batch)), F.max(batch)).collect()[0]
        if first_bad is not None:
            last = first_bad - 1
        rows = 0 if last is None else self.frame.filter(batch <= last).count()
        if first_bad is not None and first_bad <= upto:
            told = "rows from batch %d on still wait for %s: it is not any more what they were approved for"
            log.warning(f"%s: {told}", self.of.config.name, first_bad, self.approval.place.table)
        return (last, rows) if rows else None

    def append(self, last: int) -> None:
        """Append the rows of batches up to the last, once."""
        if self.after >= last:
            return
        place, address = self.approval.place, self.of.lake.address(self.approval.place.table)
        written = pa.schema([(name, cut(self.table[name], kind)) for name, kind in self._kinds() if kind is not None])
        if self.have is not None and (widened := compare(self.have, written).widened):
            widen(self.of.spark.newSession(), address, to_delta(pa.schema(list(widened))))
        columns = [
            narrowed(F.col(c.name), self.came.field(c.name).type, c.type)
            .cast(from_arrow_type(c.type, prefer_timestamp_ntz=True))
            .alias(c.name)
            for c in written
        ]
        writer = self.frame.filter(F.col("_batch_id") <= last).select(columns).write.format("delta").mode("append")
        writer = writer.option("mergeSchema", "true")
        writer = writer.option("txnAppId", place.app_id(self.query)).option("txnVersion", last)
        notes = {"router.released": self.query, "router.up_to_batch": last}
        writer.option("userMetadata", json.dumps(notes)).save(address)

    def _kinds(self) -> Iterator[tuple[str, pa.DataType | None]]:
        for column in self.came:
            to = self.table.get(column.name)
            fits = to is not None and merge(to, column.type) is not None
            yield column.name, within(to, column.type) if fits else None

    def _unfit(self) -> Column:
        """Return whether a row has what was not approved."""
        blank = self.of.config.decode.zero_is_absent
        found = []
        for name, kind in self._kinds():
            value, come = F.col(name), self.came.field(name).type
            if kind is None or kind != come:
                found.append(F.coalesce(lost(value, come, kind, blank=blank), F.lit(False)))
            if kind is not None and kind != come:
                found.append(F.coalesce(unfit(value, come, kind), F.lit(False)))
        return any_of(found)
