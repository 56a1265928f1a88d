from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import router.registry
from router import ConfigError, Problem
from router.config.loader import Loaded, load_config
from router.registry import Registry, load_registry

GOOD = """\
name: games
lake: ./lake
source:
  kafka: {servers: "127.0.0.1:9092", topics: [game-events]}
decode: {text: }
routes:
  - name: big
    match: {where: event.amount > 9000}
    sinks: [{fixed: silver.big}]
dead_letters: ops.dead_letters
"""


@pytest.fixture(scope="session")
def registry() -> Registry:
    """Offer the parts of the tests and no others, so that every message is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router.registry, "entry_points", lambda group: ())
        return load_registry([Path(__file__).with_name("parts.py")])


Load = Callable[..., Loaded]
Faults = Callable[..., "tuple[Problem, ...]"]


@pytest.fixture(scope="session")
def good() -> str:
    return GOOD


@pytest.fixture(scope="session")
def loaded(registry: Registry) -> Load:
    """Load a text; further arguments are the environment."""

    def loaded(text: str, **environ: str) -> Loaded:
        return load_config(Path("games.yaml"), registry, environ=environ, text=text)

    return loaded


@pytest.fixture(scope="session")
def faults(loaded: Load) -> Faults:
    """Return the problems of a text; further arguments are the environment."""

    def faults(text: str, **environ: str) -> tuple[Problem, ...]:
        with pytest.raises(ConfigError) as caught:
            loaded(text, **environ)
        return caught.value.problems

    return faults
