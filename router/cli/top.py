"""`router top`: the page of a stream in the terminal, live, or as lines in a pipe."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click
from rich.console import Console

from router.cli import config_argument, plugin_option
from router.cli.session import stopped_by_signals
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Watch a stream in the terminal.")
@config_argument
@click.option("--once", is_flag=True, help="Print what is known as lines, then end.")
@plugin_option
def top(file: Path, once: bool, plugin_files: tuple[Path, ...]) -> None:
    """Watch the stream of the configuration FILE: its state, tables, views, expectations, dead letters, sinks.

    A stream with `ui` is asked once a second. For one without, and for one that is down, lake and checkpoint are read
    repeatedly, as `router status --page` does. Only reads. Needs no Spark.

    \b
    Keys: q           ends it
          1 to 8, Tab another list
          s, S        sort by the next column, or the one before
          r           turn the order round
          /           show the rows that have a text (Esc: all of them)
          arrows, j k, Page Up, Page Down

    In a pipe there is one line for each part, then one for each change.
    """
    from router.cli import top_screen as screen

    config = load(file, load_registry(plugin_files)).config
    console = Console(highlight=False)
    stop = threading.Event()
    with stopped_by_signals(stop), screen.TopReader(config, str(file)) as reader:
        if once or not console.is_terminal or console.is_dumb_terminal:
            screen.print_changes(reader, stop, once=once)
        else:
            screen.follow(reader, stop, console)
