"""The archives of the JVM's classes: those of installations that are gone are deleted, 200 MB each."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from router.cli.class_archive import SECONDS_PER_DAY, delete_useless_archives

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
