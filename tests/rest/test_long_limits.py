"""Limits of a minute and more: what went out before a driver was started counts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from router import Batch
from router.delta.commit import StagedParts
from router_rest.batch import OpenSink, admitted
from router_rest.credentials import Credentials
from router_rest.delivery.batcher import Call
from router_rest.delivery.receipts import SCHEMA, Owner, Settled, receipts
from router_rest.rate_limit.server import LeaseServer
from router_rest.sink import Rest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from router.delta.lake import Lake


@pytest.fixture
def leases() -> Iterator[LeaseServer]:
    """Run a server of leases, as a driver does that was just started."""
    server = LeaseServer().start()
    yield server
    server.stop()


def sent(owner: Owner, ago: float, *, first: int, calls: int, rows: int = 1, attempts: int = 1) -> Any:
    """Return the receipts of calls that went out some seconds ago."""
    made = [
        Settled(
            Call("events", 0, [*range(at, at + rows)], [b"{}"] * rows, attempts=attempts),
            "delivered",
            time.time() - ago,
            200,
            0.1,
            id=f"events/0/{at}",
        )
        for at in range(first, first + calls * rows, rows)
    ]
    return receipts(owner, made)


def again(leases: LeaseServer, lake: Lake, folder: Path, **limits: Any) -> float:
    """Admit a sink; return after how many seconds it may call."""
    options = Rest.model_validate({"url": "https://api.test/events", **limits})
    sink: Any = OpenSink(options, folder, None, None, lambda: Credentials(None))  # type: ignore[arg-type]
    batch = Batch("games", 7, "wins", "rest", keeps=lambda table: StagedParts(lake, table, "games:run/wins/rest", 7))
    for _ in range(2):
        with admitted(sink, leases, batch):
            found = leases.outlook(options.limit).again
    return found


@pytest.mark.parametrize("where", ["in the table", "in parts of a batch that was cut off"])
def test_three_starts_within_an_hour_share_one_limit_of_an_hour(
    leases: LeaseServer, lake: Lake, tmp_path: Path, where: str
) -> None:
    """Without it every start may send as much as an hour allows."""
    committed = where == "in the table"
    parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", 6 if committed else 7)
    parts.write(sent(Owner("games", "wins", "rest", 6), 600, first=0, calls=26))
    parts.write(sent(Owner("games", "wins", "rest", 6), 300, first=100, calls=8, rows=3, attempts=3))
    if committed:
        parts.commit(SCHEMA)

    assert 2000 < again(leases, lake, tmp_path, limits=[{"calls": 50, "per": "hour"}]) < 3600


def test_what_others_sent_and_what_is_long_ago_does_not_count(leases: LeaseServer, lake: Lake, tmp_path: Path) -> None:
    parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", 6)
    parts.write(sent(Owner("games", "losses", "rest", 6), 600, first=0, calls=50))
    parts.write(sent(Owner("games", "wins", "rest", 6), 4000, first=0, calls=50))
    parts.write(sent(Owner("games", "wins", "rest", 6), 60, first=0, calls=49))
    parts.commit(SCHEMA)

    assert again(leases, lake, tmp_path, limits=[{"calls": 50, "per": "hour"}]) <= 0
