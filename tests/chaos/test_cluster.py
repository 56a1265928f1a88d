"""A standalone cluster drains a topic as one machine does, whatever dies; what cannot work is refused in a sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pyarrow import fs

from router.config.loader import load_config
from router.config.models import Trigger
from router.delta.lake import Lake
from router.engine import stream
from router.registry import load_registry
from tests.chaos import lakes
from tests.chaos.conftest import SCHEMA, configuration
from tests.chaos.processes import HERE, RouterProcess
from tests.chaos.standalone import Cluster, bare_python, installed
from tests.light import LIGHT
from tests.s3_servers import SERVERS, lake_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800)]

EVENTS = 1200
ROWS = 200
PADDED = 10_000
STRANGER = HERE / "strange_decoder.py"
SMALL = {
    "spark.driver.memory": "700m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.ui.enabled": "false",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """Run a master; each test has workers of its own."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def worker(cluster, tmp_path) -> Iterator[Callable[..., Any]]:
    """Start workers, on hosts of their own: Spark makes no copy of a task on the host of the first attempt."""
    mine: list[subprocess.Popen[bytes]] = []

    def worker(**options: Any) -> subprocess.Popen[bytes]:
        mine.append(cluster.worker(f"{tmp_path.name}-{len(mine)}", f"127.0.0.{len(mine) + 1}", **options))
        return mine[-1]

    yield worker
    for process in mine:
        if process.poll() is None:
            cluster.kill(process)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "python")


@pytest.fixture
def submit(cluster, python, tmp_path, monkeypatch) -> Iterator[Callable[..., RouterProcess]]:
    """Run `router submit` with a stranger's plugin installed where the driver is, and nowhere else."""
    site = installed(STRANGER, tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    running: list[RouterProcess] = []

    def submit(config: Path, *options: str, **settings: str) -> RouterProcess:
        confs = [f"--conf={key}={value}" for key, value in {**SMALL, **settings}.items()]
        command = ["-m", "router", "submit", str(config), "--master", cluster.master, *confs, *options]
        log = config.parent / f"submitted-{len(running)}.log"
        running.append(RouterProcess([*command, "--to", str(tmp_path / "to"), "--", "--once"], log))
        return running[-1]

    yield submit
    for process in running:
        process.clear()


@pytest.fixture
def lake_settings(request, tmp_path) -> Iterator[dict[str, Any]]:
    """Return what the configuration on the cluster has for its lake: a folder, or a bucket of an S3 server."""
    if getattr(request, "param", "file") == "file":
        yield {}
        return
    with lake_on(request.param) as server:
        checkpoint = str(tmp_path / "cluster" / "checkpoint")
        yield {"lake": f"s3://lake/{tmp_path.name}", "storage_options": server.options, "checkpoint": checkpoint}


IN_A_BUCKET = pytest.mark.parametrize("lake_settings", ["file", *SERVERS], indirect=True)


@pytest.fixture
def configured(new_topic) -> Callable[..., Path]:
    """Write a configuration of the stranger's decoder over one topic."""
    topic = new_topic()
    pad = "x" * PADDED
    events = [
        {"game": f"game_{n % 3}", "gamer_id": f"g{n}", "session_id": pad, "amount": n * 10} for n in range(EVENTS)
    ]
    topic.send([b"no json", *(json.dumps(event).encode() for event in events)])

    def configured(folder: Path, rows: int = ROWS, **lake: Any) -> Path:
        inner = {"json": {"schema": SCHEMA}}
        decode = {"strange": {"inner": inner, "slow": str(folder / "slow"), "lake": str(folder / "lake")}}
        # many Arrow batches in a task, so that it has files in the lake before it has seen all of its rows
        spark = {**LIGHT, "spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
        changes = {"spark": spark, "decode": decode, "landing": {"buffer_bytes": 1 << 20}, **lake}
        return configuration(folder, topic, rows=rows, **changes)

    return configured


@pytest.fixture
def local(configured, spark, tmp_path) -> Callable[..., dict[str, lakes.Rows]]:
    """Return what a run on one machine makes of the topic."""

    def local(rows: int = ROWS) -> dict[str, lakes.Rows]:
        config, registry = configured(tmp_path / "local", rows), load_registry([STRANGER])
        stream.run(load_config(config, registry), registry, spark, stream.RunOptions(trigger=Trigger(once=True)))
        return lakes.contents(config.parent / "lake")

    return local


def here(config: Path) -> Path:
    """Return the folder of a lake; one in a bucket is copied."""
    written, folder = yaml.safe_load(config.read_text()), config.parent / "lake"
    if "storage_options" in written:
        lake = Lake.at(written["lake"], written["storage_options"])
        for file in lake.files.get_file_info(fs.FileSelector("", recursive=True, allow_not_found=True)):
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.path).write_bytes(lake.read(file.path) or b"")
    return folder


def landed_row_count(config: Path) -> int:
    return lakes.places(here(config)).total()


@IN_A_BUCKET
def test_a_topic_is_drained_as_on_one_machine(worker, submit, configured, local, lake_settings, tmp_path):
    worker(), worker()
    config = configured(tmp_path / "cluster", **lake_settings)

    router = submit(config)

    assert router.ended() == 0, router.said
    here(config)
    assert lakes.differences(lakes.contents(config.parent / "lake"), local()) == []
    assert lakes.unreferenced(config.parent / "lake") == []
    marks = [place.name for place in (config.parent / "lake" / "_executors").iterdir()]
    assert marks == ["games"], "the marks of executors are gone"


@IN_A_BUCKET
def test_a_worker_and_the_driver_are_killed_and_replaced(
    cluster, worker, submit, configured, local, lake_settings, tmp_path
):
    first, _ = worker(), worker()
    config = configured(tmp_path / "cluster", **lake_settings)
    router = submit(config)
    wait_until(lambda: landed_row_count(config) >= ROWS, "a batch is in the lake")

    cluster.kill(first)
    worker()
    before = landed_row_count(config)
    wait_until(
        lambda: landed_row_count(config) > before or router.process.poll() is not None, "a further batch is in the lake"
    )
    assert router.process.poll() in (None, 0), router.said
    router.clear()  # SIGKILL for Spark's launcher, driver and Python workers

    again = submit(config)
    assert again.ended() == 0, again.said
    assert "hush-hush" not in router.said + again.said
    assert lakes.differences(lakes.contents(here(config)), local()) == []


def test_of_two_attempts_of_a_task_one_is_committed(worker, submit, configured, local, tmp_path):
    worker(), worker()
    config = configured(tmp_path / "cluster", EVENTS * 2)
    (config.parent / "slow").touch()
    speculative = {"": "true", ".interval": "100ms", ".multiplier": "1", ".quantile": "0.1", ".minTaskRuntime": "1s"}

    router = submit(config, **{f"spark.speculation{key}": value for key, value in speculative.items()})

    assert router.ended() == 0, router.said
    assert (config.parent / "slow").exists(), "the first attempt was waiting when the other one was taken"
    assert lakes.unreferenced(config.parent / "lake"), "both have written files"
    assert lakes.differences(lakes.contents(config.parent / "lake"), local(EVENTS * 2)) == []


def test_executors_come_and_go_by_dynamic_allocation(worker, submit, configured, local, tmp_path):
    worker(), worker()
    config = configured(tmp_path / "cluster")
    dynamic = {"enabled": "true", "shuffleTracking.enabled": "true", "executorIdleTimeout": "1s", "minExecutors": "0"}

    router = submit(config, **{f"spark.dynamicAllocation.{key}": value for key, value in dynamic.items()})

    assert router.ended() == 0, router.said
    assert lakes.differences(lakes.contents(config.parent / "lake"), local()) == []


def refused(router: RouterProcess, config: Path) -> str:
    """Return the one sentence of a start that was refused, with nothing committed."""
    assert router.ended() == 2, router.said
    assert "Traceback" not in router.said
    assert lakes.tables(config.parent / "lake") == []
    (said,) = [line for line in router.said.split("\n") if line.startswith("router: ")]
    return said


def test_a_lake_that_is_another_folder_on_one_machine_is_refused(worker, submit, configured, tmp_path):
    """A file system of its own over the lake, as a second machine has."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs the right to mount")
    config = configured(tmp_path / "cluster")
    lake = config.parent / "lake"
    lake.mkdir()
    mounted = f"mount -t tmpfs -o size=1m tmpfs {lake} && exec " + '"$@"'
    worker(before=("unshare", "-m", "sh", "-c", mounted, "sh"))

    said = refused(submit(config), config)

    assert said.startswith(f"router: an executor cannot work: {lake} is not the driver's lake there")
    assert lakes.unreferenced(lake) == []


def test_a_router_that_does_not_travel_is_refused(worker, submit, configured, tmp_path):
    from router.engine.spark.connectors import CONNECTORS, maven_packages

    worker()
    config = configured(tmp_path / "cluster")

    said = refused(
        submit(config, "--installed", **{"spark.jars.packages": ",".join(maven_packages(CONNECTORS))}), config
    )

    assert said.startswith("router: an executor cannot work: it cannot import the router (No module named 'router'")


def other_python() -> str | None:
    """Return a Python of another version than this, if there is one."""
    names = {"python3.10", "python3.12", "python3.13"} - {f"python3.{sys.version_info.minor}"}
    places = [*Path.home().glob(".pyenv/versions/*/bin/python3.*"), *filter(None, map(shutil.which, names))]
    for place in (str(place) for place in places if Path(place).name in names):
        if subprocess.run([place, "-V"], capture_output=True, check=False).returncode == 0:  # and no shim of a manager
            return place
    return None


def test_another_python_is_refused(worker, submit, configured, tmp_path, monkeypatch):
    found = other_python()
    if found is None:
        pytest.skip("no other Python here")
    worker()
    config = configured(tmp_path / "cluster")
    monkeypatch.setenv("PYSPARK_PYTHON", found)

    assert "an executor cannot work: it runs Python 3." in refused(submit(config), config)


def test_a_python_that_is_not_there_is_refused(worker, submit, configured, tmp_path, monkeypatch):
    worker()
    config = configured(tmp_path / "cluster")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/nowhere/python")

    assert "there is no /opt/nowhere/python on its machine" in refused(submit(config), config)
