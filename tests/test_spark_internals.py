"""What Spark and Delta keep for themselves is still there, and does what the router takes it for.

A new Spark that fails one of these changes what the docstring says; the function of that name is the place to mend.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaPackage
from py4j.protocol import REFLECTION_COMMAND_NAME, Py4JJavaError
from pyspark.errors import NumberFormatException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router import spark_internals

if TYPE_CHECKING:
    from pathlib import Path


def test_a_session_that_runs_is_told_from_one_that_has_ended(spark: SparkSession) -> None:
    """Without it a run whose JVM was killed hangs, or retries for ever."""
    assert spark_internals.is_running(spark)
    assert spark_internals.has_jvm()
    assert not spark_internals.is_running(type("Ended", (), {"sparkContext": None})())


def test_the_jvm_s_classes_can_be_called(spark: SparkSession) -> None:
    """Without it Kafka's admin client is out of reach: no sample of a topic, no start after a lost checkpoint."""
    assert spark_internals.jvm(spark).java.lang.Math.abs(-3) == 3
    spark_internals.collect_garbage(spark)


def test_the_jvm_is_asked_for_a_name_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every column costs three questions to the JVM in place of one."""
    door = spark_internals.jvm(spark)
    sent: list[str] = []
    send = door._gateway_client.send_command

    def note(command: str, *args: Any, **kwargs: Any) -> Any:
        sent.append(command)
        return send(command, *args, **kwargs)

    F.col("a")
    door.java.lang.Math.abs(-3)
    monkeypatch.setattr(door._gateway_client, "send_command", note)
    F.col("a")
    door.java.lang.Math.abs(-3)
    assert [command for command in sent if command.startswith(REFLECTION_COMMAND_NAME)] == []

    assert isinstance(door.java.lang.Later, JavaPackage)  # as long as no jar has it
    assert isinstance(door.java.lang.Later, JavaPackage)
    assert len([command for command in sent if "java.lang.Later" in command]) == 2


def test_exceptions_of_the_jvm_can_be_left_as_they_are(spark: SparkSession) -> None:
    """Without it a setting that Spark refuses is said after minutes: the conversion asks for the session that fails."""
    number = spark_internals.jvm(spark).java.lang.Integer
    with spark_internals.unconverted_errors(), pytest.raises(Py4JJavaError):
        number.parseInt("x")
    with pytest.raises(NumberFormatException):
        number.parseInt("x")


def test_the_first_cause_of_an_error_is_found(spark: SparkSession) -> None:
    """Without it a metastore that refuses connections is "unable to instantiate" some client."""
    java = spark_internals.jvm(spark).java.lang
    error = java.RuntimeException("unable to start", java.IllegalStateException("no answer"))
    future = spark_internals.jvm(spark).java.util.concurrent.CompletableFuture.failedFuture(error)

    with spark_internals.unconverted_errors(), pytest.raises(Py4JJavaError) as raw:
        future.join()
    assert spark_internals.first_cause(raw.value) == "no answer"
    with pytest.raises(NumberFormatException) as converted:
        java.Integer.parseInt("x")
    assert spark_internals.first_cause(converted.value) == 'For input string: "x"'


def test_a_builder_says_what_it_was_given() -> None:
    """Without it the JVM that is started ahead has other settings than the session, and starts twice."""
    assert spark_internals.builder_options(SparkSession.Builder().config("spark.x", "1")) == {"spark.x": "1"}


def test_a_logger_can_be_silenced(spark: SparkSession) -> None:
    """Without it a batch that fails prints the stack of Spark's query under the router's one line."""
    spark_internals.log_level(spark, "router.test", "OFF")
    manager = spark_internals.jvm(spark).org.apache.logging.log4j.LogManager
    assert manager.getLogger("router.test").getLevel().toString() == "OFF"


def test_the_class_that_logs_failed_queries_is_known(spark: SparkSession) -> None:
    """Without it a batch that fails prints the stack of Spark's query under the router's one line."""
    loader = spark_internals.jvm(spark).java.lang.ClassLoader.getSystemClassLoader()
    files = [f"{name.replace('.', '/')}.class" for name in spark_internals.QUERY_CLASSES]
    assert any(loader.getResource(file) is not None for file in files)


def test_the_accumulator_server_can_be_silenced(spark: SparkSession) -> None:
    """Without it the end of a JVM prints a stack of PySpark's."""
    spark_internals.tame_accumulators(spark)
    assert spark.sparkContext._accumulatorServer.handle_error(None, None) is None


def test_a_session_does_not_wait_for_its_accumulator_server() -> None:
    """Without it each command that has started Spark waits for up to a second at its end."""
    ending, ended = threading.Event(), threading.Event()

    class Server:
        def shutdown(self) -> None:
            ending.wait()
            ended.set()

    server = Server()
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server))
    spark_internals.tame_accumulators(session)
    server.shutdown()
    assert not ended.is_set()
    ending.set()
    assert ended.wait(60)


def test_python_workers_are_forked_from_a_daemon_that_can_be_replaced() -> None:
    """Without it a local run imports what a task needs once for every core."""
    assert callable(spark_internals.python_daemon())


def test_a_column_that_raises_is_null(spark: SparkSession) -> None:
    """Without it one row on which a rule raises stops a batch."""
    raising = F.when(F.col("id") >= 0, F.raise_error(F.lit("no")).cast("int"))
    (row,) = spark.range(1).select(spark_internals.null_if_raising(F.struct(raising.alias("x"))).alias("it")).collect()
    assert row["it"] is None


def test_the_analysed_plan_has_its_expressions(spark: SparkSession) -> None:
    """Without it no rule is evaluated by Arrow: every route goes through Spark's columns, at twice the time."""
    plan = spark_internals.analysed_plan(spark.range(1).select((F.col("id") + 1).alias("x")))
    assert plan.projectList().apply(0).references().iterator().next().name() == "id"


def test_the_optimised_selection_has_its_expressions(spark: SparkSession) -> None:
    """Without it Arrow adds in another order than Spark, and a sum overflows in one of them only."""
    frame = spark.createDataFrame([], "a long, b long").select(F.expr("a + 1 + b + 2").alias("x"))
    (sum_,) = [spark_internals.optimised_plan(frame).projectList().apply(0).sql()]
    assert "3" in sum_


def test_the_schema_as_text_shows_a_collation(spark: SparkSession) -> None:
    """Without it texts with a collation are compared by Arrow, which compares their bytes."""
    plain, collated = spark.sql("SELECT 'a' AS x"), spark.sql("SELECT 'a' COLLATE UTF8_LCASE AS x")
    assert "collate" not in spark_internals.schema_text(plain).lower()
    assert "collate" in spark_internals.schema_text(collated).lower()


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (T.TimestampType(), pa.timestamp("us", "UTC")),
        (T.TimestampNTZType(), pa.timestamp("us")),
        (T.DecimalType(10, 2), pa.decimal128(10, 2)),
        (T.StringType(), pa.string()),
    ],
    ids=str,
)
def test_types_are_those_of_python_tasks(kind: T.DataType, arrow: pa.DataType) -> None:
    """Without it a table's timestamps have no zone, or a projection raises TypeError (Spark 4.2)."""
    assert spark_internals.arrow_type(kind) == arrow
    assert spark_internals.to_arrow_columns(T.StructType([T.StructField("x", kind)])).field("x").type == arrow
    assert spark_internals.to_spark_type(arrow) == kind
    assert spark_internals.to_spark_columns(pa.schema([pa.field("x", arrow)]), ntz=True)["x"].dataType == kind


def test_a_table_of_delta_on_spark_has_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    """Without it tables that only Delta on Spark can write are quarantined."""
    place = str(tmp_path / "table")
    assert spark_internals.delta_snapshot(spark, place) is None
    spark.range(3).write.format("delta").save(place)
    assert spark_internals.delta_snapshot(spark, place).version() == 0


@pytest.mark.slow
def test_statistics_are_recomputed(spark: SparkSession, tmp_path: Path) -> None:
    """Without it `maintenance` leaves files without statistics as they are, and queries read all of them."""
    place = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(place)
    spark_internals.recompute_statistics(spark, place)
    assert spark_internals.delta_snapshot(spark, place).version() >= 0


def test_a_file_system_that_is_not_there_is_named(spark: SparkSession) -> None:
    """Without it the first start with a checkpoint in a bucket ends in a hundred lines of Java."""
    assert spark_internals.hadoop_lacks(spark, "file:/tmp") == ""
    assert "nowhere" in spark_internals.hadoop_lacks(spark, "nowhere://bucket/x")
