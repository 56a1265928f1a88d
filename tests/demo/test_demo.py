"""The whole demo: what it shows is what was sent, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "router_demo", "--folder", str(folder / "demo"), *options]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("form", ["protobuf", "avro", "json"])
def test_every_record_of_the_demo_is_accounted_for(tmp_path: Path, form: str) -> None:
    demo = start(tmp_path, "--format", form, "--events", "6000", "--rate", "2000", "--changes", "2000", "--wins", "150")

    said, _ = demo.communicate(timeout=500)

    assert demo.returncode == 0, said
    told = " ".join(said.split())  # lines end where the terminal does
    assert "Every record is accounted for: 6,000 sent, 6,000 in bronze" in told
    assert "out of 2,000 changes of them, each the one that was sent last" in told
    assert "149 big wins at the API, each once, and 1 that it refuses for good in dead letters: the 150 in" in told


def test_the_page_of_the_demo_is_kept_up(tmp_path: Path) -> None:
    """Without it somebody who has just seen the demo finds no page at the address that it printed."""
    options = ("--format", "json", "--events", "6000", "--rate", "2000", "--changes", "2000", "--wins", "150", "--keep")
    demo = start(tmp_path, *options)
    assert demo.stdout is not None
    said = ""
    try:
        for line in demo.stdout:
            said += line
            if "the page stays at" in line:
                break
        (first, last) = re.findall(r"(?:watch it|stays) at (http://127\.0\.0\.1:\d+/)", said)
        assert first == last, said
        status = requests.get(f"{first}api/status", timeout=30).json()
        assert (status["state"], status["records"]["read"], status["lag"]) == ("running", 6000, 0)
        assert "<main>" in requests.get(first, timeout=30).text
        os.killpg(demo.pid, signal.SIGINT)
        rest, _ = demo.communicate(timeout=200)
        assert demo.returncode == 0, said + rest
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("until", "events"),
    [
        pytest.param("starts, in a process", 600_000, id="while the router starts"),
        pytest.param("go on", 600_000, id="in the stream"),
        pytest.param("out of order", 6_000, id="while the API is out"),
    ],
)
def test_ctrl_c_ends_all_that_the_demo_started(tmp_path: Path, until: str, events: int) -> None:
    """What is left running holds ports and memory that nobody knows of."""
    demo = start(tmp_path, "--events", str(events), "--changes", "2000")
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        said += line
        if until in line:
            break
    children = psutil.Process(demo.pid).children(recursive=True)
    assert children

    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
    rest, _ = demo.communicate(timeout=200)

    assert demo.returncode == 130, said + rest
    assert "Traceback" not in rest
    assert "nothing is left running" in rest
    deadline = time.monotonic() + 20
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [child for child in children if child.is_running()]
