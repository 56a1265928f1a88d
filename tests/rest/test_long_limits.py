"""Limits of a minute and more: what went out before a driver was started counts."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import Batch
from router.delta.commit import StagedParts
from router_rest.batch import admit_tasks
from router_rest.delivery.batcher import Call
from router_rest.delivery.receipts import RECEIPT_SCHEMA, Owner, Settled, make_receipts
from router_rest.limits.lease_server import LeaseServer
from router_rest.limits.messages import Pace
from router_rest.limits.sliding_window import RateLimit
from router_rest.sink import Rest
from tests.rest.tasks import OWNER, Tasks, rows_of_accounts, shorten_outages

if TYPE_CHECKING:
    from pathlib import Path

    from router.delta.lake import Lake
    from router_demo.api import Api

API = "https://api.test:443"
"""The default name of the limit of `again`."""
WINS = Owner("games", "wins", "rest", 6, limit=API)
HOUR = [{"calls": 50, "per": "hour"}]


def sent_receipts(
    owner: Owner, ago: float, *, first: int, calls: int, rows: int = 1, attempts: int = 1, key: str = ""
) -> Any:
    """Return the receipts of calls that went out some seconds ago."""
    made = [
        Settled(
            Call("events", 0, [*range(at, at + rows)], [b"{}"] * rows, attempts=attempts, limit=key),
            "delivered",
            time.time() - ago,
            200,
            0.1,
            id=f"events/0/{at}",
        )
        for at in range(first, first + calls * rows, rows)
    ]
    return make_receipts(owner, made)


def again(lease_server: LeaseServer, lake: Lake, folder: Path, **limits: Any) -> float:
    """Admit a sink; return after how many seconds it may call."""
    options = Rest.model_validate({"url": "https://api.test/events", **limits})
    options._folder = folder
    batch = Batch("games", 7, "wins", "rest", keeps=lambda table: StagedParts(lake, table, "games:run/wins/rest", 7))
    for _ in range(2):
        with admit_tasks(options, lease_server, batch):
            found = lease_server.outlook(options.limit).retry_after
    return found


@pytest.mark.parametrize("where", ["in the table", "in parts of a batch that was cut off"])
def test_three_starts_within_an_hour_share_one_limit_of_an_hour(
    lease_server: LeaseServer, lake: Lake, tmp_path: Path, where: str
) -> None:
    """Without it every start may send as much as an hour allows."""
    committed = where == "in the table"
    parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", 6 if committed else 7)
    parts.write(sent_receipts(WINS, 600, first=0, calls=26))
    parts.write(sent_receipts(WINS, 300, first=100, calls=8, rows=3, attempts=3))
    if committed:
        parts.commit(RECEIPT_SCHEMA)

    assert 2000 < again(lease_server, lake, tmp_path, limits=[{"calls": 50, "per": "hour"}]) < 3600


@pytest.mark.parametrize("unreadable", ["read", "recent"])
def test_a_limit_is_kept_after_a_failure_of_the_storage_at_the_start(
    lease_server: LeaseServer, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    """Without it one failed request to the storage lets the API have a second hour's calls within the hour."""
    parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", 6)
    parts.write(sent_receipts(WINS, 600, first=0, calls=50))
    parts.commit(RECEIPT_SCHEMA)

    def fail(*arguments: Any) -> Any:
        raise OSError("the storage is unavailable")

    with monkeypatch.context() as broken:
        broken.setattr(StagedParts, unreadable, fail)
        with pytest.raises(OSError, match="unavailable"):
            again(lease_server, lake, tmp_path, limits=HOUR)

    assert again(lease_server, lake, tmp_path, limits=HOUR) > 2000


def test_a_limit_knows_after_a_start_what_its_other_sinks_have_sent(
    lease_server: LeaseServer, lake: Lake, tmp_path: Path
) -> None:
    """Without it two sinks that share an hour have two of them when one is idle after a start."""
    parts = StagedParts(lake, "ops.receipts", "games:run/losses/rest", 6)
    parts.write(sent_receipts(replace(WINS, route="losses"), 600, first=0, calls=50))
    parts.commit(RECEIPT_SCHEMA)

    assert again(lease_server, lake, tmp_path, limits=HOUR) > 2000


def test_what_others_sent_and_what_is_long_ago_does_not_count(
    lease_server: LeaseServer, lake: Lake, tmp_path: Path
) -> None:
    parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", 6)
    parts.write(sent_receipts(replace(WINS, query="others"), 600, first=0, calls=50))
    parts.write(sent_receipts(replace(WINS, limit="another API"), 600, first=0, calls=50))
    parts.write(sent_receipts(WINS, 4000, first=0, calls=50))
    parts.write(sent_receipts(WINS, 60, first=0, calls=49))
    parts.commit(RECEIPT_SCHEMA)

    assert again(lease_server, lake, tmp_path, limits=HOUR) <= 0


def test_receipts_of_an_older_version_are_no_obstacle(lease_server: LeaseServer, lake: Lake, tmp_path: Path) -> None:
    """Without it a sink does not start after an upgrade."""
    older = pa.schema([column for column in RECEIPT_SCHEMA if not column.name.startswith("limit")])
    for batch in (6, 7):
        parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", batch)
        parts.write(sent_receipts(WINS, 600, first=0, calls=50).select(older.names))
        if batch == 6:
            parts.commit(older)

    assert again(lease_server, lake, tmp_path, limits=HOUR) <= 0


def test_three_starts_within_an_hour_share_the_hour_of_each_account(
    api: Api, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it every start may send each account as much as its hour allows."""
    shorten_outages(monkeypatch)
    api.reset()
    accounts = ["hot", "cold", None, "hot", "hot"]
    for start in range(3):
        lease_server, number = LeaseServer().start(), min(start, 1)  # the second one was cut off
        parts = StagedParts(lake, "ops.receipts", "games:run/wins/rest", number)
        batch = Batch("games", number, "wins", "rest", keeps=lambda _, parts=parts: parts)
        limits = {"limits": [{"calls": 4, "per": "hour"}], "limit_by": "event.account"}
        options = Rest.model_validate({"url": f"{api.url}/events", **limits})
        pace = Pace((RateLimit(4, None, 3600.0),), options.max_in_flight, keyed=True)
        options._folder = tmp_path
        try:
            with admit_tasks(options, lease_server, batch):
                tasks = Tasks(api, parts, lease_server)
                owner = replace(OWNER, limit=options.limit)
                job = tasks.job(pace=pace, limit=options.limit, calls_of_key=1, owner=owner)
                tasks.run(job, rows_of_accounts(accounts, first=5 * start))
        finally:
            lease_server.stop()
        if start == 0:
            parts.commit(RECEIPT_SCHEMA)

    arrived = Counter(accounts[at % 5] for at in api.rows("offset"))
    assert arrived == {"hot": 4, "cold": 3, None: 3}
