"""The destination of a batch's rows: the choices in which a stream, a replay, a backfill and a rebuild differ.

All else is the same for every batch: `BatchDecider` lands its records and decides, `Batches` carries the decision out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from router.engine import ledger
from router.engine.balance import find_imbalances, sum_by_key
from router.own_names import BRONZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.api.sinks import Applied
    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.engine.balance import Partition
    from router.engine.batch_decision import BatchDecision
    from router.engine.checkpoint_store import Manifest
    from router.engine.commit.committers import Committer
    from router.engine.label.layout import Layout
    from router.engine.label.planner import Plan
    from router.engine.land.job import Landed
    from router.engine.steps import Steps


@dataclass(frozen=True)
class CarriedOut:
    """A batch that is in the ledger: the counts of its sinks, by ROUTE/SINK, and the tables that got rows.

    `blocked` has by place (ROUTE/SINK/TABLE) why other tables cannot be written, `merged` the tables that sinks merged
    into, each with its sink, and `committed_by` what wrote a table.
    """

    manifest: Manifest
    plan: Plan
    applied: dict[str, Applied]
    tables: set[str]
    blocked: dict[str, str]
    merged: Mapping[str, str]
    committed_by: Mapping[str, Committer]


@dataclass
class Destination:
    """A destination that takes every row of its batch and does nothing afterwards. `run` is the run of the batch.

    `limits_names`: a sink may make only so many tables (`at_most`). `resends`: sinks have had the rows before, and get
    them under the name of the run.
    """

    limits_names: ClassVar[bool] = True
    resends: ClassVar[bool] = False

    config: Config
    run: str

    def faults_of_counts(self, layout: Layout, landed: Landed, counted: tuple[Partition, ...]) -> list[str]:
        """Return why a batch must not be committed: violated expectations with `fail`, else what does not balance."""
        failing = [f"{BRONZE}/{name}" for name in layout.bronze_failing]
        for route in layout.routes:
            failing += [f"{route.name}/{name}" for name in route.failing]
        violated = sum_by_key(counted, "violated")
        broken = [f"{key.removeprefix('/')} on {violated[key]} rows" for key in sorted(failing) if violated[key]]
        if broken:
            return [f"expectations do not hold: {', '.join(broken)}"]

        sentences = find_imbalances(layout, counted, landed.files, self.config.unmatched == "dead_letters")
        if sentences:
            return [f"the batch does not balance: {'; '.join(sentences)}"]
        return []

    def faults_of_failed_files(self, landed: Landed) -> list[str]:
        """Return why a batch must stop if files of some tables could not be staged.

        Without a reason the rows of these tables are quarantined.
        """
        return []

    def faults_of_tables(self, refused: tuple[str, ...]) -> tuple[str, ...]:
        """Return why a batch must stop if tables must not change that would have to, with a sentence for each."""
        return refused

    def faults_of_decision(self, decision: BatchDecision, batch: int) -> list[str]:
        """Return why a decided batch must still not be committed."""
        return []

    def choose_commits(self, decision: BatchDecision, batch: int) -> tuple[TableCommit, ...]:
        """Return the commits of a decision that are to be made; delete the staged files of the others.

        Raises StartError if none of them may be made.
        """
        return decision.commits

    def ledger_rows(self, manifest: Manifest, applied: dict[str, Applied]) -> list[dict[str, Any]]:
        """Return the rows of the ledger about a batch."""
        rows = ledger.rows_of_batch(
            self.config.name,
            self.run,
            manifest.batch,
            targets=manifest.targets,
            counted=manifest.partitions,
            applied=applied,
        )
        rows += ledger.of_moved(self.config.name, self.run, manifest)
        for row in rows:
            row["configuration"] = manifest.config
            if row.get("route") is None:
                row["topic_id"] = manifest.topic_ids.get(row.get("topic", ""))
        return rows

    def follow(self, done: CarriedOut, steps: Steps) -> None:
        """Do what comes after a batch is in the ledger."""

    def close(self, *, finish: bool = False) -> None:
        """End what runs while the batches do; with `finish` do first what is due."""
