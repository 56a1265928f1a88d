"""Show a run: one log line per batch, and a live line on a terminal."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.status import Status

from router.cli import configuration_file
from router.counts import COUNTS
from router.errors import ConfigError, RouterError, commands_with_file, first_line, to_printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from router.api.parts import BatchReport

BATCH_STEPS = ("plan", "land", "search", "decide", "manifest", "commit", "apply", "ledger", "release")


class Watcher:
    """The log of batches on standard error; on a terminal also the current step."""

    def __init__(self, name: str, *, json_lines: bool = False) -> None:
        self.name = name
        self.log = logging.getLogger("router")
        self.handler = logging.StreamHandler(sys.stderr)
        # Other threads log as well, and only the one of the command knows its file.
        file = configuration_file()
        formatter: logging.Formatter = _TextLines(file)
        if json_lines:
            formatter = _JsonLines(file)
        self.handler.setFormatter(formatter)
        terminal = Console(stderr=True)
        self.status: Status | None = None
        if terminal.is_terminal and not json_lines:
            self.status = Status(f"{name}: starting", console=terminal)

    def __enter__(self) -> Watcher:
        self.log.addHandler(self.handler)
        self.log.setLevel(logging.INFO)
        self.log.propagate = False
        if self.status:
            self.status.start()
            # The live line takes standard error over, and steps aside for what is written to it from now on.
            self.handler.setStream(sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status:
            self.status.stop()
            self.handler.setStream(sys.stderr)
        self.log.removeHandler(self.handler)
        self.log.propagate = True

    def show_step(self, batch: int, step: str, done: int, of: int) -> None:
        """Show the step of a batch."""
        if self.status is None:
            return
        text = f"{self.name}: batch {batch}, {step}"
        if of > 1:
            text += f" {done} of {of}"
        self.status.update(text)

    def log_batch(self, report: BatchReport, behind: int | None) -> None:
        """Log a finished batch; `behind` is in records, None if the source does not say."""
        self.log.info(batch_line(report, behind), extra={"batch": {**asdict(report), "behind": behind}})


def batch_line(report: BatchReport, behind: int | None) -> str:
    """Return a batch as one line: rows, tables, dead letters, seconds by step, lag."""
    text = (
        f"{report.query} batch {report.batch}: {report.read:,} rows into {report.tables} tables "
        f"({report.files} files), {report.dead_letters:,} dead letters"
    )
    for count in COUNTS:
        rows = sum(route.get(count.name, 0) for route in report.routes.values())
        if count.logged and rows:
            text += f", {rows:,} {count.name}"
    steps = [f"{name} {report.seconds[name]:.2f}" for name in BATCH_STEPS if report.seconds.get(name, 0) >= 0.005]
    text += f", {sum(report.seconds.values()):.2f} s ({' '.join(steps)})"
    if behind is not None:
        text += f", {behind:,} behind"
    return text


@contextmanager
def json_errors(context: click.Context) -> Iterator[None]:
    """Log what ends a run as JSON lines, one for each problem, and exit with its code; of other errors also the stack.

    What reads the log by its fields would miss a last line of text, which says why the run has ended.
    """
    try:
        yield
    except RouterError as error:
        messages = [str(error)]
        if isinstance(error, ConfigError):
            messages = str(error).split("\n")
        for message in messages:
            _print_error(message, error.exit_code)
        context.exit(error.exit_code)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        _print_error(f"{type(error).__name__}: {first_line(error)}", 1, error)
        context.exit(1)


def _print_error(message: str, exit_code: int, error: Exception | None = None) -> None:
    """Print an error to standard error: the log's own handler is gone by now, or was not there yet."""
    stack = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("router", logging.ERROR, __file__, 0, message, (), stack)
    record.exit_code = exit_code
    click.echo(_JsonLines(configuration_file()).format(record), err=True)


class _TextLines(logging.Formatter):
    """Log records as lines of text: whatever a message quotes, it stays on its line."""

    def __init__(self, file: Path | None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._file = file

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = to_printable(commands_with_file(record.message, self._file))
        return super().formatMessage(record)


class _JsonLines(logging.Formatter):
    """Log records as JSON lines; that of a batch has its whole report."""

    def __init__(self, file: Path | None) -> None:
        super().__init__()
        self._file = file

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": commands_with_file(record.getMessage(), self._file),
        }
        # The first two are set by `Watcher.log_batch` and `json_errors`.
        for name in ("batch", "exit_code"):
            value = getattr(record, name, None)
            if value:
                document[name] = value
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document)
