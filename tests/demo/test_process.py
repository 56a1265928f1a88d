"""Starting the router's process: a signal that comes meanwhile does not leave it behind."""

from __future__ import annotations

import os
import signal

import pytest

from router_demo.process import uninterrupted

done: list[str] = []


def start() -> None:
    with uninterrupted(signal.SIGINT):
        os.kill(os.getpid(), signal.SIGINT)
        done.append("started")


def test_a_signal_waits_until_what_was_being_started_is_known() -> None:
    """A router that was started and never assigned runs on, unseen."""
    with pytest.raises(KeyboardInterrupt):
        start()

    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
