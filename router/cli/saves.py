"""`--watch` of `check`, `test` and `preview`: the command again, whenever a file that it has read is saved.

Spark stays warm from one to the next. If code of a plugin is saved, the process begins again: it keeps the modules that
it has imported, and so do the workers of Spark.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli import show_error
from router.cli.session import warm_sessions, watch_until_interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FILE_POLL_SECONDS = 0.2
"""Seconds between two looks at the files. Their system is not asked to tell: shared folders of containers do not."""


def runs_at_saves(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command that has `--json` and reads files `--watch`, of which it gets nothing itself."""

    @click.option("--watch", is_flag=True, help="Do it again whenever a file that was read is saved, until Ctrl-C.")
    @wraps(function)
    def with_watch(*arguments: Any, watch: bool, **options: Any) -> None:
        if not watch:
            function(*arguments, **options)
            return
        files = [*options.get("files", ()), *options["plugin_files"], options.get("file"), options.get("against")]
        with watch_until_interrupted(as_json=options["as_json"]):
            with warm_sessions():
                saved = _run_at_saves(
                    partial(function, *arguments, **options), {file.absolute().parent for file in files if file}
                )
            click.echo(f"{saved} was saved: the process begins again")
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    return with_watch


def _run_at_saves(run: Callable[[], None], folders: Iterable[Path]) -> str:
    """Run a command again and again, each time after a file that it has read from some folders was saved.

    Return the names of files once code that is imported is among them.
    """
    files: dict[Path, tuple[int, int, int] | None] = {}

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        # As it is opened, so that a file that is saved while the command runs is seen afterwards.
        if event == "open" and isinstance(arguments[0], str) and arguments[1] in ("r", "rb"):
            path = Path(arguments[0]).absolute()
            # Python keeps compiled modules beside them.
            if path.suffix != ".pyc" and any(path.is_relative_to(folder) for folder in folders):
                files.setdefault(path, _stamp(path))

    sys.addaudithook(note)
    while True:
        code = {path: _stamp(path) for path in _imported_code()}
        files.clear()
        try:
            # The code of an exit says what was printed already.
            with suppress(click.exceptions.Exit, SystemExit):
                run()
        except (click.Abort, click.ClickException):  # Ctrl-C, or options that no save changes
            raise
        except Exception as error:
            show_error(error, click.get_current_context().info_name)
        code = {path: _stamp(path) for path in _imported_code()} | code
        while not (saved := {path for path, stamp in {**code, **files}.items() if _stamp(path) != stamp}):
            time.sleep(FILE_POLL_SECONDS)
        time.sleep(FILE_POLL_SECONDS)  # an editor empties a file before it writes it
        names = ", ".join(path.name for path in saved)
        if saved & code.keys():
            return names
        click.echo(f"--- {time.strftime('%H:%M:%S')} {names} was saved")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells that a file was saved: inode, time and size; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _imported_code() -> set[Path]:
    """Return the files of imported modules that a person may be writing: not of the router, not of installations."""
    installed = (Path(__file__).parents[1], Path(os.__file__).parent, *map(Path, (sys.prefix, sys.base_prefix)))
    code = set()
    for module in [*sys.modules.values()]:
        path = Path(getattr(module, "__file__", None) or "").absolute()
        if path.suffix == ".py" and not any(path.is_relative_to(place) for place in installed):
            code.add(path)
    return code
