"""Manifests: a batch is decided when its manifest is there, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from router.applying import Applied
from router.delta.commit import LandedFile, TableCommit
from router.delta.lake import Lake
from router.engine.balance import Partition
from router.engine.label.layout import Ruling
from router.engine.manifest import KEPT, Manifest, Shelf

if TYPE_CHECKING:
    from pathlib import Path

FILE = LandedFile("r/s", "silver.t", "silver/t/part-0.parquet", 120, 3, ("a", "b"), '{"numRecords":3}')
PARTITION = Partition("t", 0, 5, 7, 3, 0, 0, 0, {"r": 3}, {}, {}, {"r/w": 1}, {}, {"r/s": 3}, {})


def manifest(batch: int) -> Manifest:
    return Manifest(
        batch=batch,
        config="fingerprint",

        targets=("r/s",),
        commits=(TableCommit("r/s", "silver.t", "q/r/s/silver.t", batch, (FILE, FILE), '{"fields":[]}', added="x"),),
        partitions=(PARTITION,),
        conflicts={"r/s/silver.t": {"ü": 'why "not"'}},
        allowed={"r/s": ["silver.t"]},
    )


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Return the shelf of one run."""
    return Shelf.beside(Lake.at(str(tmp_path)), "run-1")


def test_a_manifest_comes_back_as_it_was(shelf: Shelf) -> None:
    """Without it a restart finishes another batch than the one that was decided."""
    shelf.write(manifest(7))

    assert shelf.read(7) == manifest(7)
    assert shelf.read(8) is None
    assert manifest(7).ruling == Ruling({}, {"r/s/silver.t": {"ü": 'why "not"'}}, {"r/s": frozenset({"silver.t"})})


def test_a_manifest_that_was_not_written_whole_is_none(shelf: Shelf, tmp_path: Path) -> None:
    """Without it a crash while deciding blocks the stream for ever."""
    (folder,) = (tmp_path / "manifests").iterdir()
    (folder / "0000000007.tmp").write_bytes(manifest(7).dump()[:50])

    assert shelf.read(7) is None
    shelf.write(manifest(7))
    assert shelf.read(7) == manifest(7)


def test_another_run_decides_for_itself(shelf: Shelf, tmp_path: Path) -> None:
    """Without it a new checkpoint takes the batches of the old one for its own, and skips its records."""
    shelf.write(manifest(0))

    assert Shelf.beside(Lake.at(str(tmp_path)), "run-2").read(0) is None
    assert Shelf.beside(Lake.at(str(tmp_path)), "run-1").read(0) == manifest(0)


def test_old_manifests_go(shelf: Shelf, tmp_path: Path) -> None:
    """Without it a run of a month leaves a million files beside its checkpoint."""
    for batch in range(KEPT + 3):
        shelf.write(manifest(batch))
        shelf.mark_applied(batch, "r/s", Applied(3))

    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2 * KEPT
    assert shelf.read(2) is None
    assert shelf.read(3) == manifest(3)


def test_what_was_applied_is_kept_by_sink(shelf: Shelf) -> None:
    """Without it a restart applies the batch of one sink again because another one failed."""
    assert shelf.applied(0) == {}

    shelf.mark_applied(0, "r/a", Applied(2, 1))
    shelf.mark_applied(0, "r/b", Applied(3))

    assert shelf.applied(0) == {"r/a": Applied(2, 1), "r/b": Applied(3)}
    assert shelf.applied(1) == {}
