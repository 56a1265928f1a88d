"""A stream with much to show, for the page: its board is told what a real one would be told, with times of before."""

from __future__ import annotations

import itertools
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from router.api.parts import BatchReport
from router.api.sinks import ApiState, Applied
from router.cli.graph import NO_COUNTS, graph_of
from router.config.loader import load_config
from router.config.models import Expectation, View
from router.delta.commit import TableCommit
from router.delta.staged_files import StagedFile
from router.engine.balance import Partition
from router.engine.checkpoint_store import Manifest
from router.engine.land.record_ages import TableAges
from router.engine.status import board as board_module
from router.engine.status.board import StatusBoard
from router.engine.status.snapshot import DeadLetterStatus, QuarantineStatus, Warned
from router.engine.views.note import Note, ViewTarget
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router.config.models import Config
    from router.engine.commit.committers import Committer

ROUTES = Path(__file__).parents[2] / "routes"
GAMES = ("uno", "chess", "go", "poker", "bridge", "backgammon", "rummy")
READ = 50_000
PARTITIONS = 6
BLOCKED = {"games/tables/silver.poker": "column `amount` is double, the table has string"}
SECONDS = {"plan": 0.11, "land": 1.62, "manifest": 0.05, "commit": 0.58, "ledger": 0.09}


def configuration() -> Config:
    """Return a configuration that this repository ships, with a view, and with something that is expected."""
    config = load_config(ROUTES / "big_wins.yaml", load_registry(), environ={"CRM_TOKEN": "token"}).config
    games, *others = config.routes
    expected = (
        Expectation(name="has_gamer", sql="event.gamer_id IS NOT NULL"),
        Expectation(name="plausible", sql="event.amount < 1e6", otherwise="warn"),
    )
    sessions = View.model_validate(
        {
            "name": "players",
            "from": {"route": "games"},
            "sql": "SELECT table, gamer_id, count(*) AS events FROM source GROUP BY table, gamer_id",
            "into": "gold.{table}_players",
            "expect": [{"name": "few_events", "sql": "events < 1000"}],
        }
    )
    routes = (games.model_copy(update={"expect": expected}), *others)
    return config.model_copy(update={"routes": routes, "views": (sessions,)})


def graph() -> dict[str, Any]:
    """Return the graph of the configuration."""
    return graph_of(configuration(), NO_COUNTS).as_document()


def tell_views(board: StatusBoard, *, has_trouble: bool) -> None:
    """Tell a board of a refresh of the view."""
    targets = {f"gold.{game}_players": ViewTarget(8, game, None, 4_200, {"few_events": 3}) for game in GAMES}
    at = datetime.fromtimestamp(time.time() - 40, timezone.utc).isoformat(timespec="seconds")
    trend = tuple((29_400, {"few_events": violated}) for violated in (0, 7, 14, 21))
    note = Note(8, targets=targets, at=at, way="keys", why="a grouping", seconds=2.31, commits=5, trend=trend)
    board.view_refreshed("players", note)
    if has_trouble:
        board.view_failed("players", "view players: silver.poker cannot be read")


def commit(target: str, table: str, batch: int, rows: int) -> TableCommit:
    file = StagedFile(target, table, f"{table}/part-{batch}.parquet", 10, rows, ("a",), "{}")
    return TableCommit(target, table, f"big_wins:run/{target}/{table}", batch, (file,), "{}")


def finish_batch(board: StatusBoard, batch: int, tables: Sequence[str], blocked: dict[str, str]) -> None:
    """Tell a board of one batch, with its rows spread over some tables."""
    read = READ + 4_000 * ((batch * 7) % 11) - 20_000
    dead = (batch * 5) % 13
    commits = [
        commit("/bronze", "bronze.game_events", batch, read),
        commit("/dead_letters", "ops.dead_letters", batch, dead),
    ]
    shares = itertools.cycle((31, 23, 17, 11, 9, 6, 3))
    for table, share in zip(tables, shares, strict=False):
        commits.append(commit("games/tables", table, batch, read * share // 100 // max(1, len(tables) // 7)))
    commits.append(commit("big_wins/delta", "gold.big_wins", batch, 40))
    partitions = []
    for number in range(PARTITIONS):
        last = 9_000 * (batch + 1) - 1
        counts = {"games": read // PARTITIONS, "big_wins": 7}
        landed = {"games/tables": read // PARTITIONS, "big_wins/rest": 7}
        partitions.append(
            Partition(
                topic="game-events",
                partition=number,
                first=0,
                last=last,
                read=read // PARTITIONS,
                failed=0,
                bare=0,
                unmatched=0,
                matched=counts,
                refused={},
                dropped={},
                violated={"games/has_gamer": dead // 2, "games/plausible": batch % 3},
                landed=landed,
                rejected={},
            )
        )
    manifest = Manifest(batch, "configuration", ("games/tables",), tuple(commits), tuple(partitions))
    ages = TableAges((40, 860, 2200, 1600, 200, 90, 10, 0, 0, 0, 0, 0), seconds=9_800.0, newest=time.time() - 4)
    board.note_ages(batch, time.time(), {commits[2].note_key: ages})
    committed_by: dict[str, Committer] = dict.fromkeys((work.table for work in commits), "delta-rs")
    if len(tables) > len(GAMES):
        committed_by[tables[len(GAMES)]] = "Spark"
    sent = {"big_wins/rest": Applied(applied=38, dead=1)}
    board.carried_out(manifest, sent, blocked, committed_by=committed_by)
    seconds = {step: length * (1 + ((batch * 3) % 5) / 10) for step, length in SECONDS.items()}
    routes = {"games": {"matched": read - dead, "landed": read - dead}, "big_wins": {"matched": 42, "landed": 42}}
    report = BatchReport(
        "big_wins", batch, read, read - dead, dead, 0, dead, len(tables) + 3, len(tables) + 9, seconds, routes=routes
    )
    board.note_report(report)


def told_board(tables: Sequence[str], *, has_trouble: bool) -> StatusBoard:
    """Return the board of a stream that runs since some minutes; with trouble somebody should look at it."""
    now = time.time()
    batches = 80
    clock = (now - 600 + 7.4 * batch for batch in range(batches))
    with mock.patch.object(board_module.time, "time", return_value=now - 612):
        board = StatusBoard("big_wins")
        board.note_configuration(configuration())
        board.enter_state("running")
    blocked = BLOCKED if has_trouble else {}
    for batch, moment in enumerate(clock):
        with mock.patch.object(board_module.time, "time", return_value=moment):
            # The last batch alone brings all tables: 5,000 of them in 80 batches would take the test's time.
            of_batch = tables if batch == batches - 1 else tables[:7]
            finish_batch(board, batch, of_batch, blocked)
    ends = {("game-events", number): 9_000 * batches + 200 * number for number in range(PARTITIONS)}
    board.source_is_at({}, ends)
    board.add_dead_letters(
        [
            DeadLetterStatus("decode", "", "", "no JSON: unexpected end of data", 311, now),
            DeadLetterStatus("decode", "", "", "field `amount`: a number, got a text", 128, now),
            DeadLetterStatus("expect", "games", "tables", "has_gamer", 64, now),
        ]
    )
    limit_used = None if has_trouble else 0.62
    for minute in (0, 1):
        answers = {"ok": 2_900 + 140 * minute, "throttled": 3 * minute, "failed": 0, "timed out": 0}
        if has_trouble:
            answers = {"ok": 2_900, "throttled": 0, "failed": 31 * minute, "timed out": 4 * minute}
        board.api_is("big_wins/rest", ApiState(circuit_open=has_trouble, limit_used=limit_used, answers=answers))
    if has_trouble:
        cause = "column `amount` is double, the table has string"
        board.quarantine_is([QuarantineStatus("silver.poker", "games", "tables", "table", 18_204, cause, now - 900)])
        board._warnings.appendleft(Warned(now - 300, "warning", "big_wins/rest: the API answers 503, rows wait"))
    tell_views(board, has_trouble=has_trouble)
    board.note_batch_step(batches, "land", 0, 1)
    return board


def table_names(count: int) -> Iterator[str]:
    """Yield names of tables: games, then tournaments."""
    for name in GAMES:
        yield f"silver.{name}"
    for number in range(count - len(GAMES)):
        yield f"silver.tournament_{number:04d}"
