"""The set-up of a checkout: what a reader of its lines sees, and what it leaves for later."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SETUP = (ROOT / "scripts" / "setup.sh").read_text()


def function(name: str) -> str:
    """Return one function of the script."""
    found = re.search(rf"^{name}\(\) \{{(?:[^\n]*\}}$|.*?^\}})", SETUP, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[0]


@pytest.fixture
def apt(tmp_path: Path) -> Callable[[int], subprocess.CompletedProcess[str]]:
    """Return how to install with an apt-get that prints as much as the real one, and ends with a code."""
    program = tmp_path / "apt-get"

    def install(code: int) -> subprocess.CompletedProcess[str]:
        program.write_text(
            f'#!/bin/sh\nfor n in $(seq 100); do echo "Selecting $n"; echo "debconf $n" >&2; done\nexit {code}\n'
        )
        program.chmod(0o755)
        script = "\n".join([*map(function, ("say", "run_apt", "apt_install")), "apt_install nginx chromium"])
        environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    return install


def test_apt_prints_one_line(apt: Callable[[int], subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Without it hundreds of lines of apt bury the steps of the set-up."""
    done = apt(0)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "nginx chromium" in line
    assert (tmp_path / ".venv" / "apt.log").read_text().count("\n") >= 200


def test_what_apt_refuses_is_one_more_line(apt: Callable[[int], subprocess.CompletedProcess[str]]) -> None:
    """Without it a set-up goes on without a program, and its reason is in a log that nobody names."""
    done = apt(100)
    assert done.returncode != 0
    _first, second = done.stderr.splitlines()
    assert ".venv/apt.log" in second
    assert "debconf 100" in second or "Selecting 100" in second


def test_nothing_else_calls_apt() -> None:
    calls = [
        line
        for line in SETUP.splitlines()
        if re.search(r"(?<![-\w\"])apt-get (?:update|install)(?! open| python)", line)
    ]
    assert calls == []


@pytest.mark.parametrize("goal", ["demo", "test"])
def test_the_archive_of_classes_waits_for_the_demo(goal: str) -> None:
    """Without it a minute of a processor is taken from the demo that it would make quicker next time."""
    done = subprocess.run(["make", "-n", goal], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stdout.splitlines() if "setup.sh" in line or "router_demo" in line]
    if goal == "test":
        assert lines == ["scripts/setup.sh"]
        return
    first, demo = lines
    assert first == "scripts/setup.sh --without-archive"
    assert "router_demo" in demo  # the end of its run makes the archive
