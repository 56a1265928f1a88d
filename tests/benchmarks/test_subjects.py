"""The router gets a valid configuration and the same settings as its contenders; what it leaves is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from benchmarks.feeds.json_events import JSON
from benchmarks.runs import Run, Task
from benchmarks.subjects.baselines import settings
from benchmarks.subjects.router import ROUTER, configuration, summary, write_configuration
from router import BatchReport
from router.config.models import KafkaSource


def test_the_configuration_of_the_router_says_what_its_contenders_do(task: Task) -> None:
    written = yaml.safe_load(write_configuration(task).read_text())

    assert written == configuration(task)
    assert written["spark"] == settings()
    assert written["decode"] == {"json": {"schema": JSON.schema}}
    kafka = KafkaSource.model_validate(written["source"]["kafka"])
    assert (kafka.topics, kafka.start, kafka.rows_per_batch) == (("json-3-2-4",), "earliest", 3)
    assert Path(written["checkpoint"]) == task.checkpoint


def test_the_router_may_make_as_many_tables_as_there_are_games(task: Task) -> None:
    wide = Task(**{**vars(task), "games": 5000})

    assert configuration(wide)["routes"][0]["sinks"][0]["tables"]["at_most"] == 5000


def test_a_cold_router_is_its_public_command(task: Task) -> None:
    assert ROUTER.command is not None
    command = ROUTER.command(task)

    assert Path(command[0]).name == "router"
    assert command[1:] == ["run", str(Path(task.folder, "benchmark.yaml")), "--once"]


def test_reports_are_summed_up() -> None:
    first = BatchReport("q", 0, 10, 10, 0, 0, 0, tables=8, files=4, seconds={"land": 2.0, "commit": 0.5})
    reports = [first, replace(first, batch=1, tables=5, seconds={"land": 1.0})]

    assert summary(4.0, reports) == Run(4.0, read=20, batches=2, tables=8, steps={"land": 3.0, "commit": 0.5})
