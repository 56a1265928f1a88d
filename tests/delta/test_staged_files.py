"""What a sink keeps of a batch: found again by the next attempt, and in the table once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from typing import TYPE_CHECKING

import pyarrow as pa

from router.delta.commit import StagedParts

if TYPE_CHECKING:
    from router.delta.lake import Lake

SCHEMA = pa.schema([("n", pa.int64()), ("what", pa.string())])


def numbered_rows(*numbers: int) -> pa.Table:
    return pa.Table.from_pylist([{"n": n, "what": f"row {n}"} for n in numbers], SCHEMA)


def parts(lake: Lake, batch: int = 0, route: str = "wins") -> StagedParts:
    return StagedParts(lake, "ops.receipts", f"games:run-1/{route}/rest", batch, {"router.batch": str(batch)})


def content(lake: Lake) -> list[int]:
    table = lake.open("ops.receipts")
    return sorted(table.to_pyarrow_table().column("n").to_pylist()) if table else []


def test_parts_are_in_the_table_once_they_are_committed(lake: Lake) -> None:
    """Without it receipts are seen of a batch that may yet be sent again, or not at all."""
    ours = parts(lake)
    ours.write(numbered_rows(1, 2))
    pickle.loads(pickle.dumps(ours)).write(numbered_rows(3))
    assert content(lake) == []

    ours.commit(SCHEMA)

    assert content(lake) == [1, 2, 3]
    table = lake.open("ops.receipts")
    assert table is not None
    assert [table.history()[0]["router.batch"], table.count()] == ["0", 3]


def test_a_batch_is_committed_once(lake: Lake) -> None:
    """Without it a crash after the commit doubles the receipts."""
    for _ in range(2):
        parts(lake).write(numbered_rows(1))
        parts(lake).commit(SCHEMA)

    assert content(lake) == [1]


def test_the_next_attempt_finds_what_is_there_with_its_notes(lake: Lake) -> None:
    """Without it rows are sent again although they arrived."""
    parts(lake).write(numbered_rows(1, 2), {"reserved": "7"})
    parts(lake).write(numbered_rows(3))
    parts(lake, batch=1).write(numbered_rows(4))
    parts(lake, route="other").write(numbered_rows(5))

    found = [(notes, part.column("n").to_pylist()) for notes, part in parts(lake).read(["n"])]

    assert found == [({"reserved": "7"}, [1, 2]), ({}, [3])]


def _write_and_die(lake: Lake) -> None:
    parts(lake).write(numbered_rows(1))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_part_outlives_the_process_that_wrote_it(lake: Lake) -> None:
    """Without it a killed worker takes with it what it knew of its calls."""
    worker = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(lake,))
    worker.start()
    worker.join()

    assert worker.exitcode == -signal.SIGKILL
    assert [part.column("n").to_pylist() for _, part in parts(lake).read()] == [[1]]


def test_a_batch_without_parts_makes_no_commit(lake: Lake) -> None:
    """Without it an empty batch leaves a table of nothing."""
    parts(lake).commit(SCHEMA)

    assert lake.open("ops.receipts") is None


def test_a_table_of_an_older_version_gains_its_columns(lake: Lake) -> None:
    """Without it an upgrade stops the stream at its first receipt."""
    parts(lake).write(numbered_rows(1))
    parts(lake).commit(SCHEMA)
    wider = SCHEMA.append(pa.field("more", pa.bool_()))
    parts(lake, batch=1).write(pa.Table.from_pylist([{"n": 2, "more": True}], wider))

    parts(lake, batch=1).commit(wider)

    table = lake.open("ops.receipts")
    assert table is not None
    assert sorted(table.to_pyarrow_table().select(["n", "more"]).to_pylist(), key=lambda row: row["n"]) == [
        {"n": 1, "more": None},
        {"n": 2, "more": True},
    ]
