"""Build a Spark session with the settings that many small tables need."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from router import spark_internals
from router.config.variables import substitute_variables
from router.config.yaml_tree import Keys, Scalar, parse_yaml
from router.engine.spark.cache_folder import cache_folder
from router.engine.spark.connectors import (
    CONNECTORS,
    RESOLVING,
    connectors_in,
    connectors_of,
    delta_version,
    describe_untested_pair,
    known_jars,
    refuse_newer_spark,
    resolved_jars,
    versions_of_jars,
)
from router.engine.spark.executors import on_one_machine
from router.engine.spark.java import provide_java
from router.errors import MachineError, SessionLost, StartError, is_verbose
from router.spark_internals import (
    QUERY_CLASSES,
    ask_for_names_once,
    builder_options,
    file_manager,
    first_cause,
    has_jvm,
    is_running,
    jvm_exit_status,
    log_level,
    stop_jvm,
    tame_accumulators,
    unconverted_errors,
)
from router.storage.addresses import is_local_path

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from router.config.models import Config

log = logging.getLogger("router")
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNBOUNDED = str(2**31 - 1)
"""Whether an Arrow batch is bounded in bytes; see router.engine.land.job for why it is not."""
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
"""Ten times the JVM's own: its second compiler takes a quarter of a cold run's CPU if it compiles all that is called
5 000 times, and most of that is never called again. Methods that a batch calls for every record are still compiled."""
SLOWEST_CLASS = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
"""MLlib's functions, which Spark registers in every session: a second, since Scala's reflection finds their types."""
YOUNG = 96
"""Megabytes of the heap for new objects, for each core, at most. Nearly all that a task makes is garbage soon,
and with a third of the heap, as is the JVM's way, a gigabyte of it lies there."""
CHATTER = (
    b"WARNING: Using incubator modules: jdk.incubator.vector",
    b'Setting default log level to "',
    b"To adjust logging level use sc.setLogLevel(newLevel)",
)
"""Beginnings of lines that a JVM prints at every start, though nothing is wrong and no level is to be set."""
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers that print the stack of a query that Spark cannot analyse, as JSON: the error says the same."""
TASK_CLASSES = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")
"""The classes that print the error of each task, and of the job that it ends."""
_LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Options of the JVM that makes the command line of the JVM proper: it lives for half a second."""
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Which class of Spark writes the notes of a query."""
CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "IS_SERVERLESS")
"""Variables of a Python that has Spark Connect only; the last is of Databricks' serverless compute."""
NO_CONTEXT = ("JVM_ATTRIBUTE_NOT_SUPPORTED", "CONTEXT_UNAVAILABLE", "Py4JSecurityException", "is not whitelisted")
"""Parts of the errors of Databricks in shared clusters (standard access mode) for code that needs a SparkContext."""
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
    # A value may end its task with an error of the JVM (a text too deep for a regular expression): as any failing task,
    # that is searched for its cause. Spark would end the process, which is the whole run if there is one only.
    "spark.executor.killOnFatalError.depth": "0",
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
    """Return the session of a configuration; under spark-submit the submitted settings win.

    `spark:` of the configuration overrides the router's settings. Raises StartError for Spark Connect.
    """
    if connect := connect_by(config.spark, master):
        raise StartError(NO_CONNECT.format(connect))
    refuse_newer_spark()
    difference = describe_untested_pair()
    # A platform with a Delta of its own has no such package: its version is unknown.
    if delta_version() and difference:
        log.warning("%s", difference)
    if _is_submitted():
        master = None
    else:
        master = master or local_master(config)
        _stop_other_jvm(config.spark, ready_to_start(config))
    builder = session_builder(config.spark, master, connectors_of(config))
    for key, value in pool_settings(config).items():
        builder = builder.config(key, value)
    with quiet_gateway():  # py4j would log a trace if the JVM is killed meanwhile
        return _session_of(builder.appName(f"router {config.name}"), config.name)


def _session_of(builder: SparkSession.Builder, name: str) -> SparkSession:
    """Return the session, quiet but for errors.

    Raises SessionLost if the JVM was killed meanwhile, MachineError with the reason in a line if Spark does not start.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    ask_for_names_once()
    try:
        if not _is_submitted():
            _start_jvm(_spark_conf(builder))
        SparkContext.getOrCreate(_spark_conf(builder))
        starting.join()  # only now may this thread load classes of SQL: two that load them wait for each other
        with unconverted_errors():
            session = builder.getOrCreate()
            session.conf.get("spark.sql.session.timeZone")  # here and not in a batch Spark refuses settings of SQL
        session.sparkContext.setLogLevel("WARN" if is_verbose() else "ERROR")
        tame_accumulators(session)
        if not is_verbose():
            for logger in QUERY_LOGGERS:
                PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    except Exception as error:
        if any(sign in str(error) for sign in NO_CONTEXT):
            raise StartError(NO_CONNECT.format("this cluster gives no SparkContext")) from error
        if "stopped SparkContext" in str(error):
            reason = "the cluster has ended the application before it began: its executors do not start"
            raise SessionLost(f"{name}: {reason}. Their logs on the workers say why") from error
        status = jvm_exit_status(error)
        if status is None and not isinstance(error, PySparkException | Py4JError | OSError | ValueError):
            raise
        starting.join()
        killed_by = _signal_of(status)
        if killed_by:
            reason = f"Spark's JVM was killed while it started ({killed_by}; the kernel does so for want of memory)"
            raise SessionLost(f"{name}: {reason}; start again, nothing was read yet") from error
        reason = f"its JVM ended by itself, with status {status}"
        if status is None:
            reason = first_cause(error)
        todo = "look at what stands under `spark:`, and at the memory and Java of this machine: router doctor FILE"
        raise MachineError(f"Spark does not start: {reason}", todo) from error
    if interrupt is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark's own handler would cancel the jobs of the current batch
    return session


def _signal_of(status: int | None) -> str:
    """Return the signal that has killed a process, by its exit status; empty if it has ended by itself, or runs.

    A JVM ends in order at most signals, with the status that a shell would give. One that crashes aborts itself.
    """
    if status is None or status == -signal.SIGABRT:
        return ""
    number = -status
    if status - 128 in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        number = status - 128
    return signal.Signals(number).name if number > 0 else ""


def pool_settings(config: Config) -> dict[str, str]:
    """Return the settings with which jobs of batches come before those of views."""
    if not config.views or "spark.scheduler.mode" in config.spark:
        return {}
    settings = {"spark.scheduler.mode": "FAIR"}
    file = Path(__file__).with_name("pools.xml")
    if file.is_file():  # not in a zip
        settings["spark.scheduler.allocation.file"] = file.as_uri()
    return settings


def write_notes_directly(session: SparkSession, checkpoint: str) -> None:
    """Let Spark write its notes of queries into a local checkpoint without starting programs.

    By default it starts `readlink` a dozen times in each batch. What else differs, a rename that refuses to replace a
    file, the lock of a run makes unnecessary.
    """
    if is_local_path(checkpoint) and session.conf.get(FILE_MANAGER, None) is None:
        session.conf.set(FILE_MANAGER, file_manager())


def connect_by(settings: Mapping[str, str], master: str | None) -> str | None:
    """Return the setting that selects Spark Connect, in which no code of the router can run; None if none does."""
    addresses = {"--master": master or ""}
    for name in ("spark.master", "spark.remote"):
        addresses[name] = settings.get(name, "")
    for name, address in addresses.items():
        if "sc://" in address:
            return f"{name} is {address}"
    if settings.get("spark.api.mode", "").lower() == "connect":
        return "spark.api.mode is connect"
    for name in CONNECT_VARIABLES:
        if os.environ.get(name):
            return f"the environment has {name}"
    return None


def ready_to_start(config: Config) -> list[str]:
    """Return the jars of a local session; raise MachineError, in a sentence, without a usable Java or the jars.

    Spark's launcher would find both out itself, and print a hundred lines.
    """
    # A JVM that runs, and a script of the installation, have chosen their Java.
    if not has_jvm() and not spark_env():
        java = provide_java()
        if java.fault:
            raise MachineError(java.fault, java.todo)
    return resolved_jars(connectors_of(config), config.spark)


def spark_env() -> Path | None:
    """Return the script of an installed Spark that may choose another Java than the environment names."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    script = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-env.sh")
    return script if script.is_file() else None


def _is_submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def starts_jvm_itself(session: SparkSession) -> bool:
    """Return whether the router has started the JVM of a session, with all of Spark in it."""
    return on_one_machine(session) and not _is_submitted()


def session_builder(
    settings: Mapping[str, str], master: str | None, connectors: Collection[str] = tuple(CONNECTORS)
) -> SparkSession.Builder:
    """Return the builder of a session and its JVM; `master` is None if spark-submit has chosen one.

    `settings` are those of the configuration. Raises MachineError if jars cannot be fetched.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder()
    if master is not None:
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))  # or a script asks a Python of its own
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER)
        cores = str(usable_cores())
        builder = builder.master(master)
        builder = builder.config("spark.default.parallelism", cores)
        builder = builder.config("spark.sql.shuffle.partitions", cores).config("spark.ui.enabled", "false")
        is_local = settings.get("spark.master", master).startswith("local")
        if is_local:
            # It joins partitions that are too many, which these are not, and plans every small job of a batch again.
            builder = builder.config("spark.sql.adaptive.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.defaultJavaOptions", java_options(settings))
        builder = builder.config("spark.python.daemon.module", "router.engine.land.worker_daemon")
        # Spark makes the folder at each start, by default where somebody happens to work; no table is in it.
        builder = builder.config("spark.sql.warehouse.dir", str(Path(tempfile.gettempdir()) / "spark-warehouse"))
        jars = resolved_jars(connectors, settings)
        # With everything in one process the class path is enough for jars: Spark would copy them at every start, and no
        # archive holds their classes.
        if is_local and CLASS_PATH not in settings:
            builder = builder.config(CLASS_PATH, os.pathsep.join(jars))
        else:
            builder = builder.config("spark.jars", ",".join(jars))
        # The jars are resolved: Spark must not do it again.
        settings = {key: value for key, value in settings.items() if key not in RESOLVING}
    for key, value in {**SETTINGS, **settings}.items():
        builder = builder.config(key, value)
    return builder


def start_jvm_ahead(path: Path, master: str | None) -> None:
    """Start the JVM of a local run, while Python imports plugins and reads the configuration in `path`.

    Takes a second off a cold start. The JVM gets the settings under `spark:`; if these cannot be read, `build_session`
    starts it and the loader reports why. Returns at once: a session waits for the JVM by itself.
    """
    settings = settings_in(path)
    if settings is None or connect_by(settings, master):
        return
    is_local = settings.get("spark.master", master or "local").startswith("local")
    if not is_local or _is_submitted() or has_jvm() or provide_java().fault:
        return
    root, _ = parse_yaml(path.read_text("utf-8-sig"), str(path))
    connectors = connectors_in(root) if root else frozenset[str]()
    if jars := known_jars(connectors, settings):
        starting.begin(settings, _spark_conf(session_builder(settings, master or "local", connectors)), jars)


def _start_jvm(conf: SparkConf) -> Any:
    """Start the JVM of this process, if there is none; return the door to its classes."""
    with _without_chatter() as stderr:
        return spark_internals.start_jvm(conf, stderr)


@contextmanager
def _without_chatter() -> Iterator[int | None]:
    """Give a descriptor for the errors of a JVM: they go to this process' own, but for lines of no use."""
    if is_verbose():
        yield None
        return
    reading, writing = os.pipe()
    threading.Thread(target=_print_errors, args=(reading,), name="errors of the JVM", daemon=True).start()
    try:
        yield writing
    finally:
        # The JVM has a copy: the reader ends with it.
        os.close(writing)


def _print_errors(reading: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not line.startswith(CHATTER):
                os.write(2, line)


class _Starting:
    """The thread that starts the JVM of this process, and the settings under `spark:` that it has taken."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.settings: Mapping[str, str] = {}
        self.jars: list[str] = []

    def begin(self, settings: Mapping[str, str], conf: SparkConf, jars: list[str]) -> None:
        """Start the JVM, and load the slowest of a session's classes while Spark's context is being created."""
        self.jars = jars
        self.settings = settings
        self.thread = threading.Thread(target=self._start_early, args=(conf,))
        self.thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self.thread:
            self.thread.join()
            self.thread = None

    def _start_early(self, conf: SparkConf) -> None:
        with suppress(Exception):  # the session tries it again, and reports what is wrong
            _start_jvm(conf).java.lang.Class.forName(SLOWEST_CLASS)


starting = _Starting()


def _spark_conf(builder: SparkSession.Builder) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(builder_options(builder).items()))


def _stop_other_jvm(settings: Mapping[str, str], jars: list[str] | None = None) -> None:
    """Stop a JVM that was started with other settings, or jars, than the configuration turns out to have."""
    if starting.thread and (starting.settings != settings or jars not in (None, starting.jars)):
        starting.join()
        stop_jvm()


def settings_in(path: Path) -> dict[str, str] | None:
    """Return the settings under `spark:` in a configuration file; None if they cannot be read."""
    try:
        root, problems = parse_yaml(path.read_text("utf-8-sig"), str(path))
    except (OSError, ValueError):
        return None
    if problems or not isinstance(root, Keys):
        return None
    if "spark" not in root.entries:
        return {}
    settings, unset = substitute_variables(root.entries["spark"].value, os.environ, path.parent, str(path))
    if unset or not isinstance(settings, Keys):
        return None
    return {key: entry.value.text for key, entry in settings.entries.items() if isinstance(entry.value, Scalar)}


def local_master(config: Config) -> str:
    """Return the master of a local run: all cores, and room for the tasks of detached sinks: they mostly wait.

    A task that fails is tried again, as on a cluster: plain local mode would fail the batch at once.
    """
    detached = sum(sink.tasks_at_most for _, _, sink in config.detached_sinks())
    return f"local[{usable_cores() + detached},4]"


def usable_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 2


def java_options(settings: Mapping[str, str]) -> str:
    """Return the options that the JVM starts with; those of a session's settings come after them."""
    options = [*AVRO_LIMITS, *COMPILER]
    extra_options = settings.get("spark.driver.extraJavaOptions", "")
    # One process that drains as fast as it can needs throughput, not short pauses: with few cores the parallel
    # collector takes a sixth off a cold run. The JVM refuses two collectors.
    if "GC" not in extra_options:
        options.append("-XX:+UseParallelGC")
    young = YOUNG * usable_cores()
    if "NewSize" not in extra_options and "Xmn" not in extra_options and 3 * young < _heap_megabytes(settings):
        options.append(f"-XX:MaxNewSize={young}m")
    # The archive of classes takes seconds off a start; another JVM than that which made it silently ignores it.
    if "Archive" not in extra_options and class_archive().is_file():
        options += [f"-XX:SharedArchiveFile={class_archive()}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    # Without them Spark prints warnings about the machine, in another form, before the router can set a level.
    log_settings = Path(__file__).with_name("log4j2.properties")
    if "log4j" not in extra_options and not is_verbose() and log_settings.is_file():  # it is none in a zip
        options.append(f"-Dlog4j2.configurationFile={log_settings.as_uri()}")
    return " ".join(options)


def _heap_megabytes(settings: Mapping[str, str]) -> int:
    """Return the size of the heap; 0 if it is written in another way."""
    size = re.fullmatch(r"(\d+)([mgt])b?", settings.get("spark.driver.memory", "1g").lower())
    if size is None:
        return 0
    return int(size[1]) << {"m": 0, "g": 10, "t": 20}[size[2]]


def class_archive() -> Path:
    """Return where the archive of the JVM's classes is, for this installation; `router warm-up` makes it.

    A JVM refuses an archive whose jars lay elsewhere or were others.
    """
    place = hashlib.sha256(str(Path(pyspark.__file__).resolve()).encode()).hexdigest()[:8]
    return cache_folder() / f"classes-{versions_of_jars()}-{place}.jsa"


@contextmanager
def quiet_failures(session: SparkSession) -> Iterator[None]:
    """Keep Spark and py4j from printing the stack of a query that fails: the router logs the reason in one line."""
    with _quiet_loggers(session, QUERY_CLASSES), nullcontext() if is_verbose() else quiet_gateway():
        yield


@contextmanager
def quiet_tasks(session: SparkSession) -> Iterator[None]:
    """Keep Spark from printing the errors of tasks while jobs are tried that may fail."""
    with _quiet_loggers(session, TASK_CLASSES):
        yield


@contextmanager
def _quiet_loggers(session: SparkSession, names: tuple[str, ...]) -> Iterator[None]:
    if is_verbose():
        yield
        return
    for name in names:
        log_level(session, name, "OFF")
    try:
        yield
    finally:
        for name in names:
            log_level(session, name, "ERROR")


@contextmanager
def quiet_gateway() -> Iterator[None]:
    """Keep py4j from logging each call to a JVM that fails or is gone, by its own loggers or by the root of all."""
    gateway = logging.getLogger("py4j")
    root = logging.getLogger()
    former_level = gateway.level

    def is_of_others(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    gateway.setLevel(logging.CRITICAL)
    root.addFilter(is_of_others)
    try:
        yield
    finally:
        root.removeFilter(is_of_others)
        gateway.setLevel(former_level)


def is_alive(session: SparkSession) -> bool:
    """Return whether Spark runs: its JVM may be killed, or end itself for want of memory."""
    with quiet_gateway():
        return is_running(session)


def stop_session(session: SparkSession) -> None:
    """Stop a session and remove the empty folders that Spark 4 leaves under ./artifacts for every session."""
    if is_alive(session):
        session.stop()
    artifacts = Path("artifacts")
    if artifacts.is_dir():
        for folder in artifacts.glob("spark-*"):
            with suppress(OSError):  # not empty: another session uses it
                folder.rmdir()
        with suppress(OSError):
            artifacts.rmdir()
