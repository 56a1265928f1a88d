"""In which order the runs of a query began: records of a later run arrived later, whatever its batches are numbered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from router.delta.lake import native_files
from router.engine.checkpoint_store import REPLAY

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore

ORDINALS = "runs.json"
"""The file of the store with the ordinals of runs."""


def ordinal_of(store: CheckpointStore, lake: Lake, ledger: str, query: str) -> int:
    """Return how many runs of the query began before this one, and note it with the checkpoint.

    A new checkpoint over old tables begins a new run: its records arrive after all of those. What a replay reads and
    nobody has noted the arrival of came before all runs.
    """
    if store.run.startswith(REPLAY):
        return -1
    noted: dict[str, int] = store.load(ORDINALS) or {}
    if store.run in noted:
        return noted[store.run]
    table = lake.open(ledger)
    earlier = _runs(table, query) - {store.run} if table is not None else set()
    ordinal = max(len(earlier), *(number + 1 for number in noted.values()), 0)
    store.write(ORDINALS, json.dumps({**noted, store.run: ordinal}).encode())
    return ordinal


def _runs(ledger: DeltaTable, query: str) -> set[str]:
    rows = ledger.to_pyarrow_dataset(filesystem=native_files(ledger))
    runs: set[str] = set()
    for part in rows.to_batches(columns=["run"], filter=pc.field("query") == query):
        runs.update(run for run in pc.unique(part.column("run")).to_pylist() if run is not None)
    return {run for run in runs if not run.startswith(REPLAY)}
