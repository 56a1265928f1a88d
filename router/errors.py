"""The exceptions of the router.

RouterError
├── ConfigError     a configuration that cannot start; carries every Problem found
├── PluginError     a plugin that is broken, misspelt or clashes with another
├── StartError      a start refused: running already, lake and checkpoint do not belong together, ...
├── BatchError      a batch that must stop: it does not balance, or an expectation says `fail`
├── TableError      a Delta table that cannot be written
└── SinkError       an applying sink that failed

A fault of a single record is never an exception: it becomes a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration, and where it stands.

    `line` and `column` count from 1; `path` is the place as keys (`routes.0.match.sql`); `hint` is the next step.
    """

    file: str
    line: int
    column: int
    path: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {self.path or '(top)'}: {self.what}{hint}"


class RouterError(Exception):
    """The root of every error that the router raises on purpose."""


class ConfigError(RouterError):
    """Every problem of a configuration, all at once."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class PluginError(RouterError):
    """A plugin that stops the start, with the name of its provider."""

    def __init__(self, provider: str, what: str) -> None:
        super().__init__(provider, what)
        self.provider = provider
        self.what = what

    def __str__(self) -> str:
        return f"plugin {self.provider}: {self.what}"


class StartError(RouterError):
    """The reason why a stream was not started, and what to do."""


class BatchError(RouterError):
    """The reason why a batch stopped the stream."""

    def __init__(self, query: str, batch: int, what: str) -> None:
        super().__init__(query, batch, what)
        self.query = query
        self.batch = batch
        self.what = what

    def __str__(self) -> str:
        return f"{self.query}, batch {self.batch}: {self.what}"


class TableError(RouterError):
    """A table that cannot be written."""

    def __init__(self, table: str, what: str) -> None:
        super().__init__(table, what)
        self.table = table
        self.what = what

    def __str__(self) -> str:
        return f"table {self.table}: {self.what}"


class SinkError(RouterError):
    """A sink that failed on a batch, by route and sink."""

    def __init__(self, query: str, batch: int, route: str, sink: str, what: str) -> None:
        super().__init__(query, batch, route, sink, what)
        self.query = query
        self.batch = batch
        self.route = route
        self.sink = sink
        self.what = what

    def __str__(self) -> str:
        return f"{self.query}, batch {self.batch}, route {self.route}, sink {self.sink}: {self.what}"
