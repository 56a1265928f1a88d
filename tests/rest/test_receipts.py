"""Receipts are written, whatever ends the task that has them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from router.delta.commit import StagedParts
from router_rest.delivery.batcher import Call
from router_rest.delivery.receipts import KnownReceipts, ReceiptWriter, Settled
from tests.rest.tasks import OWNER

if TYPE_CHECKING:
    from router.delta.lake import Lake


@pytest.fixture
def parts(lake: Lake) -> StagedParts:
    return StagedParts(lake, "ops.receipts", "games:run/wins/rest", 0)


def test_a_part_that_waits_for_the_disk_is_written_when_the_task_ends(parts: StagedParts) -> None:
    """Without it rows that were delivered have no receipt: they are sent again, and nobody is told."""
    busy = threading.Event()

    async def story() -> None:
        journal = ReceiptWriter(parts, OWNER)
        journal._thread.submit(busy.wait, 30)
        journal.settle(Settled(Call("events", 0, [7], [b"{}"]), "delivered", 0.0))
        flushing = asyncio.create_task(journal.flush())
        await asyncio.sleep(0)
        while journal._settled:
            await asyncio.sleep(0)
        flushing.cancel()
        asyncio.get_running_loop().call_later(0.1, busy.set)
        with pytest.raises(asyncio.CancelledError):
            await flushing
        await journal.end([])

    asyncio.run(story())

    assert not KnownReceipts.of(parts).open(("events", 0), [7]).any()
