"""Cells are what gets measured: once each, and enough of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

from benchmarks import harness
from benchmarks.cells import FULL, SHORT, Cell, Scale, distinct, in_turns
from benchmarks.discovery import feeds, measurements, modules, subjects
from benchmarks.runs import Run
from benchmarks.topics import Topics
from router_demo.kafka import EmbeddedKafka

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


def test_cells_that_take_turns_are_measured_together() -> None:
    turns = [replace(LOOP, mode="cold", subject=name, turns="start") for name in ("router", "bare")]

    assert in_turns([turns[0], LOOP, turns[1]]) == [turns, [LOOP]]


def test_processes_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that slows down must not be held against the one that came second."""
    order: list[str] = []
    monkeypatch.setattr(harness, "_turn", lambda cell, *_: order.append(cell.subject) or [Run(1.0)])
    cells = [Cell(name, "cold", 10, 7, repeat=repeat, feed="") for name, repeat in (("router", 3), ("bare", 2))]
    topics = Topics(EmbeddedKafka())  # no cell needs one: it is not started
    monkeypatch.setattr(Topics, "servers", "127.0.0.1:1")
    results = harness.measure(cells, topics, 1.0, tmp_path, "2026-12-01")

    assert order == ["router", "bare", "router", "bare", "router"]
    assert [len(result.runs) for result in results] == [3, 2]
    assert {result.label.date for result in results} == {"2026-12-01"}
    assert results[0].label.machine


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
