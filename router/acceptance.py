"""What a run refuses unless a person accepts it: the kinds of `router run --accept`, each with what follows from it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

Accept = Literal[
    "lost-checkpoint",
    "lost-lake",
    "lost-records",
    "lost-tables",
    "duplicates",
    "dead-letters",
    "gone-sinks",
]
Accepted = AbstractSet[Accept]

CONSEQUENCES: dict[Accept, str] = {
    "lost-checkpoint": "continue where the ledger ends",
    "lost-lake": "continue after the checkpoint, without what the tables had",
    "lost-records": "continue after records that the topic does not have any more",
    "lost-tables": "continue with tables as they are, without the batches that they lack",
    "duplicates": "take or send everything again",
    "dead-letters": "let one batch with too many dead letters pass",
    "gone-sinks": "leave rows that wait for a removed sink where they are",
}
