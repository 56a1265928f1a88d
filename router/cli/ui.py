"""`router ui`: the page of a stream that does not run, by what its lake says."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option, stopped_by_signals
from router.config.loader import load
from router.config.models import Ui
from router.errors import StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Show the page of a stream that is down.")
@config_argument
@click.option("--address", metavar="HOST:PORT", help="Where the page is shown; by default where `ui` says.")
@plugin_option
def ui(file: Path, address: str | None, plugin_files: tuple[Path, ...]) -> None:
    """Show the page of the configuration FILE by its ledger, checkpoint, tables and topic, until Ctrl-C.

    It is for a stream that is down, or runs without `ui`: one that has it shows itself, and this command prints where.
    Only reads. Needs no Spark.
    """
    config = load(file, load_registry(plugin_files)).config
    summary = import_module("router.engine.status.summary")
    answer = summary.summary_of_server(config)
    if answer is not None:
        click.echo(f"{config.name} runs, and shows itself at http://{answer.address}/")
        return
    place = config.ui or Ui()
    if address is not None:
        place = import_module("router.cli.run").ui_at(config.ui, address, "--address")
    drawing = import_module("router.cli.graph")
    graph = drawing.drawn(config, drawing.NOTHING).document()
    module = import_module("router.engine.status.server")
    stop = threading.Event()
    with import_module("router.engine.status.lake_board").LakeBoard(config) as board:
        with module.StatusServer(board, place, config.metrics, str(file), graph) as server, stopped_by_signals(stop):
            if server.address is None:
                raise StartError(f"{place.address} cannot be served: give another --address")
            click.echo(f"{config.name}: its lake at http://{summary.as_authority(*server.address)}/ (Ctrl-C ends it)")
            stop.wait()
