"""What is decided about the staged rows of a batch before anything refers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router.delta.commit import TableCommit
    from router.engine.balance import Partition
    from router.engine.label.planner import Plan
    from router.engine.land.job import Landed


@dataclass(frozen=True)
class BatchDecision:
    """How the staged rows of a batch go into tables; nothing refers to its files yet.

    `partitions` are its counts; `tables` are those that were opened to decide.
    """

    plan: Plan
    landed: Landed
    partitions: tuple[Partition, ...]
    commits: tuple[TableCommit, ...]
    tables: dict[str, Any]
