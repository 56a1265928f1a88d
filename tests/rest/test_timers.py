"""A loop with exact timers: what runs in it, and what is left of it."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading

import pytest

from router_rest.delivery.worker import PreciseSelector, run_with_precise_timers


def test_a_wait_is_not_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API that wants calls evenly spaced refuses those that come a part of a millisecond early or late."""
    waits: list[float] = []
    own_thread = threading.get_ident()

    def select(*arguments: float) -> None:
        if threading.get_ident() == own_thread:  # threads of other tests may wait meanwhile
            waits.append(arguments[-1])

    monkeypatch.setattr("select.select", select)
    with PreciseSelector() as selector:
        selector.select(0.0203)

    assert waits == [0.0203]


def test_a_file_that_is_ready_ends_a_wait() -> None:
    """Without it answers are read only when the next call is due."""
    ours, theirs = socket.socketpair()
    with PreciseSelector() as selector, ours, theirs:
        selector.register(ours, selectors.EVENT_READ)
        theirs.send(b"x")
        ready = selector.select(60.0)

    assert [key.fileobj for key, _ in ready] == [ours]


def test_a_coroutine_runs_to_its_end_in_any_thread() -> None:
    """Tasks run it in a thread of their own; what it leaves behind is cancelled, not forgotten."""
    ends: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def main() -> None:
        left = asyncio.ensure_future(wait_for_ever())
        await asyncio.sleep(0.001)
        ends.append(f"done: {left.done()}")

    thread = threading.Thread(target=lambda: run_with_precise_timers(main()))
    thread.start()
    thread.join()

    assert ends == ["done: False", "cancelled"]


def test_an_error_comes_out() -> None:
    async def fail() -> None:
        raise LookupError("no credentials")

    with pytest.raises(LookupError, match="no credentials"):
        run_with_precise_timers(fail())
