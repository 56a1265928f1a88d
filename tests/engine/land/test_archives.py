"""Workers that are used again: what Spark does before each task costs little from the second on."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING
from zipfile import ZipFile
from zipimport import zipimporter

from router import keep_archives

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_an_archive_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every small task reads pyspark.zip twenty times."""
    archive = tmp_path / "more.zip"
    _write(archive, "brought_along")
    monkeypatch.syspath_prepend(archive)
    import brought_along  # type: ignore[import-not-found]  # noqa: F401 - Python makes its finder now

    finder = sys.path_importer_cache[str(archive)]
    assert isinstance(finder, zipimporter)
    keep_archives()
    _write(archive, "brought_later")

    importlib.invalidate_caches()

    assert finder.find_spec("brought_later") is None


def _write(archive: Path, module: str) -> None:
    with ZipFile(archive, "w") as written:
        written.writestr(f"{module}.py", "")
