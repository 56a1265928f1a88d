"""Receipts are written, whatever ends the task that has them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from router.delta.commit import StagedParts
from router.delta.lake import Lake
from router_rest.delivery.batcher import Call
from router_rest.delivery.receipts import (
    CALL_LOG_KEPT_SECONDS,
    CallLog,
    KnownReceipts,
    ReceiptWriter,
    Settled,
    offsets_within,
    remove_call_logs,
)
from tests.rest.tasks import OWNER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def parts(lake: Lake) -> StagedParts:
    return StagedParts(lake, "ops.receipts", "games:run/wins/rest", 0)


def doubtful_offsets(parts: StagedParts, offsets: range) -> frozenset[int]:
    """Return the offsets that may have arrived, by what earlier attempts left."""
    return offsets_within(KnownReceipts.from_parts(parts).doubtful.get(PLACE, ()), offsets)


def test_a_part_that_waits_for_the_disk_is_written_when_the_task_ends(parts: StagedParts) -> None:
    """Without it rows that were delivered have no receipt: they are sent again, and nobody is told."""
    busy = threading.Event()

    async def story() -> None:
        journal = ReceiptWriter(parts, OWNER)
        journal._thread.submit(busy.wait, 30)
        journal.add_receipt(Settled(Call("events", 0, [7], [b"{}"]), "delivered", 0.0))
        flushing = asyncio.create_task(journal.flush())
        await asyncio.sleep(0)
        while journal._settled:
            await asyncio.sleep(0)
        flushing.cancel()
        asyncio.get_running_loop().call_later(0.1, busy.set)
        with pytest.raises(asyncio.CancelledError):
            await flushing
        await journal.write_last([])

    asyncio.run(story())

    assert not KnownReceipts.from_parts(parts).find_open(("events", 0), [7]).any()


PLACE = ("events", 0)
KILLED = """
import asyncio, os, signal, sys
from router.delta.commit import StagedParts
from router.delta.lake import Lake
from router_rest.delivery.batcher import Call
from router_rest.delivery.receipts import ReceiptWriter, Settled
from tests.rest.tasks import OWNER

async def story():
    journal = ReceiptWriter(StagedParts(Lake.at(sys.argv[1]), "ops.receipts", "games:run/wins/rest", 0), OWNER)
    await journal.reserve_ranges([("events", 0, 0, 99)])
    calls = [Call("events", 0, [at, at + 2], [b"{}"] * 2) for at in (10, 20, 30)]
    for call in calls:
        journal.begin_call(call)
    journal.add_receipt(Settled(calls[1], "delivered", 0.0))
    await journal.flush()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(story())
"""


def test_of_an_attempt_that_was_killed_only_calls_that_had_begun_are_in_doubt(
    parts: StagedParts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it all that was reserved, a second of calls, is said to have perhaps arrived twice."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    killed = subprocess.run([sys.executable, "-c", KILLED, parts.lake.root], check=False)
    assert killed.returncode == -9

    assert doubtful_offsets(parts, range(100)) == {10, 12, 30, 32}
    (log,) = tmp_path.glob("event-router-*")
    log.write_bytes(log.read_bytes()[:-2])
    assert doubtful_offsets(parts, range(100)) == {*range(100)}, "what is broken off says nothing"
    log.unlink()
    assert doubtful_offsets(parts, range(100)) == {*range(100)}, "another machine has another log"


def test_logs_of_killed_attempts_are_gone_once_their_batch_is_done(
    parts: StagedParts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it the temporary folder gets a file for each attempt that was ever killed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def killed_attempt(parts: StagedParts) -> Path:
        before = {*tmp_path.iterdir()}
        killed = ReceiptWriter(parts, OWNER)
        asyncio.run(killed.reserve_ranges([(*PLACE, 0, 9)]))
        killed.close(keep=True)
        (log,) = {*tmp_path.iterdir()} - before - {tmp_path / "lake"}
        return log

    of_this_batch = [killed_attempt(parts), killed_attempt(parts)]
    of_another_batch = killed_attempt(replace(parts, batch=1))
    still_written = ReceiptWriter(parts, OWNER)
    asyncio.run(still_written.reserve_ranges([(*PLACE, 10, 19)]))

    remove_call_logs(parts)

    assert not any(log.exists() for log in of_this_batch)
    assert of_another_batch.exists()
    assert CallLog.read_ranges(of_another_batch.name[-36:]) == [], "no call had begun"
    assert len([*tmp_path.glob("event-router-*")]) == 2
    still_written.close(keep=False)
    assert [*tmp_path.glob("event-router-*")] == [of_another_batch]


def test_a_batch_of_another_lake_keeps_the_logs_of_sinks_with_the_same_name(
    parts: StagedParts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it two routers on one machine remove each other's logs, and a kill puts all reserved rows in doubt."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = ReceiptWriter(parts, OWNER)
    asyncio.run(killed.reserve_ranges([(*PLACE, 0, 9)]))
    killed.begin_call(Call(*PLACE, [5], [b"{}"]))
    killed.close(keep=True)

    elsewhere = StagedParts(Lake.at(str(tmp_path / "elsewhere")), "ops.receipts", parts.owner, 1)
    for batch in (0, 1):
        neighbour = ReceiptWriter(replace(elsewhere, batch=batch), replace(OWNER, batch=batch))
        asyncio.run(neighbour.reserve_ranges([(*PLACE, 0, 9)]))
        asyncio.run(neighbour.write_last([]))
        remove_call_logs(neighbour.parts)

    assert doubtful_offsets(parts, range(10)) == {5}


def test_logs_that_nobody_will_read_are_removed_by_the_next_task(
    parts: StagedParts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it executors away from the driver keep a file of each attempt that was ever killed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    of_earlier_start = tmp_path / "event-router-0000-attempt"
    of_earlier_start.touch()
    attempts = [str(uuid.uuid4()) for _ in range(2)]
    for attempt in attempts:
        CallLog(attempt).close(keep=True)
    old, recent = (next(tmp_path.glob(f"*{attempt}")) for attempt in attempts)
    last_week = time.time() - CALL_LOG_KEPT_SECONDS - 60
    os.utime(old, (last_week, last_week))

    next_task = ReceiptWriter(parts, OWNER)
    asyncio.run(next_task.reserve_ranges([(*PLACE, 0, 9)]))
    next_task.close(keep=False)

    assert [*tmp_path.glob("event-router-*")] == [recent]


def test_an_attempt_that_may_still_send_puts_all_that_it_reserved_in_doubt(parts: StagedParts) -> None:
    """Without it a worker that lives on beside its successor sends rows, and nobody marks them."""
    journal = ReceiptWriter(parts, OWNER)
    asyncio.run(journal.reserve_ranges([(*PLACE, 5, 9)]))
    journal.begin_call(Call(*PLACE, [5], [b"{}"]))
    attempt = journal.attempt

    assert CallLog.read_ranges(attempt) is None
    assert doubtful_offsets(parts, range(20)) == {*range(5, 10)}
    asyncio.run(journal.write_last([]))
    assert not doubtful_offsets(parts, range(20))


def test_a_full_disk_is_no_obstacle(parts: StagedParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a note about calls keeps them from going out, or a log with gaps is believed."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    journal = ReceiptWriter(parts, OWNER)
    asyncio.run(journal.reserve_ranges([(*PLACE, 0, 3)]))
    with monkeypatch.context() as patch:
        patch.setattr(CallLog, "note_call", full)
        journal.begin_call(Call(*PLACE, [0], [b"{}"]))
    asyncio.run(journal.reserve_ranges([(*PLACE, 4, 7)]))
    journal.begin_call(Call(*PLACE, [4], [b"{}"]))
    journal.close()

    assert doubtful_offsets(parts, range(20)) == {*range(8)}
