"""Run the command line with `python -m router`, or `spark-submit router/__main__.py`."""

from __future__ import annotations

import sys
from pathlib import Path


def _import_from_outside() -> None:
    """Put the checkout in front of this folder on the path.

    A file that is run puts its own folder first, where `config` or `testing` would hide other people's modules and
    `router` itself cannot be found.
    """
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    if (here / "errors.py").exists():  # on a cluster this file may arrive alone; then `router` is installed
        sys.path.insert(0, str(here.parent))


if __name__ == "__main__":
    if not __package__:
        _import_from_outside()
    from router.cli import main

    main()
