"""Ask the sinks of a run once a second whether their APIs work, for webhook, page and metrics; also without `ui`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.api.sinks import ApplyingSink
from router.engine.status.background import BackgroundThread

if TYPE_CHECKING:
    from router.config.models import Config
    from router.engine.status.board import StatusBoard

_API_LOOK_SECONDS = 1.0


class ApiStates(BackgroundThread):
    """A thread that notes on the board how the APIs of a configuration's sinks are. Use it as a context.

    It has no other work: storage that is slow to read must not hide an outage.
    """

    def __init__(self, config: Config, board: StatusBoard) -> None:
        super().__init__("api states")
        self._board = board
        self._sinks: dict[str, ApplyingSink] = {}
        for route, name, sink in config.all_sinks():
            if isinstance(sink, ApplyingSink):
                self._sinks[f"{route}/{name}"] = sink

    def _run(self) -> None:
        while self._sinks and not self._ended.wait(_API_LOOK_SECONDS):
            for key, sink in self._sinks.items():
                state = sink.api_state()
                # A sink that has sent nothing yet knows nothing.
                if state is not None:
                    self._board.api_is(key, state)
