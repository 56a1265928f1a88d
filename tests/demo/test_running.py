"""Starting the router's process: a signal that comes meanwhile does not leave it behind."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from router_demo import running
from router_demo.running import page_address, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

done: list[str] = []


def start() -> None:
    with uninterrupted(signal.SIGUSR1):
        os.kill(os.getpid(), signal.SIGUSR1)
        done.append("started")


@pytest.fixture
def handled() -> Iterator[None]:
    """Handle a signal as Ctrl-C is; Ctrl-C itself may be ignored by whoever runs the tests."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handled")
def test_a_signal_waits_until_what_was_being_started_is_known() -> None:
    """A router that was started and never assigned runs on, unseen."""
    with pytest.raises(KeyboardInterrupt):
        start()

    assert done == ["started"]
    assert signal.getsignal(signal.SIGUSR1) is signal.default_int_handler


def test_the_page_has_another_port_if_its_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the demo prints an address at which another stream, or nothing, is seen."""
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(running, "PAGE_PORT", taken)
        host, _, port = page_address().partition(":")
    assert (host, int(port) == taken) == ("127.0.0.1", False)
    assert page_address() == f"127.0.0.1:{taken}"
