"""Start what tests share once per run: the real broker, one Spark."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pytest
from hypothesis import settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from router.delta.lake import Lake
from router_demo.kafka import EmbeddedKafka
from router_demo.registry import EmbeddedRegistry
from tests.light import LIGHT
from tests.schemas.faulty import FaultyRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from router_demo.embedded import Embedded

E = TypeVar("E", bound="Embedded")

# An example that takes long says something about the machine, not about the code.
settings.register_profile("router", deadline=None, max_examples=33)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("router")

ENGINE = "tests/engine"
PLAYING = {f"{ENGINE}/commit/test_{name}.py" for name in ("committers", "evolution", "ledger", "replay")}
NEED_KAFKA = {"broker", "own_kafka"}
NEED_JAVA = {"spark", "broker", "own_kafka", "schema_registry"}
SLOW_TWINS = Path(__file__).parent / "slow_twins.txt"
"""Tests of which `make test` runs a smaller one; `.ci/run` and `make test-twins` run them."""


class LightKafka(EmbeddedKafka):
    """A broker for little traffic: its code is compiled once and lightly, and one thread looks for garbage."""

    java_options: ClassVar[tuple[str, ...]] = (
        *EmbeddedKafka.java_options,
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let PySpark leave the sockets of its collected rows to the garbage collector, in whichever test that runs."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Java by the fixtures it asks for, before `-m` chooses; modules that need none come last.

    They are short. A module of a minute at the end would leave the other process of a run with nothing to do.
    """
    slow_twins = read_slow_twins()
    for item in items:
        if item.nodeid in slow_twins:
            item.add_marker("slow")
            item.add_marker("twin")
        if NEED_JAVA.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
        if NEED_KAFKA.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")
    long = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: item.path not in long)


def read_slow_twins() -> set[str]:
    """Return the ids of tests that `make test` leaves out because it runs a smaller one."""
    lines = SLOW_TWINS.read_text().splitlines()
    return {line.partition(" -> ")[0] for line in lines if not line.startswith("#")}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Deal the tests to the processes of a run by module; those that look at the same scenarios go to one."""
    return Together(config, log)


class Together(LoadScopeScheduling):
    """Keep a module together for its fixtures, and the modules that play scenarios, which takes a minute."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::", maxsplit=1)[0]
        return "scenarios" if module in PLAYING else module

    def remove_node(self, node: WorkerController) -> str | None:
        """Take its modules from a process that has ended; those that are done are not dealt again.

        xdist would deal them: nobody reports anything of them, so that a run in which a process crashed never ends.
        """
        work = self.assigned_work[node]
        self.assigned_work[node] = {scope: tests for scope, tests in work.items() if not all(tests.values())}
        crashed: str | None = super().remove_node(node)
        return crashed


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder that all processes of this run know."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def broker(run_folder: Path) -> Iterator[EmbeddedKafka]:
    """Run one Kafka for the whole run; each test uses topics of its own, and leaves it running."""
    with shared(LightKafka, run_folder / "broker") as kafka:
        yield kafka


@pytest.fixture(scope="session")
def own_kafka() -> Iterator[EmbeddedKafka]:
    """Run one Kafka for each process that nobody else uses, and that would create topics by itself."""
    with LightKafka({"auto.create.topics.enable": "true"}) as kafka:
        yield kafka


@pytest.fixture
def own_broker(own_kafka: EmbeddedKafka) -> EmbeddedKafka:
    """Return a broker that a test may take away; its data stays. Each test uses topics of its own."""
    own_kafka.start()  # where the test before left it stopped
    return own_kafka


@pytest.fixture(scope="session")
def schema_registry(run_folder: Path) -> Iterator[EmbeddedRegistry]:
    """Run one schema registry for the whole run; each test uses subjects of its own, and leaves it running."""
    with shared(EmbeddedRegistry, run_folder / "schema_registry") as registry:
        yield registry


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Run one Spark for each process: two cores, two shuffle partitions; a task that fails is tried again."""
    from router.config.models import Config
    from router.engine.spark.session import build_session, stop_session

    config = Config.model_construct(name="tests", spark=LIGHT)  # nothing else matters to a session
    session = build_session(config, master="local[2,4]")
    yield session
    stop_session(session)


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Let Spark compile what it runs for one test, as it does for users."""
    for name, value in {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}.items():
        spark.conf.set(name, value)
    yield
    for name in ("spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"):
        spark.conf.set(name, LIGHT[name])


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go into an empty folder and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return an empty lake."""
    return Lake.at(str(tmp_path / "lake"))


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyRegistry]:
    """Run a schema registry that does what a test wants, reached without any proxy."""
    monkeypatch.setenv("NO_PROXY", "*")
    with FaultyRegistry() as registry:
        yield registry


@contextmanager
def shared(kind: type[E], folder: Path) -> Iterator[E]:
    """Run a server, or use the one that another process runs, as the folder says; end it when nobody uses it."""
    folder.mkdir(exist_ok=True)
    port, me = folder / "port", folder / f"user-{os.getpid()}"
    with _alone(folder):
        me.touch()
        owned = None if port.exists() else kind()
        if owned:
            owned.start()
            port.write_text(str(owned.port))
        server = owned or kind.elsewhere(int(port.read_text()))
    try:
        yield server
    finally:
        me.unlink()
        if owned:
            _end(owned, folder, port)


def _end(server: Embedded, folder: Path, port: Path) -> None:
    while True:
        with _alone(folder):
            if not any(_lives(user) for user in folder.glob("user-*")):
                port.unlink()
                server.close()
                return
        time.sleep(0.1)


def _lives(user: Path) -> bool:
    try:
        os.kill(int(user.name.removeprefix("user-")), 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
