"""The board of a stream that runs."""

from __future__ import annotations

import pytest

from router.engine.status.board import StatusBoard


@pytest.fixture
def board() -> StatusBoard:
    """Return the board of a stream that runs and has processed no batch."""
    made = StatusBoard("games")
    made.enter_state("running")
    return made
