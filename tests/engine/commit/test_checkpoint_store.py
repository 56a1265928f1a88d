"""Manifests: a batch is decided when its manifest is there, whole."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router.api.sinks import Applied
from router.delta.commit import TableCommit
from router.delta.lake import Lake
from router.delta.staged_files import StagedFile
from router.engine.balance import Partition
from router.engine.batch import Batches
from router.engine.checkpoint_store import KEPT_MANIFESTS, CheckpointStore, Manifest
from router.engine.label.layout import Demands
from router.engine.start.checks import Checkpoint, check_lake_and_checkpoint
from router.errors import BatchError, StartError

if TYPE_CHECKING:
    from pathlib import Path

FILE = StagedFile("r/s", "silver.t", "silver/t/part-0.parquet", 120, 3, ("a", "b"), '{"numRecords":3}')
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
def store(tmp_path: Path) -> CheckpointStore:
    """Return the store of one run."""
    return CheckpointStore(Lake.at(str(tmp_path)), "run-1")


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"null"])
def test_notes_of_spark_that_name_no_run_are_damaged(lake: Lake, content: bytes) -> None:
    """Without it a start ends with a traceback."""
    lake.write("spark/metadata", content)
    with pytest.raises(StartError, match="is damaged"):
        Checkpoint.read(lake)


def test_a_manifest_comes_back_as_it_was(store: CheckpointStore) -> None:
    """Without it a restart finishes another batch than the one that was decided."""
    store.write_manifest(manifest(7))

    assert store.read_manifest(7) == manifest(7)
    assert store.read_manifest(8) is None
    assert manifest(7).demands == Demands({}, {"r/s/silver.t": {"ü": 'why "not"'}}, {"r/s": frozenset({"silver.t"})})


def test_a_manifest_that_was_not_written_whole_is_none(store: CheckpointStore, tmp_path: Path) -> None:
    """Without it a crash while deciding blocks the stream for ever."""
    folder = tmp_path / "store" / "manifests" / "run-1"
    folder.mkdir(parents=True)
    (folder / "0000000007.tmp").write_bytes(manifest(7).to_json()[:50])

    assert store.read_manifest(7) is None
    store.write_manifest(manifest(7))
    assert store.read_manifest(7) == manifest(7)


def test_another_run_decides_for_itself(store: CheckpointStore, tmp_path: Path) -> None:
    """Without it a new checkpoint takes the batches of the old one for its own, and skips its records."""
    store.write_manifest(manifest(0))

    assert CheckpointStore(Lake.at(str(tmp_path)), "run-2").read_manifest(0) is None
    assert CheckpointStore(Lake.at(str(tmp_path)), "run-1").read_manifest(0) == manifest(0)


def test_old_manifests_go(store: CheckpointStore, tmp_path: Path) -> None:
    """Without it a run of a month leaves a million files beside its checkpoint."""
    for batch in range(KEPT_MANIFESTS + 3):
        store.write_manifest(manifest(batch))
        store.mark_applied(batch, "r/s", Applied(3))

    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2 * KEPT_MANIFESTS
    assert store.read_manifest(2) is None
    assert store.read_manifest(3) == manifest(3)


def test_what_was_applied_is_kept_by_sink(store: CheckpointStore) -> None:
    """Without it a restart applies the batch of one sink again because another one failed."""
    assert store.read_applied(0) == {}

    store.mark_applied(0, "r/a", Applied(2, 1))
    store.mark_applied(0, "r/b", Applied(3))

    assert store.read_applied(0) == {"r/a": Applied(2, 1), "r/b": Applied(3)}
    assert store.read_applied(1) == {}


@pytest.mark.parametrize("before", ["spark/metadata", "manifests/run-1/0000000000.json"])
def test_a_checkpoint_of_another_version_is_refused(store: CheckpointStore, tmp_path: Path, before: str) -> None:
    """Without it batches that an older version has begun are taken for new ones, or lost."""
    (tmp_path / before).parent.mkdir(parents=True)
    (tmp_path / before).write_text("{}")

    with pytest.raises(StartError, match="another version"):
        store.note_format()


def test_a_checkpoint_of_this_version_goes_on(store: CheckpointStore, tmp_path: Path) -> None:
    """Without it no run is ever started again."""
    store.note_format()
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "metadata").write_text("{}")

    store.note_format()


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    """Without it counts go into columns that the ledger does not have, and are lost without a word."""
    lake = Lake.at(str(tmp_path))
    before = pa.table({"query": ["games"], "run": ["run-1"], "batch_id": [0], "waiting": [0]})
    write_deltalake(lake.address("ops.ledger"), before)

    with pytest.raises(StartError, match="another version"):
        check_lake_and_checkpoint(lake, "ops.ledger", "games", Checkpoint())


def test_a_batch_of_which_rows_are_in_the_quarantine_is_not_decided_again(store: CheckpointStore) -> None:
    """Without it these rows come a second time, under the transaction id of another decision."""
    other = replace(manifest(7).commits[0], table="silver.u", app_id="q/r/s/silver.u")
    moved = {"r/s/silver.t": "it takes no rows", "r/s/silver.u": "nor does it"}
    store.write_manifest(replace(manifest(7), commits=(*manifest(7).commits, other), quarantined=moved))
    stages: Any = SimpleNamespace(
        config=SimpleNamespace(name="games"),
        fingerprint="fingerprint",
        store=store,
        tables=SimpleNamespace(open_readable_tables=dict.fromkeys),
        committers=SimpleNamespace(missing_files=lambda works: [work.files[0].path for work in works]),
        outboxes=SimpleNamespace(unapplied_commits=lambda _: []),
        _is_done=lambda work, *_: work.table == "silver.t",
    )
    known = store.read_manifest(7)
    assert known is not None
    with pytest.raises(BatchError, match=r"silver/t/part-0.parquet is missing or truncated.*restore that file"):
        Batches._manifest_to_finish(stages, known)
