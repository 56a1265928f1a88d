"""Build a Spark session with the settings that many small tables need."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyspark
from delta.pip_utils import configure_spark_with_delta_pip
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = str(2**31 - 1)
"""Whether an Arrow batch is bounded in bytes; see router.engine.land.job for why it is not."""
QUERY_LOGGER = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
EVENTS = 1000
CLASS_PATH = "spark.driver.extraClassPath"
AVRO_LIMITS = (
    f"-Dorg.apache.avro.limits.string.maxLength={64 << 20}",
    f"-Dorg.apache.avro.limits.bytes.maxLength={64 << 20}",
    "-Dorg.apache.avro.limits.collectionItems.maxLength=1000000",
)
"""Spark makes room for what a length in an Avro record claims: without limits, ten bytes can end the JVM."""
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # one small state job per table and snapshot instead of 50 tasks
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    BATCH_BYTES: UNBOUNDED,
    "spark.python.worker.reuse": "true",
    # The labels of many columns make one generated method larger than the JVM ever compiles (8000 bytes of code): it
    # would be interpreted, which took a third of the time. Above this size Spark generates smaller methods instead.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # PySpark notes where in the program every column was made, by several calls to the JVM for each: two thirds of the
    # time it takes to plan a batch. What an error is about is said by its route.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # a driver that runs for months must not keep the history of every batch
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.worker.ui.retainedExecutors": "20",
    "spark.ui.showConsoleProgress": "false",
}


def build_session(config: Config, master: str | None = None) -> SparkSession:
    """Return the session of a configuration; under spark-submit what was submitted wins.

    `spark:` of the configuration overrides the router's settings.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"router {config.name}")
    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        cores = str(_cores())
        builder = builder.master(master or local_master(config))
        builder = builder.config("spark.default.parallelism", cores)
        builder = builder.config("spark.sql.shuffle.partitions", cores).config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.defaultJavaOptions", java_options(config.spark))
        builder = builder.config("spark.python.daemon.module", "router.engine.land.worker_daemon")
        local = config.spark.get("spark.master", master or "local").startswith("local")
        builder = _with_jars(builder, on_class_path=local and CLASS_PATH not in config.spark)
    for key, value in {**SETTINGS, **config.spark}.items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if interrupt is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark's own handler would cancel the jobs of the current batch
    session.sparkContext.setLogLevel("ERROR")
    # its thread prints a stack when the JVM is gone, which is said in a sentence
    session.sparkContext._accumulatorServer.handle_error = lambda request, address: None  # type: ignore[attr-defined]
    if not submitted:
        _remember_jars(session)
    return session


def local_master(config: Config) -> str:
    """Return the master of a local run: all cores, and room for the tasks of detached sinks: they mostly wait.

    A task that fails is tried again, as on a cluster: plain local mode would fail the batch at once.
    """
    detached = sum(sink.tasks_at_most for _, _, sink in config.detached_sinks())
    return f"local[{_cores() + detached},4]"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def java_options(asked: Mapping[str, str]) -> str:
    """Return the options that the JVM starts with; those that a session asks for come after them.

    One process that drains as fast as it can wants throughput, not short pauses: with few cores the parallel collector
    takes a sixth off a cold run. The JVM refuses two collectors, so one that is asked for stands alone. The archive of
    classes takes seconds off a start; a JVM that it was not made by goes without it, and says nothing.
    """
    options, given = [*AVRO_LIMITS], asked.get("spark.driver.extraJavaOptions", "")
    if "GC" not in given:
        options.append("-XX:+UseParallelGC")
    if "Archive" not in given and class_archive().is_file():
        options += [f"-XX:SharedArchiveFile={class_archive()}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(options)


def class_archive() -> Path:
    """Return where the archive of the JVM's classes is, for this installation; `router warm-up` makes it.

    A JVM refuses an archive whose jars lay elsewhere or were others.
    """
    place = hashlib.sha256(str(Path(pyspark.__file__).resolve()).encode()).hexdigest()[:8]
    return _cache() / f"classes-{_versions()}-{place}.jsa"


def _with_jars(builder: SparkSession.Builder, *, on_class_path: bool) -> SparkSession.Builder:
    """Add the connectors: from the jars an earlier session resolved, or through Spark's resolver.

    Resolving takes 2 to 3 s even when nothing is fetched, and a cold start is what people wait for. With everything in
    one process the class path is enough: Spark would copy the jars at every start, and no archive holds their classes.
    """
    known = _memory()
    jars = known.read_text().split("\n") if known.exists() else []
    if not jars or not all(Path(jar).is_file() for jar in jars):
        return configure_spark_with_delta_pip(builder, extra_packages=packages())
    if on_class_path:
        return builder.config(CLASS_PATH, os.pathsep.join(jars))
    return builder.config("spark.jars", ",".join(jars))


def _remember_jars(session: SparkSession) -> None:
    known = _memory()
    if known.exists() or session.conf.get("spark.jars.packages", None) is None:
        return
    jars = [jar.removeprefix("file://") for jar in (session.conf.get("spark.jars", "") or "").split(",")]
    if jars and all(Path(jar).is_file() for jar in jars):
        with suppress(OSError):  # a read-only home costs 2 s at the next start, no more
            known.parent.mkdir(parents=True, exist_ok=True)
            known.write_text("\n".join(jars))


def _memory() -> Path:
    """Return the file that lists the resolved jars of exactly these versions."""
    return _cache() / f"spark-jars-{_versions()}.txt"


def _cache() -> Path:
    return Path(os.environ.get("ROUTER_CACHE") or Path.home() / ".cache" / "spark-event-router")


def _versions() -> str:
    return f"{pyspark.__version__}-delta-{importlib.metadata.version('delta-spark')}"


@contextmanager
def quiet_failures(session: SparkSession) -> Iterator[None]:
    """Keep Spark and py4j from printing the stack of a query that fails: the router logs the reason in one line."""
    assert session.sparkContext._jvm is not None
    log4j = session.sparkContext._jvm.org.apache.logging.log4j
    with _quiet_gateway():
        log4j.core.config.Configurator.setLevel(QUERY_LOGGER, log4j.Level.OFF)
        try:
            yield
        finally:
            log4j.core.config.Configurator.setLevel(QUERY_LOGGER, log4j.Level.ERROR)


@contextmanager
def _quiet_gateway() -> Iterator[None]:
    gateway = logging.getLogger("py4j")
    former = gateway.level
    gateway.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        gateway.setLevel(former)


def alive(session: SparkSession) -> bool:
    """Say whether Spark runs: its JVM may be killed, or end itself for want of memory."""
    with _quiet_gateway():
        try:
            return not session.sparkContext._jsc.sc().isStopped()
        except (Py4JError, OSError, AttributeError):  # nobody listens, or PySpark has let go of it
            return False


def stop_session(session: SparkSession) -> None:
    """Stop a session and remove the empty folders that Spark 4 leaves under ./artifacts for every session."""
    if alive(session):
        session.stop()
    artifacts = Path("artifacts")
    if artifacts.is_dir():
        for folder in artifacts.glob("spark-*"):
            with suppress(OSError):  # not empty: somebody else uses it
                folder.rmdir()
        with suppress(OSError):
            artifacts.rmdir()


def packages() -> list[str]:
    """Return the Maven coordinates of Spark's connectors for the installed pyspark."""
    version = pyspark.__version__
    return [f"org.apache.spark:{name}_2.13:{version}" for name in ("spark-sql-kafka-0-10", "spark-avro")]


def versions() -> dict[str, str]:
    """Return the versions that decide how a batch is written."""
    return {name: importlib.metadata.version(name) for name in ("pyspark", "delta-spark", "deltalake", "pyarrow")}


def make_class_archive() -> Path:
    """Run a small configuration in a process of its own, keep the archive of its classes, and return where it is.

    Class data sharing of the JVM (JEP 350, dynamic archives): a JVM that was started so writes the archive at its end.
    It holds what one small run loads: reading files, decoding, landing, committing.

    Raises StartError when the run fails or leaves no archive. Needs the connectors' jars: the first run resolves them.
    """
    target = class_archive()
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as folder:
        archive = Path(folder, "classes.jsa")
        command = [sys.executable, "-m", "router", "run", str(_small_configuration(Path(folder), archive)), "--once"]
        # The pipe ends when the JVM has ended too, which writes the archive after Python is gone.
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)  # noqa: PLW1510 - read below
        if ended.returncode or not archive.is_file():
            raise StartError(f"the run for the archive of classes failed:\n{ended.stdout[-2000:]}")
        os.replace(archive, target)  # noqa: PTH105 - a start at this moment sees the old archive or the new one
    return target


def _small_configuration(folder: Path, archive: Path) -> Path:
    events = Path(folder, "events")
    events.mkdir()
    lines = (json.dumps({"game": f"game_{i % 3}", "at": "2026-01-01T00:00:00Z", "amount": i}) for i in range(EVENTS))
    Path(events, "events.jsonl").write_text("\n".join(lines) + "\nnot JSON\n")
    configuration = {
        "name": "warm_up",
        "lake": str(folder / "lake"),
        "source": {"files": {"path": str(events)}},
        "decode": {"json": {"schema": "game string, at timestamp, amount double"}},
        "bronze": "bronze.events",
        "routes": [
            {
                "name": "games",
                "match": {"sql": "event.game IS NOT NULL"},
                "sinks": [{"tables": {"table": "silver.{event.game}"}}],
            }
        ],
        "dead_letters": "ops.dead_letters",
        "spark": {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -XX:+UseParallelGC"},
    }
    path = Path(folder, "warm_up.yaml")
    path.write_text(json.dumps(configuration))  # JSON is YAML
    return path
