"""The JVM is started with what the router wants and nothing that contradicts what was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from router.config.models import Config
from router.engine.spark import session
from router.engine.spark.session import (
    build_session,
    class_archive,
    java_options,
    settings_in,
    start_jvm_ahead,
    write_notes_directly,
)
from router.errors import VERBOSE, StartError
from router.spark_internals import jvm

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROUTER_CACHE", str(tmp_path))
    return tmp_path


def collectors(settings: dict[str, str]) -> list[str]:
    return [one for one in java_options(settings).split() if "GC" in one]


def asked(options: str) -> list[str]:
    return java_options({"spark.driver.extraJavaOptions": options}).split()


def test_the_log_of_spark_is_its_own_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody sees what Spark says about a fault of the cluster."""
    monkeypatch.setenv(VERBOSE, "")
    assert any("log4j2.configurationFile" in option for option in java_options({}).split())

    monkeypatch.setenv(VERBOSE, "1")

    assert not any("log4j" in option for option in java_options({}).split())


def test_a_collector_that_was_asked_for_stands_alone() -> None:
    """Without it the JVM ends with `Multiple garbage collectors selected`."""
    assert collectors({}) == ["-XX:+UseParallelGC"]
    assert collectors({"spark.driver.extraJavaOptions": "-XX:+UseG1GC -Dx=1"}) == []
    assert collectors({"spark.driver.extraJavaOptions": "-Dx=1"}) == ["-XX:+UseParallelGC"]


def test_the_archive_of_classes_is_used_once_it_is_there() -> None:
    """Without it a start takes seconds longer."""
    class_archive().write_bytes(b"")
    assert f"-XX:SharedArchiveFile={class_archive()}" in asked("")


def test_no_archive_is_used_while_another_one_is_asked_for_or_made() -> None:
    """Without it the JVM refuses to start: it reads one archive and cannot make one while it does."""
    class_archive().write_bytes(b"")
    assert not [one for one in asked("-XX:ArchiveClassesAtExit=/tmp/x.jsa") if "Archive" in one]


def test_avro_is_kept_from_making_room_for_what_a_record_claims() -> None:
    """Without it one record of ten bytes ends the JVM."""
    assert sum("avro.limits" in one for one in asked("-Dx=1")) == 3


def test_a_log_that_was_asked_for_stands_alone() -> None:
    """Without it nobody can see what Spark would say."""
    own = "-Dlog4j2.configurationFile=file:/etc/own.properties"
    assert [option for option in asked(own) if "log4j" in option] == []
    (option,) = [option for option in asked("-Dx=1") if "log4j" in option]
    assert Path(unquote(urlsplit(option.partition("=")[2]).path)).is_file()


def young(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, cores: int = 2) -> list[str]:
    monkeypatch.setattr(session, "usable_cores", lambda: cores)
    return [one for one in java_options(settings).split() if "NewSize" in one]


def test_the_young_part_of_the_heap_grows_with_the_cores_and_not_with_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a heap of 4 GB holds a gigabyte of garbage at any time."""
    assert young({"spark.driver.memory": "4g"}, monkeypatch) == ["-XX:MaxNewSize=192m"]
    assert young({"spark.driver.memory": "4g"}, monkeypatch, cores=8) == ["-XX:MaxNewSize=768m"]


@pytest.mark.parametrize("memory", ["512m", "2000000k", "half of it"])
def test_the_young_part_of_a_heap_that_is_small_or_unknown_is_left_to_the_jvm(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the JVM warns at every start, or old objects have no place."""
    assert young({"spark.driver.memory": memory}, monkeypatch) == []


def test_a_young_part_that_was_asked_for_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the router would overrule what somebody has measured."""
    assert young({"spark.driver.extraJavaOptions": "-Xmn512m"}, monkeypatch) == []
    assert java_options({"spark.driver.extraJavaOptions": "-XX:NewSize=1m"}).count("NewSize") == 0


def written(folder: Path, text: str) -> Path:
    path = folder / "router.yaml"
    path.write_text(text)
    return path


def test_the_jvm_gets_the_settings_as_the_configuration_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the JVM would start with another heap than was asked for."""
    monkeypatch.setenv("HEAP", "3g")
    text = "name: x\nspark: {spark.driver.memory: '${HEAP}', spark.ui.enabled: false, spark.x: 010}\n"
    found = {"spark.driver.memory": "3g", "spark.ui.enabled": "false", "spark.x": "010"}
    assert settings_in(written(tmp_path, text)) == found
    assert settings_in(written(tmp_path, "name: x\n")) == {}


@pytest.mark.parametrize("text", ["", "a: [", "spark: 3", "spark: {a: '${NOWHERE_SET}'}", "- a"])
def test_the_jvm_is_not_started_ahead_for_what_cannot_be_read(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a wrong file would leave a process behind, in place of a sentence."""
    begun: list[object] = []
    monkeypatch.setattr(session.starting, "begin", lambda *about: begun.append(about))
    for of_jars in ("known_jars", "resolved_jars"):
        monkeypatch.setattr(session, of_jars, lambda connectors, asked: ["/delta.jar"])
    monkeypatch.setattr(SparkContext, "_gateway", None)
    start_jvm_ahead(written(tmp_path, text), None)
    start_jvm_ahead(tmp_path / "absent.yaml", None)
    start_jvm_ahead(written(tmp_path, "name: x"), "spark://elsewhere:7077")
    assert begun == []
    start_jvm_ahead(written(tmp_path, "name: x"), None)
    assert len(begun) == 1


def test_a_jvm_with_other_settings_than_the_configuration_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a session would run in a JVM that is not what was asked for."""
    ended: list[bool] = []

    class Gateway:
        def shutdown(self) -> None:
            ended.append(True)

    class Thread:
        def join(self) -> None:
            monkeypatch.setattr(SparkContext, "_gateway", Gateway())

    monkeypatch.setattr(SparkContext, "_jvm", SparkContext._jvm)  # other tests want it back
    for asked in ({"a": "1"}, {"a": "2"}):
        monkeypatch.setattr(session.starting, "settings", {"a": "1"})
        monkeypatch.setattr(session.starting, "thread", Thread())
        session._stop_other_jvm(asked)
    assert ended == [True]
    assert SparkContext._gateway is None


def daemons(session: SparkSession) -> set[int]:
    """Return the processes that the workers of a session's tasks were forked from."""

    def parent(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"pid": pa.array([os.getppid()], pa.int64())})

    return {row["pid"] for row in session.range(2, numPartitions=2).mapInArrow(parent, "pid long").collect()}


def test_the_tasks_of_a_query_run_in_the_workers_that_the_start_has_tried(spark: SparkSession) -> None:
    """Without it a query, which has a copy of the session, would start a second daemon and import everything again."""
    copy = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    assert len(daemons(spark) | daemons(copy)) == 1


@pytest.mark.parametrize(
    ("settings", "master", "variable", "said"),
    [
        ({}, "sc://spark:15002", None, "--master is sc://spark:15002"),
        ({"spark.remote": "sc://spark:15002"}, None, None, "spark.remote is sc://spark:15002"),
        ({"spark.api.mode": "connect"}, None, None, "spark.api.mode is connect"),
        ({}, None, "SPARK_REMOTE", "the environment has SPARK_REMOTE"),
        ({}, None, "IS_SERVERLESS", "the environment has IS_SERVERLESS"),
    ],
    ids=["master", "remote", "api mode", "environment", "serverless"],
)
def test_spark_connect_is_refused_before_anything_starts(
    settings: dict[str, str],
    master: str | None,
    variable: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session.starting, "begin", lambda *_: pytest.fail("a JVM was started"))
    monkeypatch.setattr(SparkContext, "_gateway", None)
    if variable:
        monkeypatch.setenv(variable, "true")
    text = "spark:\n" + "".join(f"  {name}: {value}\n" for name, value in settings.items()) if settings else "name: x"

    session.start_jvm_ahead(written(tmp_path, text), master)
    with pytest.raises(StartError, match="needs a Spark driver of its own") as refused:
        build_session(Config.model_construct(name="games", spark=settings), master)

    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_cluster_without_a_context_is_refused_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(*_: object) -> None:
        raise RuntimeError("[JVM_ATTRIBUTE_NOT_SUPPORTED] Attribute `sparkContext` is not supported")

    monkeypatch.setattr(SparkContext, "getOrCreate", shared)

    with pytest.raises(StartError, match="dedicated access mode"):
        build_session(Config.model_construct(name="games", spark={}), "local[1]")


def test_a_setting_of_sql_that_spark_refuses_is_one_sentence(tmp_path: Path) -> None:
    """Without it a typing error under `spark:` is a hundred lines of Python and Java."""
    (tmp_path / "in").mkdir()
    (tmp_path / "games.yaml").write_text(
        "name: games\nlake: ./lake\nsource: {files: {path: ./in}}\ndecode: {json: {schema: 'a int'}}\n"
        "bronze: bronze.all\ndead_letters: ops.dead\nspark: {spark.sql.shuffle.partitions: many}\n"
    )
    command = [sys.executable, "-m", "router", "run", "--once", "games.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "incubator" not in done.stderr, "a JVM prints it at every start, in another form than the log has"
    assert "setLogLevel" not in done.stderr, "Spark prints it at every start"
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("router: Spark does not start: ")
    assert "spark.sql.shuffle.partitions" in sentence  # how Spark says the rest differs between its versions


def test_notes_in_a_local_checkpoint_start_no_program(spark: SparkSession, tmp_path: Path) -> None:
    """Without it Spark starts `readlink` a dozen times in each batch, which small batches wait for."""
    local, remote, own = (spark.newSession() for _ in range(3))
    own.conf.set(session.FILE_MANAGER, "another")
    write_notes_directly(local, str(tmp_path))
    write_notes_directly(remote, "s3://bucket/games")
    write_notes_directly(own, str(tmp_path))

    manager = local.conf.get(session.FILE_MANAGER)
    assert jvm(spark).java.lang.Class.forName(manager) is not None
    assert remote.conf.get(session.FILE_MANAGER, "none") == "none"
    assert own.conf.get(session.FILE_MANAGER) == "another"
