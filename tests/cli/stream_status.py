"""A stream whose status is asked for: its configuration, and what its ledger has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from click.testing import Result
from deltalake import write_deltalake

from router.engine.ledger import SCHEMA as LEDGER

RunStatus = Callable[..., Result]


TEXT = """\
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "game string"}
routes:
  - {name: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{delta: silver.games}, {delta: silver.more}]}
dead_letters: ops.dead
ui: {address: "127.0.0.1:1"}
"""


def write_ledger(*rows: dict[str, Any], hours_ago: float = 1.0, number: int = 3) -> None:
    """Write the rows of a batch into the ledger."""
    finished = datetime.now(timezone.utc) - timedelta(hours=hours_ago)
    whole = {**dict.fromkeys(LEDGER.names), "query": "games", "run": "r", "batch_id": number, "finished": finished}
    write_deltalake("lake/ops/ledger", pa.Table.from_pylist([{**whole, **row} for row in rows], LEDGER), mode="append")


def read_counts(count: int) -> dict[str, Any]:
    """Return the row of the ledger for one topic and partition, of which two records failed."""
    source = {"topic": "t", "partition": 0, "from_offset": 0, "to_offset": count - 1}
    return {**source, "read": count, "decoded": count - 2, "failed": 2, "unmatched": 1}
