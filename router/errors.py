"""The exceptions of the router.

RouterError
├── ConfigError     a configuration that cannot start; carries every Problem found
├── PluginError     a plugin that is broken, misspelt or clashes with another
├── StartError      a start refused: lake and checkpoint do not belong together, records are lost, ...
│   ├── LookupTableError  a table that events cannot be looked up in
│   ├── RunningError  another run of the same configuration is active
│   └── MachineError  Spark cannot start here: no Java, jars that cannot be fetched, ...
├── SessionLost     Spark's JVM has ended under the router
├── BatchError      a batch that must stop: it does not balance, or an expectation says `fail`
├── TableError      a Delta table that cannot be written
├── ViewError       a view that cannot be refreshed
└── SinkError       an applying sink that failed

A fault of a single record is never an exception: it becomes a dead letter.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

CAUSE_SIGN = "\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}"
"""The sign that delta-rs writes before each cause of an error of the storage, in colours."""
LOST_TASK = re.compile(r".*Lost task \S+ in stage \S+ \(TID \d+\) \([^)]*\): ")
"""What Spark writes before the error of a task."""
SQL_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
"""What Spark writes after the message of an error, also after the traceback of a Python task."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def to_printable(text: str) -> str:
    """Return a text that gives no orders to a terminal or a log: all but visible characters and blanks are escaped.

    Messages contain names of topics and columns and answers of APIs, and anyone may have written them.
    """
    if text.isprintable():
        return text
    safe = ""
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()  # noqa: PLW2901
        safe += character
    return safe


VERBOSE = "ROUTER_VERBOSE"
"""The environment variable that `router --verbose` sets; a program that is submitted to a cluster can also set it."""


def is_verbose() -> bool:
    """Return whether stack traces and Spark's own log are wanted."""
    return bool(os.environ.get(VERBOSE))


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error's message, cut off if it is too long for a log.

    Of an error of a Python task it is the last line of the traceback, and of an error of the JVM the second line: the
    lines before are by Spark and Py4J. An error of delta-rs has a line for each of its causes, and the last one is by
    the disk.
    """
    text = str(error).strip() or type(error).__name__
    message = _without_xml(text).split("JVM stacktrace")[0].strip()
    lines = SQL_STATE.sub("", message).splitlines()
    causes = [number for number, line in enumerate(lines) if CAUSE_SIGN in line]
    if causes:
        # The line before the first cause names the failed operation.
        first = max(0, causes[0] - 1)
        last = causes[-1]
        chain = [COLOUR.sub("", line).replace(CAUSE_SIGN, "").strip() for line in lines[first : last + 1]]
        return ": ".join(chain)[:300]
    if any("Traceback (most recent call last)" in line for line in lines):
        return lines[-1].strip().removeprefix(f"{TaskError.__module__}.{TaskError.__name__}: ")[:300]
    by_py4j = lines[0].startswith("An error occurred while calling") and len(lines) > 1
    return LOST_TASK.sub("", lines[1 if by_py4j else 0]).strip(": \t")[:300]


def _without_xml(text: str) -> str:
    """Return a message with the code of an object store's answer in place of its XML, as S3 documents these errors."""
    before, xml, answer = text.partition("<?xml")
    if not xml:
        return text
    code = re.search(r"<Code>(\w+)</Code>", answer)
    if code is None:
        return before.rstrip(": ")
    meaning = "no such bucket" if code[1] == "NoSuchBucket" else code[1]
    return f"{before.rstrip(': ')}: {meaning}"


class TaskError(Exception):
    """An error of a Python task in one line, class and message: it reaches the driver as the text of a traceback.

    A message of several lines, which may quote a record, could pass for another error there.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {to_printable(first_line(error))}")


CODES = {
    "file": "the file cannot be read, or is no YAML",
    "variable": "a variable is not set, or its file cannot be read",
    "missing": "an option is required and not there",
    "unknown": "there is no such option, or no such part",
    "value": "an option does not take this value",
    "conflict": "two things exclude each other, or one names what is not there",
    "sql": "SQL or DDL that cannot be read",
    "field": "the event has no such field, or the route no such column",
    "secret": "a secret stands in the file: a note, and no problem",
    "plan": "Spark, the decoder or the lake refuses it: of `--plan` and `--lake` only",
}
"""What a problem may be, for programs that read `router check --json`."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration, and where it stands.

    `line` and `column` count from 1; `path` is the place as keys (`routes.0.match.sql`); `hint` is the next step,
    `code` one of CODES.
    """

    file: str
    line: int
    column: int
    path: str
    what: str
    hint: str = ""
    code: str = field(default="file", compare=False)

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.column}: {self.path or '(top)'}: {self.what}"
        if self.hint:
            text += f"; {self.hint}"
        return text


class RouterError(Exception):
    """The root of every error that the router raises on purpose."""

    exit_code: ClassVar[int] = 2
    """The exit code of `router run`: 2 if a person has to act first, 1 if a later start may succeed."""


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


class LookupTableError(StartError):
    """A table that events cannot be looked up in; `place` is where below the lookup the fault stands."""

    def __init__(self, lookup: str, what: str, *place: str) -> None:
        super().__init__(lookup, what)
        self.lookup = lookup
        self.what = what
        self.place = place

    def __str__(self) -> str:
        return f"lookup {self.lookup}: {self.what}"


class RunningError(StartError):
    """The refusal of a start while another run holds the lock."""

    exit_code = 1


class MachineError(StartError):
    """What keeps Spark from starting on this machine, and the next step."""

    def __init__(self, what: str, todo: str = "") -> None:
        super().__init__(what, todo)
        self.what = what
        self.todo = todo

    def __str__(self) -> str:
        if not self.todo:
            return self.what
        return f"{self.what}; {self.todo}"


class SessionLost(RouterError):  # noqa: N818 - it says what happened
    """The end of Spark's JVM, or of its context, under a run. The next start continues where this one ended."""

    exit_code = 1


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

    exit_code = 1

    def __init__(self, table: str, what: str) -> None:
        super().__init__(table, what)
        self.table = table
        self.what = what

    def __str__(self) -> str:
        return f"table {self.table}: {self.what}"


class ViewError(RouterError):
    """A view that cannot be refreshed; its tables stay as they are."""

    exit_code = 1

    def __init__(self, view: str, what: str) -> None:
        super().__init__(view, what)
        self.view = view
        self.what = what

    def __str__(self) -> str:
        return f"view {self.view}: {self.what}"


class SinkError(RouterError):
    """A sink that failed on a batch, by route and sink."""

    exit_code = 1

    def __init__(self, query: str, batch: int, route: str, sink: str, what: str) -> None:
        super().__init__(query, batch, route, sink, what)
        self.query = query
        self.batch = batch
        self.route = route
        self.sink = sink
        self.what = what

    def __str__(self) -> str:
        return f"{self.query}, batch {self.batch}, route {self.route}, sink {self.sink}: {self.what}"


CAUSE_SHOWN = 160
"""Characters of a cause that a sentence shows."""
NAMES_SHOWN = 3
"""Tables and sinks that a sentence names."""


def line_of(text: str, command: str) -> str:
    """Return a sentence in one line with the command that it ends in."""
    return f"{text}  $ {command}" if command else text


def shorten_cause(cause: str) -> str:
    """Return a cause, cut off if it is too long for a sentence."""
    return cause if len(cause) <= CAUSE_SHOWN else f"{cause[: CAUSE_SHOWN - 1]}…"


def join_names(names: list[str]) -> str:
    """Return the first names, and how many others there are."""
    text = ", ".join(names[:NAMES_SHOWN])
    others = len(names) - NAMES_SHOWN
    return f"{text} and {others:,} more" if others > 0 else text


_FILE_IN_COMMAND = re.compile(r"(?<=\brouter )([a-z-]+(?: list| approve| release| discard)?) FILE\b")
"""The place of the configuration's file in a command that a message of the engine names: `router tables FILE`."""


def commands_with_file(text: str, file: Path | str | None) -> str:
    """Return a message with the path of the configuration in the commands that it names, so that they can be pasted.

    Without a path FILE stays.
    """
    if file is None:
        return text
    path = shlex.quote(str(file))
    return _FILE_IN_COMMAND.sub(lambda command: f"{command[1]} {path}", text)
