"""What is said of freshness follows from the commits of tables: a late event is a late event."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.cells import FULL
from benchmarks.measurements import posting
from benchmarks.subjects.streams import APIS, PER_SECOND, SECONDS, ages, figures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.results import CellResult, Results


def test_an_event_is_as_old_as_its_commit_is_late(tmp_path: Path) -> None:
    table = tmp_path / "game"
    for number, (sent, committed) in enumerate([([90.0, 100.0, 101.0], 103.0), ([102.0], 110.0)]):
        write_deltalake(table, pa.table({"sent": sent}), mode="append")
        os.utime(table / f"_delta_log/{number:020d}.json", (committed, committed))

    found = ages([table], 100.0, 102.5)

    assert sorted(found) == [2.0, 3.0, 8.0]
    assert figures(found) == {"p50": 3.0, "p99": 8.0, "max": 8.0}
    assert ages([table], 103.0, 200.0) == []


def test_an_api_that_costs_freshness_misses_the_bar(results: Results, measured: Callable[..., CellResult]) -> None:
    p50 = dict.fromkeys(posting.APIS, 1.0) | {"black-holed": 1.1, "refusing": 9.0}
    others = {"p99": 11.0, "max": 12.0, "taken": 0.0, "batches": 7.0}
    counts = {f"{api}: {name}": value for api in p50 for name, value in {"p50": p50[api], **others}.items()}
    measured(posting.CELL, 60.0, counts=counts)
    rows = {row[0]: row[1:] for row in posting.FRESHNESS.table(results, FULL).rows}

    assert rows["healthy"] == ("7", "1.0 s", "11.0 s", "12.0 s", "1.00 x", "", "", "0")
    assert rows["black-holed"][4:7] == ("1.10 x", "1.5 x", "reached")
    assert rows["refusing"][4:7] == ("9.00 x", "1.5 x", "MISSED")


def test_what_is_measured_is_what_is_told() -> None:
    assert tuple(APIS) == posting.APIS
    assert (PER_SECOND, SECONDS) == (posting.PER_SECOND, posting.SECONDS)
