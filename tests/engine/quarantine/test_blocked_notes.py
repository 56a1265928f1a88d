"""Notes of blocked tables: one that is lost is written again, as long as rows wait for the table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router.config.models import Config, Route
from router.delta.lake import DAMAGED_LOG, Lake
from router.engine.checkpoint_store import CheckpointStore, Manifest
from router.engine.commit.committers import Committers
from router.engine.quarantine.table import Quarantine, pause_after
from router.engine.status.board import StatusBoard
from router.engine.status.findings import find_troubles
from router.errors import line_of
from router_decoders import Json
from router_sinks import Tables
from tests.engine.parts import Where
from tests.engine.query import RUN, SOURCE

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = (Route(name="games", match=Where(sql="true"), sinks=(Tables(table="silver.{event.game}"),)),)
NOTE = "blocked/games/tables/silver.uno.json"


def test_a_table_that_is_blocked_for_weeks_is_tried_again() -> None:
    """Without it the stream ends after a week of tries, and fails at each further start: a number became too large."""
    assert [pause_after(failures) for failures in (1, 2, 3, 8, 9, 1025, 10**6)] == [5, 10, 20, 600, 600, 600, 600]


@pytest.mark.parametrize(
    "cause", [f"its files {DAMAGED_LOG}: {'x' * 500}", "no rights: denied"], ids=["damaged", "no rights"]
)
def test_the_log_says_of_a_blocked_table_what_the_page_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cause: str
) -> None:
    """Without it a person at night takes one fault for two, and the log names no command."""
    about = {"name": "games", "lake": str(tmp_path / "lake"), "source": SOURCE, "decode": Json(schema="game string")}
    config = Config(**about, dead_letters="ops.dead", routes=ROUTES)
    lake, store = Lake.at(config.lake), CheckpointStore(Lake.at(config.checkpoint_path()), RUN)
    nothing: Any = None
    board = StatusBoard("games")
    board.enter_state("running")
    blocked = {"games/tables/silver.uno": cause}
    Quarantine(config, lake, store, Committers(lake, nothing), f"games:{RUN}").note_blocked(blocked)
    manifest = Manifest(batch=0, config="", targets=(), commits=(), partitions=())
    board.carried_out(manifest, {}, blocked)
    (finding,) = find_troubles(board.snapshot(), "FILE", 600.0, time.time())
    assert caplog.messages == [f"games: {line_of(finding.text, finding.command)}"]
    assert finding.command in ("router rebuild FILE silver.uno", "router tables FILE")


def test_a_note_that_is_lost_is_written_again_while_rows_wait(tmp_path: Path) -> None:
    """Without it rows of later batches land before those that wait, and nobody ever tries to land these."""
    about = {"name": "games", "lake": str(tmp_path / "lake"), "source": SOURCE, "decode": Json(schema="game string")}
    config = Config(**about, dead_letters="ops.dead", routes=ROUTES)
    lake, store = Lake.at(config.lake), CheckpointStore(Lake.at(config.checkpoint_path()), RUN)
    nothing: Any = None
    found = Quarantine(config, lake, store, Committers(lake, nothing), f"games:{RUN}")
    found.note_again()
    assert found.blocked_reasons() == {}

    waiting = {"_query": f"games:{RUN}", "_batch_id": 3, "game": "uno"}
    rows = [
        {**waiting, "_table": "silver.uno", "_cause": "its log is damaged"},
        {**waiting, "_table": "silver.poker", "_cause": None},
    ]
    write_deltalake(lake.address("quarantine.games__games__tables"), pa.Table.from_pylist(rows))
    for _ in range(2):
        found.note_again()
        assert found.blocked_reasons() == {"games/tables/silver.uno": "its log is damaged"}
        store.delete(NOTE)
