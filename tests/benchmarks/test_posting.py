"""What is said of posting follows from what arrived: a row lost or sent twice leaves no figure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import yaml

from benchmarks.cells import FULL
from benchmarks.measurements import posting
from benchmarks.runs import Run, Task
from benchmarks.subjects.posting import configuration, not_once, sizes, write_outbox
from router.config.loader import load_config
from router.registry import load_registry
from router_bench.chart import draw
from router_rest.sink import Rest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.results import CellResult, Results


WARMING = [9.0] * (posting.WARM_UP - 1)
"""Seconds of batches that do not count, after the first of a process."""


def test_an_outbox_has_every_event_once_under_its_coordinates(tmp_path: Path) -> None:
    outbox = write_outbox(tmp_path, [3, 2])
    events = pq.read_table(outbox)

    assert sorted(events["id"].to_pylist()) == list(range(5))
    places = zip(events["_partition"].to_pylist(), events["_offset"].to_pylist(), strict=True)
    assert sorted(places) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_events_are_spread_as_the_cell_says(task: Task) -> None:
    many = replace(task, events=21_932, partitions=16)
    skewed = replace(task, events=1003, options={"skew": "70/10/10/10"})

    assert (sum(sizes(many)), max(sizes(many)) - min(sizes(many))) == (21_932, 1)
    assert sizes(skewed) == [703, 100, 100, 100]


def test_the_sink_is_measured_with_a_limit_and_receipts_as_a_configuration_says_it(task: Task, tmp_path: Path) -> None:
    asked = replace(task, options={"rows_per_call": "10", "max_in_flight": "256", "tasks": "4"})
    path = tmp_path / "posting.yaml"
    path.write_text(yaml.safe_dump(configuration(asked, "http://127.0.0.1:9/events")))
    (route,) = load_config(path, load_registry()).config.routes
    (sink,) = route.sinks

    assert isinstance(sink, Rest)
    assert (sink.rows_per_call, sink.max_in_flight, sink.tasks, sink.receipts) == (10, 256, 4, "ops.receipts")
    assert (sink.calls_per_second, sink.idempotency_header) == (20_000, "Idempotency-Key")


@pytest.mark.parametrize(
    ("arrived", "problem"),
    [
        ({"rows": 10, "rows_processed": 10}, ""),
        ({"rows": 9, "rows_processed": 10}, "rows: 9 rows, 10 expected"),
        ({"rows": 10, "rows_processed": 11}, "rows_processed: 11 rows, 10 expected"),
    ],
    ids=["each once", "one lost", "one twice"],
)
def test_a_row_that_is_lost_or_doubled_is_a_problem(arrived: dict[str, float], problem: str) -> None:
    assert not_once(10, arrived) == problem


def test_the_slower_of_two_ratios_meets_the_bar(results: Results, measured: Callable[..., CellResult]) -> None:
    sent = {"sending": 2.0}
    measured(posting.ours(FULL, 1, 4), 20.0, *WARMING, *[4.0] * 3, counts=sent)
    measured(posting.theirs(FULL, 1, 4), 180.0)
    measured(posting.ours(FULL, 10, 16), 9.0, *WARMING, *[2.0] * 3, counts=sent)
    measured(posting.theirs(FULL, 10, 16), 10.0)
    table = posting.POSTING.table(results, FULL)

    assert table.rows[0] == ("1", "4", "122", "122", "1 097", "10 966", "5 483", "44.9 x", "45.0 x", "20 x", "reached")
    assert table.rows[-1][-4:] == ("6.50 x", "5.00 x", "8 x", "MISSED")
    assert table.rows[1][3:] == ("-", "-", "-", "-", "-", "-", "15 x", "-"), "what was not measured is not judged"


def test_posting_is_drawn(results: Results, measured: Callable[..., CellResult], tmp_path: Path) -> None:
    measured(posting.ours(FULL, 1, 4), 20.0, *WARMING, *[4.0] * 3)
    measured(posting.theirs(FULL, 1, 4), 180.0)
    assert posting.POSTING.chart is not None
    chart = posting.POSTING.chart(results, FULL)
    draw(chart, tmp_path / "chart.png")

    assert {name: len(points) for name, points in chart.lines.items()} == {
        "router, 10 per call": 0,
        "UDF, 10 per call": 0,
        "router, 1 per call": 1,
        "UDF, 1 per call": 1,
    }
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_of_a_limit_the_worst_of_all_runs_is_told(results: Results, measured: Callable[..., CellResult]) -> None:
    good = {"calls": 24_000.0, "highest": 982.0, "throttled": 0.0, "limit_used": 0.97}
    bad = {"calls": 24_024.0, "highest": 1001.0, "throttled": 24.0, "limit_used": 0.92}
    cell = posting.cell(FULL, *posting.WAYS["4 partitions"])
    measured(cell, *[25.0] * 4, counts=good)
    table = posting.LIMITS.table(results, FULL)

    assert table.rows[0][1:] == (
        "96 000", "982", "1 000", "reached", "0.000%", "0.05%", "reached", "97.0%", "93%", "reached",
    )  # fmt: skip
    assert posting.worst([Run(1.0, counts=good), Run(1.0, counts=bad)]) == (48_024, 1001, 24 / 24_024, 0.92)
