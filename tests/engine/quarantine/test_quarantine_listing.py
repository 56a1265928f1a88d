"""What waits in a large quarantine is listed in bounded memory, whatever its rows hold."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from router.delta.lake import Lake
from router.delta.replace import PROPERTIES
from router.engine.label.layout import HELD_REASON, quarantine_of
from router.engine.quarantine.table import Place, quarantined_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUARANTINE = quarantine_of("games", "all", "tables")
QUERY = "games:run"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
BLOCKED = "it cannot be read: 00000000000000000005.json of its log is damaged"


def waiting_rows(batch: int, count: int) -> pa.Table:
    """Return rows of one batch for two tables, for a reason of its own each quarter, `bonus` for one table."""
    numbers = np.arange(count)
    tables = np.where(numbers % 2 == 0, "silver.uno", "silver.poker")
    causes = [[None, None, BLOCKED, f"{HELD_REASON}small"][number % 4] for number in numbers]
    bonus = [float(number) if number % 2 else None for number in numbers]
    inner = [{"card": "seven"}] * count
    return pa.table({
        "_table": pa.array(tables.tolist()),
        "_query": pa.array([QUERY] * count),
        "_batch_id": pa.array([batch] * count, pa.int64()),
        "_cause": pa.array(causes, pa.string()),
        "_timestamp": pa.array([BEGIN + timedelta(hours=batch)] * count, pa.timestamp("us", "UTC")),
        "_message": pa.array(["Game"] * count),
        "_schema_version": pa.array([1 + batch % 2] * count, pa.int32()),
        "game": pa.array(["x" * 200] * count),
        "bonus": pa.array(bonus, pa.float64()),
        "never": pa.array([None] * count, pa.string()),
        ".x": pa.array(bonus, pa.float64()),
        "inner": pa.array(inner, pa.struct([("card", pa.string())])),
    })  # fmt: skip


def written(folder: Path, batches: int, rows: int) -> Lake:
    lake = Lake.at(str(folder))
    for batch in range(batches):
        write_deltalake(lake.address(QUARANTINE), waiting_rows(batch, rows), mode="append", configuration=PROPERTIES)
    return lake


@pytest.fixture
def memory() -> Iterator[pa.MemoryPool]:
    """Count what Arrow holds at most during a test."""
    former = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(former)
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(former)


def test_what_waits_is_described_by_table_and_reason(tmp_path: Path) -> None:
    """Without it nobody can tell what an approval would let in."""
    lake = written(tmp_path, batches=3, rows=40)
    handle = lake.open(QUARANTINE)
    assert handle is not None
    found = {(one.place.table, one.kind): one for one in quarantined_in(lake, handle, ("all", "tables", QUARANTINE))}

    assert {key: one.rows for key, one in found.items()} == {
        ("silver.uno", "release"): 30,
        ("silver.uno", "unblock"): 30,
        ("silver.poker", "release"): 30,
        ("silver.poker", "held"): 30,
    }
    assert found["silver.uno", "unblock"].cause == BLOCKED
    assert found["silver.uno", "release"].columns.names == ["game", "inner"]
    assert found["silver.poker", "release"].columns.names == ["game", "bonus", ".x", "inner"]
    for one in found.values():
        assert one.upto == {QUERY: 2}
        assert one.versions == ("Game version 1", "Game version 2")
        assert one.since == BEGIN


def test_rows_that_are_released_and_not_yet_deleted_do_not_wait(tmp_path: Path) -> None:
    """Without it a release that was cut off is listed, and approved a second time."""
    lake = written(tmp_path, batches=3, rows=40)
    place = Place("all", "tables", "silver.uno")
    write_deltalake(
        lake.address(place.table),
        pa.table({"game": ["uno"]}),
        configuration=PROPERTIES,
        commit_properties=CommitProperties(app_transactions=[Transaction(place.app_id(QUERY), 1)]),
    )
    handle = lake.open(QUARANTINE)
    assert handle is not None
    described = quarantined_in(lake, handle, ("all", "tables", QUARANTINE), table=place.table)
    found = {(one.place.table, one.kind): (one.rows, one.since) for one in described}

    assert found == {
        ("silver.uno", "release"): (10, BEGIN + timedelta(hours=2)),
        ("silver.uno", "unblock"): (30, BEGIN),
    }


def test_a_large_quarantine_is_listed_in_bounded_memory(tmp_path: Path, memory: pa.MemoryPool) -> None:
    """Without it the stream's driver ends for want of memory while a blocked table has many rows."""
    lake = written(tmp_path, batches=3, rows=200_000)
    handle = lake.open(QUARANTINE)
    assert handle is not None
    names = ["_table", "_query", "_batch_id", "_cause"]
    in_memory = handle.to_pyarrow_table(columns=names).nbytes
    counting = pa.proxy_memory_pool(memory)
    pa.set_memory_pool(counting)
    found = [*quarantined_in(lake, handle, ("all", "tables", QUARANTINE))]

    assert sum(one.rows for one in found) == 3 * 200_000
    assert 0 < counting.max_memory() < in_memory / 2, f"{counting.max_memory():,} of {in_memory:,}"
