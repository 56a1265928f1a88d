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

BRONZE = "bronze.game_events"
DEAD = "ops.dead_letters"
PLAYERS = "_players"
OWN_LAYERS = {"outbox", "quarantine"}
PROFILE_BRONZE = "bronze.gamer_profiles"
HISTORY = "silver.profile_history"


class Landed:
    """What a Delta table of the lake holds now."""

    def __init__(self, name: str, path: Path) -> None:
        table = DeltaTable(str(path))
        adds = pa.table(table.get_add_actions())
        self.name = name
        self.table = table
        self.files = len(adds)
        self.rows: int = sum(adds.column("num_records").to_pylist())
        self.bytes = sum(adds.column("size_bytes").to_pylist())
        self.columns = len(table.schema().fields)


def tables(lake: Path) -> dict[str, Landed]:
    """Return the tables of a lake by name, without those that the router keeps for itself."""
    tables = {}
    for log in sorted(lake.glob("[!_]*/*/_delta_log")):
        folder = log.parent
        layer = folder.parent.name
        if layer in OWN_LAYERS:
            continue
        name = f"{layer}.{folder.name}"
        tables[name] = Landed(name, folder)
    return tables


def count(lake: Path, name: str) -> int:
    """Return the rows of a table, 0 if it is not there."""
    path = lake.joinpath(*name.split("."))
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    return Landed(name, path).rows


def players(lake: Path) -> Counter[str]:
    """Count the events that the view of players has, by game."""
    counts = Counter[str]()
    for log in lake.glob(f"gold/*{PLAYERS}/_delta_log"):
        folder = log.parent
        rows = DeltaTable(str(folder)).to_pyarrow_table(columns=["events"])
        game = folder.name.removesuffix(PLAYERS)
        counts[game] = pc.sum(rows.column("events")).as_py() or 0
    return counts


def letters(dead: Landed) -> Counter[tuple[str, str]]:
    """Count dead letters by stage and reason."""
    rows = dead.table.to_pyarrow_table(columns=["stage", "reason"])
    stages = rows.column("stage").to_pylist()
    reasons = rows.column("reason").to_pylist()
    return Counter(zip(stages, reasons, strict=True))


def schema_ids(bronze: Landed, dead: Landed) -> Counter[int]:
    """Count records that are no dead letters by their schema id: bronze keeps values as they came."""
    raw = bronze.table.to_pyarrow_table(columns=["partition", "offset", "value"]).combine_chunks()
    refused = dead.table.to_pyarrow_table(columns=["partition", "offset"])
    is_good = pa.array(~np.isin(_record_places(raw), _record_places(refused)))
    good_values = raw.column("value").filter(is_good)
    # Wire format of a registry: a zero byte, then the id in four bytes, the highest first.
    ids = pc.binary_slice(good_values, 1, 5)
    counts: Counter[int] = Counter()
    for id_count in pc.value_counts(ids):
        schema_id = int.from_bytes(id_count["values"].as_py(), "big")
        counts[schema_id] = id_count["counts"].as_py()
    return counts


def levels(tables: dict[str, Landed]) -> dict[tuple[str, str], int]:
    """Return the level in each profile of the latest ones, by game and gamer."""
    levels = {}
    for name, table in tables.items():
        if not name.endswith("_profiles") or name == PROFILE_BRONZE:
            continue
        rows = table.table.to_pyarrow_table(columns=["game", "gamer_id", "level"])
        for row in rows.to_pylist():
            levels[row["game"], row["gamer_id"]] = row["level"]
    return levels


def _record_places(records: pa.Table) -> NDArray[np.int64]:
    """Return one number per record, its partition and offset."""
    partition = np.asarray(records.column("partition"), np.int64)
    offset = np.asarray(records.column("offset"), np.int64)
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
            for column in self._new_columns(table):
                grown.setdefault(column, []).append(table)
        now = time.monotonic()
        for column, tables in grown.items():
            self.gained.setdefault(column, {}).update(dict.fromkeys(tables, now))
        return grown

    def _new_columns(self, table: str) -> list[str]:
        """Return the columns that a table gained since the last look."""
        if table not in self._handles:
            folder = str(self._folders[table])
            if not DeltaTable.is_deltatable(folder):
                return []
            # From the first version on: the columns of any later one may be gained ones.
            handle = DeltaTable(folder, version=0)
            self._handles[table] = handle
            self._known[table] = {field.name for field in handle.schema().fields}
        handle = self._handles[table]
        handle.update_incremental()
        new_columns = [field.name for field in handle.schema().fields if field.name not in self._known[table]]
        self._known[table].update(new_columns)
        return new_columns
