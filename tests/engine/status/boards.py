"""Batches for the board of a stream, and what its server and its metrics show of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import requests
from prometheus_client.parser import text_string_to_metric_families

from router.api.parts import BatchReport
from router.delta.commit import TableCommit
from router.delta.staged_files import StagedFile
from router.engine.balance import Partition
from router.engine.checkpoint_store import Manifest
from router.engine.status.metrics import metrics_text

if TYPE_CHECKING:
    from router.engine.status.board import StatusBoard
    from router.engine.status.server import StatusServer


def landed_manifest(batch: int, *tables: str, quarantined: dict[str, str] | None = None) -> Manifest:
    """Return a batch that brought three rows into each table, and read offsets up to 10 times its number."""
    works = []
    for table in tables:
        file = StagedFile("r/s", table, f"{table.replace('.', '/')}/part-0.parquet", 10, 3, ("a",), "{}")
        works.append(TableCommit("r/s", table, f"games:run/r/s/{table}", batch, (file,), "{}"))
    last = 10 * (batch + 1) - 1
    part = Partition("events", 0, 0, last, 10, 0, 0, 0, {"r": 3}, {}, {}, {}, {"r/s": 3}, {}, {})
    return Manifest(batch, "configuration", ("r/s",), tuple(works), (part,), quarantined=quarantined or {})


def batch_report(batch: int) -> BatchReport:
    """Return the report of a batch of ten records, of which one failed."""
    seconds = {"land": 1.5, "commit": 0.04}
    return BatchReport("games", batch, 10, 9, 1, 2, 3, 2, 4, seconds, routes={"r": {"matched": 7, "landed": 6}})


def fetch(server: StatusServer, path: str, **headers: str) -> requests.Response:
    """Return what the server answers to a GET."""
    assert server.address is not None
    host, port = server.address
    return requests.get(f"http://{host}:{port}{path}", headers=headers, timeout=10)


def metric_samples(board: StatusBoard, at_most: int = 500) -> dict[tuple[str, str], float]:
    """Return the metrics by name and labels, as a client of Prometheus reads them."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(metrics_text(board.snapshot(), at_most).decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name, labels] = sample.value
    return found
