"""In which order the runs of a query began: records of a later run arrived later, whatever its batches are numbered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import functions as F

from router.delta.lake import native_files
from router.delta.table_cache import SparkTables
from router.engine.checkpoint_store import REPLAY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore

ORDINALS = "runs.json"
"""The file of the store with the ordinals of runs."""


def ordinal_of(
    store: CheckpointStore, lake: Lake, ledger: str, query: str, *, by_spark: SparkSession | None = None
) -> int:
    """Return how many runs of the query began before this one, and note it with the checkpoint.

    A new checkpoint over old tables begins a new run: its records arrive after all of those. What a replay reads and
    nobody has noted the arrival of came before all runs. With `by_spark` Spark reads the ledger, else delta-rs does.
    """
    if store.run.startswith(REPLAY):
        return -1
    noted: dict[str, int] = store.load(ORDINALS) or {}
    if store.run in noted:
        return noted[store.run]
    runs = _runs(lake, ledger, query) if by_spark is None else _runs_by_spark(by_spark, lake, ledger, query)
    earlier = {run for run in runs - {store.run} if not run.startswith(REPLAY)}
    ordinal = max(len(earlier), *(number + 1 for number in noted.values()), 0)
    store.write(ORDINALS, json.dumps({**noted, store.run: ordinal}).encode())
    return ordinal


def _runs(lake: Lake, ledger: str, query: str) -> set[str]:
    table = lake.open(ledger)
    if table is None:
        return set()
    rows = table.to_pyarrow_dataset(filesystem=native_files(table))
    runs: set[str] = set()
    for part in rows.to_batches(columns=["run"], filter=pc.field("query") == query):
        runs.update(run for run in pc.unique(part.column("run")).to_pylist() if run is not None)
    return runs


def _runs_by_spark(spark: SparkSession, lake: Lake, ledger: str, query: str) -> set[str]:
    rows = SparkTables(spark, lake).rows(ledger)
    if rows is None:
        return set()
    runs = rows.filter((F.col("query") == query) & F.col("run").isNotNull()).select("run").distinct()
    return {row["run"] for row in runs.collect()}
