"""The archives of the JVM's classes: those of installations that are gone are deleted, 200 MB each."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from router.cli.class_archive import SECONDS_PER_DAY, delete_useless_archives
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_archives_of_gone_installations_and_what_a_killed_process_left_are_deleted(tmp_path: Path) -> None:
    """Without it every environment that was ever made leaves an archive in the home of its user."""
    here = tmp_path / "venv" / "pyspark" / "__init__.py"
    here.parent.mkdir(parents=True)
    here.touch()
    cache = tmp_path / "cache"
    for name, path in (("here", here), ("gone", tmp_path / "other" / "pyspark" / "__init__.py")):
        cache.mkdir(exist_ok=True)
        (cache / f"classes-4.2.0-{name}.jsa").touch()
        (cache / f"classes-4.2.0-{name}.of").write_text(str(path))
    (cache / "classes-4.2.0-unknown.jsa").touch()
    for folder in ("warm-up-old", "warm-up-new"):
        (cache / folder).mkdir()
    before = (cache / "warm-up-new").stat().st_mtime - SECONDS_PER_DAY - 60
    os.utime(cache / "warm-up-old", (before, before))

    delete_useless_archives(cache)
    assert sorted(path.name for path in cache.iterdir()) == [
        *["classes-4.2.0-here.jsa", "classes-4.2.0-here.of", "classes-4.2.0-unknown.jsa", "warm-up-new"]
    ]


@pytest.mark.slow
def test_the_end_of_a_first_run_makes_the_archive(tmp_path: Path) -> None:
    """Without it every start takes seconds longer on a machine whose owner has not read about `warm-up`."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "few.yaml"
    file.write_text(
        f"name: few\nlake: {tmp_path}/lake\nsource: {{files: {{path: {tmp_path}/in}}}}\ndecode: {{none: {{}}}}\n"
        "bronze: bronze.all\ndead_letters: ops.dead\n"
    )
    environment = {**os.environ, "ROUTER_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "from router.cli import main; main()", "run", str(file), "--once"]

    ended = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)

    assert "warm" not in ended.stdout + ended.stderr
    wait_until(lambda: any((tmp_path / "cache").glob("classes-*.of")), "the archive is made")
    assert any((tmp_path / "cache").glob("classes-*.jsa"))
