"""Refuse a start that would lose or duplicate records: a second run, a lost checkpoint, a lost lake."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable

from router.delta.lake import Lake
from router.engine.source import Offsets
from router.errors import StartError


@contextmanager
def alone(checkpoint: str, name: str) -> Iterator[None]:
    """Hold the lock of a checkpoint; raise StartError while another run holds it. A killed run leaves no lock.

    Runs on the driver. A checkpoint in an object store has no lock; there Spark's own check of the commit log stops
    the second run at its first batch.
    """
    if "://" in checkpoint:
        yield
        return
    path = Path(checkpoint) / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"{name} is running already: its checkpoint {checkpoint} is locked; stop that run, or give this one "
                "another name and checkpoint"
            ) from None
        yield


@dataclass(frozen=True)
class Checkpoint:
    """Be what a Spark checkpoint says of its past: the query's id and whether any batch was committed."""

    run: str | None
    committed: bool

    @classmethod
    def read(cls, folder: str) -> Checkpoint:
        """Read a local checkpoint folder; nothing is known of one in an object store."""
        if "://" in folder:
            return cls(None, committed=False)
        metadata = Path(folder) / "metadata"
        run = json.loads(metadata.read_text())["id"] if metadata.exists() else None
        return cls(run, committed=any((Path(folder) / "commits").glob("[0-9]*")))


def examine(lake: Lake, ledger: str, name: str, checkpoint: Checkpoint) -> None:
    """Raise StartError where lake and checkpoint do not belong together.

    A checkpoint without its lake would go on after records that are nowhere any more; a lake without its checkpoint
    would get them all again.
    """
    table = lake.open(ledger)
    if checkpoint.committed:
        if table is None or table.transaction_version(f"{name}:{checkpoint.run}/ledger") is None:
            raise StartError(
                f"the checkpoint of {name} has committed batches, but {ledger} in {lake.root} has none of them: the "
                "lake was deleted or moved. Restore it; or delete the checkpoint too and fill the lake again from "
                "the source; or run with --accept lost-lake to go on with what comes next"
            )
        return
    if table is not None and (former := _runs(table, name) - {checkpoint.run}):
        raise StartError(
            f"{lake.root} holds records of {name} (run {', '.join(sorted(former))}), but its checkpoint is empty: a "
            "start from the beginning would write them twice. Restore the checkpoint; or run with --accept "
            "lost-checkpoint to go on where the ledger ends (Kafka); or with --accept duplicates"
        )


def _runs(table: DeltaTable, name: str) -> set[str]:
    found = table.to_pyarrow_table(columns=["query", "run"], filters=[("query", "=", name)])
    return set(pc.unique(found.column("run")).to_pylist())


def resume(lake: Lake, ledger: str, name: str) -> Offsets:
    """Return the offsets after the last records in the ledger: where a lost Kafka checkpoint goes on.

    Raises StartError when the last batch stands in some tables and not in the ledger: it was cut off half-way, and
    going on after the ledger would write those rows again.
    """
    table = lake.open(ledger)
    if table is None:
        raise StartError(f"{ledger} is not in {lake.root}: without a ledger there is nothing to go on from")
    columns = ["run", "batch_id", "topic", "partition", "to_offset"]
    found = table.to_pyarrow_table(columns=columns, filters=[("query", "=", name)])
    _refuse_half_batch(lake, name, found.group_by("run").aggregate([("batch_id", "max")]).to_pylist())
    known = found.filter(pc.is_valid(found.column("topic"))).group_by(["topic", "partition"])
    offsets: Offsets = {}
    for row in known.aggregate([("to_offset", "max")]).to_pylist():
        offsets.setdefault(row["topic"], {})[row["partition"]] = row["to_offset_max"] + 1
    return offsets


def _refuse_half_batch(lake: Lake, name: str, runs: list[dict[str, object]]) -> None:
    last = {f"{name}:{row['run']}": row["batch_id_max"] for row in runs}
    ahead = []
    for layer in lake.layers():
        for table in lake.tables(layer):
            handle = lake.open(table)
            note = handle.history(1)[0] if handle else {}
            batch = last.get(str(note.get("router.query")))
            if isinstance(batch, int) and int(str(note["router.batch"])) > batch:
                ahead.append(table)
    if ahead:
        raise StartError(
            f"the last batch of {name} was cut off half-way: {', '.join(ahead)} have it and the ledger does not. "
            "RESTORE these tables to the version before, then start again"
        )
