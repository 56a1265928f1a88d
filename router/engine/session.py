"""Build a Spark session with the settings that many small tables need."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from delta.pip_utils import configure_spark_with_delta_pip
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from router.config.variables import substitute
from router.config.yaml_tree import Keys, Scalar, parse
from router.errors import SessionLost, StartError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router.config.models import Config

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = str(2**31 - 1)
"""Whether an Arrow batch is bounded in bytes; see router.engine.land.job for why it is not."""
QUERY_LOGGER = "org.apache.spark.sql.execution.streaming.MicroBatchExecution"
CLASS_PATH = "spark.driver.extraClassPath"
AVRO_LIMITS = (
    f"-Dorg.apache.avro.limits.string.maxLength={64 << 20}",
    f"-Dorg.apache.avro.limits.bytes.maxLength={64 << 20}",
    "-Dorg.apache.avro.limits.collectionItems.maxLength=1000000",
)
"""Spark makes room for what a length in an Avro record claims: without limits, ten bytes can end the JVM."""
COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Ten times the JVM's own: its second compiler takes a quarter of a cold run's CPU where it compiles all that is called
5 000 times, and most of that is never called again. What a batch calls for every record comes to it all the same."""
SLOWEST_CLASS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
"""MLlib's functions, which Spark registers in every session: a second, since Scala's reflection finds their types."""
YOUNG = 96
"""Megabytes of the heap for new objects, for each core, at most. Nearly all that a task makes is garbage soon,
and with a third of the heap, as is the JVM's way, a gigabyte of it lies there."""
LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of the JVM that makes the command line of the JVM proper: it lives for half a second."""
CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "IS_SERVERLESS")
"""Variables of a Python that has Spark Connect only; the last is of Databricks' serverless compute."""
NO_CONTEXT = ("JVM_ATTRIBUTE_NOT_SUPPORTED", "CONTEXT_UNAVAILABLE", "Py4JSecurityException", "is not whitelisted")
"""Parts of what Databricks says in shared clusters (standard access mode) of what needs a SparkContext."""
NO_CONNECT = (
    "the router needs a Spark driver of its own, and {} (Spark Connect, serverless and shared clusters have none): run "
    "it with `router run`, spark-submit or `router submit`, on Databricks on a cluster with dedicated access mode"
)
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # one small state job per table and snapshot instead of 50 tasks
    "spark.databricks.delta.snapshotPartitions": "2",
    # Spark's default is a type that Arrow, and so delta-rs, reads as nanoseconds: no year before 1677 or after 2262
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    BATCH_BYTES: UNBOUNDED,
    "spark.python.worker.reuse": "true",
    # Spark gives every session files of its own, and every session with such files a Python daemon and workers of its
    # own. A query runs in a copy of the session: what was started and imported before would be started again.
    "spark.sql.artifact.isolation.enabled": "false",
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

    `spark:` of the configuration overrides the router's settings. Raises StartError for Spark Connect.
    """
    if by := connect_by(config.spark, master):
        raise StartError(NO_CONNECT.format(by))
    submitted = _submitted()
    if not submitted:
        _stop_other_jvm(config.spark)
    builder = session_builder(config.spark, None if submitted else master or local_master(config))
    builder = builder.appName(f"router {config.name}")
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        SparkContext.getOrCreate(_conf(builder))
        starting.join()  # only now may this thread load classes of SQL: two that load them wait for each other
        session = builder.getOrCreate()
    except Exception as error:
        if any(sign in str(error) for sign in NO_CONTEXT):
            raise StartError(NO_CONNECT.format("this cluster gives no SparkContext")) from error
        if "stopped SparkContext" in str(error):
            what = "the cluster has ended the application before it began: its executors do not start"
            raise SessionLost(f"{config.name}: {what}. Their logs on the workers say why") from error
        raise
    if interrupt is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark's own handler would cancel the jobs of the current batch
    session.sparkContext.setLogLevel("ERROR")
    # its thread prints a stack when the JVM is gone, which is said in a sentence
    vars(session.sparkContext._accumulatorServer)["handle_error"] = lambda request, address: None
    if not submitted:
        _remember_jars(session)
    return session


def connect_by(asked: Mapping[str, str], master: str | None) -> str | None:
    """Return what asks for Spark Connect, in which no code of the router can run; None for a Spark of its own."""
    given = {**asked, "--master": master or ""}
    if found := [name for name in ("--master", "spark.master", "spark.remote") if "sc://" in given.get(name, "")]:
        return f"{found[0]} is {given[found[0]]}"
    if asked.get("spark.api.mode", "").lower() == "connect":
        return "spark.api.mode is connect"
    return next((f"the environment has {name}" for name in CONNECT_VARIABLES if os.environ.get(name)), None)


def _submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def session_builder(asked: Mapping[str, str], master: str | None) -> SparkSession.Builder:
    """Return what a session is built from, and its JVM started with; no master where somebody else has chosen one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder()
    if master is not None:
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))  # or a script asks a Python of its own
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER)
        cores = str(_cores())
        builder = builder.master(master)
        builder = builder.config("spark.default.parallelism", cores)
        builder = builder.config("spark.sql.shuffle.partitions", cores).config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.defaultJavaOptions", java_options(asked))
        builder = builder.config("spark.python.daemon.module", "router.engine.land.worker_daemon")
        local = asked.get("spark.master", master).startswith("local")
        builder = _with_jars(builder, on_class_path=local and CLASS_PATH not in asked)
    for key, value in {**SETTINGS, **asked}.items():
        builder = builder.config(key, value)
    return builder


def start_jvm(path: Path, master: str | None) -> None:
    """Start the JVM of a local run, while Python imports plugins and reads the configuration in `path`.

    Takes a second off a cold start. The JVM gets the settings that stand under `spark:`; where these cannot be read,
    `build_session` starts it and the loader says why. Comes back at once: a session waits for the JVM by itself.
    """
    asked = settings_in(path)
    if connect_by(asked or {}, master):
        return
    local = asked is not None and asked.get("spark.master", master or "local").startswith("local")
    if asked is None or not local or _submitted() or SparkContext._gateway:
        return
    starting.begin(asked, _conf(session_builder(asked, master or "local")))


class _Starting:
    """The thread that starts the JVM of this process, and the settings under `spark:` that it has taken."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.asked: Mapping[str, str] = {}

    def begin(self, asked: Mapping[str, str], conf: SparkConf) -> None:
        """Start the JVM, and load the slowest of a session's classes while Spark's context comes into being."""
        self.asked, self.thread = asked, threading.Thread(target=self._start, args=(conf,))
        self.thread.start()

    def join(self) -> None:
        """Wait until it has done all."""
        if self.thread:
            self.thread.join()
            self.thread = None

    def _start(self, conf: SparkConf) -> None:
        with suppress(Exception):  # the session tries it again, and says what is wrong
            SparkContext._ensure_initialized(conf=conf)
            assert SparkContext._jvm is not None
            SparkContext._jvm.java.lang.Class.forName(SLOWEST_CLASS)


starting = _Starting()


def _conf(builder: SparkSession.Builder) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(builder._options.items()))


def _stop_other_jvm(asked: Mapping[str, str]) -> None:
    """Stop a JVM that was started with other settings than the configuration turns out to have."""
    if starting.thread and starting.asked != asked:
        starting.join()
        with SparkContext._lock:
            if SparkContext._gateway:
                SparkContext._gateway.shutdown()
            SparkContext._gateway = SparkContext._jvm = None


def settings_in(path: Path) -> dict[str, str] | None:
    """Return what stands under `spark:` in a configuration file; None where it cannot be read."""
    try:
        root, problems = parse(path.read_text("utf-8-sig"), str(path))
    except (OSError, ValueError):
        return None
    if problems or not isinstance(root, Keys):
        return None
    if "spark" not in root.entries:
        return {}
    settings, unset = substitute(root.entries["spark"].value, os.environ, path.parent, str(path))
    if unset or not isinstance(settings, Keys):
        return None
    return {key: entry.value.text for key, entry in settings.entries.items() if isinstance(entry.value, Scalar)}


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
    options, given = [*AVRO_LIMITS, *COMPILER], asked.get("spark.driver.extraJavaOptions", "")
    if "GC" not in given:
        options.append("-XX:+UseParallelGC")
    if "NewSize" not in given and "Xmn" not in given and 3 * (young := YOUNG * _cores()) < _megabytes(asked):
        options.append(f"-XX:MaxNewSize={young}m")
    if "Archive" not in given and class_archive().is_file():
        options += [f"-XX:SharedArchiveFile={class_archive()}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(options)


def _megabytes(asked: Mapping[str, str]) -> int:
    """Return the size of the heap; 0 where it is written in another way."""
    written = re.fullmatch(r"(\d+)([mgt])b?", asked.get("spark.driver.memory", "1g").lower())
    return int(written[1]) << {"m": 0, "g": 10, "t": 20}[written[2]] if written else 0


def class_archive() -> Path:
    """Return where the archive of the JVM's classes is, for this installation; `router warm-up` makes it.

    A JVM refuses an archive whose jars lay elsewhere or were others.
    """
    place = hashlib.sha256(str(Path(pyspark.__file__).resolve()).encode()).hexdigest()[:8]
    return cache_folder() / f"classes-{_versions()}-{place}.jsa"


def _with_jars(builder: SparkSession.Builder, *, on_class_path: bool) -> SparkSession.Builder:
    """Add the connectors: from the jars an earlier session resolved, or through Spark's resolver.

    Resolving takes 2 to 3 s even when nothing is fetched, and a cold start is what people wait for. With everything in
    one process the class path is enough: Spark would copy the jars at every start, and no archive holds their classes.
    """
    jars = connector_jars()
    if not jars:
        return configure_spark_with_delta_pip(builder, extra_packages=packages())
    if on_class_path:
        return builder.config(CLASS_PATH, os.pathsep.join(jars))
    return builder.config("spark.jars", ",".join(jars))


def connector_jars() -> list[str]:
    """Return the jars that an earlier session resolved; none where they are not known or not there any more."""
    known = _memory()
    jars = known.read_text().split("\n") if known.exists() else []
    return jars if all(Path(jar).is_file() for jar in jars) else []


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
    return cache_folder() / f"spark-jars-{_versions()}.txt"


def cache_folder() -> Path:
    """Return the folder of what can be made again: jars, archives of classes, what was packed for a cluster."""
    return Path(os.environ.get("ROUTER_CACHE") or Path.home() / ".cache" / "spark-event-router")


def _versions() -> str:
    return f"{pyspark.__version__}-delta-{importlib.metadata.version('delta-spark')}"


@contextmanager
def quiet_failures(session: SparkSession) -> Iterator[None]:
    """Keep Spark and py4j from printing the stack of a query that fails: the router logs the reason in one line."""
    assert session.sparkContext._jvm is not None
    log4j = session.sparkContext._jvm.org.apache.logging.log4j
    with quiet_gateway():
        log4j.core.config.Configurator.setLevel(QUERY_LOGGER, log4j.Level.OFF)
        try:
            yield
        finally:
            log4j.core.config.Configurator.setLevel(QUERY_LOGGER, log4j.Level.ERROR)


@contextmanager
def quiet_gateway() -> Iterator[None]:
    """Keep py4j from logging each call to a JVM that fails or is gone, by its own loggers or by the root of all."""
    gateway, root = logging.getLogger("py4j"), logging.getLogger()
    former = gateway.level

    def others(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    gateway.setLevel(logging.CRITICAL)
    root.addFilter(others)
    try:
        yield
    finally:
        root.removeFilter(others)
        gateway.setLevel(former)


def alive(session: SparkSession) -> bool:
    """Say whether Spark runs: its JVM may be killed, or end itself for want of memory."""
    with quiet_gateway():
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


def all_packages() -> list[str]:
    """Return the Maven coordinates of Delta and of Spark's connectors, for spark-submit."""
    with_delta = configure_spark_with_delta_pip(SparkSession.Builder(), extra_packages=packages())
    return str(with_delta._options["spark.jars.packages"]).split(",")


def versions() -> dict[str, str]:
    """Return the versions that decide how a batch is written."""
    return {name: importlib.metadata.version(name) for name in ("pyspark", "delta-spark", "deltalake", "pyarrow")}
