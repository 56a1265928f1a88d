"""Configurations as files, as the router reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.config.loader import load_config
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.models import Config


def write_config(folder: Path, text: str) -> Config:
    """Write a configuration to `games.yaml` of a folder, and return it as the router reads it there."""
    file = folder / "games.yaml"
    file.write_text(text)
    return load_config(file, load_registry(), environ={}).config
