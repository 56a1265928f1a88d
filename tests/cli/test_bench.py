"""`router bench` measures a user's own configuration, and touches nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import router.cli
from router.config.loader import load_config
from router.errors import StartError
from router.registry import load_registry
from router_bench import payload, worker
from router_bench import sweep as bench_sweep
from router_bench.machine import Label
from router_bench.payload import Payload
from router_bench.processes import Ended
from router_bench.sweep import Cell, Sweep, chart, remarks, shown, written
from router_bench.worker import BenchRun, Job, bound, quiet_routes
from tests.light import LIGHT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.config.loader import Loaded
    from router_demo.kafka import EmbeddedKafka

CONFIGURATION = """\
name: mine
lake: s3://bucket/lake
storage_options: {AWS_SECRET_ACCESS_KEY: hidden}
source:
  kafka:
    servers: broker.example:9093
    topics: [orders]
    start: latest
    rows_per_batch: 5
    options: {kafka.security.protocol: SASL_SSL, failOnDataLoss: "true"}
decode: {json: "game string, amount double"}
bronze: bronze.orders
routes:
  - {name: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{tables: "silver.{event.game}"}]}
  - {name: wins, match: {sql: "event.amount > 90"}, sinks: [{rest: {url: "https://api.example/wins"}}]}
dead_letters: ops.dead_letters
"""
FILES = CONFIGURATION.replace("source:\n", "source: {files: {path: ./in}}\nold:\n")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of a configuration that has tables and calls an API."""
    path = tmp_path / "mine.yaml"
    path.write_text(CONFIGURATION)
    return path


@pytest.fixture
def loaded(file: Path) -> Loaded:
    """Return what the router reads of it."""
    return load_config(file, load_registry())


@pytest.fixture
def job(file: Path, tmp_path: Path) -> Job:
    """Return a job of one topic at an embedded broker."""
    return Job(str(file), (), "127.0.0.1:1", True, {4: "bench-4"}, 1000, 2, False, str(tmp_path), "runs.jsonl")


@pytest.fixture
def sweep(loaded: Loaded) -> Sweep:
    """Return what a user asks for."""
    return Sweep(loaded, (), Payload("orders.jsonl", [(None, b"{}")]), (1, 4), 1000, repeat=2)


def cell(partitions: int, *seconds: float, problem: str = "", **more: int) -> Cell:
    runs = tuple(BenchRun(partitions, value, read=1000, tables=3, **more) for value in seconds)
    return Cell(partitions, 1000, False, Label({"processor": "Zeta 9", "cores": "2"}, "a" * 40), runs, 0.0, problem)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partitions", "1,two"], "no numbers of partitions: 1,2,4,8,16"),
        (["--partitions", "0"], "no numbers of partitions"),
        (["--rows", "many"], "no number of records: 500000, 500k, 1M"),
        (["--rows", "0"], "no number of records"),
        (["--tables", "0"], "--tables"),
        (["--producer", "acks"], "not KEY=VALUE"),
        (["--sample", "nowhere.jsonl"], "does not exist"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_would_be_right(file: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(router.cli.commands, ["bench", str(file), *arguments])

    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_configuration_without_kafka_cannot_be_measured(tmp_path: Path) -> None:
    path = tmp_path / "files.yaml"
    path.write_text(FILES[: FILES.index("old:")] + FILES[FILES.index("decode:") :])
    result = CliRunner().invoke(router.cli.commands, ["bench", str(path)])

    assert result.exit_code == 2
    assert "needs a configuration with `source: {kafka: ...}`" in result.output


def test_nothing_of_the_configuration_is_touched(loaded: Loaded, job: Job, tmp_path: Path) -> None:
    config = bound(loaded, job, "bench-4", f"{tmp_path}/run").config
    kafka = config.source.kafka

    assert config.lake == str(tmp_path / "run" / "lake")
    assert config.checkpoint == str(tmp_path / "run" / "checkpoint")
    assert config.storage_options == {}
    assert kafka is not None
    read = (kafka.servers, kafka.topics, kafka.start, kafka.rows_per_batch)
    assert read == (
        "127.0.0.1:1",
        ("bench-4",),
        "earliest",
        1000,
    )
    assert list(kafka.options) == ["failOnDataLoss"], "the embedded broker asks for no password"


def test_lakes_can_be_where_executors_of_a_cluster_reach_them(loaded: Loaded, job: Job) -> None:
    shared = Job(**{**vars(job), "lake": "s3://scratch"})
    config = bound(loaded, shared, "bench-4", "s3://scratch/bench-4-0").config

    assert config.lake == "s3://scratch/bench-4-0/lake"
    assert list(config.storage_options) == ["AWS_SECRET_ACCESS_KEY"]


def test_nothing_is_sent_to_anybody_unless_asked(loaded: Loaded, job: Job, tmp_path: Path) -> None:
    """A benchmark that posts a million rows to a production API is an incident."""
    config = bound(loaded, job, "bench-4", str(tmp_path)).config

    assert [route.name for route in config.routes] == ["games"]
    assert config.unmatched == "drop", "what the API would have got is no dead letter"
    assert quiet_routes(loaded.config)[1] == ["rest of route wins"]
    asked = Job(**{**vars(job), "send": True})
    assert [route.name for route in bound(loaded, asked, "bench-4", str(tmp_path)).config.routes] == ["games", "wins"]


def test_lines_of_a_sample_are_records_with_or_without_a_key(tmp_path: Path) -> None:
    sample = tmp_path / "orders.jsonl"
    sample.write_bytes(b'k1\t{"a": 1}\r\n\n{"a": 2}\n')

    assert payload.sample(sample).records == [(None, b'k1\t{"a": 1}'), (None, b'{"a": 2}')]
    assert payload.sample(sample, separator="\t").records == [(b"k1", b'{"a": 1}'), (None, b'{"a": 2}')]
    assert list(payload.sample(sample).repeated(5))[2:] == [*payload.sample(sample).records, (None, b'k1\t{"a": 1}')]


def test_a_sample_may_be_binary(tmp_path: Path) -> None:
    sample = tmp_path / "orders.bin"
    sample.write_bytes(b"\0\0\0\2\n\n" + b"\0\0\0\1x")

    assert payload.sample(sample, "length").records == [(None, b"\n\n"), (None, b"x")]
    sample.write_bytes(b"\0\0\0\7x")
    with pytest.raises(StartError, match="ends inside a record"):
        payload.sample(sample, "length")
    sample.write_bytes(b"")
    with pytest.raises(StartError, match="holds no record"):
        payload.sample(sample)


def test_the_simulator_plays_as_many_games_as_tables_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "DISTINCT", 500)
    events = [json.loads(value or b"") for _, value in payload.simulated(12).records]

    assert len({event["game"] for event in events}) == 12


def test_the_figure_leaves_the_warm_up_out_and_carries_where_it_was_measured(sweep: Sweep, tmp_path: Path) -> None:
    cells = [cell(1, 90.0, 4.0, 2.0), cell(4, 9.0, 2.0, 2.0)]
    content = json.loads(written(sweep, cells, tmp_path / "out").read_text())
    first = content["cells"][0]

    assert (first["median_seconds"], round(first["events_per_second"])) == (3.0, 333)
    assert first["label"]["machine"]["processor"] == "Zeta 9"
    assert first["label"]["commit"] == "a" * 40
    assert (content["payload"], content["left_out"]) == ("orders.jsonl", ["rest of route wins"])
    assert chart(sweep, cells).lines == {"mine": [(1, pytest.approx(333.3, abs=0.1)), (4, 500.0)]}
    assert "Zeta 9" in chart(sweep, cells).below
    assert [list(column.cells) for column in shown(sweep, cells).columns][:2] == [["1", "4"], ["333", "500"]]


def test_what_makes_a_figure_doubtful_is_said(sweep: Sweep) -> None:
    said = " ".join(remarks(sweep, [cell(1, 9.0, 4.0, dead_letters=500), cell(4, 9.0, problem="the time was up")]))

    assert "rest of route wins" in said
    assert "50% of the records became dead letters" in said
    assert "4 partitions: the time was up" in said


def test_without_matplotlib_there_is_the_table_and_the_json(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from router_bench.cli import _measured

    monkeypatch.setattr(bench_sweep, "measure", lambda sweep, progress: [cell(1, 9.0, 4.0)])
    monkeypatch.setitem(sys.modules, "router_bench.chart", None)
    _measured(sweep, tmp_path)

    assert (tmp_path / "mine.json").exists()
    assert not (tmp_path / "mine.png").exists()
    assert "no chart: " in capsys.readouterr().out


def test_without_its_extra_the_command_says_how_to_install_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("machine", "processes", "sweep"):
        monkeypatch.delitem(sys.modules, f"router_bench.{name}", raising=False)
    monkeypatch.delattr("router_bench.sweep", raising=False)
    monkeypatch.setitem(sys.modules, "psutil", None)
    result = CliRunner().invoke(router.cli.commands, ["bench", str(file)])

    assert result.exit_code == 2
    assert "`bench` needs the module psutil: pip install 'spark-event-router[bench]'" in result.output


@pytest.fixture
def in_this_process(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `router bench` run a job in this process, with the Spark of the tests: a start of its own takes long."""

    def run_here(command: list[str], output: Path, timeout: float, **more: Any) -> Ended:
        output.touch()
        with more["watch"](os.getpid()):
            worker.main(Path(command[-1]))
        return Ended(1.0, 0, output)

    monkeypatch.setattr(bench_sweep, "run_command", run_here)
    monkeypatch.setattr(worker, "build_session", lambda config, master: spark)
    monkeypatch.setattr(worker, "stop_session", lambda session: None)


def measured(broker: EmbeddedKafka, file: Path, *more: str) -> list[str]:
    """Return the arguments that measure the file of a configuration with a sample, into `out` beside it."""
    text = CONFIGURATION.replace("kafka.security.protocol: SASL_SSL, ", "")
    file.write_text(f"{text}spark: {json.dumps(LIGHT)}\n")
    sample = file.with_name("orders.jsonl")
    sample.write_text("".join(f'{{"game": "game_{number % 3}", "amount": {number}}}\n' for number in range(30)))
    arguments = ["bench", str(file), "--servers", broker.servers, "--sample", str(sample)]
    return [*arguments, "--rows", "90", "--repeat", "1", "--out", str(file.with_name("out")), *more]


def is_measured(out: Path, said: str, *partitions: int) -> None:
    """Assert that what was measured is what `router run` does: every record read, and a table per game."""
    cells = json.loads((out / "mine.json").read_text())["cells"]
    assert [cell["partitions"] for cell in cells] == [*partitions]
    assert {run["read"] for cell in cells for run in cell["runs"]} == {90}
    assert {run["tables"] for cell in cells for run in cell["runs"]} == {4}, "bronze and three games"
    assert all(cell["events_per_second"] for cell in cells)
    assert (out / "mine.png").read_bytes().startswith(PNG)
    assert "not measured, since it would send for real: rest of route wins" in said


@pytest.mark.usefixtures("in_this_process")
def test_a_configuration_is_measured(broker: EmbeddedKafka, file: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(router.cli.commands, measured(broker, file, "--partitions", "1,2"))

    assert result.exit_code == 0, result.output
    is_measured(tmp_path / "out", result.stderr, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["warm", "cold"])
def test_a_configuration_is_measured_from_end_to_end(
    broker: EmbeddedKafka, file: Path, tmp_path: Path, mode: str
) -> None:
    partitions = (2,) if mode == "cold" else (1, 2)
    more = ["--partitions", ",".join(map(str, partitions)), *(["--cold"] if mode == "cold" else [])]
    command = [sys.executable, "-m", "router", *measured(broker, file, *more)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    is_measured(tmp_path / "out", done.stderr, *partitions)
