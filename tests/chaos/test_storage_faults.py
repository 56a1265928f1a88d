"""Storage that fails under the whole lake: the stream waits and says so in a line, then goes on, and leaves nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from router.engine.retryable_errors import is_temporary
from router.errors import first_line
from tests.chaos import lakes
from tests.chaos.conftest import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

EVENTS = 3_000
FULL = os.strerror(errno.ENOSPC)


def full(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write into a device that is always full, as a landing task does."""
    yield from batches
    with pa.OSFile("/dev/full", "wb") as file:
        file.write(b"x" * (1 << 20))


@pytest.mark.spark
def test_a_full_disk_under_a_task_is_waited_for(spark: SparkSession) -> None:
    """Without it a run ends for want of space, though its documentation says that storage is waited for."""
    with pytest.raises(Exception, match=FULL) as raised:
        spark.range(1).mapInArrow(full, "id long").collect()

    assert is_temporary(raised.value)
    assert first_line(raised.value).startswith("OSError: [Errno 28]")
    assert not is_temporary(ValueError("28 is no number of an error"))


@pytest.mark.parametrize(
    "before", ["", 'Traceback (most recent call last):\n  File "task.py", line 3, in land\nOSError: ']
)
def test_what_the_disk_says_is_in_an_error_of_delta_rs(before: str) -> None:
    """Without it the log says `Generic LocalFileSystem error`, and nobody knows what to do."""
    arrow = "\x1b[31m↳\x1b[0m"
    causes = f"Generic LocalFileSystem error\n   {arrow} Unable to copy data\n    {arrow} {FULL} (os error 28)\n\n"
    error = DeltaError(before + causes)
    said = f"Generic LocalFileSystem error: Unable to copy data: {FULL} (os error 28)"
    assert first_line(error).removeprefix("OSError: ") == said
    assert is_temporary(error)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], check=False).returncode:
        pytest.skip("no right to mount a file system here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_stream_waits_for_room_and_goes_on(router_run, new_topic, small_disk: Path, tmp_path: Path) -> None:
    topic = new_topic()
    games = topic.simulate(EVENTS)
    lake = small_disk / "lake"
    config = configuration(tmp_path, topic, lake=str(lake), checkpoint=str(tmp_path / "checkpoint"), rows=EVENTS)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * ((3 << 20) - (64 << 10)))

    router = router_run(config, "--once")
    router.says("trying again in")
    time.sleep(3)  # some tries more, none of which has a line
    waiting = [line for line in router.said.splitlines() if "trying again in" in line]
    left = list(lake.glob("*/*/*.parquet"))
    filler.unlink()

    if router.ended():  # the room came in the middle of a try, when some tables were in their quarantine already
        assert "every start tries them again" in router.said, router.said
        assert router_run(config, "--once").ended() == 0
    assert all(FULL in line for line in waiting), waiting
    assert left == []
    assert len(lakes.places(lake)) == lakes.places(lake).total() == EVENTS
    assert {game: lakes.rows(lake, f"silver.{game}").total() for game in games} == dict(games)
    assert lakes.uncommitted_files(lake) == []
    assert not (lake / "quarantine").exists()
