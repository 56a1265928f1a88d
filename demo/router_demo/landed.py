"""Read what a lake holds, and watch the columns of its tables while they are written, as any reader could."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

BRONZE, DEAD = "bronze.game_events", "ops.dead_letters"
PLAYERS = "_players"
OWN_LAYERS = {"outbox", "quarantine"}
PROFILE_BRONZE, HISTORY = "bronze.gamer_profiles", "silver.profile_history"


class Landed:
    """What a Delta table of the lake holds now."""

    def __init__(self, name: str, path: Path) -> None:
        table = DeltaTable(str(path))
        adds = pa.table(table.get_add_actions())
        self.name, self.table = name, table
        self.files = len(adds)
        self.rows = sum(adds.column("num_records").to_pylist())
        self.bytes = sum(adds.column("size_bytes").to_pylist())
        self.columns = len(table.schema().fields)


def tables(lake: Path) -> dict[str, Landed]:
    """Return the tables of a lake by name, without those that the router keeps for itself."""
    logs = [log for log in sorted(lake.glob("[!_]*/*/_delta_log")) if log.parts[-3] not in OWN_LAYERS]
    found = (Landed(f"{log.parent.parent.name}.{log.parent.name}", log.parent) for log in logs)
    return {table.name: table for table in found}


def count(lake: Path, name: str) -> int:
    """Return the rows of a table, 0 where it is not there."""
    path = lake.joinpath(*name.split("."))
    return Landed(name, path).rows if DeltaTable.is_deltatable(str(path)) else 0


def players(lake: Path) -> Counter[str]:
    """Count the events that the view of players has, by game."""
    found = Counter[str]()
    for log in lake.glob(f"gold/*{PLAYERS}/_delta_log"):
        rows = DeltaTable(str(log.parent)).to_pyarrow_table(columns=["events"])
        found[log.parent.name.removesuffix(PLAYERS)] = pc.sum(rows.column("events")).as_py() or 0
    return found


def letters(dead: Landed) -> Counter[tuple[str, str]]:
    """Count dead letters by stage and reason."""
    found = dead.table.to_pyarrow_table(columns=["stage", "reason"])
    return Counter(zip(found.column("stage").to_pylist(), found.column("reason").to_pylist(), strict=True))


def schema_ids(bronze: Landed, dead: Landed) -> Counter[int]:
    """Count records that are no dead letters by their schema id: bronze keeps values as they came."""
    raw = bronze.table.to_pyarrow_table(columns=["partition", "offset", "value"]).combine_chunks()
    refused = dead.table.to_pyarrow_table(columns=["partition", "offset"])
    good = pa.array(~np.isin(_places(raw), _places(refused)))
    ids = pc.value_counts(pc.binary_slice(raw.column("value").filter(good), 1, 5))
    return Counter({int.from_bytes(one["values"].as_py(), "big"): one["counts"].as_py() for one in ids})


def levels(tables: dict[str, Landed]) -> dict[tuple[str, str], int]:
    """Return the level in each profile of the latest ones, by game and gamer."""
    found = {}
    for name, table in tables.items():
        if name.endswith("_profiles") and name != PROFILE_BRONZE:
            rows = table.table.to_pyarrow_table(columns=["game", "gamer_id", "level"]).to_pylist()
            found.update({(row["game"], row["gamer_id"]): row["level"] for row in rows})
    return found


def _places(records: pa.Table) -> NDArray[np.int64]:
    """Return one number per record, its partition and offset."""
    partition, offset = (np.asarray(records.column(name), np.int64) for name in ("partition", "offset"))
    return np.asarray(partition << 40 | offset, np.int64)


Grown = dict[str, list[str]]
"""Column -> the tables that gained it."""


class Growth:
    """The columns that tables gained, and when; times are those of the monotonic clock.

    `gained`: column -> table -> when it was seen there, and not before. The columns that a table begins with are not
    gained.
    """

    def __init__(self, lake: Path, tables: Iterable[str]) -> None:
        self._folders = {table: lake.joinpath(*table.split(".")) for table in tables}
        self._handles: dict[str, DeltaTable] = {}
        self._known: dict[str, set[str]] = {}
        self.gained: dict[str, dict[str, float]] = {}

    def look(self) -> Grown:
        """Return what tables gained since the last look."""
        grown: Grown = {}
        for table in self._folders:
            for column in self._new(table):
                grown.setdefault(column, []).append(table)
        now = time.monotonic()
        for column, tables in grown.items():
            self.gained.setdefault(column, {}).update(dict.fromkeys(tables, now))
        return grown

    def _new(self, table: str) -> list[str]:
        if table not in self._handles:
            if not DeltaTable.is_deltatable(str(self._folders[table])):
                return []
            handle = self._handles[table] = DeltaTable(str(self._folders[table]), version=0)
            self._known[table] = {field.name for field in handle.schema().fields}
        handle = self._handles[table]
        handle.update_incremental()
        new = [field.name for field in handle.schema().fields if field.name not in self._known[table]]
        self._known[table].update(new)
        return new
