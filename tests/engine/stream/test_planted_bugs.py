"""Former bugs that stopped every table, planted again: the drawing tests find each one without what contains it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.catches.planted import BUGS, VARIABLE

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*BUGS])
def test_the_drawing_tests_find_a_former_bug(name: str) -> None:
    """Without it nobody knows whether drawing reaches what people have met."""
    bug = BUGS[name]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-p", "tests.engine.catches.planted"]
    ended = subprocess.run(
        [*command, f"tests/engine/{bug.found_by}"],
        cwd=ROOT,
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    assert bug.says in ended.stdout
