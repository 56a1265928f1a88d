"""A lake as a run leaves it, written without Spark: batches of bronze, games and big wins, with their manifests."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from router.delta.commit import TableCommit, commit_files, to_delta
from router.delta.file_statistics import statistics_json
from router.delta.lake import Lake
from router.delta.staged_files import StagedFile
from router.engine import ledger
from router.engine.balance import Partition
from router.engine.checkpoint_store import CheckpointStore, Manifest
from router.engine.commit.committers import Committers
from router.engine.label.layout import quarantine_of
from router.storage.locations import Location

TEXT = """\
name: games
lake: {lake}
source: {{kafka: {{servers: "127.0.0.1:9092", topics: [events]}}}}
decode: {{json: "game string, id int, amount double"}}
bronze: bronze.events
routes:
  - name: all
    match: {{sql: "event.game IS NOT NULL"}}
    sinks: [{{tables: {tables}}}]
  - name: wins
    match: {{sql: "event.amount > 9"}}
    sinks: [{{delta: gold.wins}}]
dead_letters: ops.dead
"""
QUERY = "games:run-1"
GAMES = ("uno", "go", "rummy", "poker", "euchre")
ROW = pa.schema([("game", pa.string()), ("id", pa.int32()), ("amount", pa.float64())])


@dataclass
class WrittenLake:
    """The lake in a folder, and the configuration in a file beside it."""

    folder: Path
    taken: int = 0
    games: str | None = None
    """Where the tables of games lie, when it is not in the lake's layout."""
    rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        locations = (Location("silver.{event.game}", self.games),) if self.games else ()
        self.lake = Lake.at(str(self.folder / "lake"), None, locations)
        self.file = self.folder / "games.yaml"
        tables = {"table": "silver.{event.game}", **({"location": self.games} if self.games else {})}
        self.file.write_text(TEXT.format(lake=self.lake.root, tables=json.dumps(tables)))
        self.lake.write("_router/games/spark/metadata", b'{"id": "run-1"}')
        self.checkpoint = Lake.at(f"{self.lake.root}/_router/games")
        self.store = CheckpointStore(self.checkpoint, "run-1")

    def take(self, batches: int = 1, kept: int = 100, blocked: tuple[str, ...] = ()) -> WrittenLake:
        """Write batches, each with as many rows for every game as its number plus one; keep the last manifests.

        The rows for tables that are `blocked` go to the quarantine after the manifest.
        """
        for batch in range(self.taken, self.taken + batches):
            self._take(batch, blocked)
            if batch >= kept:
                self.store.delete(f"manifests/run-1/{batch - kept:010d}.json")
        self.taken += batches
        return self

    def path(self, table: str) -> Path:
        return Path(self.lake.address(table))

    def open(self, table: str) -> DeltaTable:
        return DeltaTable(self.path(table))

    def logs(self, table: str) -> list[Path]:
        return sorted((self.path(table) / "_delta_log").glob("*.json"))

    def _take(self, batch: int, blocked: tuple[str, ...]) -> None:
        each = batch + 1
        games = {f"silver.{game}": ("all/tables", each) for game in GAMES}
        read = each * len(GAMES)
        commits = [self._staged(target, table, rows, batch) for table, (target, rows) in games.items()]
        commits += [
            self._staged("/bronze", "bronze.events", read, batch),
            self._staged("wins/delta", "gold.wins", 2, batch),
        ]
        counts: dict[str, Any] = {"matched": {"all": read, "wins": 2}, "landed": {"all/tables": read, "wins/delta": 2}}
        none: dict[str, Any] = {name: {} for name in ("refused", "dropped", "violated", "rejected")}
        part = Partition("events", 0, batch * 100, batch * 100 + read - 1, read, 0, 0, 0, **counts, **none)
        manifest = Manifest(batch, "fingerprint", ("all/tables", "wins/delta"), tuple(commits), (part,))
        moved = {work.note_key: "it takes no rows" for work in commits if work.table in blocked}
        manifest = replace(manifest, quarantined=moved)
        self.store.write_manifest(manifest)
        for work in commits:
            if work.note_key in moved:
                self._move(work)
            else:
                commit_files(self.lake, work, manifest.commit_notes(QUERY))
        found = ledger.rows_of_batch("games", "run-1", batch, manifest.targets, (part,), {})
        found += ledger.of_moved("games", "run-1", manifest)
        committers = Committers(self.lake, None)  # type: ignore[arg-type] # no table here needs Spark
        ledger.append(committers, ledger.LedgerEntry("ops.ledger", f"{QUERY}/ledger", batch), found)
        self.lake.write(f"_router/games/spark/commits/{batch}", json.dumps({}).encode())

    def _move(self, work: TableCommit) -> None:
        """Put the rows of a commit into the quarantine, under its transaction id there."""
        rows = pa.concat_tables(pq.read_table(self.path(work.table) / Path(file.path).name) for file in work.files)
        for name in ("_table", "_query", "_cause"):
            rows = rows.append_column(name, pa.array([work.table] * len(rows)))
        rows = rows.append_column("_batch_id", pa.array([work.version] * len(rows)))
        once = CommitProperties(app_transactions=[Transaction(f"{work.app_id}/quarantine", work.version)])
        route, sink = work.target.split("/")
        table = self.path(quarantine_of("games", route, sink))
        write_deltalake(table, rows, mode="append", commit_properties=once)

    def _staged(self, target: str, table: str, rows: int, batch: int) -> TableCommit:
        folder, name = self.path(table), table.partition(".")[2]
        self.lake.note_location(table)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{batch:010d}-0.parquet"
        content = pa.table({"game": [name] * rows, "id": range(rows), "amount": [10.0] * rows}, schema=ROW)
        pq.write_table(content, path)
        footer = pq.read_metadata(path)
        about = (
            f"{table.replace('.', '/')}/{path.name}",
            path.stat().st_size,
            rows,
            tuple(ROW.names),
            statistics_json(footer),
        )
        app_id = f"{QUERY}{'' if target.startswith('/') else '/'}{target}/{table}"
        return TableCommit(target, table, app_id, batch, (StagedFile(target, table, *about),), to_delta(ROW))
