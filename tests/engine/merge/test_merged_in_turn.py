"""Keyed tables that both engines merge in turn, against the plain model of `tests.delta`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from router.delta.parquet_writer import Staging
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes
from router.engine.merge.delta_spark import SparkMerger, TableMerge
from tests.delta.histories import APP, KINDS, TABLE, Histories, killed
from tests.kills import CrashError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.api.sinks import KeyedTable


class Shared(Histories):
    """Take batches with one engine or the other."""

    spark: SparkSession
    by_spark = True

    @rule(by_spark=st.booleans())
    def the_engine_changes(self, by_spark: bool) -> None:
        self.by_spark = by_spark

    def _cut_off(self, patch: pytest.MonkeyPatch) -> None:
        super()._cut_off(patch)
        patch.setattr(TableMerge, "_remember_deletions", killed)

    def _upsert(self, batch: int) -> Any:
        if not self.by_spark:
            return super()._upsert(batch)
        landing = Staging(self.lake, file_bytes=1 << 30, buffer_bytes=1 << 30)
        job = MergeJob(landing, self.keyed, APP, batch, "route", "upsert", "ops.dead", {})
        rows = self.batches[batch]
        events = self.spark.createDataFrame(rows.append_column("_table", pa.array([TABLE] * len(rows))))
        found = MergeOutcomes()
        SparkMerger(self.spark, self.lake, job).merge_tables(events, found)
        if found.failed:
            assert "killed" in found.failed[TABLE], found.failed
            raise CrashError
        refused = range(found.counts.pop("refused"))
        return SimpleNamespace(**found.counts, refused=refused)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("keyed", KINDS.values(), ids=KINDS)
def test_a_table_is_what_its_records_say_whoever_merges_it(spark: SparkSession, keyed: KeyedTable) -> None:
    """Without it a table that is handed from one engine to the other gets a state that nobody ever sent."""
    machine = type("Machine", (Shared,), {"keyed": keyed, "spark": spark})
    few = settings(max_examples=4, stateful_step_count=6, suppress_health_check=list(HealthCheck), deadline=None)

    run_state_machine_as_test(machine, settings=few)
