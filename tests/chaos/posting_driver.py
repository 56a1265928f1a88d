"""Run one configuration until all is posted, or until this process kills itself at a step of posting a batch.

`python posting_driver.py CONFIG --kill receipts`: SIGKILL, so nothing is flushed, closed or undone. SIGUSR1 ends the
leases.
"""

from __future__ import annotations

import argparse
import os
import signal
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.config.loader import load_config
from router.config.models import Trigger
from router.delta.commit import StagedParts
from router.engine import ledger, stream
from router.engine.checkpoint_store import CheckpointStore
from router.engine.spark import session
from router.registry import load_registry
from router_rest.batch import driver_hosts
from router_rest.limits.lease_server import lease_server

if TYPE_CHECKING:
    from collections.abc import Callable

POINTS = ("plan", "answers", "receipts", "applied", "booked")
"""`plan`: the cut is written down, and nothing was sent; `answers`: all was, and no receipt is in its table;
`receipts`: all of them are; `applied`: and it is noted that the batch is; `booked`: and it is in the ledger."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    parser.add_argument("--kill", choices=POINTS)
    asked = parser.parse_args()
    registry = load_registry(asked.plugin)
    loaded = load_config(asked.config, registry)
    _die_at(asked.kill)
    session_ = session.build_session(loaded.config, "local[2,4]")
    signal.signal(signal.SIGUSR1, lambda *_: lease_server(*driver_hosts(session_)).stop())
    stream.run(loaded, registry, session_, stream.RunOptions(trigger=Trigger(once=True)))
    session.stop_session(session_)


def _die_at(point: str | None) -> None:
    if point == "plan":
        _around(StagedParts, "write", after=True)  # in this process, only plans are
    elif point in {"answers", "receipts"}:
        _around(StagedParts, "commit", after=point == "receipts")
    elif point == "applied":
        _around(CheckpointStore, "mark_applied", after=True)
    elif point == "booked":
        _around(ledger, "append", after=True, when=lambda *given: _of_sink(given[-1]))


def _of_sink(rows: list[dict[str, Any]]) -> bool:
    """Say whether ledger rows are of a sink with a query of its own."""
    return all(row.get("route") is not None for row in rows)


def _around(owner: Any, name: str, *, after: bool, when: Callable[..., bool] = lambda *_: True) -> None:
    real = getattr(owner, name)

    @wraps(real)
    def instead(*given: Any, **named: Any) -> Any:
        if after:
            real(*given, **named)
        if when(*given):
            os.kill(os.getpid(), signal.SIGKILL)
        return None if after else real(*given, **named)

    setattr(owner, name, instead)


if __name__ == "__main__":
    main()
