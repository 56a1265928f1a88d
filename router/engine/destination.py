"""What the rows of a batch are for: the choices in which a stream, a replay, a backfill and a rebuild differ.

Everything else is the way of every batch: `BatchDecider` lands its records and decides, `Batches` carries that out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from router.engine import ledger
from router.engine.balance import BRONZE, imbalances, keyed

if TYPE_CHECKING:
    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import Manifest
    from router.engine.decision import BatchDecision
    from router.engine.label.layout import Layout
    from router.engine.label.planner import Plan
    from router.engine.land.job import Landed
    from router.engine.steps import Steps
    from router.sinks import Applied


@dataclass(frozen=True)
class CarriedOut:
    """A batch that is in the ledger: what sinks did, by ROUTE/SINK, and the tables that got rows.

    `blocked` says by place (ROUTE/SINK/TABLE) why others cannot be written.
    """

    manifest: Manifest
    plan: Plan
    applied: dict[str, Applied]
    tables: set[str]
    blocked: dict[str, str]


@dataclass
class Destination:
    """A destination that takes every row of its batch, and after which nothing follows; `run` is the run of the batch.

    `limits_names`: a sink may make only so many tables (`at_most`). `resends`: sinks have had the rows before, and get
    them under the name of the run.
    """

    limits_names: ClassVar[bool] = True
    resends: ClassVar[bool] = False

    config: Config
    run: str

    def faults(self, layout: Layout, landed: Landed, counted: tuple[Partition, ...]) -> list[str]:
        """Return why a batch must not be committed: expectations that say `fail`, else what does not balance."""
        violated = keyed(counted, "violated")
        failing = [f"{route.name}/{name}" for route in layout.routes for name in route.failing]
        failing += [f"{BRONZE}/{name}" for name in layout.bronze_failing]
        named = [f"{key.removeprefix('/')} on {violated[key]} rows" for key in sorted(failing) if violated[key]]
        if named:
            return [f"expectations do not hold: {', '.join(named)}"]
        wrong = imbalances(layout, counted, landed.files, self.config.unmatched == "dead_letters")
        return [f"the batch does not balance: {'; '.join(wrong)}"] if wrong else []

    def faults_of_failed_files(self, landed: Landed) -> list[str]:
        """Return why a batch must stop if files of some tables could not be staged; without a reason these wait."""
        return []

    def faults_of_decision(self, decision: BatchDecision, batch: int) -> list[str]:
        """Return why a batch that is decided must not be committed after all."""
        return []

    def chosen(self, decision: BatchDecision, batch: int) -> tuple[TableCommit, ...]:
        """Return what is to be committed of a decision; staged files of other rows are deleted.

        Raises StartError if nothing of it may be.
        """
        return decision.commits

    def ledger_rows(self, manifest: Manifest, applied: dict[str, Applied]) -> list[dict[str, Any]]:
        """Return what the ledger says of a batch."""
        about = self.config.name, self.run
        rows = ledger.rows(*about, manifest.batch, manifest.targets, manifest.partitions, applied)
        rows += ledger.of_moved(*about, manifest)
        return [{**row, "configuration": manifest.config} for row in rows]

    def follow(self, done: CarriedOut, steps: Steps) -> None:
        """Do what follows once a batch is in the ledger."""

    def close(self, *, finish: bool = False) -> None:
        """End what runs beside the batches; with `finish` what is due is done first."""
