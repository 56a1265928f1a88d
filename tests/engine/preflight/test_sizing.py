"""What `router bench --estimate` computes is near what was measured, and grows as it should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from router.cli import commands
from router.config.loader import load_config
from router.engine.preflight.sizing import Constants, Load, size_job
from router.errors import StartError
from router.registry import load_registry

if TYPE_CHECKING:
    from router.config.models import Config

ROOT = Path(__file__).parents[3]
RESULTS = (ROOT / "benchmarks/results/full/results.md").read_text()
NEAR = 0.25
"""How far a computed figure may be from a measured one."""
TEXT = """name: x
lake: ./lake
source: {kafka: {servers: '127.0.0.1:9', topics: [t]}}
decode: {json: "game string"}
bronze: bronze.b
routes:
  - name: games
    match: {sql: 'true'}
    sinks: [{tables: "silver.{event.game}"}]
dead_letters: ops.dead
"""


def section(title: str) -> str:
    return RESULTS.split(f"## {title}")[1].split("\n## ")[0]


def measured(row: str, text: str, column: int) -> float:
    found = re.search(rf"^\| {re.escape(row)} \|(.*)$", text, re.MULTILINE)
    assert found, row
    return float(found[1].split("|")[column].strip(" *s").replace(" ", "").replace("\xa0", "").removesuffix("s"))


@pytest.mark.parametrize("tables", ["1", "7", "50", "200", "1000"])
def test_throughput_against_tables_is_near_what_was_measured(tables: str) -> None:
    taken = Constants.read().estimate_batch(1_000_000, int(tables) + 1, 2, "json")
    assert 1_000_000 / taken == pytest.approx(measured(tables, section("Throughput against tables"), 0), rel=NEAR)


@pytest.mark.parametrize(
    ("row", "kind"), [("JSON", "json"), ("Protobuf, 1 version", "protobuf"), ("Avro, 1 writer's schema", "avro")]
)
def test_formats_are_near_what_was_measured(row: str, kind: str) -> None:
    taken = Constants.read().estimate_batch(1_000_000, 8, 2, kind)
    assert taken == pytest.approx(measured(row, section("Formats"), 0), rel=NEAR)


def test_a_small_batch_is_near_what_was_measured() -> None:
    found = measured("median", section("A new schema version"), 2)
    assert Constants.read().estimate_batch(5_000, 1, 2, "protobuf") == pytest.approx(found, rel=NEAR)


def test_every_constant_says_where_it_comes_from() -> None:
    entries = yaml.safe_load((ROOT / "router/engine/preflight/sizing.yaml").read_text())
    assert all(len(entry["from"]) > 20 for entry in entries.values())


def test_the_page_has_the_figures_of_the_constants() -> None:
    """Without it somebody plans with figures that the command does not compute with."""
    constants = Constants.read()
    page = (ROOT / "docs/how-to/size.md").read_text()
    assert f"seconds = {constants.batch_seconds:g} + {constants.table_seconds:g} x tables" in page
    assert f"computed with {constants.requests_per_table:g} for each table" in page
    assert f"one every {constants.lock_seconds:g} s for the lock" in page
    for name, kind in (("JSON", "json"), ("Protobuf", "protobuf"), ("Avro", "avro")):
        thousands = int(1 / constants.event_seconds[kind] / 1000)
        assert f"| {name} | {thousands} 000 |" in page


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "x.yaml"
    path.write_text(TEXT)
    return load_config(path, load_registry()).config


def test_twice_the_rate_takes_twice_the_cores(config: Config) -> None:
    one, two = (size_job(config, Load(rate, 10, 50)) for rate in (200_000, 400_000))
    assert one.cores == 2
    assert two.cores == 4
    assert one.partitions == 2


def test_a_large_job_is_spread_over_executors(config: Config) -> None:
    found = size_job(config, Load(5_000_000, 10, 50))
    assert found.executors * found.executor_cores >= found.cores > 16


def test_a_short_latency_takes_more_cores_until_it_cannot_be_had(config: Config) -> None:
    assert size_job(config, Load(200_000, 2, 50)).cores > size_job(config, Load(200_000, 10, 50)).cores
    with pytest.raises(StartError, match="no number of cores"):
        size_job(config, Load(200_000, 0.5, 50))


def test_the_latency_holds_two_batches(config: Config) -> None:
    for latency in (2, 5, 30):
        assert size_job(config, Load(100_000, latency, 10)).batch_seconds <= latency / 2 + 0.5


def limited(config: Config, rows: int) -> Config:
    kafka = config.source.kafka
    assert kafka is not None
    source = config.source.model_copy(update={"kafka": kafka.model_copy(update={"rows_per_batch": rows})})
    return config.model_copy(update={"source": source})


def test_a_batch_that_takes_fewer_rows_than_come_is_named(config: Config) -> None:
    """Without it a job is planned with batches that the configuration never makes, and falls behind."""
    load = Load(200_000, 10, 50)
    assert not any("rows_per_batch" in driver for driver in size_job(config, load).cost_drivers)
    assert any("rows_per_batch" in driver for driver in size_job(limited(config, 10_000), load).cost_drivers)


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    path = tmp_path / "upsert.yaml"
    text = TEXT.replace('{tables: "silver.{event.game}"}', "{upsert: {table: silver.p, keys: [event.game]}}")
    view = "{name: v, into: gold.v, from: silver.p, sql: 'SELECT count(*) AS n FROM source'}"
    path.write_text(f"{text}views: [{view}]\n")
    drivers = " ".join(size_job(load_config(path, load_registry()).config, Load(1000, 10, 1)).cost_drivers)
    assert "upserts" in drivers
    assert "views" in drivers


def test_longer_batches_make_fewer_files_and_requests(config: Config) -> None:
    slow = config.model_copy(
        update={"trigger": config.trigger.model_copy(update={"every": "1 min", "continuous": False})}
    )
    often, seldom = size_job(config, Load(1000, 180, 50)), size_job(slow, Load(1000, 180, 50))
    assert seldom.batches_per_day == 1440
    assert seldom.files_per_day < often.files_per_day / 10
    assert seldom.requests_per_day < often.requests_per_day / 10


def test_a_merge_needs_memory_for_its_table(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "upsert.yaml"
    path.write_text(TEXT.replace('{tables: "silver.{event.game}"}', "{upsert: {table: silver.p, keys: [event.game]}}"))
    merging = load_config(path, load_registry()).config
    assert size_job(config, Load(1000, 10, 1, table_rows=5_000_000)).merge_memory == 0
    assert size_job(merging, Load(1000, 10, 1, table_rows=5_000_000)).merge_memory == pytest.approx(1.1e9, rel=0.01)


def test_the_command_prints_lines_or_json(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(TEXT)
    arguments = ["bench", str(path), "--estimate", "200k/s", "--latency", "10s", "--tables", "50"]
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("cores")
    found = json.loads(CliRunner().invoke(commands, [*arguments, "--json"]).stdout)
    assert found["cores"] == 2


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--estimate", "fast"),
        ("--estimate", "0/s"),
        ("--estimate", "1k/fortnight"),
        ("--latency", "soon"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, option: str, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(TEXT)
    assert CliRunner().invoke(commands, ["bench", str(path), "--estimate", "1k/s", option, text]).exit_code == 2
