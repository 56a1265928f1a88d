"""Check the properties that a sink's tables are to have. Needs no Spark.

https://docs.delta.io/latest/table-properties.html
"""

from __future__ import annotations

import re
from difflib import get_close_matches

FLAG = re.compile(r"true|false")
NUMBER = re.compile(r"-?[0-9]{1,18}")
TIME = re.compile(r"interval [0-9]{1,6} (second|minute|hour|day|week)s?")
TEXT = re.compile(r".+")
KNOWN = {
    "delta.autoOptimize.autoCompact": FLAG,
    "delta.autoOptimize.optimizeWrite": FLAG,
    "delta.checkpoint.writeStatsAsJson": FLAG,
    "delta.checkpoint.writeStatsAsStruct": FLAG,
    "delta.checkpointInterval": NUMBER,
    "delta.columnMapping.mode": re.compile(r"none|name"),
    "delta.dataSkippingNumIndexedCols": NUMBER,
    "delta.dataSkippingStatsColumns": TEXT,
    "delta.deletedFileRetentionDuration": TIME,
    "delta.enableChangeDataFeed": FLAG,
    "delta.enableDeletionVectors": FLAG,
    "delta.enableExpiredLogCleanup": FLAG,
    "delta.enableInCommitTimestamps": FLAG,
    "delta.enableRowTracking": FLAG,
    "delta.enableTypeWidening": FLAG,
    "delta.logRetentionDuration": TIME,
    "delta.randomizeFilePrefixes": FLAG,
}
REFUSED = {
    "delta.checkpointPolicy": "both engines write classic checkpoints only; take it away",
    "delta.appendOnly": "rows of a keyed table change; take the property away",
    "delta.setTransactionRetentionDuration": "transaction ids keep a batch from being merged twice; take it away",
}
"""What works against a keyed table, and why."""


def check_property(name: str, value: str) -> str:
    """Return the value of a property that a keyed table can have; raise ValueError with what to write instead.

    What does not begin with `delta.` is a note of yours.
    """
    if not name.startswith("delta."):
        return value
    if name in REFUSED and value not in ("false", "classic"):
        raise ValueError(f"{name}: {REFUSED[name]}")
    if name.startswith("delta.constraints."):
        raise ValueError(f"{name}: a CHECK is added when the table is there: ALTER TABLE ... ADD CONSTRAINT")
    if name not in KNOWN and name not in REFUSED:
        near = get_close_matches(name, KNOWN, n=1)
        raise ValueError(f"{name}: Delta knows no such property{f'; did you mean {near[0]}?' if near else ''}")
    if name in KNOWN and not KNOWN[name].fullmatch(value):
        raise ValueError(f"{name}: {value!r} is not a value of it; {_form(KNOWN[name])}")
    return value


def _form(kind: re.Pattern[str]) -> str:
    forms = {FLAG: "write true or false", NUMBER: "write a number", TIME: "write a time: interval 7 days"}
    return forms.get(kind, f"write {kind.pattern.replace('|', ' or ')}")
