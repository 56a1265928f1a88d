"""A disk that answers EIO: what is written fails below the C library, in Python, Arrow, delta-rs and the JVM alike.

Not the kernel's own EIO: `eio.c`, loaded ahead of the C library, answers for it in files of a chosen name. A run lives
through all of them, and each is mended while it waits.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos import lakes
from tests.chaos.conftest import GAMES, configuration
from tests.chaos.faults.table import DISKS, Disk
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.chaos.processes import RouterProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

EVENT = b'{"game": "rummy", "amount": 1}'
SENT = 20


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Load the library into the next processes; return the file that says where it answers EIO."""
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no compiler of C here")
    library = tmp_path / "eio.so"
    source = Path(__file__).with_name("eio.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("EIO_AT", str(tmp_path / "order"))
    return tmp_path / "order"


@pytest.mark.parametrize("group", sorted({disk.group for disk in DISKS}))
def test_a_failing_disk_is_waited_for_and_named(router_run, new_topic, order: Path, tmp_path: Path, group: str) -> None:
    """Without it a disk that fails for a minute ends the stream, or one folder's disk holds up all tables."""
    topic, lake = new_topic(), tmp_path / "lake"
    config = configuration(tmp_path, topic, rows=1000, routes=[GAMES])
    topic.send([EVENT] * SENT)
    router = router_run(config, "--continuous")
    wait_until(lambda: lakes.rows(lake, "silver.rummy").total() == SENT, "the first rows are in the lake")
    sent = SENT
    for disk in (disk for disk in DISKS if disk.group == group):
        sent += SENT
        order.write_text(disk.path)
        topic.send([EVENT] * SENT)
        said = len(router.said)
        heard(router, disk, said)
        order.unlink()
        wait_until(lambda sent=sent: lakes.rows(lake, "silver.rummy").total() >= sent, f"rows after {disk.path}")
    wait_until(lambda: booked(lake) == sent, "the ledger has all")
    assert len(lakes.places(lake)) == lakes.places(lake).total() == sent
    assert lakes.rows(lake, "silver.rummy").total() == sent


def booked(lake: Path) -> int:
    return sum(row["read"] or 0 for row in lakes.read(lake, "ops.ledger"))


def heard(router: RouterProcess, disk: Disk, already: int) -> None:
    """Wait until a line names what fails, and why."""

    def told() -> bool:
        return any(disk.says in line and disk.also in line for line in router.said[already:].splitlines())

    try:
        wait_until(told, f"{disk.says} for {disk.path}")
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{router.said[already:]}") from None
