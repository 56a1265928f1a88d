"""One run at a time on an object store: the lease."""

from __future__ import annotations

import fcntl
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import Fault, S3Server, s3_server
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore, Manifest
from router.engine.start import run_lock
from router.engine.start.run_lock import Lease, hold_run_lock, is_run_active
from router.errors import RunningError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """Run an S3 server."""
    with s3_server("lake") as found:
        yield found


@pytest.fixture
def checkpoint(server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a checkpoint in a bucket, whose locks expire soon."""
    monkeypatch.setattr(run_lock, "RENEWED", 0.1)
    monkeypatch.setattr(run_lock, "_EXPIRES", 1.0)
    yield Lake.at(f"s3://lake/{request.node.name}", server.options)
    server.fail()


def test_a_second_run_is_refused_and_a_third_one_after_the_first_is_not(checkpoint: Lake) -> None:
    """Without it two runs write the same batches, each with records of its own."""
    with (
        hold_run_lock(checkpoint, "games"),
        pytest.raises(RunningError, match="running already"),
        hold_run_lock(checkpoint, "games"),
    ):
        pass
    with hold_run_lock(checkpoint, "games"):
        assert checkpoint.read("lock")
    assert checkpoint.read("lock") is None


def test_the_lock_of_a_killed_run_expires(checkpoint: Lake) -> None:
    """Without it nobody can start again after a SIGKILL."""
    Lease(checkpoint.store, "lock", "killed").take()

    with hold_run_lock(checkpoint, "games"):
        assert checkpoint.read("lock")


def test_a_lock_of_another_program_expires(checkpoint: Lake) -> None:
    """Without it a start ends with a traceback: the file has no owner."""
    checkpoint.write("lock", b'{"pid": 1}')

    with hold_run_lock(checkpoint, "games"):
        assert b"owner" in (checkpoint.read("lock") or b"")


def test_one_of_two_takes_over_from_a_killed_run(checkpoint: Lake) -> None:
    """Without it both do."""
    Lease(checkpoint.store, "lock", "killed").take()
    taken, refused = [], []

    def start() -> None:
        lease = Lease(checkpoint.store, "lock", "refused")
        try:
            lease.take()
            taken.append(lease)
        except RunningError:
            refused.append(lease)

    runs = [threading.Thread(target=start) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()

    assert len(taken) == 1
    assert len(refused) == 3


def test_a_run_that_lost_its_lock_is_told(checkpoint: Lake) -> None:
    """Without it a machine that slept goes on beside the run that took its place."""
    told = threading.Event()
    with ExitStack() as first:
        first.enter_context(pytest.raises(RunningError, match="took the lock"))
        first.enter_context(hold_run_lock(checkpoint, "games", told.set))
        checkpoint.write("lock", b'{"owner": "another run"}')
        assert told.wait(10)
    assert checkpoint.read("lock") == b'{"owner": "another run"}'


def test_a_lock_outlives_a_short_outage(checkpoint: Lake, server: S3Server) -> None:
    """Without it one lost answer of the store ends a run that nobody disturbs."""
    told = threading.Event()
    with hold_run_lock(checkpoint, "games", told.set):
        server.fail(Fault("PUT", "lock", "503 Slow Down", done=True))
        assert not told.wait(0.5)
    assert not server.faults_left()


def test_a_batch_is_decided_by_one_run(checkpoint: Lake) -> None:
    """Without it two runs that both think they have the lock commit other rows under one transaction id."""
    mine, other = (CheckpointStore(checkpoint, "run") for _ in range(2))
    decided = Manifest(7, "fingerprint", (), (), ())
    mine.write_manifest(decided, new=True)
    mine.write_manifest(decided, new=True)  # as a request does whose answer was lost

    with pytest.raises(RunningError, match="batch 7"):
        other.write_manifest(Manifest(7, "another", (), (), ()), new=True)
    assert other.read_manifest(7) == decided


@pytest.fixture(params=["disk", "bucket"])
def any_checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Return a checkpoint on a disk, or in a bucket."""
    if request.param == "disk":
        return Lake.at(str(tmp_path / "checkpoint"))
    found: Lake = request.getfixturevalue("checkpoint")
    return found


def test_a_start_that_is_refused_names_what_is_at_work(any_checkpoint: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it somebody looks for a stream that does not run while a repair replaces a table."""
    monkeypatch.setattr(run_lock, "PATIENCE", 0.0)
    with hold_run_lock(any_checkpoint, "games", holder="the repair of silver.uno"):
        with (
            pytest.raises(RunningError, match=r"the repair of silver\.uno is at work"),
            hold_run_lock(any_checkpoint, "games"),
        ):
            pass
        assert is_run_active(any_checkpoint)
    with (
        hold_run_lock(any_checkpoint, "games"),
        pytest.raises(RunningError, match="running already"),
        hold_run_lock(any_checkpoint, "games"),
    ):
        pass


def test_who_asks_whether_a_run_is_alive_writes_nothing(any_checkpoint: Lake) -> None:
    """Without it the lock of a run that is starting is taken by somebody who only asks."""
    assert not is_run_active(any_checkpoint)
    assert not any_checkpoint.read("lock")
    with hold_run_lock(any_checkpoint, "games"):
        assert is_run_active(any_checkpoint)
    assert not is_run_active(any_checkpoint)
    with hold_run_lock(any_checkpoint, "games"):
        pass


def test_the_lock_of_a_killed_run_is_left_for_the_next_start(checkpoint: Lake) -> None:
    """Without it a repair beside no stream waits for ever, or takes the lock over that a start is about to."""
    Lease(checkpoint.store, "lock", "killed").take()
    content = checkpoint.read("lock")

    assert not is_run_active(checkpoint)
    assert checkpoint.read("lock") == content


def test_a_start_is_not_refused_by_who_asks(tmp_path: Path) -> None:
    """Without it a stream that starts while a repair looks for it ends with exit code 1."""
    checkpoint = Lake.at(str(tmp_path))
    path = tmp_path / "lock"
    path.touch()
    with path.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_run_active(checkpoint), "who asks does not take another one who asks for a run"
        ended = threading.Timer(0.3, lambda: fcntl.flock(asking, fcntl.LOCK_UN))
        ended.start()
        with hold_run_lock(checkpoint, "games"):
            assert is_run_active(checkpoint)
        ended.join()
