"""The router gets a valid configuration and the same settings as its contenders; what it leaves is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.feeds.json_events import JSON
from benchmarks.runs import Run, Task
from benchmarks.subjects import upserts
from benchmarks.subjects.baselines import settings
from benchmarks.subjects.router import (
    BARE,
    ROUTER,
    configuration,
    session_settings,
    summary,
    sweep_file,
    write_configuration,
)
from benchmarks.subjects.router import (
    SWEEPS as SWEEP_FOLDER,
)
from benchmarks.verify import offsets_read
from router import BatchReport
from router.config.loader import load_config
from router.config.models import KafkaSource
from router.engine.source.source import CONSUMER
from router.registry import load_registry


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


SWEEPS = sorted(file.stem for file in SWEEP_FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("sweep", [*SWEEPS, "profiles"])
def test_a_sweep_is_a_configuration_for_the_router_and_for_router_bench(task: Task, sweep: str) -> None:
    chosen = replace(task, options={"sweep": sweep})
    ours, alone = (
        load_config(write_configuration(chosen), load_registry()),
        load_config(sweep_file(sweep), load_registry()),
    )

    assert ours.config.routes == alone.config.routes
    assert ours.config.source.kafka is not None
    assert ours.config.source.kafka.topics == (task.topic,)
    assert ours.config.lake == str(task.lake)
    assert alone.config.source.kafka is not None


def test_the_sweeps_differ_in_what_they_are_about_only() -> None:
    every = {name: yaml.safe_load(sweep_file(name).read_text()) for name in SWEEPS if name != "upserts"}
    usual = every.pop("tables")

    assert usual["decode"]["json"]["schema"] == JSON.schema
    for content in every.values():
        assert {**content, "name": "", "routes": [], "decode": {}} == {**usual, "name": "", "routes": [], "decode": {}}


def test_bare_pyspark_has_the_session_of_the_router(task: Task) -> None:
    """Held against another session, a start would be compared with a setting."""
    settings_of_router = session_settings(task)

    assert settings_of_router["spark.master"].startswith("local[")
    assert settings().items() <= settings_of_router.items()
    command = BARE.command(task) if BARE.command else []
    job = json.loads(Path(command[-1]).read_text())
    assert job["session"] == settings_of_router
    assert CONSUMER.items() <= job["source"].items()
    assert job["checkpoint"] == str(task.checkpoint)


def test_what_bare_pyspark_has_read_is_in_its_checkpoint(task: Task) -> None:
    offsets = task.checkpoint / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "9").write_text(f'v1\n{{}}\n{{"{task.topic}":{{"0":1}}}}')
    (offsets / "10").write_text(f'v1\n{{}}\n{{"{task.topic}":{{"0":1,"1":2}}}}')

    assert offsets_read(task, Run(1.0)) == ""
    assert offsets_read(replace(task, events=4), Run(1.0)) == "records read: 3 rows, 4 expected"
    assert offsets_read(replace(task, topic="other"), Run(1.0)) == "records read: 0 rows, 3 expected"


@pytest.mark.parametrize("into", ["many", "large", "range"])
def test_every_run_of_an_upsert_brings_newer_rows_for_keys_that_a_table_has(task: Task, into: str) -> None:
    asked = replace(task, events=40, games=4, options={"into": into, "rows": "1000", "by": "router"})
    names = upserts._tables(asked)
    first, second = (upserts._changes(asked, names, number * upserts.APART) for number in (1, 2))

    assert len(first) == len(second) == (40 if into != "range" else 20)
    assert set(first["_table"].to_pylist()) == set(names)
    assert max(first["_offset"].to_pylist()) < min(second["_offset"].to_pylist())
    assert any(key < 1000 for key in first["k"].to_pylist())
    assert set(upserts.OUTBOX) <= set(first.column_names)
