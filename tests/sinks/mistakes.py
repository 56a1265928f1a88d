"""Configurations with one sink in line 8, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.loader import Loaded, load_config
from router.errors import ConfigError
from router.registry import load_registry, missing_extras

CONFIG = """\
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "n int, game string"}
routes:
  - name: wins
    match: {sql: "event.n > 1"}
    sinks: [SINK]
dead_letters: ops.dead
"""


def load_with_sink(sink: str) -> Loaded:
    """Load a configuration whose route has a sink, as YAML has it."""
    return load_config(Path("games.yaml"), load_registry(), environ={}, text=CONFIG.replace("SINK", sink))


def assert_mistake_has_a_line(sink: str, message: str) -> None:
    """Assert that a sink is refused with a message that has its line."""
    with pytest.raises(ConfigError) as error:
        load_with_sink(sink)

    assert "games.yaml:8:" in str(error.value)
    assert message in str(error.value)


def missing_extra(monkeypatch: pytest.MonkeyPatch, sink: str, module: str) -> str:
    """Return the one message about a sink whose module is not installed."""
    loaded = load_with_sink(sink)
    monkeypatch.setattr("router.registry._is_installed", lambda name: name != module)
    (message,) = missing_extras(loaded.config).values()
    return message
