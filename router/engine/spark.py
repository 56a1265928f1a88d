"""The spark engine: the same batch with Delta on Spark only, for storage and table features Python cannot reach.

The labelled frame is persisted; one aggregate counts it, one job per sink with tables named by data finds the names,
and a pool of threads appends each table. What `LandedFile` describes here is the share of a table in the batch: rows
and columns without a path. A batch that was cut off is decided again from the source, and Delta skips what it has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from router.delta.commit import LandedFile, TableCommit, to_arrow_schema
from router.delta.table_cache import THREADS
from router.engine.balance import KEYED
from router.engine.commit import widen
from router.engine.layout import BRONZE_SCHEMA, COORDINATES, DEAD_SCHEMA, RAW_COLUMNS, VERSIONS, WAITING, Layout, Target
from router.engine.ruled import going, narrowed, ruled, waited
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalake import DeltaTable

    from router.delta.lake import Lake
    from router.engine.layout import Ruling
    from router.engine.manifest import Manifest
    from router.engine.plan import Plan


@dataclass
class SparkEngine:
    """Count a batch, then append each table in a thread of its own."""

    spark: SparkSession
    lake: Lake
    query: str = ""
    held: DataFrame | None = None

    def land(self, planned: Plan, ruling: Ruling, batch: int) -> tuple[list[LandedFile], list[dict[str, Any]]]:
        """Persist and count the batch; nothing is written yet."""
        frame = self._hold(planned, ruling)
        counted = _counted(frame, planned.layout, ruling).collect()
        counts = [_counts(row.asDict(), planned.layout) for row in counted]
        files = [*self._shares(frame, planned.layout, counts)]
        return [file for file in files if file.rows], counts

    def discard(self, files: list[LandedFile]) -> None:
        """Forget a batch that is not committed; it wrote nothing."""
        self.release()

    def commit(
        self,
        planned: Plan,
        manifest: Manifest,
        handles: dict[str, DeltaTable | None],
        notes: dict[str, str],
        tell: Callable[[int], None],
    ) -> None:
        """Append every table in parallel; Delta skips those that have this batch."""
        frame = self._hold(planned, manifest.ruling)
        by_key = {target.key: target for target in planned.layout.all_targets}
        by_table: dict[str, list[tuple[DataFrame, TableCommit]]] = defaultdict(list)
        for work in manifest.commits:
            by_table[work.table].append((self._rows(frame, by_key.get(work.target), work), work))
        errors: list[TableError] = []
        with ThreadPoolExecutor(THREADS) as pool:
            waiting = {table: pool.submit(self._append_all, works, notes) for table, works in by_table.items()}
            for index, (table, future) in enumerate(waiting.items()):
                try:
                    future.result()
                except Exception as error:  # whatever Spark raises belongs to this table only
                    errors.append(TableError(table, f"the append failed: {error}"))
                tell(index + 1)
        if errors:
            raise errors[0]

    def events(self, planned: Plan, manifest: Manifest, target: Target, work: TableCommit) -> DataFrame:
        """Return the rows that a lane got in this batch."""
        return self._rows(self._hold(planned, manifest.ruling), target, work)

    def keeps(self, works: list[TableCommit]) -> bool:
        """Say whether the rows of decided commits can still be had as they were: only the source has them."""
        return not works

    def release(self) -> None:
        """Drop the persisted frame."""
        if self.held is not None:
            self.held.unpersist()
        self.held = None

    def _hold(self, planned: Plan, ruling: Ruling) -> DataFrame:
        if self.held is None:
            self.held = ruled(planned, ruling).persist(StorageLevel.MEMORY_AND_DISK)
        return self.held

    def _shares(self, frame: DataFrame, layout: Layout, counts: list[dict[str, Any]]) -> Iterator[LandedFile]:
        def share(target: str, table: str, rows: int, columns: list[str]) -> LandedFile:
            return LandedFile(target, table, "", 0, rows, tuple(columns), "")

        if layout.bronze:
            yield share("/bronze", layout.bronze, sum(count["read"] for count in counts), BRONZE_SCHEMA.names)
        yield share("/dead_letters", layout.dead_letters, sum(count["letters"] for count in counts), DEAD_SCHEMA.names)
        lanes = (lane for lane in layout.waiting if lane.goes in frame.columns)
        for target in (*layout.targets, *lanes):
            for table, rows, present in self._tables(frame, target, counts):
                every = [name for name in target.schema.names if name in present or not target.seen]
                yield share(target.key, table, rows, every)

    def _tables(
        self, frame: DataFrame, target: Target, counts: list[dict[str, Any]]
    ) -> Iterator[tuple[str, int, set[str]]]:
        """Return (table, rows, columns with a value) of a target; only named tables and `seen` need a job."""
        if target.table is not None and not target.seen:
            yield target.table, sum(count["landed"].get(target.key, 0) for count in counts), set()
            return
        fixed = set(target.schema.names) & {*WAITING, *VERSIONS, *COORDINATES} if target.lane else set()
        names = [name for name in target.schema.names if target.seen and name not in fixed]
        valued = [F.count(F.col(target.rows).getField(name)).alias(f"c{i}") for i, name in enumerate(names)]
        table, goes = going(target)
        grouped = frame.filter(goes).groupBy(table.alias("table")).agg(F.count(F.lit(1)).alias("rows"), *valued)
        for row in grouped.orderBy("table").collect():  # as many rows as tables, which `at_most` bounds
            present = {name for i, name in enumerate(names) if row[f"c{i}"]} or set(names[:1])
            yield row["table"], row["rows"], fixed | present

    def _rows(self, frame: DataFrame, target: Target | None, work: TableCommit) -> DataFrame:
        if target is None and work.target == "/bronze":
            return frame.select(*RAW_COLUMNS, F.lit(work.version).cast("long").alias("batch_id"))
        if target is None:
            letters = frame.filter(F.col("_dead").isNotNull()).select(*RAW_COLUMNS, F.explode("_dead").alias("_why"))
            return letters.select("_why.*", *RAW_COLUMNS, F.lit(work.version).cast("long").alias("batch_id"))
        goes = F.col(target.goes) if target.table else F.col(target.goes) == work.table
        return frame.filter(goes).select(*_columns(target, work, self.query))

    def _append_all(self, works: list[tuple[DataFrame, TableCommit]], notes: dict[str, str]) -> None:
        for rows, work in works:  # one after another: commits of one table get into each other's way
            self._append(rows, work, notes)

    def _append(self, rows: DataFrame, work: TableCommit, notes: dict[str, str]) -> None:
        address = self.lake.address(work.table)
        if work.widened:
            widen(self.spark.newSession(), address, work.widened)
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        writer = writer.option("txnAppId", work.app_id).option("txnVersion", work.version)
        writer.option("userMetadata", json.dumps(notes)).save(address)


def _columns(target: Target, work: TableCommit, query: str) -> list[Column]:
    told = {"_query": F.lit(query), "_batch_id": F.lit(work.version).cast("long"), "_table": F.col(waited(target))}
    told |= {new: F.col(old) for new, old in {**COORDINATES, **VERSIONS}.items()}
    found = []
    for column in to_arrow_schema(work.columns):
        if target.extra and target.struct(column.name) == target.extra:
            found.append(F.col(target.extra).getField(column.name).alias(column.name))
        elif target.lane and column.name in told:
            found.append(told[column.name].alias(column.name))
        else:
            kind = from_arrow_type(column.type, prefer_timestamp_ntz=True)
            value = narrowed(
                F.col(target.rows).getField(column.name), target.schema.field(column.name).type, column.type
            )
            found.append(value.cast(kind).alias(column.name))
    return found


def _counted(frame: DataFrame, layout: Layout, ruling: Ruling) -> DataFrame:
    def total(condition: Column) -> Column:
        return F.sum(condition.cast("long"))

    sums = {"first": F.min("offset"), "last": F.max("offset"), "read": F.count(F.lit(1))}
    sums |= {name: total(F.col(f"_{name}")) for name in ("failed", "bare", "unmatched")}
    if layout.wanted:
        sums["wanted"] = F.collect_set("_wanted")
    sums["letters"] = F.sum(F.when(F.col("_dead").isNull(), 0).otherwise(F.size("_dead")))
    for key, condition in _keyed(frame, layout, ruling):
        sums[key] = total(condition)
    for target in (target for target in layout.targets if target.names_in_lane):
        named = F.when(F.col(target.goes), F.col(target.struct("_table")).getField("_table"))
        sums[f"named:{target.key}"] = F.collect_set(named)
    return frame.groupBy("topic", "partition").agg(*[column.alias(name) for name, column in sums.items()])


def _keyed(frame: DataFrame, layout: Layout, ruling: Ruling) -> Iterator[tuple[str, Column]]:
    """Return the keyed counters as (kind:key, condition)."""
    for route in layout.routes:
        yield f"matched:{route.name}", F.col(route.matched)
        yield f"refused:{route.name}", F.col(route.refused)
        yield f"dropped:{route.name}", F.col(route.dropped)
        for kind, columns in (("warned", route.warned), ("failing", route.failing)):
            for name, column in columns.items():
                yield f"{kind}:{route.name}/{name}", F.col(column)
        for target in route.targets:
            _, goes = going(target)
            yield f"landed:{target.key}", F.coalesce(goes, F.lit(False))
            turned = F.col(target.misnamed) if target.misnamed else F.lit(False)
            ruled = f"_turned_{target.goes}"
            yield f"turned:{target.key}", turned | F.col(ruled) if ruled in frame.columns else turned
            if (frozen := f"_frozen_{target.goes}") in frame.columns:
                yield f"frozen:{target.key}", F.col(frozen)
            if target.waits and target.waits.goes in frame.columns:
                yield from _waiting(frame, target, target.waits, ruling)


def _waiting(frame: DataFrame, target: Target, lane: Target, ruling: Ruling) -> Iterator[tuple[str, Column]]:
    yield f"landed:{lane.key}", F.col(lane.goes)
    if (turned := f"_turned_{lane.goes}") in frame.columns:
        yield f"turned:{lane.key}", F.col(turned)
    for name, _ in target.ruled(ruling.frozen):
        yield f"waiting:{target.place(name)}", F.coalesce(F.col(waited(lane)) == name, F.lit(False))


def _counts(row: dict[str, Any], layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = {kind: {} for kind in (*KEYED, "named")}
    for name, value in row.items():
        kind, _, key = name.partition(":")
        if not key:
            found[name] = value
        elif value:
            found[kind][key] = value
    return found
