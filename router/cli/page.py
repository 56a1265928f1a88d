"""`router status --page`: the page of a stream that does not run, by what its lake says."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import click

from router.cli.graph import NO_COUNTS, graph_of
from router.cli.run import ui_at
from router.cli.session import stopped_by_signals
from router.config.models import Ui
from router.errors import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.models import Config


def serve_page(config: Config, file: Path, address: str) -> None:
    """Serve the page of a configuration by its ledger, checkpoint, tables and topic, until Ctrl-C.

    `address` is HOST:PORT, empty for that of `ui`. A stream that has a page of its own is named instead.
    """
    from router.engine.status.lake_board import LakeBoard
    from router.engine.status.server import StatusServer
    from router.engine.status.summary import as_authority, ask_stream

    answer = ask_stream(config)
    if answer is not None:
        click.echo(f"{config.name} runs, and shows itself at http://{answer['address']}/")
        return
    options = ui_at(config.ui, address, "--page") if address else config.ui or Ui()
    graph = graph_of(config, NO_COUNTS).as_document()
    stop = threading.Event()
    with (
        LakeBoard(config) as board,
        StatusServer(board, options, config.metrics, str(file), graph) as server,
        stopped_by_signals(stop),
    ):
        if server.address is None:
            raise StartError(f"{options.address} cannot be served: give another one to --page")
        click.echo(f"{config.name}: its lake at http://{as_authority(*server.address)}/ (Ctrl-C ends it)")
        stop.wait()
