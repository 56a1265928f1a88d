"""Keyed tables against a plain model, through histories of batches that nobody would think of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.delta.histories import KINDS, Histories
from tests.light import drawn

if TYPE_CHECKING:
    from router.api.sinks import KeyedTable


@pytest.mark.parametrize("keyed", KINDS.values(), ids=KINDS)
def test_a_table_is_what_its_records_say(keyed: KeyedTable) -> None:
    """Without it a late record, a replay or a crash leaves a state that nobody ever sent."""
    machine = type("Machine", (Histories,), {"keyed": keyed})

    run_state_machine_as_test(
        machine, settings=settings(max_examples=max(4, drawn(8)), stateful_step_count=8, deadline=None)
    )
