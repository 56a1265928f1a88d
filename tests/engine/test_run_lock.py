"""One run at a time on an object store: the lease."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import Fault, S3Server, s3_server
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore, Manifest
from router.engine.start import run_lock
from router.engine.start.run_lock import Lease, alone
from router.errors import RunningError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """Run an S3 server."""
    with s3_server("lake") as found:
        yield found


@pytest.fixture
def checkpoint(server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a checkpoint in a bucket, whose locks expire soon."""
    monkeypatch.setattr(run_lock, "RENEWED", 0.1)
    monkeypatch.setattr(run_lock, "EXPIRES", 1.0)
    yield Lake.at(f"s3://lake/{request.node.name}", server.options)
    server.fail()


def test_a_second_run_is_refused_and_a_third_one_after_the_first_is_not(checkpoint: Lake) -> None:
    """Without it two runs write the same batches, each with records of its own."""
    with alone(checkpoint, "games"), pytest.raises(RunningError, match="running already"), alone(checkpoint, "games"):
        pass
    with alone(checkpoint, "games"):
        assert checkpoint.read("lock")
    assert checkpoint.read("lock") is None


def test_the_lock_of_a_killed_run_expires(checkpoint: Lake) -> None:
    """Without it nobody can start again after a SIGKILL."""
    Lease(checkpoint.store, "lock", "killed").take()

    with alone(checkpoint, "games"):
        assert checkpoint.read("lock")


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
        first.enter_context(alone(checkpoint, "games", told.set))
        checkpoint.write("lock", b'{"owner": "another run"}')
        assert told.wait(10)
    assert checkpoint.read("lock") == b'{"owner": "another run"}'


def test_a_lock_outlives_a_short_outage(checkpoint: Lake, server: S3Server) -> None:
    """Without it one lost answer of the store ends a run that nobody disturbs."""
    told = threading.Event()
    with alone(checkpoint, "games", told.set):
        server.fail(Fault("PUT", "lock", "503 Slow Down", done=True))
        assert not told.wait(0.5)
    assert not server.faults_left()


def test_a_batch_is_decided_by_one_run(checkpoint: Lake) -> None:
    """Without it two runs that both think they have the lock commit other rows under one transaction id."""
    mine, other = (CheckpointStore(checkpoint, "run") for _ in range(2))
    decided = Manifest(7, "fingerprint", (), (), ())
    mine.decide(decided, new=True)
    mine.decide(decided, new=True)  # as a request does whose answer was lost

    with pytest.raises(RunningError, match="batch 7"):
        other.decide(Manifest(7, "another", (), (), ()), new=True)
    assert other.manifest(7) == decided
