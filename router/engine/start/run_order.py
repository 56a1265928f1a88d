"""The order in which the runs of a lake began: records of a later run arrived later, whatever their batches are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import functions as F

from router.delta.dataset import dataset_of
from router.delta.table_cache import SparkTables
from router.engine.checkpoint_store import REPLAY_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore


def ordinal_of(store: CheckpointStore, lake: Lake, ledger: str, *, by_spark: SparkSession | None = None) -> int:
    """Return how many runs began before this one, by the ledger, and note it with the checkpoint.

    A new checkpoint, or a new name, over old tables begins a new run: its records arrive after all of those. Records of
    a replay whose arrival was not noted came before all runs. With `by_spark` Spark reads the ledger, else delta-rs
    does.
    """
    if store.run.startswith(REPLAY_PREFIX):
        return -1
    ordinals = store.read_note().runs
    if store.run in ordinals:
        return ordinals[store.run]
    runs = _read_ledger_runs(lake, ledger, by_spark) - {store.run}
    earlier = [run for run in runs if not run.startswith(REPLAY_PREFIX)]
    # A run without rows is noted and not in the ledger, one of a former checkpoint the other way round.
    ordinal = max(len(earlier), max(ordinals.values(), default=-1) + 1)
    store.change_note(runs={**ordinals, store.run: ordinal})
    return ordinal


def _read_ledger_runs(lake: Lake, ledger: str, by_spark: SparkSession | None) -> set[str]:
    """Return the runs that the ledger has, of all queries: several may merge into one table."""
    if by_spark is not None:
        return _runs_by_spark(by_spark, lake, ledger)
    table = lake.open(ledger)
    if table is None:
        return set()
    rows = dataset_of(table)
    runs: set[str] = set()
    for part in rows.to_batches(columns=["run"]):
        runs.update(pc.unique(part.column("run")).drop_null().to_pylist())
    return runs


def _runs_by_spark(spark: SparkSession, lake: Lake, ledger: str) -> set[str]:
    rows = SparkTables(spark, lake).read_rows(ledger)
    if rows is None:
        return set()
    runs = rows.filter(F.col("run").isNotNull()).select("run").distinct()
    return {row["run"] for row in runs.collect()}
