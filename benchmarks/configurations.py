"""Write what a router is configured with as people do, into a file, and read it as the router does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.runs import Task
    from router.config.loader import Loaded


def written(task: Task, configuration: Mapping[str, Any]) -> Path:
    """Write a configuration into the folder of a task."""
    path = Path(task.folder, "benchmark.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(configuration), sort_keys=False))
    return path


def loaded(task: Task, configuration: Mapping[str, Any]) -> Loaded:
    """Write a configuration, and return what the router reads."""
    return load(written(task, configuration), load_registry())
