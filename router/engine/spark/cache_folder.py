"""The folder of what the router keeps for itself on this machine: lists of jars, archives of classes, a launcher."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder: `$ROUTER_CACHE`, or one below the home of the user."""
    return Path(os.environ.get("ROUTER_CACHE") or Path.home() / ".cache" / "spark-event-router")
