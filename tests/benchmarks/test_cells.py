"""Cells are what gets measured: once each, and enough of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cells import FULL, SHORT, Cell, Scale, distinct
from benchmarks.discovery import feeds, measurements, modules, subjects

LOOP = Cell("loop", "warm", 1000, 7, repeat=3)


def test_key_names_everything_but_the_repeats() -> None:
    sampled = Cell("router", "single", 400, 7, 1, rows_per_batch=20, sample="driver", options=(("engine", "spark"),))

    assert LOOP.key == "warm/loop/json/1000ev/7t/4p"
    assert sampled.key == "single/router/json/400ev/7t/1p/20rows/driver/engine=spark"
    assert replace(LOOP, repeat=1).key == LOOP.key


@pytest.mark.parametrize(
    ("mode", "processes", "runs"), [("warm", 1, 4), ("cold", 3, 1), ("single", 1, 1)], ids=["warm", "cold", "single"]
)
def test_a_warm_cell_repeats_in_one_process_and_a_cold_one_in_fresh_ones(mode: str, processes: int, runs: int) -> None:
    cell = replace(LOOP, mode=mode)  # type: ignore[arg-type]

    assert (cell.processes, cell.runs) == (processes, runs)


def test_more_runs_than_the_first_may_warm_a_process_up() -> None:
    cell = replace(LOOP, warm_up=10)

    assert cell.runs == 13
    assert cell.key == f"{LOOP.key}/after 10"


def test_equal_cells_of_two_measurements_run_once_and_often_enough() -> None:
    other = Cell("router", "warm", 1000, 7)

    assert distinct([replace(LOOP, repeat=1), other, LOOP]) == [LOOP, other]


@pytest.mark.parametrize("scale", [SHORT, FULL], ids=["short", "full"])
def test_every_cell_names_a_subject_and_a_feed_that_exist(scale: Scale) -> None:
    cells = [cell for item in measurements().values() for cell in item.cells(scale)]

    assert {cell.subject for cell in cells} <= set(subjects())
    assert {cell.feed for cell in cells if cell.feed} <= set(feeds())
    assert set(modules()) == set(subjects())


def test_the_full_version_asks_what_the_project_promises() -> None:
    keys = {cell.key for item in measurements().values() for cell in item.cells(FULL)}

    for games in (7, 50, 200):
        assert {f"warm/{name}/json/1000000ev/{games}t/4p" for name in ("router", "loop")} <= keys
    for games in (7, 50):
        assert {f"cold/{name}/json/1000000ev/{games}t/4p" for name in ("router", "loop", "queries")} <= keys
    for partitions in (1, 2, 4, 8, 16):
        assert {f"warm/{name}/json/1000000ev/7t/{partitions}p" for name in ("router", "loop")} <= keys
    for games in (1, 7, 50, 200):
        assert {f"warm/{name}/json/1000000ev/{games}t/4p" for name in ("router", "loop")} <= keys
    assert {"warm/router/json/1000000ev/1000t/4p", "single/loop/json/1000000ev/1000t/4p"} <= keys
    for events in (250_000, 1_000_000, 2_000_000):
        assert f"single/router/json/{events}ev/7t/4p/workers" in keys
    assert "single/router/json/40000ev/7t/4p/20rows/driver/maintain=*.*" in keys


def test_the_short_version_keeps_the_loop_to_fifty_tables() -> None:
    cells = [cell for item in measurements().values() if item.short for cell in item.cells(SHORT)]

    assert max(cell.games for cell in cells if cell.subject != "router") == 50
