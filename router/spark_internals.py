"""Every call to private parts of Spark and Delta, one function for each.

A new Spark may change any of them silently. `tests/test_spark_internals.py` tries each one and names what users would
lose; no other module uses anything private of PySpark or of the JVM.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import traceback
from contextlib import contextmanager, suppress
from functools import cache, partial
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import pyspark
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors.exceptions import captured
from pyspark.java_gateway import launch_gateway
from pyspark.sql import Column
from pyspark.sql import functions as F

from router.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa
    from pyspark import SparkConf
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


MOST_CAUSES = 30
"""The longest chain of causes that is followed: an exception may name itself among them."""
EXIT_SECONDS = 5
"""How long a JVM that answers no call any more may take to end."""


# ---- the JVM and its session


def jvm(spark: SparkSession) -> Any:
    """Return the door to the classes of the driver's JVM, which has Kafka's admin client, Hadoop and Delta."""
    return spark.sparkContext._jvm


def start_jvm(conf: SparkConf, stderr: int | None = None) -> Any:
    """Start the JVM of this process, if there is none, without a Spark in it yet; return the door to its classes.

    `stderr` is the descriptor to which the JVM writes its errors; None: that of this process. The JVM is in a process
    group of its own: SIGTERM to the group of this process, as `timeout` sends it, would end the JVM in the middle of a
    batch. It ends when this process does, since its standard input ends then.
    """
    group: dict[str, Any] = {"start_new_session": True}
    if sys.version_info >= (3, 11):
        group = {"process_group": 0}  # in the session of the terminal
    # The lock as PySpark takes it: whoever asks for a context meanwhile waits, and starts no second JVM.
    with SparkContext._lock:
        if not SparkContext._gateway:
            gateway = launch_gateway(conf, {"stderr": stderr, **group})  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    return SparkContext._jvm


def causes_in_jvm(error: BaseException) -> list[tuple[str, str]]:
    """Return class and message of an exception of the JVM, and of each of its causes; none if the JVM raised nothing.

    Spark gives the exception of a task as the cause of that of its job.
    """
    thrown = getattr(error, "_origin", None)
    if isinstance(error, Py4JJavaError):
        thrown = error.java_exception
    causes: list[tuple[str, str]] = []
    with suppress(Py4JError):  # the JVM has ended meanwhile
        while thrown is not None and len(causes) < MOST_CAUSES:
            causes.append((thrown.getClass().getName(), str(thrown.getMessage() or "")))
            thrown = thrown.getCause()
    return causes


def first_cause(error: BaseException) -> str:
    """Return the message of the JVM's first exception: the others only report that something could not be made."""
    causes = causes_in_jvm(error)
    if not causes:
        return first_line(error)
    name, message = causes[-1]
    said = (message or name).splitlines()[0]
    is_of_jvm = (
        message and name.startswith("java.lang.") and name.endswith("Error")
    )  # its message is half of a sentence
    return f"{name}: {said}" if is_of_jvm else said


def path_of(spark: SparkSession, url: str) -> str:
    """Return the path of a file as readers take it: without the escapes of its URL."""
    return str(_hadoop_path(spark, url).toString())


def storage_answers(spark: SparkSession, url: str) -> bool:
    """Return whether the storage gives a whole file, or says that there is none, or that its checksum is wrong.

    The driver reads the file to its end.
    """
    hadoop = jvm(spark).org.apache.hadoop
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    path = _hadoop_path(spark, url)
    nowhere = jvm(spark).java.io.OutputStream.nullOutputStream()
    try:
        hadoop.io.IOUtils.copyBytes(path.getFileSystem(conf).open(path), nowhere, conf, True)
    except Py4JJavaError as error:
        said = {name.rpartition(".")[2] for name, _ in causes_in_jvm(error)}
        return bool(said & {"FileNotFoundException", "ChecksumException"})
    return True


def files_of_batch(batch: DataFrame) -> list[tuple[str, str, int]]:
    """Return the files that a batch of a stream of files scans: URL, path, and change in µs since 1970.

    Empty if its plan is not as in Spark 4.0 to 4.2: then a job has to tell them.
    """
    files = []
    classes = jvm(batch.sparkSession)
    try:
        scan = batch._jdf.queryExecution().toRdd()
        while scan.getClass().getSimpleName() != "FileScanRDD":
            scan = scan.dependencies().apply(0).rdd()
        parts = scan.filePartitions()
        for place in range(parts.size()):
            for file in parts.apply(place).files():
                path = file.filePath().toPath().toString()
                # Spark names a file so in `_metadata`: of a local one its own path has two slashes more.
                url = classes.org.apache.hadoop.fs.Path(path).toUri().toString()
                files.append((url, path, file.modificationTime() * 1000))
    except Py4JError:
        return []
    return files


def nanos_of_parquet(spark: SparkSession, path: str) -> dict[str, bool]:
    """Return the columns of a Parquet file that are times in nanoseconds, and whether they are instants (UTC).

    Raises ValueError if such times are inside of another column.
    """
    parquet = jvm(spark).org.apache.parquet.hadoop
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    place = jvm(spark).org.apache.hadoop.fs.Path(path)
    reader = parquet.ParquetFileReader.open(parquet.util.HadoopInputFile.fromPath(place, conf))
    try:
        schema = reader.getFooter().getFileMetaData().getSchema()
    finally:
        reader.close()
    columns = {}
    for field in schema.getFields().toArray():
        kind = str(field.getLogicalTypeAnnotation() or "")
        if kind.startswith(NANOS):
            columns[field.getName()] = kind.endswith("true)")
    if str(schema).count(NANOS) > len(columns):
        raise ValueError("times in nanoseconds inside of a column cannot be read")
    return columns


def _hadoop_path(spark: SparkSession, url: str) -> Any:
    classes = jvm(spark)
    return classes.org.apache.hadoop.fs.Path(classes.java.net.URI(url))


class _NotConverted(captured.UnknownException):
    """What PySpark takes for an exception that it does not know: it raises py4j's own."""

    def __init__(self) -> None:
        """Ask the JVM nothing, as the exception of PySpark does."""


@contextmanager
def unconverted_errors() -> Iterator[None]:
    """Let exceptions of the JVM be raised as py4j's own, not as PySpark's, while the session is made.

    PySpark asks the session for a setting to convert one. If the session cannot be made, that raises as well, and is
    converted: after a hundred attempts to make it, which take minutes, Python ends the recursion.
    """
    # It wraps the conversion when it is first imported, which before 4.4 Delta leaves to others.
    import delta.exceptions.captured  # noqa: F401, PLC0415  `check` needs no Delta

    def leave(e: Any) -> captured.CapturedException:
        return _NotConverted()

    convert = captured.convert_exception
    captured.convert_exception = leave
    try:
        yield
    finally:
        captured.convert_exception = convert


def has_jvm() -> bool:
    """Return whether this process has started a JVM, or is just starting one."""
    return bool(SparkContext._gateway)


def stop_jvm() -> None:
    """End the JVM of this process, in which no Spark runs."""
    with SparkContext._lock:
        if SparkContext._gateway:
            SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None


def jvm_exit_status(error: BaseException) -> int | None:
    """Return the exit status of the JVM whose start has raised an error, below zero for a signal; None if it runs.

    PySpark hands out the JVM's process only once its start has succeeded: until then it is a local variable.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    broken_off = isinstance(error, Py4JNetworkError | OSError)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "launch_gateway":
            process = frame.f_locals.get("proc")
            broken_off = True
    if process is None:
        return None
    if not broken_off:
        return cast("int | None", process.poll())
    try:
        status: int = process.wait(EXIT_SECONDS)  # the call fails a moment before the process has ended
    except subprocess.TimeoutExpired:
        return None
    return status


def jars_of_new_jvm(conf: SparkConf) -> list[str]:
    """Start a JVM, which resolves the packages that its settings name; return where their jars are."""
    try:
        jars = start_jvm(conf).java.lang.System.getProperty("spark.jars") or ""
        return [jar.removeprefix("file://").removeprefix("file:") for jar in jars.split(",") if jar]
    finally:
        stop_jvm()


def is_running(session: SparkSession) -> bool:
    """Return whether Spark runs: its JVM may be killed, or end itself for want of memory."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):  # the JVM does not answer, or PySpark has dropped it
        return False


def map_in_arrow(
    frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: Any
) -> DataFrame:
    """Return `mapInArrow` of a frame whose columns have any names: PySpark itself reads one with a dot as a path."""
    names = frame.columns
    if not any(sign in name for name in names for sign in ".`"):
        return frame.mapInArrow(task, schema)

    def run_with_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{place}" for place in range(len(names)))).mapInArrow(run_with_names, schema)


def file_manager() -> str:
    """Return the class of Spark that writes the notes of queries by Hadoop's `FileSystem`; Spark 4.1 has moved it."""
    moved = "" if pyspark.__version__.startswith("4.0.") else ".checkpointing"
    return f"org.apache.spark.sql.execution.streaming{moved}.FileSystemBasedCheckpointFileManager"


def builder_options(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the settings that a builder has taken."""
    return dict(builder._options)


def tame_accumulators(session: SparkSession) -> None:
    """Keep PySpark's server of accumulators from printing a stack when the JVM is gone: the router logs a sentence.

    It also ends by itself: the end of a session would wait for it for up to a second.
    """
    server: Any = session.sparkContext._accumulatorServer
    vars(server)["handle_error"] = lambda request, address: None
    end = partial(type(server).shutdown, server)
    vars(server)["shutdown"] = lambda: Thread(target=end, name="end of accumulators", daemon=True).start()


@cache
def ask_for_names_once() -> None:
    """Let this process ask a JVM once for each class, package and static method that it uses.

    py4j asks at every use, for `functions` and then for `col` in each `F.col`, and the JVM looks for a class of that
    name in all of its jars: two thirds of the time that a column takes, a seventh of the CPU of short runs.
    """
    for kind in (JVMView, JavaPackage, JavaClass):
        kind.__getattr__ = _remember_names(kind.__getattr__)


def _remember_names(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def get_name(parent: Any, name: str) -> Any:
        found = ask(parent, name)
        # To py4j a class that is not there is a package. It may come with a jar, and fields change: both are not kept.
        if isinstance(found, JavaClass | JavaMember) or (isinstance(found, JavaPackage) and name.islower()):
            vars(parent)[name] = found
        return found

    return get_name


NANOS = "TIMESTAMP(NANOS"
"""The beginning of Parquet's type of times in nanoseconds, with which pandas writes all of its times."""
QUERY_CLASSES = (
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
"""The class that runs a query and logs why one fails: its names in Spark 4.0 and 4.2."""


def log_level(session: SparkSession, logger: str, level: str) -> None:
    """Set how much a logger of the JVM prints: OFF, ERROR, ..."""
    log4j = jvm(session).org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.toLevel(level))


def collect_garbage(session: SparkSession) -> None:
    """Let the driver's JVM collect its garbage now, before its memory is looked at."""
    jvm(session).java.lang.System.gc()


def python_daemon() -> Callable[[], None]:
    """Return the main function of the process from which PySpark forks Python workers."""
    from pyspark.daemon import manager  # noqa: PLC0415 - of that process only

    return manager


# ---- columns and plans


def null_if_raising(column: Column) -> Column:
    """Return a column, a struct best, with null wherever evaluating it raises: Spark has no public form of this."""
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None  # noqa: PT018 - a column cannot exist without
    spark = context._jvm.org.apache.spark.sql
    expression = spark.classic.ExpressionUtils.expression(F.struct(column.alias("value"))._jc)
    caught = Column(spark.classic.ExpressionUtils.column(spark.catalyst.expressions.TryEval(expression)))
    return caught.getField("value")


def analysed_plan(frame: DataFrame) -> Any:
    """Return the plan of a frame with all names looked up; a node of Catalyst, in the JVM."""
    return frame._jdf.queryExecution().analyzed()


def optimised_plan(frame: DataFrame) -> Any:
    """Return the optimised plan of a selection whose analysed plan is a projection; a node of Catalyst.

    Only its expressions are looked at: the plan that they are read from is left off. Raises if a constant does.
    """
    session = frame.sparkSession
    door = jvm(session)
    leaf = door.org.apache.spark.sql.catalyst.plans.logical.OneRowRelation()
    plan = analysed_plan(frame).withNewChildren(door.PythonUtils.toSeq([leaf]))
    return session._jsparkSession.sessionState().optimizer().execute(plan)


def schema_text(frame: DataFrame) -> str:
    """Return the columns of a frame as the catalog writes them, collations included."""
    return cast("str", frame._jdf.schema().catalogString())


# ---- Arrow's types and Spark's


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the type in which Spark hands values of a column to Python tasks; timestamps are of UTC.

    PySpark 4.0 and 4.1 take UTC as an argument, 4.2 the name of the zone.
    """
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - it imports pandas

    return to_arrow_type(kind, **_utc_argument(to_arrow_type))


def to_arrow_columns(columns: StructType) -> pa.Schema:
    """Return the columns of a frame as Arrow has them in Python tasks; timestamps are of UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    return to_arrow_schema(columns, **_utc_argument(to_arrow_schema))


def _utc_argument(function: Callable[..., Any]) -> dict[str, Any]:
    if "timestamp_utc" in inspect.signature(function).parameters:
        return {"timestamp_utc": True}
    return {"timezone": "UTC"}


def to_spark_columns(columns: pa.Schema, *, ntz: bool = False) -> StructType:
    """Return Arrow's columns as those of a frame; `ntz`: timestamps without a zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    return from_arrow_schema(columns, prefer_timestamp_ntz=ntz)


def to_spark_type(kind: pa.DataType) -> DataType:
    """Return the type of a frame's column for one of Arrow; timestamps without a zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    return from_arrow_type(kind, prefer_timestamp_ntz=True)


# ---- Delta on Spark


def set_hadoop(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set settings of Hadoop's file systems; unlike the settings of a session they are shown nowhere."""
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        hadoop.set(name, value)


def hadoop_lacks(spark: SparkSession, address: str) -> str:
    """Return why Hadoop has no file system for an address; an empty text if it has one."""
    classes: Any = jvm(spark)
    try:
        classes.org.apache.hadoop.fs.Path(address).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    except Py4JError as error:
        return first_line(error)
    return ""


def hadoop_version(spark: SparkSession) -> str:
    """Return the version of Hadoop that Spark runs with: its other file systems have to be of the same."""
    return str(jvm(spark).org.apache.hadoop.util.VersionInfo.getVersion())


def delta_snapshot(spark: SparkSession, address: str) -> Any:
    """Return the newest snapshot of a Delta table as Delta on Spark has it; None if there is no table."""
    classes: Any = jvm(spark)
    log = classes.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, address)
    if not log.tableExists():
        return None
    nothing = classes.scala.Option.empty()
    return log.update(False, nothing, nothing)


def recompute_statistics(spark: SparkSession, address: str) -> None:
    """Let Delta read the files of a table and note their statistics; open Delta has no command for that."""
    delta = jvm(spark).org.apache.spark.sql.delta
    statistics = getattr(getattr(delta.stats, "StatisticsCollection$"), "MODULE$")
    log = delta.DeltaLog.forTable(spark._jsparkSession, address)
    none = getattr(getattr(jvm(spark).scala, "None$"), "MODULE$")
    every = [getattr(statistics, f"recompute$default${number}")() for number in (4, 5)]  # all rows, all files
    statistics.recompute(spark._jsparkSession, log, none, *every)
