"""Ask the sinks of a run once a second whether their APIs work, for webhook, page and metrics; also without `ui`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from router.api.sinks import ApplyingSink
from router.engine.status.background import BackgroundThread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import Config
    from router.engine.status.board import StatusBoard

_LOOK_SECONDS = 1.0


@contextmanager
def api_states_noted(config: Config, board: StatusBoard) -> Iterator[None]:
    """Note on the board, while the block runs, how the APIs of a configuration's sinks are."""
    sinks = {f"{route}/{name}": sink for route, name, sink in config.all_sinks() if isinstance(sink, ApplyingSink)}
    if not sinks:
        yield
        return
    with ApiStates(board, sinks):
        yield


class ApiStates(BackgroundThread):
    """A thread that asks sinks, by ROUTE/SINK.

    It has no other work: storage that is slow to read must not hide an outage.
    """

    def __init__(self, board: StatusBoard, sinks: dict[str, ApplyingSink]) -> None:
        super().__init__("api states")
        self._board = board
        self._sinks = sinks

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self.read()

    def read(self) -> None:
        """Ask each sink once; a sink that has sent nothing yet knows nothing."""
        for key, sink in self._sinks.items():
            state = sink.api_state()
            if state is not None:
                self._board.api_is(key, state)
