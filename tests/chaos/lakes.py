"""Read a lake without Spark, in a form that can be compared with another lake."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

Rows = Counter[str]
"""A table as a multiset: the rows as JSON without nulls, and how often each is there."""
OF_A_RUN = ("run", "_query", "finished", "configuration")
"""Columns of the ledger that differ from run to run: another folder makes another configuration."""


def contents(lake: Path) -> dict[str, Rows]:
    """Return every table of a lake and every batch in a box, by name."""
    found = {table: rows(lake, table) for table in tables(lake)}
    box = lake.with_name("box")
    if box.exists():
        found["box"] = _multiset(pq.read_table(box).to_pylist())
    return found


def tables(lake: Path) -> list[str]:
    """Return the names of the Delta tables of a lake."""
    return sorted(f"{log.parent.parent.name}.{log.parent.name}" for log in lake.glob("*/*/_delta_log"))


def read(lake: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table; none where there is no such table yet."""
    address = lake / table.replace(".", "/")
    if not (address / "_delta_log").exists():
        return []
    return DeltaTable(address).to_pyarrow_table().to_pylist()


def rows(lake: Path, table: str) -> Rows:
    """Return a table as a multiset."""
    return _multiset(read(lake, table))


def _multiset(found: list[dict[str, Any]]) -> Rows:
    plain = ({key: value for key, value in row.items() if value is not None and key not in OF_A_RUN} for row in found)
    return Counter(json.dumps(row, sort_keys=True, default=str) for row in plain)


def differences(one: dict[str, Rows], other: dict[str, Rows]) -> list[str]:
    """Say table by table what one lake has and the other has not; nothing when they are equal."""
    found = []
    for table in sorted(one.keys() | other.keys()):
        have, want = one.get(table, Counter()), other.get(table, Counter())
        if more := have - want:
            found.append(f"{table}: {more.total()} rows too many, such as {next(iter(more))}")
        if less := want - have:
            found.append(f"{table}: {less.total()} rows missing, such as {next(iter(less))}")
    return found


def places(lake: Path, table: str = "bronze.events") -> Counter[tuple[int, int]]:
    """Return the partition and offset of every row of a table."""
    return Counter((row["partition"], row["offset"]) for row in read(lake, table))


def batches(lake: Path, table: str) -> set[int]:
    """Return the batches that a table has commits of."""
    log = lake / table.replace(".", "/") / "_delta_log"
    actions = (json.loads(line) for file in log.glob("*.json") for line in file.read_text().splitlines())
    return {action["txn"]["version"] for action in actions if "txn" in action}


def unreferenced(lake: Path) -> list[Path]:
    """Return the Parquet files in the folders of tables that no table refers to."""
    found: list[Path] = []
    for table in tables(lake):
        folder = lake / table.replace(".", "/")
        known = {Path(uri).name for uri in DeltaTable(folder).file_uris()}
        found += [file for file in folder.glob("*.parquet") if file.name not in known]
    return found


def uncommitted_files(lake: Path) -> list[Path]:
    """Return the staged files that no commit refers to."""
    found = []
    staged = *lake.glob("*/*/*.parquet"), *lake.glob("_staged/*/*/*.parquet")  # the latter with `commit: spark`
    for folder in {file.parent for file in staged}:
        known = set()
        if (folder / "_delta_log").exists():
            known = {name.rsplit("/", 1)[-1] for name in DeltaTable(folder).file_uris()}
        found += [file for file in folder.glob("*.parquet") if file.name not in known]
    return found
