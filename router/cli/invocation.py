"""How a command is called and ended: the arguments that several commands take, and the signals that end a run."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from types import FrameType

config_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
"""FILE, the configuration; the command gets it as `file`."""

plugin_option = click.option(
    "--plugin",
    "plugin_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Load a plugin from one file; may be given several times.",
)
"""`--plugin FILE`; the command gets a tuple of paths as `plugin_files`."""


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at SIGTERM and Ctrl-C, which ends a run after its current batch; a second Ctrl-C ends it at once."""

    def order(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    former = {number: signal.signal(number, order) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
