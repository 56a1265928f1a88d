"""Run an HTTP API that limits, fails and remembers, for as long as a `with` block: the other end of a REST sink."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import requests

from router_demo.api_server.__main__ import main
from router_demo.api_server.script import Failure, Items, Limit, Poison, Script, Token
from router_demo.embedded import HOST, Embedded, free_ports

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Api", "Failure", "Items", "Limit", "Poison", "Script", "Stats", "Token"]


@dataclass(frozen=True)
class Stats:
    """The figures of the calls of some time, each counted from the times and contents of all of them.

    `highest` is the most calls within any window, `highest_let_in` the same without those that got 429;
    `limit_used` is by the name of a limit. `processed` counts calls whose rows took effect, `repeated_keys` those of
    them that took effect again. `first` and `last` are monotonic times of this machine. From `replayed` on the
    figures are of all calls since the last reset.
    """

    arrived: int
    statuses: dict[int, int]
    throttled_share: float
    processed: int
    processed_keys: int
    repeated_keys: int
    first: float | None
    last: float | None
    highest: float
    highest_let_in: float
    limit_used: dict[str, float | None]
    replayed: int
    abandoned: int
    connections: int
    in_flight: int
    busiest: int
    lag: float
    tokens: int


class Api(Embedded):
    """The API with its record, which is in its memory: it is gone after `stop()`, so take an `outage` instead.

    Without a script every request succeeds at once. `certificate` is a PEM file with certificate and key.
    """

    what: ClassVar[str] = "API"
    start_seconds: ClassVar[int] = 30

    def __init__(self, *, certificate: Path | None = None, client_ca: Path | None = None, **script: Any) -> None:
        super().__init__()
        self._files = {"--certificate": certificate, "--client-ca": client_ca}
        self._script = Script.model_validate(script)
        self._control_port = 0

    @property
    def url(self) -> str:
        """Return the URL of the API, without a slash at its end."""
        scheme = "https" if self._files["--certificate"] else "http"
        return f"{scheme}://{self._address()}"

    @property
    def control_url(self) -> str:
        """Return the URL of the control port."""
        return f"http://{HOST}:{self._control_port}/_control"

    def play(self, **script: Any) -> float:
        """Put a script (fields of `Script`) in the place of the last one; return the time from when it is in force."""
        written = Script.model_validate(script)
        return float(self._ask("PUT", "script", data=written.model_dump_json())["at"])

    def reset(self) -> None:
        """Forget every call and the script; connections stay open."""
        self._ask("POST", "reset")

    def stats(self, *, since: float | None = None, until: float | None = None, window: float = 1.0) -> Stats:
        """Return the figures of the calls that arrived in a span of monotonic time; `window` is in seconds."""
        figures = self._ask("GET", "stats", params={"since": since, "until": until, "window": window})
        # The names of a JSON object are text.
        statuses = {int(status): count for status, count in figures.pop("statuses").items()}
        return Stats(statuses=statuses, **figures)

    def rows(self, *ids: str, since: float | None = None, until: float | None = None) -> Counter[Any]:
        """Return how often each row took effect, by the values of some fields (dotted paths) of the rows in bodies.

        The values of a row are a tuple, or a plain value for one field.
        """
        counts: Counter[Any] = Counter()
        for row, times in self._ask("GET", "rows", params={"id": ids, "since": since, "until": until}):
            row_id = tuple(row) if len(ids) > 1 else row[0]
            counts[row_id] = times
        return counts

    def requests(self, last: int = 100) -> list[dict[str, Any]]:
        """Return the newest calls, oldest first, with `body` as latin-1 text."""
        return list(self._ask("GET", "requests", params={"last": last}))

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        with requests.Session() as session:
            session.trust_env = False  # no proxy lies between this machine and itself
            answer = session.request(method, f"{self.control_url}/{path}", timeout=60, **more)
        if answer.status_code != 200:
            raise ValueError(f"the API's control port: {answer.text}")
        return answer.json()

    def _prepare(self, folder: Path) -> None:
        self._port, self._control_port = free_ports(2)

    def _command(self, folder: Path) -> list[str]:
        # Not this module: it brings Spark with it, and the server would start a second later.
        command = [sys.executable, "-m", "router_demo.api_server", "--script", self._script.model_dump_json()]
        command += ["--port", str(self._port), "--control-port", str(self._control_port)]
        for option, file in self._files.items():
            if file:
                command += [option, str(file.resolve())]
        return command

    def _answers(self) -> bool:
        try:
            self._ask("GET", "script")
        except requests.RequestException:
            return False
        return True


if __name__ == "__main__":
    main(sys.argv[1:])
