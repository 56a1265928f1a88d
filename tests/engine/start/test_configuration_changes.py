"""Configurations that change under a checkpoint: what goes on, what is refused, which one a batch had."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from router import StartError
from router.cli.check import check
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.stream import run
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "n int, text string"}}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{delta: silver.all}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""
Run = Callable[..., str]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Run:
    """Run a configuration with changes on one more file; return its fingerprint."""
    registry = load_registry()

    def start(*changes: tuple[str, str], folder: str = "in") -> str:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        count = len([*place.iterdir()])
        (place / f"{count}.json").write_text(json.dumps({"n": count}) + "\n")
        text = YAML.format(folder=tmp_path)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=text)
        run(loaded, registry, spark)
        return loaded.fingerprint

    return start


def numbers(folder: Path, table: str) -> list[int]:
    handle = Lake.at(str(folder / "lake")).open(table)
    assert handle is not None
    return sorted(handle.to_pyarrow_table(columns=["n"]).column("n").to_pylist())


@pytest.mark.slow
def test_routes_come_and_go_and_the_history_says_when(start: Run, tmp_path: Path) -> None:
    """Without it nobody can say which rules a row of last week went through."""
    more = (
        "trigger:",
        "  - {name: more, match: {sql: 'event.n > 0'}, sinks: [{delta: silver.more}]}\ntrigger:",
    )
    given = [start(), start(more, ("bronze: bronze.all\n", "")), start()]
    assert len({*given}) == 2
    assert numbers(tmp_path, "silver.all") == [0, 1, 2]
    assert numbers(tmp_path, "silver.more") == [1]
    lake = Lake.at(str(tmp_path / "lake"))
    ledger, silver = lake.open("ops.ledger"), lake.open("silver.all")
    assert ledger is not None
    assert silver is not None
    rows = ledger.to_pyarrow_table(columns=["batch_id", "configuration"]).to_pylist()
    assert {row["batch_id"]: row["configuration"] for row in rows} == dict(enumerate(given))
    notes = [entry["router.configuration"] for entry in silver.history() if "router.configuration" in entry]
    assert notes == given[::-1]


def test_another_source_is_refused(start: Run, tmp_path: Path) -> None:
    """Without it Spark fails on an offset or a folder that it cannot read, and nobody knows why."""
    fingerprint = start()
    ledger = Lake.at(str(tmp_path / "lake")).open("ops.ledger")
    assert ledger is not None
    assert {*ledger.to_pyarrow_table().column("configuration").to_pylist()} == {fingerprint}
    with pytest.raises(StartError, match="another `name`"):
        start((f"{tmp_path}/in", f"{tmp_path}/other"), folder="other")
    assert start((f"{tmp_path}/in", f"{tmp_path}/other"), ("name: games", "name: others"), folder="other")
    rate = "format: {name: rate, columns: {value: \"'{}'\"}}"
    kind = (f"files: {{path: {tmp_path}/in}}", rate)
    with pytest.raises(StartError, match="another `name`"):
        start(kind)
    start()
    assert numbers(tmp_path, "silver.all") == [0, 0, 1, 1, 2]


@pytest.mark.slow
def test_topics_come_and_go(spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Without it a new topic means a new checkpoint, or its first records are passed over."""
    producer = Producer({"bootstrap.servers": broker.servers})
    for topic in ("changes-a", "changes-b"):
        broker.create_topic(topic)
        producer.produce(topic, b'{"n": 1}')
    producer.flush(30)

    def read(topics: str) -> int:
        source = f"kafka: {{servers: '{broker.servers}', topics: {topics}}}"
        text = YAML.format(folder=tmp_path).replace(f"files: {{path: {tmp_path}/in}}", source)
        loaded = load_config(tmp_path / "games.yaml", load_registry(), environ={}, text=text)
        return sum(report.read for report in run(loaded, load_registry(), spark))

    assert read("[changes-a]") == 1
    assert read("[changes-a, changes-b]") == 1
    with pytest.raises(StartError, match="changes-a is not among the topics"):
        read("[changes-b]")
    producer.produce("changes-b", b'{"n": 2}')
    producer.flush(30)
    assert read("[changes-a, changes-b]") == 1


def test_the_fingerprint_is_of_what_a_file_says(tmp_path: Path) -> None:
    """Without it a comment is another configuration, or a secret stands in the history."""
    text = YAML.format(folder="/tmp/x").replace("lake: /tmp/x/lake", 'lake: "${FOLDER}"')
    (tmp_path / "one.yaml").write_text(text)
    (tmp_path / "two.yaml").write_text(f"# the same\n{text}")
    (tmp_path / "three.yaml").write_text(text.replace("silver.all", "silver.other"))
    said = [
        CliRunner().invoke(check, ["--fingerprint", str(tmp_path / f"{name}.yaml")], env={"FOLDER": folder})
        for name, folder in (("one", "/tmp/a"), ("two", "/tmp/b"), ("three", "/tmp/a"))
    ]
    assert [result.exit_code for result in said] == [0, 0, 0]
    one, two, three = (result.output for result in said)
    assert (one, len(one.strip())) == (two, 16)
    assert three != one
