"""Start what tests share once per run: the real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from router_demo.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

# An example that takes long says something about the machine, not about the code.
settings.register_profile("router", deadline=None)
settings.load_profile("router")

NEED_JAVA = {"spark", "broker"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Java by the fixtures it asks for, before `-m` chooses."""
    for item in items:
        if NEED_JAVA.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedKafka]:
    """Run one Kafka for the whole run; each test uses topics of its own, and leaves it running."""
    with EmbeddedKafka() as kafka:
        yield kafka
