"""A history that was written on is one that delta-rs reads, of the length that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.subjects import history

if TYPE_CHECKING:
    from router.delta.lake import Lake


@pytest.mark.parametrize(("maintained", "files", "kept"), [(True, 4, 11), (False, 60, 60)], ids=["maintained", "not"])
def test_a_history_is_written_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, maintained: bool, files: int, kept: int
) -> None:
    """Without it a curve says how quick a table is that no router would leave."""
    monkeypatch.setattr(history, "KEPT", 10)
    monkeypatch.setattr(history, "FILES", 3)
    history._commit_to_spare_table(lake, 0)
    history.write_history(lake, history.SPARE, 60, maintained=maintained)

    handle = lake.open(history.SPARE)
    assert handle is not None
    assert (handle.version(), len(handle.file_uris())) == (59, files)
    assert len(list(Path(lake.address(history.SPARE), "_delta_log").glob("*.json"))) == kept
    assert handle.transaction_version(f"history/{history.SPARE}") == 0


def test_the_ledger_of_a_history_is_asked(tmp_path: Path) -> None:
    """Without it a change to what a ledger is opened with ends the benchmark after minutes."""
    asked = history._measure_ledger(tmp_path, 10)
    assert asked["rows"] == 5 * (history.PARTITIONS + history.SINKS)
    assert asked["peak_mb"] > asked["more_mb"] >= 0
