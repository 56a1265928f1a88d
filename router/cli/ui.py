"""`router ui`: the page of a stream that does not run, by what its lake says."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from router.cli import config_argument, plugin_option
from router.cli.graph import NO_COUNTS, graph_of
from router.cli.run import ui_at
from router.cli.session import stopped_by_signals
from router.config.loader import load
from router.config.models import Ui
from router.errors import StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path


@click.command(short_help="Show the page of a stream that is down.")
@config_argument
@click.option("--address", metavar="HOST:PORT", help="Address of the page; default: that of `ui`.")
@plugin_option
def ui(file: Path, address: str | None, plugin_files: tuple[Path, ...]) -> None:
    """Show the page of the configuration FILE by its ledger, checkpoint, tables and topic, until Ctrl-C.

    For a stream that is down, or runs without `ui`: one with `ui` has a page of its own, and this command prints its
    address. Only reads. Needs no Spark.
    """
    from router.engine.status.lake_board import LakeBoard
    from router.engine.status.server import StatusServer
    from router.engine.status.summary import as_authority, summary_of_server

    config = load(file, load_registry(plugin_files)).config
    summary = summary_of_server(config)
    if summary is not None:
        click.echo(f"{config.name} runs, and shows itself at http://{summary.address}/")
        return
    options = config.ui or Ui()
    if address is not None:
        options = ui_at(config.ui, address, "--address")
    graph = graph_of(config, NO_COUNTS).document()
    stop = threading.Event()
    with (
        LakeBoard(config) as board,
        StatusServer(board, options, config.metrics, str(file), graph) as server,
        stopped_by_signals(stop),
    ):
        if server.address is None:
            raise StartError(f"{options.address} cannot be served: give another --address")
        click.echo(f"{config.name}: its lake at http://{as_authority(*server.address)}/ (Ctrl-C ends it)")
        stop.wait()
