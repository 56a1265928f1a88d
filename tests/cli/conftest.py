"""The command `status`, and a stream that it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from router.cli import commands
from router.config.models import Metrics, Ui
from router.engine.status.board import StatusBoard
from router.engine.status.server import StatusServer
from tests.cli.stream_status import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.stream_status import RunStatus


@pytest.fixture
def run_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStatus:
    """Run `router status` in the folder of a configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.yaml").write_text(TEXT)

    def run_status(*arguments: str, **environ: str) -> Result:
        done = CliRunner(env=environ).invoke(commands, ["status", "games.yaml", *arguments], prog_name="router")
        assert isinstance(done.exception, SystemExit | None), done.output
        return done

    return run_status


@pytest.fixture
def served_board(run_status: RunStatus, tmp_path: Path) -> Iterator[StatusBoard]:
    """Return the board of a stream that can be asked at the configuration's address."""
    board = StatusBoard("games")
    board.enter_state("running")
    with StatusServer(board, Ui(address="127.0.0.1:0"), Metrics()) as server:
        assert server.address is not None
        text = TEXT.replace("127.0.0.1:1", "{}:{}".format(*server.address))
        (tmp_path / "games.yaml").write_text(text)
        yield board
