"""Keep Python workers from reading archives again before every task. Runs on executors."""

from __future__ import annotations

import sys
from zipimport import zipimporter


def keep_archives() -> None:
    """Keep what the worker has read of the archives on its import path. A task calls it first.

    Before each task Spark's worker has Python forget what it knows of the path (`importlib.invalidate_caches`), and
    Python reads the directory of every archive again at once: of pyspark.zip for each of its packages, which is most of
    the CPU time of a small task. An archive that a job brings later has a name of its own, and is read when it comes.
    """
    for finder in list(sys.path_importer_cache.values()):
        if isinstance(finder, zipimporter):
            setattr(finder, "invalidate_caches", _nothing)  # noqa: B010 - a method, to type checkers


def _nothing() -> None:
    pass
