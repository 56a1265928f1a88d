"""Which engine writes a keyed table, and why: delta-rs where it can, which is quick, else Delta on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from router.delta.commit import unsupported

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.keyed import Keyed

LARGE = 4 << 30
"""Bytes of a table that one task may have to rewrite in one merge: above, Spark does it in many. delta-rs took 25 s for
0.9 GB whose every file was touched, on two cores that were busy otherwise."""
KEPT = {"partitioning", "notNull", "invariants"}
"""What keeps files from being adopted, but not rows from being merged."""
MADE = (
    *("delta.checkpoint.", "delta.checkpointInterval", "delta.dataSkipping", "delta.autoOptimize."),
    *("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.enableExpiredLogCleanup"),
    *("delta.enableChangeDataFeed", "delta.randomizeFilePrefixes"),
)
"""What the properties begin with that delta-rs makes a table with and keeps. Of some others it notes the name only."""


class NeedsSpark(Exception):  # noqa: N818 - an answer, no error
    """Say why delta-rs cannot merge into a table."""


@dataclass(frozen=True)
class Choice:
    """Be an engine, and why it is the one."""

    engine: Literal["arrow", "spark"]
    why: str


def choice(table: DeltaTable | None, keyed: Keyed) -> Choice:
    """Return who writes a table, or makes it where there is none. What a table needs counts more than a wish."""
    if keyed.engine == "spark":
        return Choice("spark", "the engine is given")
    if table is None:
        needs = _made_by_spark(keyed)
    else:
        needs = f"it has {', '.join(sorted(features))}" if (features := refused(table)) else ""
    if needs:
        return Choice("spark", needs)
    if keyed.engine == "arrow":
        return Choice("arrow", "the engine is given")
    size = stored(table) if table else 0
    if size > LARGE:
        return Choice("spark", f"it has more than {LARGE >> 30} GiB")
    return Choice("arrow", f"it has no feature that delta-rs lacks, and at most {LARGE >> 30} GiB")


def _made_by_spark(keyed: Keyed) -> str:
    if keyed.cluster_by:
        return "it is to be clustered"
    beyond = sorted(name for name in keyed.properties if not name.startswith(MADE))
    return f"it is to have {', '.join(beyond)}" if beyond else ""


def refused(table: DeltaTable) -> set[str]:
    """Return the features of a table that keep delta-rs from merging into it."""
    read = {"deletionVectors"} & set(table.protocol().reader_features or ())
    return (unsupported(table) | read) - KEPT


def stored(table: DeltaTable) -> int:
    """Return the bytes of the files that a table has."""
    actions: Any = pa.table(table.get_add_actions())
    return sum(actions.column("size_bytes").to_pylist())
